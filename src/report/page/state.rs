//! The state of a run, as far as its files show it.

use serde::Serialize;

use super::history::History;
use crate::report::events::Event;

/// The state of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct State {
    /// `complete`, `interrupted`, `running`, `failed` or `stopped`.
    pub word: &'static str,
    /// Details in words; empty if there are none.
    pub detail: String,
}

impl State {
    /// The state that `history` shows for a run to step `total` that is at `step`, if these are known. A run whose
    /// folder is locked is running, whatever its events say.
    pub fn of(history: &History, is_running: bool, total: Option<u64>, step: Option<u64>) -> Self {
        let state = |word, detail: &str| Self { word, detail: detail.to_string() };
        let percent = |total| 100.0 * step.unwrap_or(0).min(total) as f64 / total as f64;
        let percent = total.filter(|total| *total > 0).map(percent);
        match &history.end {
            _ if is_running => {
                state("running", &percent.map(|percent| format!("{percent:.1} % done")).unwrap_or_default())
            }
            Some(Event::Failed { text }) => state("failed", text),
            Some(Event::Interrupted { text }) => state("interrupted", text),
            Some(_) => state("complete", ""),
            // There is no events.jsonl.
            None if history.first.is_none() => {
                state(if percent == Some(100.0) { "complete" } else { "stopped" }, "")
            }
            None => {
                let step = step.map_or("before the first step".into(), |step| format!("after step {step}"));
                let why = "without saying why: killed, or written by another program";
                state("stopped", &format!("the files end {step} {why}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts() {
        let word = |end, is_running| {
            let history = History { first: Some("today".into()), end, ..History::default() };
            State::of(&history, is_running, Some(7), Some(7)).word
        };
        assert_eq!(word(Some(Event::Complete), false), "complete");
        assert_eq!(word(None, false), "stopped", "killed while it wrote its sample");
        assert_eq!(word(Some(Event::Interrupted { text: "x".into() }), false), "interrupted");
        assert_eq!(word(Some(Event::Failed { text: "disk full".into() }), false), "failed");
        assert_eq!(word(Some(Event::Failed { text: "x".into() }), true), "running");
    }

    #[test]
    fn progress_is_the_share_of_the_planned_steps() {
        let detail = |total, step| State::of(&History::default(), true, total, step).detail;
        assert_eq!(detail(Some(12), Some(1)), "8.3 % done");
        assert_eq!(detail(Some(12), Some(13)), "100.0 % done");
        assert_eq!(detail(Some(12), None), "0.0 % done");
        assert_eq!([detail(None, Some(1)), detail(Some(0), Some(0))], ["", ""]);
    }

    #[test]
    fn without_events_the_settings_tell_whether_a_run_is_complete() {
        let word = |total, step| State::of(&History::default(), false, total, Some(step)).word;
        assert_eq!(
            [word(Some(12), 12), word(Some(12), 11), word(None, 12)],
            ["complete", "stopped", "stopped"]
        );
    }
}

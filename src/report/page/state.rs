//! How a run stands, as far as its files tell.

use serde::Serialize;

use super::journal::{End, Journal};

/// How a run stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct State {
    /// `complete`, `interrupted`, `running`, `failed` or `stopped`.
    pub word: &'static str,
    /// More about it, in words; empty where there is no more to say.
    pub detail: String,
}

impl State {
    /// What `journal` tells of a run after `step`. A run whose folder is locked is running, whatever the log says.
    pub fn of(journal: &Journal, is_running: bool, step: Option<u64>) -> Self {
        let state = |word, detail: &str| Self { word, detail: detail.to_string() };
        let percent = journal.percent;
        match &journal.end {
            _ if is_running => {
                state("running", &percent.map(|percent| format!("{percent} % done")).unwrap_or_default())
            }
            Some(End::Failed(error)) => state("failed", error),
            Some(End::Interrupted(line)) => state("interrupted", line),
            None if percent.is_some_and(|percent| percent >= 100.0) => state("complete", ""),
            None => {
                let step = step
                    .map_or_else(|| "before the first step".to_string(), |step| format!("after step {step}"));
                state(
                    "stopped",
                    &format!(
                        "the files end {step} without saying why: killed, or written by another program"
                    ),
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts() {
        let word = |percent, end, is_running| {
            State::of(&Journal { percent, end, ..Journal::default() }, is_running, Some(7)).word
        };
        assert_eq!(word(Some(100.0), None, false), "complete");
        assert_eq!(word(Some(99.5), None, false), "stopped");
        assert_eq!(word(None, None, false), "stopped");
        assert_eq!(word(Some(50.0), Some(End::Interrupted("x".into())), false), "interrupted");
        // Resumed, so that the end of the start before it does not matter any more.
        assert_eq!(word(Some(50.0), Some(End::Failed("x".into())), true), "running");
        assert_eq!(word(Some(100.0), Some(End::Failed("disk full".into())), false), "failed");
    }
}

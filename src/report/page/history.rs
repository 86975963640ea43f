//! The history of a run from its `events.jsonl`: what it announced, how it ended, its samples, its warnings and errors.

use serde::Serialize;

use crate::report::events::{Event, Line};

/// Limits: this many samples, the newest, and this many warnings and errors, the first and the newest, are kept.
const MOST_SAMPLES: usize = 20;
const MOST_TROUBLES: usize = 100;

/// This many of the lines that a start announces are kept.
const MOST_ANNOUNCED: usize = 100;

/// This many bytes of a text are kept.
const LONGEST_TEXT: usize = 20_000;

/// The history of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct History {
    /// When the run was first started, in RFC 3339.
    pub first: Option<String>,
    /// When it ended; `None` unless it ended by itself.
    pub last: Option<String>,
    /// Number of times that it was started or resumed.
    pub starts: u64,
    /// The lines that the last start announced.
    pub announced: Vec<String>,
    pub samples: Vec<Line>,
    /// Warnings and errors.
    pub troubles: Vec<Line>,
    /// Number of warnings and errors that are not in `troubles`.
    pub troubles_left_out: u64,
    /// The last step that the run should do.
    pub total_steps: Option<u64>,
    /// Steps per epoch.
    pub steps_per_epoch: Option<u64>,
    /// How the last start ended, if it ended by itself.
    #[serde(skip)]
    pub end: Option<Event>,
}

impl History {
    /// Takes in a line of the file. Returns whether it is a line that runs write.
    pub fn take(&mut self, line: &[u8]) -> bool {
        let Ok(mut line) = serde_json::from_slice::<Line>(line) else { return false };
        shorten(&mut line.time);
        line.event.texts().iter_mut().for_each(shorten);
        self.first.get_or_insert_with(|| line.time.clone());
        match line.event {
            Event::Start { total_steps, steps_per_epoch, mut announced, .. } => {
                announced.truncate(MOST_ANNOUNCED);
                (self.announced, self.total_steps) = (announced, Some(total_steps));
                self.steps_per_epoch = steps_per_epoch;
                self.starts += 1;
                (self.last, self.end) = (None, None);
            }
            Event::Warning { .. } | Event::Error { .. } => self.add_trouble(line),
            Event::Sample { .. } => {
                self.samples.push(line);
                self.samples.drain(..self.samples.len().saturating_sub(MOST_SAMPLES));
            }
            Event::Complete | Event::Interrupted { .. } | Event::Failed { .. } => {
                if matches!(line.event, Event::Failed { .. }) {
                    self.add_trouble(line.clone());
                }
                (self.last, self.end) = (Some(line.time), Some(line.event));
            }
        }
        true
    }

    fn add_trouble(&mut self, line: Line) {
        if self.troubles.len() == MOST_TROUBLES {
            self.troubles.remove(MOST_TROUBLES / 2);
            self.troubles_left_out += 1;
        }
        self.troubles.push(line);
    }
}

/// Cuts `text` to the length that is kept.
fn shorten(text: &mut String) {
    let end = (0..=text.len().min(LONGEST_TEXT)).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
    text.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The history after these events, which are a second apart.
    fn history(events: impl IntoIterator<Item = Event>) -> History {
        let mut history = History::default();
        for (second, event) in events.into_iter().enumerate() {
            let line = serde_json::to_vec(&Line { time: time(second), event }).unwrap();
            assert!(history.take(&line));
        }
        history
    }

    fn time(second: usize) -> String {
        format!("2026-11-22T18:30:{second:02}.843143Z")
    }

    fn start(step: u64, line: &str) -> Event {
        Event::Start { step, total_steps: 10, steps_per_epoch: Some(5), announced: vec![line.into()] }
    }

    fn warning(text: impl Into<String>) -> Event {
        Event::Warning { text: text.into() }
    }

    fn failed(text: &str) -> Event {
        Event::Failed { text: text.into() }
    }

    #[test]
    fn a_run_that_is_complete() {
        let sample = Event::Sample { tokens: 20, text: "pub fn </script>\n\n}".into() };
        let events = [warning("an old key"), start(0, "adapter: a toaster"), sample.clone(), Event::Complete];
        let history = history(events);
        assert_eq!((history.starts, &history.announced[..]), (1, &["adapter: a toaster".into()][..]));
        assert_eq!((history.total_steps, &history.end), (Some(10), &Some(Event::Complete)));
        assert_eq!((history.first, history.last), (Some(time(0)), Some(time(3))));
        assert_eq!(history.samples, [Line { time: time(2), event: sample }]);
        assert_eq!(history.troubles, [Line { time: time(0), event: warning("an old key") }]);
    }

    #[test]
    fn a_resumed_run_is_what_its_last_start_says() {
        let events = [start(0, "adapter: a toaster"), failed("loss: not finite\nsecond line")];
        let first = history(events.clone());
        assert_eq!((&first.end, &first.last), (&Some(events[1].clone()), &Some(time(1))));
        assert_eq!(first.troubles, [Line { time: time(1), event: events[1].clone() }]);
        let second = history(events.into_iter().chain([start(4, "adapter: a kettle")]));
        assert_eq!((second.starts, &second.end, &second.last), (2, &None, &None));
        assert_eq!((second.announced, second.first), (vec!["adapter: a kettle".into()], Some(time(0))));
    }

    #[test]
    fn only_the_newest_samples_are_kept() {
        let sample = |number: usize| Event::Sample { tokens: number, text: String::new() };
        let history = history((0..50).map(sample));
        assert_eq!(history.samples.len(), MOST_SAMPLES);
        assert_eq!(history.samples[MOST_SAMPLES - 1].event, sample(49));
    }

    #[test]
    fn a_flood_of_warnings_keeps_the_first_and_the_newest() {
        let history = history((0..1000).map(|number| warning(format!("number {number}"))));
        assert_eq!((history.troubles.len(), history.troubles_left_out), (MOST_TROUBLES, 900));
        assert_eq!(history.troubles[0].event, warning("number 0"));
        assert_eq!(history.troubles[MOST_TROUBLES - 1].event, warning("number 999"));
    }

    #[test]
    fn endless_texts_are_cut() {
        let endless = "é".repeat(LONGEST_TEXT);
        let announced = vec![endless.clone(); MOST_ANNOUNCED + 1];
        let history = history([
            Event::Start { step: 0, total_steps: 1, steps_per_epoch: None, announced },
            warning(endless),
        ]);
        assert_eq!(history.announced.len(), MOST_ANNOUNCED);
        assert!(history.announced.iter().all(|line| line.len() == LONGEST_TEXT));
        assert_eq!(history.troubles[0].event, warning("é".repeat(LONGEST_TEXT / 2)));
    }

    #[test]
    fn lines_that_no_run_writes_are_told_and_change_nothing() {
        let mut history = History::default();
        for line in [
            "no JSON",
            "7",
            "{}",
            r#"{"time":"2026-11-22T18:30:29Z","kind":"holiday"}"#,
            r#"{"time":"2026-11-22T18:30:29Z","kind":"warning","text":7}"#,
            r#"{"kind":"complete"}"#,
            r#"{"time":"2026-11-22T18:30:29Z","kind":"comple"#,
            "\u{fffd}",
        ] {
            assert!(!history.take(line.as_bytes()), "{line}");
        }
        assert_eq!(history, History::default());
        // Keys that a later version adds to an event are skipped.
        assert!(history.take(br#"{"time":"2026-11-22T18:30:29Z","kind":"complete","host":"a kettle"}"#));
    }
}

//! `events.jsonl`: the events of a run other than its steps, one JSON object per line. The report reads it.

use serde::{Deserialize, Serialize};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// When it happened, in RFC 3339.
    pub time: String,
    #[serde(flatten)]
    pub event: Event,
}

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The run is started, or resumed after `step`, and trains to step `total_steps`, through epochs of
    /// `steps_per_epoch`. `announced` says on which data, on which device, and how.
    Start {
        step: u64,
        total_steps: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        steps_per_epoch: Option<u64>,
        announced: Vec<String>,
    },
    /// A warning, in the words of the log.
    Warning { text: String },
    /// An error that does not end the run.
    Error { text: String },
    /// The model has continued the prompt by `tokens` tokens; `text` has prompt and continuation.
    Sample { tokens: usize, text: String },
    /// The last step is done.
    Complete,
    /// A signal has ended the run.
    Interrupted { text: String },
    /// An error has ended the run.
    Failed { text: String },
}

impl Event {
    /// The line of an event that happens now, with its line feed.
    pub fn line(self) -> String {
        let mut time = String::new();
        // The time in the format of the log. Writing to a string does not fail.
        let _ = SystemTime.format_time(&mut Writer::new(&mut time));
        serde_json::to_string(&Line { time, event: self }).expect("numbers and strings are JSON") + "\n"
    }

    /// All texts in the event.
    pub fn texts(&mut self) -> &mut [String] {
        match self {
            Self::Start { announced, .. } => announced,
            Self::Complete => &mut [],
            Self::Warning { text }
            | Self::Error { text }
            | Self::Sample { text, .. }
            | Self::Interrupted { text }
            | Self::Failed { text } => std::slice::from_mut(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_with_the_documented_keys() {
        let announced = vec!["adapter: a \"toaster\"".into()];
        let start = Event::Start { step: 0, total_steps: 9, steps_per_epoch: None, announced };
        let sample = Event::Sample { tokens: 20, text: "one\ntwo".into() };
        let warning = Event::Warning { text: "it is warm".into() };
        for (event, json) in [
            (start, r#""kind":"start","step":0,"total_steps":9,"announced":["adapter: a \"toaster\""]"#),
            (sample, r#""kind":"sample","tokens":20,"text":"one\ntwo""#),
            (warning, r#""kind":"warning","text":"it is warm""#),
            (Event::Complete, r#""kind":"complete""#),
        ] {
            let text = event.clone().line();
            let line: Line = serde_json::from_str(&text).unwrap();
            assert_eq!(text, format!("{{\"time\":\"{}\",{json}}}\n", line.time));
            assert_eq!(line.event, event);
            let Line { time, .. } = line;
            assert!(time.starts_with("20") && time.as_bytes()[10] == b'T' && time.ends_with('Z'), "{time}");
        }
    }
}

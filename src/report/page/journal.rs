//! What `log.txt` tells of a run: what it announced, how it ended, its samples, its warnings and errors.

use serde::Serialize;

/// Beginnings of the lines that a run logs about itself before its first step.
const ANNOUNCED: [&str; 12] = [
    "training data: ",
    "evaluation data: ",
    "adapter: ",
    "model: ",
    "experts: ",
    "frozen: ",
    "adapters: ",
    "memory: ",
    "kernels: ",
    "ranks: ",
    "MFU is ",
    "the evaluation tokens have ",
];

/// The line that each start and resume of a run logs once, of those above.
const START: &str = "adapter: ";

/// At most so many samples, the newest, and so many warnings and errors, the first and the newest, are kept.
const MOST_SAMPLES: usize = 20;
const MOST_TROUBLES: usize = 100;

/// At most so many bytes of an entry are kept.
const LONGEST_ENTRY: usize = 20_000;

/// What the log of a run tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Journal {
    /// When the first entry was written, and the last one, in RFC 3339.
    pub first: Option<String>,
    pub last: Option<String>,
    /// How often the run was started or resumed.
    pub starts: u64,
    /// What the last start announced.
    pub announced: Vec<String>,
    pub samples: Vec<Entry>,
    /// Warnings and errors.
    pub troubles: Vec<Entry>,
    /// Warnings and errors that are not among them.
    pub troubles_left_out: u64,
    /// How much of the run was done at the last line that says so, in percent.
    #[serde(skip)]
    pub percent: Option<f64>,
    /// How the last start ended, if it came to an end of its own.
    #[serde(skip)]
    pub end: Option<End>,
    /// Where the text goes on that follows an entry without a time of its own.
    #[serde(skip)]
    pub open: Open,
    /// What was announced since the last step.
    #[serde(skip)]
    pub announcing: Vec<String>,
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Entry {
    pub time: String,
    /// `INFO`, `WARN` or `ERROR`.
    pub level: String,
    pub text: String,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// It saved after a signal: the line that says so.
    Interrupted(String),
    /// An error ended it.
    Failed(String),
}

/// The entry that lines without a time continue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Open {
    #[default]
    None,
    Sample,
    Trouble,
}

impl Journal {
    /// Takes in a line of the log.
    pub fn take(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end_matches('\r');
        match entry(line) {
            Some((time, level, text)) => self.begin(time, level, text),
            None => self.go_on(line),
        }
    }

    fn begin(&mut self, time: &str, level: &str, text: &str) {
        self.open = Open::None;
        self.first.get_or_insert_with(|| time.to_string());
        self.last = Some(time.to_string());
        let entry =
            || Entry { time: time.to_string(), level: level.to_string(), text: cut(text).to_string() };
        if level != "INFO" {
            self.end = (level == "ERROR").then(|| End::Failed(cut(text).to_string())).or(self.end.take());
            self.add_trouble(entry());
        } else if ANNOUNCED.iter().any(|start| text.starts_with(start)) {
            self.announce(text);
        } else if text.starts_with("a sample of ") {
            let title = text.trim_end_matches(':').to_string();
            self.samples.push(Entry { level: title, text: String::new(), ..entry() });
            self.samples.drain(..self.samples.len().saturating_sub(MOST_SAMPLES));
            self.open = Open::Sample;
        } else if text.starts_with("interrupted after step ") {
            self.end = Some(End::Interrupted(text.to_string()));
        } else if let Some(percent) = percent(text) {
            self.percent = Some(percent);
        }
    }

    /// A line that continues the entry before it.
    fn go_on(&mut self, line: &str) {
        let entry = match self.open {
            Open::None => return,
            Open::Sample => self.samples.last_mut(),
            Open::Trouble => self.troubles.last_mut(),
        };
        let Some(Entry { text, .. }) = entry else { return };
        if text.len() + line.len() < LONGEST_ENTRY {
            if !text.is_empty() || self.open == Open::Trouble {
                text.push('\n');
            }
            text.push_str(line);
        }
    }

    fn announce(&mut self, text: &str) {
        // The first of the lines of a start replaces those of the start before it.
        if text.starts_with("training data: ") || (text.starts_with(START) && self.has_announced(START)) {
            self.announcing.clear();
        }
        if text.starts_with(START) {
            self.starts += 1;
            self.end = None;
        }
        self.announcing.push(cut(text).to_string());
        self.announced.clone_from(&self.announcing);
    }

    fn has_announced(&self, start: &str) -> bool {
        self.announcing.iter().any(|text| text.starts_with(start))
    }

    fn add_trouble(&mut self, entry: Entry) {
        if self.troubles.len() == MOST_TROUBLES {
            self.troubles.remove(MOST_TROUBLES / 2);
            self.troubles_left_out += 1;
        }
        self.troubles.push(entry);
        self.open = Open::Trouble;
    }
}

/// Time, level and text of a line that begins an entry: `2026-11-22T18:30:29.843143Z  INFO text`.
fn entry(line: &str) -> Option<(&str, &str, &str)> {
    let is_time =
        line.as_bytes().first().is_some_and(u8::is_ascii_digit) && line.as_bytes().get(10) == Some(&b'T');
    let (time, rest) = line.split_once(' ').filter(|_| is_time)?;
    let (level, text) = rest.trim_start().split_once(' ')?;
    ["INFO", "WARN", "ERROR"].contains(&level).then_some((time, level, text))
}

/// The share of a bar line, as in `  95.0% |███   | 4.4 samples/s/p  0:00:13 }`.
fn percent(text: &str) -> Option<f64> {
    let (share, rest) = text.split_once('%')?;
    rest.starts_with(" |").then(|| share.trim().parse().ok()).flatten()
}

/// As much of `text` as is kept.
fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(LONGEST_ENTRY)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(log: &str) -> Journal {
        let mut journal = Journal::default();
        log.lines().for_each(|line| journal.take(line.as_bytes()));
        journal
    }

    const T: &str = "2026-11-22T18:30:29.843143Z ";

    #[test]
    fn a_run_that_is_complete() {
        let journal = journal(&format!(
            "{T} INFO training data: 8 bytes\n{T} INFO adapter: a toaster\n{T} INFO model: 7 parameters\n\
             {T} WARN it is warm\n{T} INFO {{ Epoch:[  1/  1], loss: 5.5\n{T} INFO  100.0% |██| 5.2 samples/s/p  0:00:00 }}\n\
             {T} INFO a sample of 20 tokens:\npub fn </script>\n\n}}\n"
        ));
        assert_eq!(
            journal.announced,
            ["training data: 8 bytes", "adapter: a toaster", "model: 7 parameters"]
        );
        assert_eq!((journal.starts, journal.percent, &journal.end), (1, Some(100.0), &None));
        assert_eq!(journal.samples[0].text, "pub fn </script>\n\n}");
        assert_eq!(journal.samples[0].level, "a sample of 20 tokens");
        let warm = Entry { time: T.trim().into(), level: "WARN".into(), text: "it is warm".into() };
        assert_eq!(journal.troubles, [warm]);
    }

    #[test]
    fn a_resumed_run_is_what_its_last_start_says() {
        let first = format!(
            "{T} INFO training data: 8 bytes\n{T} INFO adapter: a toaster\n{T}ERROR loss: not finite\nsecond line\n"
        );
        let failed = journal(&first);
        assert_eq!(failed.end, Some(End::Failed("loss: not finite".into())));
        assert_eq!(failed.troubles[0].text, "loss: not finite\nsecond line");
        let second = format!("{first}{T} INFO training data: 9 bytes\n{T} INFO adapter: a kettle\n");
        let resumed = journal(&second);
        assert_eq!((resumed.starts, &resumed.end), (2, &None));
        assert_eq!(resumed.announced, ["training data: 9 bytes", "adapter: a kettle"]);
        let third = journal(&format!("{second}{T} INFO interrupted after step 7: continue with x\n"));
        assert_eq!(third.end, Some(End::Interrupted("interrupted after step 7: continue with x".into())));
    }

    #[test]
    fn a_flood_of_warnings_keeps_the_first_and_the_newest() {
        let log: String = (0..1000).map(|number| format!("{T} WARN number {number}\n")).collect();
        let journal = journal(&log);
        assert_eq!((journal.troubles.len(), journal.troubles_left_out), (MOST_TROUBLES, 900));
        assert_eq!(journal.troubles[0].text, "number 0");
        assert_eq!(journal.troubles[MOST_TROUBLES - 1].text, "number 999");
    }

    #[test]
    fn other_text_is_passed_over() {
        let odd = journal("no time\n2026\n2026-11-22T18\n2026-11-22T18:30:29Z  LOUD x\n\u{fffd}\n");
        assert_eq!(odd, Journal::default());
        assert_eq!(cut(&"é".repeat(LONGEST_ENTRY)).len(), LONGEST_ENTRY);
    }
}

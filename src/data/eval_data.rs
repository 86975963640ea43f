//! Data on which a trained model is evaluated: texts, answers, or questions with answers to choose from.

use super::batch::NO_LABEL;
use super::choices::Question;
use super::codec::Codec;
use super::file_kind::FileKind;
use super::files;
use super::notes::Notes;
use super::notes::plural;
use super::records::{self, Record};
use super::sample_formats::{ChatForm, Form, Formed, Former};
use super::sequences::Sequence;
use crate::error::{Error, Result};
use std::path::Path;

/// Data on which a model is evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvalData {
    /// The loss of each token of texts.
    Texts {
        /// The windows of the texts. Each token is predicted once, from the tokens before it in its window and the
        /// token before the window. Records of texts have the start and the end with which they are trained.
        windows: Vec<Sequence>,
        /// Bytes of all texts.
        bytes: u64,
        /// Notes on the parts of records that are not read.
        notes: Notes,
    },
    /// The loss of the tokens of answers.
    Answers {
        /// One sequence for each sample.
        samples: Vec<Sequence>,
        /// Number of samples whose end was cut off.
        cut: u64,
        /// Notes on the parts of records that are not read, or not written.
        notes: Notes,
    },
    /// The choice among answers.
    Questions(Vec<Question>),
}

impl EvalData {
    /// The sequences whose losses are wanted.
    pub fn sequences(&self) -> Vec<&Sequence> {
        match self {
            Self::Texts { windows: sequences, .. } | Self::Answers { samples: sequences, .. } => {
                sequences.iter().collect()
            }
            Self::Questions(questions) => {
                let answers = questions.iter().flat_map(|question| &question.answers);
                answers.map(|answer| &answer.sequence).collect()
            }
        }
    }

    /// Reads `file`: JSON lines, a JSON array, Parquet, or else a text. The kind of the records follows from the first
    /// of them. Sequences have at most `window` tokens; at most `most` records are read;
    /// conversations, prompts and instructions are written by `chat`.
    ///
    /// # Errors
    /// A file that cannot be read or holds nothing to predict; records of no known kind; text that cannot be encoded.
    pub fn load(
        file: &Path,
        codec: &Codec,
        window: usize,
        most: Option<u64>,
        chat: &ChatForm,
    ) -> Result<Self> {
        let kind = FileKind::of(file, chat, true)?;
        let mut left = most.unwrap_or(u64::MAX);
        match kind {
            FileKind::Text => {
                let mut texts = Texts::new(codec, window)?;
                texts.push(&files::text_of(file)?)?;
                texts.finish(file)
            }
            FileKind::Texts => {
                let mut texts = Texts::new(codec, window)?;
                let former = Former::new(&Form::Columns, codec)?;
                let form = |record: &Record| Ok((former.form(record)?, record.text("text")?.len()));
                each(file, &mut left, form, |(formed, bytes)| texts.push_record(formed, bytes))?;
                texts.finish(file)
            }
            FileKind::Answers(form) => {
                let former = Former::new(&form, codec)?;
                let (mut samples, mut cut, mut notes) = (Vec::new(), 0, Notes::default());
                each(
                    file,
                    &mut left,
                    |record| former.form(record),
                    |formed| {
                        let Formed { mut tokens, mut targets, is_cut, notes: of_record, beside, .. } = formed;
                        notes.add(of_record);
                        notes.add(beside);
                        cut += u64::from(is_cut || tokens.len() > window);
                        // Where the answer comes after the window, the end of the sample is evaluated in place of its
                        // start.
                        let answers = |targets: &[u32]| targets.iter().any(|target| *target != NO_LABEL);
                        if tokens.len() > window && !answers(&targets[..window]) {
                            tokens.drain(..tokens.len() - window);
                            targets.drain(..targets.len() - window);
                        }
                        tokens.truncate(window);
                        targets.truncate(window);
                        samples.push(Sequence { tokens, targets });
                    },
                )?;
                samples.retain(Sequence::has_target);
                if samples.is_empty() && cut > 0 {
                    let longer = plural(cut, "sample");
                    let message = format!(
                        "what is to be predicted is beyond the {window} tokens that are read of each; {longer} of it are longer: shorten them, or evaluate a model of more positions"
                    );
                    return Err(Error::file(file, message));
                }
                non_empty(file, &samples)?;
                Ok(Self::Answers { samples, cut, notes })
            }
            FileKind::Choices(form) => {
                let mut questions = Vec::new();
                each(
                    file,
                    &mut left,
                    |record| form.question(record, codec, window),
                    |question| {
                        questions.push(question);
                    },
                )?;
                Ok(Self::Questions(questions))
            }
        }
    }
}

/// Calls `make` with each record of a file, on all cores, and `take` with the results in order, until none is `left`.
fn each<T: Send>(
    file: &Path,
    left: &mut u64,
    make: impl Fn(&Record) -> Result<T> + Sync,
    mut take: impl FnMut(T),
) -> Result<()> {
    records::for_each_made(file, |record| make(&record), &mut |made| {
        take(made);
        *left = left.saturating_sub(1); // lines are read on after a fault, for others
        Ok(*left > 0)
    })
}

/// Cuts texts into windows.
struct Texts<'a> {
    codec: &'a Codec,
    window: usize,
    /// The token after which a text starts.
    start: u32,
    windows: Vec<Sequence>,
    bytes: u64,
    notes: Notes,
}

impl<'a> Texts<'a> {
    fn new(codec: &'a Codec, window: usize) -> Result<Self> {
        let start = codec.before_text().last().copied().unwrap_or(codec.separator());
        Ok(Self { codec, window, start, windows: Vec::new(), bytes: 0, notes: Notes::default() })
    }

    fn push(&mut self, text: &str) -> Result<()> {
        self.push_tokens(self.start, &self.codec.encode(text)?);
        self.bytes += text.len() as u64;
        Ok(())
    }

    /// Adds a record as it is trained: its first token has nothing before it.
    fn push_record(&mut self, record: Formed, bytes: usize) {
        self.notes.add(record.notes);
        if let Some((first, rest)) = record.tokens.split_first() {
            self.push_tokens(*first, rest);
        }
        self.bytes += bytes as u64;
    }

    fn push_tokens(&mut self, mut before: u32, tokens: &[u32]) {
        for targets in tokens.chunks(self.window) {
            let tokens = [before].into_iter().chain(targets.iter().copied()).take(targets.len()).collect();
            self.windows.push(Sequence { tokens, targets: targets.to_vec() });
            before = targets[targets.len() - 1];
        }
    }

    fn finish(self, file: &Path) -> Result<EvalData> {
        non_empty(file, &self.windows)?;
        Ok(EvalData::Texts { windows: self.windows, bytes: self.bytes, notes: self.notes })
    }
}

fn non_empty(file: &Path, sequences: &[Sequence]) -> Result<()> {
    match sequences.is_empty() {
        true => Err(Error::file(file, "holds nothing to predict; name a file with more text")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(name: &str, content: &str, window: usize, most: Option<u64>) -> Result<EvalData> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        std::fs::write(&file, content).unwrap();
        EvalData::load(&file, &Codec::Bytes { eod: 7 }, window, most, &ChatForm::default())
    }

    fn shown(sequences: &[Sequence]) -> Vec<(String, String)> {
        let text = |ids: &[u32]| {
            ids.iter().map(|id| if *id == NO_LABEL { '_' } else { char::from(*id as u8) }).collect()
        };
        sequences.iter().map(|Sequence { tokens, targets }| (text(tokens), text(targets))).collect()
    }

    fn pairs(want: &[(&str, &str)]) -> Vec<(String, String)> {
        want.iter().map(|(tokens, targets)| (tokens.to_string(), targets.to_string())).collect()
    }

    #[test]
    fn each_token_of_a_text_is_predicted_once() {
        let EvalData::Texts { windows, bytes, .. } = load("mill.txt", "the mill", 3, None).unwrap() else {
            panic!("texts")
        };
        assert_eq!(shown(&windows), pairs(&[("\nth", "the"), ("e m", " mi"), ("il", "ll")]));
        assert_eq!(bytes, 8);
        let lines = "{\"text\": \"ab\"}\n{\"text\": \"cde\"}\n{\"text\": \"unread\"}\n";
        let EvalData::Texts { windows, bytes, .. } = load("mill.jsonl", lines, 8, Some(2)).unwrap() else {
            panic!("texts")
        };
        assert_eq!(shown(&windows), pairs(&[("ab", "b\u{7}"), ("cde", "de\u{7}")]));
        assert_eq!(bytes, 5);
    }

    #[test]
    fn answers_alone_are_predicted() {
        let lines = "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n{\"prompt\": \"long prompt\", \"completion\": \"e\"}\n";
        let EvalData::Answers { samples, cut, .. } = load("a.jsonl", lines, 5, None).unwrap() else {
            panic!("answers")
        };
        // Of a sample that is longer than the window, the part that has an answer is evaluated.
        assert_eq!(shown(&samples), pairs(&[("abcd\u{7}", "_cd\u{7}_"), ("mpte\u{7}", "__e\u{7}_")]));
        assert_eq!(cut, 1);
    }

    #[test]
    fn what_is_not_read_is_named() {
        let notes = |lines: &str| match load("a.jsonl", lines, 8, None).unwrap() {
            EvalData::Texts { notes, .. } | EvalData::Answers { notes, .. } => notes.lines(),
            EvalData::Questions(_) => panic!("questions"),
        };
        assert_eq!(
            notes("{\"text\": \"ab\", \"title\": \"c\", \"meta\": null}\n"),
            ["`title` is not read (1 record)"]
        );
        assert_eq!(
            notes("{\"input_ids\": [1, 2, 3], \"labels\": [1, 2, 3], \"attention_mask\": [1, 1, 1]}\n"),
            ["`attention_mask` is not read (1 record)"]
        );
    }

    #[test]
    fn what_cannot_be_judged_is_named() {
        let error = |name, content| load(name, content, 8, None).unwrap_err().to_string();
        assert!(
            error("a.jsonl", "{\"title\": 1}\n")
                .contains("line 1: has `title`; records have `text`, `messages`")
        );
        assert!(error("a.csv", "title\n1\n").contains("or `input_ids`, `ctx` and `endings` (HellaSwag)"));
        assert!(error("a.txt", "").contains("holds nothing to predict"));
        assert!(error("a.jsonl", "{\"messages\": []}\n").contains("template"));
        let lines = "{\"text\": 1}\n{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
        let error = load("a.jsonl", lines, 8, Some(1)).unwrap_err().to_string();
        assert!(error.ends_with("line 1: expected text under `text`, found a number"), "{error}");
    }
}

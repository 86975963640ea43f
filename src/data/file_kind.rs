//! The kind of data in a file, recognised by its name and the keys of its first record.

use super::choices::ChoiceForm;
use super::codec::Codec;
use super::config::{DocumentFormat, Paths, RecordFiles};
use super::files;
use super::notes::Notes;
use super::record_store;
use super::records::{self, Record};
use super::sample_formats::{ChatForm, Form, Former, count_rows, has_answers};
#[cfg(feature = "cli")]
use super::sample_store::LearnedSample;
use super::sample_store::SampleStore;
use super::text;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The kind of data that a file holds.
#[derive(Clone, Debug, PartialEq)]
pub enum FileKind {
    /// A text.
    Text,
    /// Records, each with a text under `text`.
    Texts,
    /// Records with a prompt and an answer; the answers are predicted.
    Answers(Form),
    /// Questions with several answers to choose from.
    Choices(ChoiceForm),
}

/// The fields of records that are learned from.
const LEARNED: &str = "`text`, `messages`, `conversations`, `prompt` and `completion`, `instruction` and `output`, or `input_ids`";
/// The fields of questions.
const CHOSEN: &str = "`ctx` and `endings` (HellaSwag), or `question` and `choices` (ARC, MMLU)";

/// The kinds of data files for `--help`, including questions where a command takes them.
#[cfg(feature = "cli")]
pub(crate) fn known_files(has_questions: bool) -> String {
    let questions =
        if has_questions { format!("; or, with answers to choose from, {CHOSEN}") } else { String::new() };
    let endings = records::EXTENSIONS.map(|ending| format!(".{ending}")).join(", ");
    format!("A text, or records ({endings}) with {LEARNED}{questions}")
}

/// A histogram: how many samples have each number of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleLengths(BTreeMap<usize, u64>);

impl FromIterator<usize> for SampleLengths {
    fn from_iter<I: IntoIterator<Item = usize>>(lengths: I) -> Self {
        let mut all = Self::default();
        lengths.into_iter().for_each(|length| *all.0.entry(length).or_default() += 1);
        all
    }
}

impl SampleLengths {
    /// The lengths of both sets of samples together.
    #[must_use]
    pub fn and(&self, others: &Self) -> Self {
        let mut all = self.clone();
        others.0.iter().for_each(|(length, count)| *all.0.entry(*length).or_default() += count);
        all
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.0.values().sum()
    }

    /// Number of tokens of all samples.
    pub fn tokens(&self) -> u64 {
        self.0.iter().map(|(length, count)| *length as u64 * count).sum()
    }

    /// Number of tokens of the longest sample.
    pub fn longest(&self) -> Option<usize> {
        self.0.keys().next_back().copied()
    }

    /// The length that this share of the samples does not exceed.
    pub fn quantile(&self, share: f64) -> Option<usize> {
        let wanted = (self.samples() as f64 * share).ceil() as u64;
        let mut counted = 0;
        let mut reaches = |count: &u64| {
            counted += count;
            counted >= wanted
        };
        self.0.iter().find(|(_, count)| reaches(count)).map(|(length, _)| *length)
    }

    /// The number of rows of `seq_length` tokens that the samples fill by
    /// [`PackStrategy::BestFit`](super::PackStrategy).
    pub fn packed_rows(&self, seq_length: usize) -> u64 {
        count_rows(self.0.iter().map(|(length, count)| (*(length.min(&seq_length)), *count)), seq_length)
    }
}

/// The samples that `form` makes of the first `most` records of `file`, or of all.
fn stored(form: &Form, file: &Path, codec: &Codec, most: Option<u64>) -> Result<Arc<SampleStore>> {
    let files = RecordFiles { paths: vec![file.display().to_string()], most, ..RecordFiles::default() };
    record_store::load(&files, &Former::new(form, codec)?).map(|(store, _)| store)
}

impl FileKind {
    /// The kind of `file`, whose conversations, prompts and instructions are written by `chat`. Errors name the fields
    /// of questions where the command `takes_questions`.
    ///
    /// # Errors
    /// A file that cannot be read; a first record that is of no known kind.
    pub fn of(file: &Path, chat: &ChatForm, takes_questions: bool) -> Result<Self> {
        if file.is_dir() {
            return Err(Error::file(file, "is a folder; name one file of text, JSON lines, CSV or Parquet"));
        }
        if !file.is_file() {
            return Err(Error::file(file, "no such file; name one of text, JSON lines, CSV or Parquet"));
        }
        records::refuse_unread(file)?;
        if !files::has_extension(file, &records::EXTENSIONS) {
            return Ok(Self::Text);
        }
        let mut kind = Self::Texts; // a file without a record is an error
        records::for_each(file, &mut |record| {
            kind = Self::of_record(&record, chat, takes_questions)?;
            Ok(false)
        })?;
        Ok(kind)
    }

    /// The lengths, in tokens, of the samples that its records become, or of the whole text (none for questions), and
    /// notes on the parts of the records that are not read.
    ///
    /// # Errors
    /// A file that cannot be read; a record that is not of this kind.
    pub fn lengths(&self, file: &Path, codec: &Codec) -> Result<(SampleLengths, Notes)> {
        let mut notes = Notes::default();
        let form = match self {
            Self::Text => {
                let files = Paths { paths: vec![file.display().to_string()], weights: Vec::new() };
                let loaded = text::load(&files, &DocumentFormat::File, &[], None, codec)?;
                return Ok((loaded.iter().map(|one| one.source.content.len() as usize).collect(), notes));
            }
            Self::Choices(_) => return Ok((SampleLengths::default(), notes)),
            Self::Texts => &Form::Columns,
            Self::Answers(form) => form,
        };
        let store = stored(form, file, codec, None)?;
        notes.extend(&store.notes.said);
        notes.extend(&store.notes.beside);
        let lengths: Vec<usize> = store.samples().map(|sample| sample.tokens).collect();
        Ok(match form {
            Form::Preference(_) => (lengths.chunks_exact(2).map(|pair| pair[0] + pair[1]).collect(), notes),
            _ => (lengths.into_iter().collect(), notes),
        })
    }

    /// The samples of the first `most` records, two of each pair of answers; none of a text or of questions.
    ///
    /// # Errors
    /// As [`lengths`](Self::lengths).
    #[cfg(feature = "cli")]
    pub(crate) fn learned(&self, file: &Path, codec: &Codec, most: u64) -> Result<Vec<LearnedSample>> {
        let form = match self {
            Self::Text | Self::Choices(_) => return Ok(Vec::new()),
            Self::Texts => &Form::Columns,
            Self::Answers(form) => form,
        };
        let store = stored(form, file, codec, Some(most))?;
        Ok(store.samples().map(|sample| store.learned(&sample)).collect())
    }

    fn of_record(record: &Record, chat: &ChatForm, takes_questions: bool) -> Result<Self> {
        let has = |keys: &[&str]| keys.iter().all(|key| record.fields.contains_key(*key));
        let has_any = |pairs: &[[&str; 2]]| pairs.iter().any(|pair| has(pair));
        if has_answers(record) && !takes_questions {
            return Ok(Self::Answers(Form::Preference(chat.clone())));
        }
        record.refuse_preferences()?;
        Ok(match () {
            () if has(&["ctx", "endings"]) => Self::Choices(ChoiceForm::HellaSwag),
            () if has(&["question", "choices", "answerKey"]) => Self::Choices(ChoiceForm::Arc),
            () if has(&["question", "choices"]) => Self::Choices(ChoiceForm::Mmlu),
            () if has(&["messages"])
                || has(&["conversations"])
                || has_any(&[["prompt", "completion"], ["instruction", "output"]]) =>
            {
                Self::Answers(Form::Chat(chat.clone()))
            }
            () if has(&["input_ids"]) => Self::Answers(Form::Columns),
            () if has(&["text"]) => Self::Texts,
            () => {
                let keys: Vec<String> = record.fields.keys().map(|key| format!("`{key}`")).collect();
                let chosen = if takes_questions { format!(", {CHOSEN}") } else { String::new() };
                let message = format!("has {}; records have {LEARNED}{chosen}", keys.join(", "));
                return Err(record.error(message));
            }
        })
    }
}

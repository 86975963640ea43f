//! What a file holds, by its name and the keys of its first record.

use super::choices::ChoiceForm;
use super::codec::Codec;
use super::files;
use super::forms::{ChatForm, Form, Former, PromptForm, PromptStyle};
use super::records::{self, Record};
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// What a file holds.
#[derive(Clone, Debug, PartialEq)]
pub enum FileKind {
    /// A text.
    Text,
    /// Records with a text each, under `text`.
    Texts,
    /// Records of what is answered, and of the answers, which are predicted.
    Answers(Form),
    /// Questions with several answers to choose from.
    Choices(ChoiceForm),
}

const KNOWN: &str = "records have `text`, `messages`, `conversations`, `prompt` and `completion`, `instruction` and `output`, \
    `input_ids`, `ctx` and `endings` (HellaSwag), or `question` and `choices` (ARC, MMLU)";

impl FileKind {
    /// That of `file`. Conversations are written by `template`, if one is named.
    ///
    /// # Errors
    /// A file that cannot be read; a first record that is of no known kind.
    pub fn of(file: &Path, template: Option<&Path>) -> Result<Self> {
        if file.is_dir() {
            return Err(Error::file(file, "is a folder; name one file of text, JSON lines or Parquet"));
        }
        if !file.is_file() {
            return Err(Error::file(file, "no such file; name one of text, JSON lines or Parquet"));
        }
        if !files::has_extension(file, &records::EXTENSIONS) {
            return Ok(Self::Text);
        }
        let mut kind = Self::Texts; // a file without a record is an error
        records::for_each(file, &mut |record| {
            kind = Self::of_record(&record, template)?;
            Ok(false)
        })?;
        Ok(kind)
    }

    /// Tokens of each sample that its records become, or of the whole text; none for questions.
    ///
    /// # Errors
    /// A file that cannot be read; a record that is not of this kind.
    pub fn lengths(&self, file: &Path, codec: &Codec) -> Result<Vec<usize>> {
        let form = match self {
            Self::Text => return Ok(vec![codec.encode(&files::text_of(file)?)?.len()]),
            Self::Choices(_) => return Ok(Vec::new()),
            Self::Texts => &Form::Columns,
            Self::Answers(form) => form,
        };
        let former = Former::new(form, codec)?;
        let mut lengths = Vec::new();
        records::for_each(file, &mut |record| {
            lengths.push(former.form(&record)?.tokens.len());
            Ok(true)
        })?;
        Ok(lengths)
    }

    fn of_record(record: &Record, template: Option<&Path>) -> Result<Self> {
        let has = |keys: &[&str]| keys.iter().all(|key| record.fields.contains_key(*key));
        let pair = |columns: [&str; 2]| {
            Self::Answers(Form::Prompts(PromptForm {
                columns: columns.map(String::from),
                style: PromptStyle::Plain,
                max_source_length: None,
                max_target_length: None,
            }))
        };
        Ok(match () {
            () if has(&["ctx", "endings"]) => Self::Choices(ChoiceForm::HellaSwag),
            () if has(&["question", "choices", "answerKey"]) => Self::Choices(ChoiceForm::Arc),
            () if has(&["question", "choices"]) => Self::Choices(ChoiceForm::Mmlu),
            () if has(&["messages"]) || has(&["conversations"]) => Self::Answers(Form::Chat(ChatForm {
                template: template.map(PathBuf::from),
                ..ChatForm::default()
            })),
            () if has(&["prompt", "completion"]) => pair(["prompt", "completion"]),
            () if has(&["instruction", "output"]) => Self::Answers(Form::Alpaca),
            () if has(&["input_ids"]) => Self::Answers(Form::Columns),
            () if has(&["text"]) => Self::Texts,
            () => {
                let keys: Vec<String> = record.fields.keys().map(|key| format!("`{key}`")).collect();
                return Err(record.error(format!("has {}; {KNOWN}", keys.join(", "))));
            }
        })
    }
}

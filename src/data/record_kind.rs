//! What records hold, by the keys of the first one.

use super::choices::ChoiceForm;
use super::forms::{ChatForm, Form, PromptForm, PromptStyle};
use super::records::{self, Record};
use crate::error::Result;
use std::path::{Path, PathBuf};

/// What the records of a file hold.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RecordKind {
    /// Text under `text`.
    Text,
    /// What is answered, and the answers that are predicted.
    Answers(Form),
    /// Questions with several answers to choose from.
    Choices(ChoiceForm),
}

const KNOWN: &str = "records have `text`, `messages`, `conversations`, `prompt` and `completion`, `instruction` and `output`, \
    `input_ids`, `ctx` and `endings` (HellaSwag), or `question` and `choices` (ARC, MMLU)";

impl RecordKind {
    /// That of the records in `file`. Conversations are written by `template`, if one is named.
    ///
    /// # Errors
    /// A file that cannot be read; a first record that is of no known kind.
    pub fn of(file: &Path, template: Option<&Path>) -> Result<Self> {
        let mut found = None;
        records::for_each(file, &mut |record| {
            found = Some(Self::of_record(&record, template)?);
            Ok(false)
        })?;
        // A file without a record was an error.
        Ok(found.unwrap_or(Self::Text))
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
            () if has(&["text"]) => Self::Text,
            () => {
                let keys: Vec<String> = record.fields.keys().map(|key| format!("`{key}`")).collect();
                return Err(record.error(format!("has {}; {KNOWN}", keys.join(", "))));
            }
        })
    }
}

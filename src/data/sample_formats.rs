//! How records become samples: tokens, and for each the token to predict or none.

mod alpaca;
mod chat;
mod columns;
mod packing;
mod plain;
mod prompts;

pub use self::chat::{ChatForm, ChatTemplate};
pub use self::packing::PackStrategy;
pub(super) use self::packing::{Packed, count_rows, fill_rows};
pub use self::prompts::{PromptForm, PromptStyle};
use super::batch::NO_LABEL;
use super::codec::Codec;
use super::records::Record;
use crate::error::Result;
use std::collections::BTreeSet;

/// How the records of a loader become samples.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// A prompt, which is not predicted, and an answer.
    Prompts(PromptForm),
    /// Alpaca's `instruction`, `input` and `output`, as one exchange of a dialogue.
    Alpaca,
    /// Ready `input_ids`, with `labels` or without; or `text`.
    Columns,
    /// Conversations, of which the assistant's turns are predicted; prompts and completions, and instructions, are conversations too.
    Chat(ChatForm),
}

/// A sample as it was formed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Formed {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// For each token the one to predict from it, or [`NO_LABEL`].
    pub targets: Vec<u32>,
    /// Whether a part of the record was cut off.
    pub is_cut: bool,
    /// What of the record is not read or not written, in words.
    pub notes: BTreeSet<String>,
    /// Columns beside ready ids, which MindFormers' loader of them passes over; commands of ours name them.
    pub beside: BTreeSet<String>,
}

/// A form with what it needs of the codec.
pub(super) struct Former<'a> {
    form: &'a Form,
    codec: &'a Codec,
    template: Option<ChatTemplate>,
}

impl<'a> Former<'a> {
    /// Prepares to form samples.
    ///
    /// # Errors
    /// If the form has a chat template that is broken.
    pub fn new(form: &'a Form, codec: &'a Codec) -> Result<Self> {
        let template = match form {
            Form::Chat(chat) => chat.template(codec)?,
            _ => None,
        };
        Ok(Self { form, codec, template })
    }

    /// The sample of a record.
    ///
    /// # Errors
    /// If the record lacks what the form needs, or its text cannot be encoded.
    pub fn form(&self, record: &Record) -> Result<Formed> {
        match (self.form, &self.template) {
            (Form::Prompts(prompts), _) => prompts.form(record, self.codec),
            (Form::Alpaca, _) => alpaca::form(record, self.codec),
            (Form::Chat(chat), template) => chat.form(record, template.as_ref(), self.codec),
            (Form::Columns, _) => columns::form(record, self.codec),
        }
    }

    /// What decides which sample a record becomes, as a text; `None` if it has no name.
    pub fn identity(&self) -> Option<String> {
        let form = match self.form {
            // What the file holds is in the template.
            Form::Chat(chat) => Form::Chat(ChatForm { template: None, ..chat.clone() }),
            form => form.clone(),
        };
        let template = self.template.as_ref().map(ChatTemplate::identity);
        Some(format!("{form:?}\n{}\n{template:?}", self.codec.identity()?))
    }
}

impl Formed {
    /// A sample whose labels are those of Hugging Face: for each token the same token, or [`NO_LABEL`].
    fn aligned(tokens: Vec<u32>, labels: &[u32]) -> Self {
        let targets = labels.iter().skip(1).copied().chain([NO_LABEL]).take(tokens.len()).collect();
        Self { tokens, targets, ..Self::default() }
    }
}

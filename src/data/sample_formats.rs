//! How records become samples: tokens, and for each token the token to predict, or none.

mod alpaca;
mod chat;
mod columns;
mod packing;
mod plain;
mod preference;
mod prompts;

pub use self::chat::{ChatForm, ChatTemplate};
pub use self::packing::PackStrategy;
pub(super) use self::packing::{Packed, count_rows, fill_rows};
pub(super) use self::preference::has_answers;
pub use self::prompts::{PromptForm, PromptStyle};
use super::batch::NO_LABEL;
use super::codec::Codec;
use super::records::Record;
use crate::error::Result;
use std::collections::BTreeSet;

/// How the records of a loader become samples.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// A prompt, which is not predicted, and an answer, which is.
    Prompts(PromptForm),
    /// Alpaca's `instruction`, `input` and `output`, as one exchange of a dialogue.
    Alpaca,
    /// Ready `input_ids`, with `labels` or without; or `text`.
    Columns,
    /// Conversations, in which the assistant's turns are predicted. Prompts and completions, and instructions, are
    /// conversations too.
    Chat(ChatForm),
    /// Two answers to the same prompt, of which the first is preferred: two samples, each a conversation.
    Preference(ChatForm),
}

/// A sample that was formed from a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Formed {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// For each token the token to predict from it, or [`NO_LABEL`].
    pub targets: Vec<u32>,
    /// Whether a part of the record was cut off.
    pub is_cut: bool,
    /// Notes on the parts of the record that are not read or not written.
    pub notes: BTreeSet<String>,
    /// Notes on columns beside ready ids. MindFormers' loader passes over such columns; commands of this program name
    /// them.
    pub beside: BTreeSet<String>,
    /// The sample of the other answer, if a record has two and this one is preferred.
    pub rejected: Option<Box<Formed>>,
}

/// A form, with the template and the codec that it needs.
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
            Form::Chat(chat) | Form::Preference(chat) => chat.template(codec)?,
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
            (Form::Preference(chat), template) => {
                let sides = preference::sides(record)?;
                let form = |side: &Record| chat.form(side, template.as_ref(), self.codec);
                let rejected = form(&sides[1])?;
                Ok(Formed { rejected: Some(Box::new(rejected)), ..form(&sides[0])? })
            }
        }
    }

    /// A text that identifies everything that decides which sample a record becomes; `None` if the codec has no
    /// identity.
    pub fn identity(&self) -> Option<String> {
        let form = match self.form {
            // The content of the template file is part of the template.
            Form::Chat(chat) => Form::Chat(ChatForm { template: None, ..chat.clone() }),
            Form::Preference(chat) => Form::Preference(ChatForm { template: None, ..chat.clone() }),
            form => form.clone(),
        };
        let template = self.template.as_ref().map(ChatTemplate::identity);
        Some(format!("{form:?}\n{}\n{template:?}", self.codec.identity()?))
    }
}

impl Formed {
    /// A sample with labels as Hugging Face writes them: for each token the same token, or [`NO_LABEL`].
    fn aligned(tokens: Vec<u32>, labels: &[u32]) -> Self {
        let targets = labels.iter().skip(1).copied().chain([NO_LABEL]).take(tokens.len()).collect();
        Self { tokens, targets, ..Self::default() }
    }
}

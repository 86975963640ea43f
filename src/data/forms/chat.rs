//! Conversations through the tokenizer's chat template.

mod clock;
mod conversation;
mod json;
mod template;
mod turns;

use std::ops::Range;
use std::path::PathBuf;

use self::conversation::Conversation;
pub use self::template::ChatTemplate;
use super::Formed;
use crate::data::batch::NO_LABEL;
use crate::data::codec::Codec;
use crate::data::records::Record;
use crate::error::Result;

/// A sample is a conversation as the chat template writes it; the turns of the assistant are predicted, with what ends
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatForm {
    /// Key of the list of messages; `None`: `messages` or `conversations`.
    pub messages: Option<String>,
    /// Key of a message's role; `None`: `role` or `from`.
    pub role: Option<String>,
    /// Key of its text; `None`: `content` or `value`.
    pub content: Option<String>,
    /// The user's role; `None`: `user` or `human`.
    pub user: Option<String>,
    /// The assistant's role; `None`: `assistant` or `gpt`.
    pub assistant: Option<String>,
    /// A file of the chat template; `None`: that of the tokenizer.
    pub template: Option<PathBuf>,
}

impl ChatForm {
    /// The chat template.
    pub(super) fn template(&self, codec: &Codec) -> Result<ChatTemplate> {
        let tokenizer = match codec {
            Codec::Tokenizer { tokenizer, .. } => Some(tokenizer.file()),
            Codec::Bytes { .. } => None,
        };
        ChatTemplate::load(self.template.as_deref(), tokenizer)
    }

    pub(super) fn form(&self, record: &Record, template: &ChatTemplate, codec: &Codec) -> Result<Formed> {
        let conversation = Conversation::read(self, record)?;
        let (text, learned) =
            turns::render(&conversation, template).map_err(|message| record.error(message))?;
        let pieces = codec.encode_with_ranges(&text)?;
        let overlaps = |range: &Range<usize>| {
            learned.iter().any(|turn| turn.start < range.end && range.start < turn.end)
        };
        let label = |(id, range): &(u32, Range<usize>)| if overlaps(range) { *id } else { NO_LABEL };
        let labels: Vec<u32> = pieces.iter().map(label).collect();
        Ok(Formed::aligned(pieces.into_iter().map(|(id, _)| id).collect(), &labels))
    }
}

#[cfg(test)]
mod tests;

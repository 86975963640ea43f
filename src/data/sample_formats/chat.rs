//! Conversations through the tokenizer's chat template.

mod clock;
mod conversation;
mod form;
mod generation;
mod json;
mod message;
mod python;
mod spans;
mod strings;
mod template;
mod turns;
mod words;

use std::ops::Range;
use std::path::Path;

use self::conversation::Conversation;
pub(super) use self::conversation::root;
pub use self::form::ChatForm;
pub(super) use self::message::is_list;
pub use self::template::ChatTemplate;
use self::turns::Written;
use super::{Formed, plain};
use crate::data::batch::NO_LABEL;
use crate::data::codec::Codec;
use crate::data::records::Record;
use crate::error::Result;

impl ChatForm {
    /// The chat template, if there is one and the form is not `raw`.
    pub(super) fn template(&self, codec: &Codec) -> Result<Option<ChatTemplate>> {
        let template = match self.raw {
            true => None,
            false => ChatTemplate::find(self.template.as_deref(), codec.tokenizer_file())?,
        };
        Ok(template.map(|template| template.ending(codec.special_texts())))
    }

    /// Whether conversations are written with a chat template, so that a model that has learned them can chat.
    pub(crate) fn is_templated(&self, tokenizer: Option<&Path>) -> bool {
        let find = || ChatTemplate::find(self.template.as_deref(), tokenizer);
        !self.raw && find().is_ok_and(|template| template.is_some())
    }

    /// The tokens at which a model that learns these conversations must stop: the end of a turn.
    ///
    /// # Errors
    /// If the chat template is broken.
    pub fn stops(&self, codec: &Codec) -> Result<Vec<u32>> {
        Ok(self.template(codec)?.and_then(|template| template.turn_end(codec)).into_iter().collect())
    }

    pub(super) fn form(
        &self,
        record: &Record,
        template: Option<&ChatTemplate>,
        codec: &Codec,
    ) -> Result<Formed> {
        let Some(template) = template else {
            if plain::is_plain(record) {
                return plain::form(record, codec);
            }
            record.refuse_preferences()?;
            if !Conversation::has_list(self, record) {
                Conversation::read(self, record)?;
            }
            if self.raw {
                return Err(record.error(
                    "holds messages, which only a chat template writes: leave out --raw, or `raw` under the data_loader",
                ));
            }
            return Err(template::no_template(codec.tokenizer_file()));
        };
        let conversation = Conversation::read(self, record)?;
        let Written { text, learned, mut notes } =
            turns::render(&conversation, template).map_err(|message| record.error(message))?;
        let pieces = codec.encode_with_ranges(&text)?;
        let overlaps = |range: &Range<usize>| {
            learned.iter().any(|turn| turn.start < range.end && range.start < turn.end)
        };
        let label = |(id, range): &(u32, Range<usize>)| if overlaps(range) { *id } else { NO_LABEL };
        let labels: Vec<u32> = pieces.iter().map(label).collect();
        notes.extend(conversation.notes);
        let tokens = pieces.into_iter().map(|(id, _)| id).collect();
        Ok(Formed { notes, ..Formed::aligned(tokens, &labels) })
    }
}

#[cfg(test)]
mod tests;

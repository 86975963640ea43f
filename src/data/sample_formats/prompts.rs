//! A prompt and an answer, as in ADGen.

use super::Formed;
use crate::data::batch::NO_LABEL;
use crate::data::codec::Codec;
use crate::data::records::Record;
use crate::error::Result;

/// A sample consists of the prompt, the answer and the token that ends it; only the answer and that token are
/// predicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptForm {
    /// Keys of prompt and answer.
    pub columns: [String; 2],
    /// The text around the prompt.
    pub style: PromptStyle,
    /// Most tokens of the prompt, including the tokens that the tokenizer adds; the rest is cut off.
    pub max_source_length: Option<usize>,
    /// Most tokens of the answer, without the token that ends it.
    pub max_target_length: Option<usize>,
}

/// The text around a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptStyle {
    /// No text around the prompt.
    Plain,
    /// ChatGLM2's first round: `[Round 1]`, the question after 问, and 答.
    Round,
}

impl PromptForm {
    pub(super) fn form(&self, record: &Record, codec: &Codec) -> Result<Formed> {
        let prompt = record.text(&self.columns[0])?;
        let answer = record.text(&self.columns[1])?;
        let prompt = match self.style {
            PromptStyle::Plain => prompt.to_string(),
            PromptStyle::Round => format!("[Round 1]\n\n问：{prompt}\n\n答："),
        };
        let mut asked = codec.encode(&prompt)?;
        // Tokens that a tokenizer adds after a text would belong after the answer, whose end is appended here.
        let before = codec.before_text();
        let room = self.max_source_length.map_or(usize::MAX, |most| most.saturating_sub(before.len()));
        let mut answer = codec.encode(answer)?;
        let most = self.max_target_length.unwrap_or(usize::MAX);
        let is_cut = asked.len() > room || answer.len() > most;
        asked.truncate(room);
        let mut tokens = codec.started(asked);
        answer.truncate(most);
        let end = codec.eod()?;
        if answer.last() != Some(&end) {
            answer.push(end);
        }
        let labels = [vec![NO_LABEL; tokens.len()], answer.clone()].concat();
        tokens.append(&mut answer);
        Ok(Formed { is_cut, ..Formed::aligned(tokens, &labels) })
    }
}

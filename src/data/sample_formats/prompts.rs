//! A prompt and an answer, as ADGen has them.

use super::Formed;
use crate::data::batch::NO_LABEL;
use crate::data::codec::Codec;
use crate::data::records::Record;
use crate::error::Result;

/// A sample is the prompt, the answer and the token that ends it; only the latter two are predicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptForm {
    /// Keys of prompt and answer.
    pub columns: [String; 2],
    /// What surrounds the prompt.
    pub style: PromptStyle,
    /// Most tokens of the prompt, including those that the tokenizer adds; what is left over is cut off.
    pub max_source_length: Option<usize>,
    /// Most tokens of the answer, without the one that ends it.
    pub max_target_length: Option<usize>,
}

/// What surrounds a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptStyle {
    /// Nothing.
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
        // What a tokenizer adds after a text belongs after the answer, whose end is written there.
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

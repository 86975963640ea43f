//! Alpaca's instructions, worded as in MindFormers' `AlpacaInstructDataHandler`.

use super::Formed;
use super::plain::instruction;
use crate::data::batch::NO_LABEL;
use crate::data::codec::Codec;
use crate::data::records::Record;
use crate::error::Result;

/// The text that each sample starts with.
const SYSTEM: &str = "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, \
    detailed, and polite answers to the user's questions. ";

/// Encodes each part by itself, with the tokens that the tokenizer adds to a text, as in MindFormers.
pub(super) fn form(record: &Record, codec: &Codec) -> Result<Formed> {
    let prompt = instruction(record, None)?;
    let output = record.text("output")?;
    let encode = |text: &str| -> Result<Vec<u32>> {
        Ok([codec.before_text(), &codec.encode(text)?, codec.after_text()].concat())
    };
    let mut tokens = encode(SYSTEM)?;
    tokens.append(&mut encode(&format!("USER: {prompt} "))?);
    let mut labels = vec![NO_LABEL; tokens.len()];
    // The end is written in the text, so it is a single token only where the tokenizer has `</s>`.
    let answer = encode(&format!("ASSISTANT: {output}</s>"))?;
    tokens.extend_from_slice(&answer);
    labels.extend(answer);
    Ok(Formed::aligned(tokens, &labels))
}

//! Prompts and completions as they are, and instructions worded as in Stanford's Alpaca: both without a chat template.

use std::ops::Range;

use super::Formed;
use crate::data::batch::NO_LABEL;
use crate::data::codec::Codec;
use crate::data::records::Record;
use crate::error::Result;

/// The start of an instruction, with an input and without.
const WITH_INPUT: &str = "Below is an instruction that describes a task, paired with an input that provides further context. Write a \
    response that appropriately completes the request.";
const WITHOUT_INPUT: &str = "Below is an instruction that describes a task. Write a response that appropriately completes the request.";

/// Whether a record is a prompt with a completion, or an instruction with an output.
pub(super) fn is_plain(record: &Record) -> bool {
    let has = |keys: [&str; 2]| {
        keys.iter().all(|key| record.fields.get(*key).is_some_and(|value| value.is_string()))
    };
    has(["prompt", "completion"]) || has(["instruction", "output"])
}

/// The sample of a record: prompt and answer as one text, and the token that ends a text. Each token with a letter of
/// the answer is learned, and so is the token at the end.
pub(super) fn form(record: &Record, codec: &Codec) -> Result<Formed> {
    record.refuse_preferences()?;
    let (prompt, answer, read) = match record.fields.contains_key("completion") {
        true => {
            (record.text("prompt")?.to_string(), record.text("completion")?, &["prompt", "completion"][..])
        }
        false => {
            let asked = instruction(record, record.optional_text("system")?)? + "\n";
            (asked, record.text("output")?, &["instruction", "input", "system", "output"][..])
        }
    };
    let pieces = codec.encode_with_ranges(&format!("{prompt}{answer}"))?;
    let is_learned = |range: &Range<usize>| range.end > prompt.len();
    let asked = pieces.iter().filter(|(_, range)| !is_learned(range)).count();
    let ids: Vec<u32> = pieces.into_iter().map(|(id, _)| id).collect();
    let asked = asked + codec.started(ids.clone()).len() - ids.len();
    let tokens = codec.whole(ids)?;
    let labels = [vec![NO_LABEL; asked], tokens[asked..].to_vec()].concat();
    let mut notes = record.unread(read);
    notes.insert(format!("`{}` and `{}` are written without a chat template", read[0], read[read.len() - 1]));
    Ok(Formed { notes, ..Formed::aligned(tokens, &labels) })
}

/// Alpaca's text of an instruction, up to the place of the response; `start` replaces its first words.
pub(super) fn instruction(record: &Record, start: Option<&str>) -> Result<String> {
    let asked = record.text("instruction")?;
    let (words, input) = match record.optional_text("input")? {
        Some(input) => (WITH_INPUT, format!("### Input:\n{input}\n\n")),
        None => (WITHOUT_INPUT, String::new()),
    };
    let words = start.unwrap_or(words);
    Ok(format!("{words}\n\n### Instruction:\n{asked}\n\n{input}### Response:"))
}

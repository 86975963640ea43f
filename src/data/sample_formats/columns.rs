//! Columns of ready token ids, or of text.

use serde_json::Value;

use super::Formed;
use crate::data::batch::NO_LABEL;
use crate::data::codec::Codec;
use crate::data::records::Record;
use crate::error::Result;

/// Reads the columns `input_ids` and, if it exists, `labels`. The label of a token is either the same token, as Hugging
/// Face writes labels, or the token after it, as Megatron's models take them; which of the two it is follows from the
/// ids. A negative label is not predicted.
/// Without `input_ids`, a column `text` is a sample that is predicted whole: from the token that the tokenizer adds
/// before it, if any, to the token that ends it.
pub(super) fn form(record: &Record, codec: &Codec) -> Result<Formed> {
    if !record.fields.contains_key("input_ids") && record.fields.contains_key("text") {
        let tokens = codec.whole(codec.encode(record.text("text")?)?)?;
        let labels = tokens.clone();
        let mut notes = record.unread(&["text"]);
        notes.extend(codec.start_text().map(|start| format!("a text begins with {start}")));
        return Ok(Formed { notes, ..Formed::aligned(tokens, &labels) });
    }
    let ids = numbers(record, "input_ids")?;
    let beside = record.unread(&["input_ids", "labels"]);
    if let Some(bad) = ids.iter().find(|id| !(0..i64::from(NO_LABEL)).contains(*id)) {
        return Err(record.error(format!("`input_ids` holds {bad}, which is not a token id")));
    }
    let tokens: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
    if !record.fields.contains_key("labels") {
        let labels = tokens.clone();
        return Ok(Formed { beside, ..Formed::aligned(tokens, &labels) });
    }
    let labels = numbers(record, "labels")?;
    if labels.len() != ids.len() {
        let message =
            format!("has {} `input_ids` and {} `labels`; each token needs a label", ids.len(), labels.len());
        return Err(record.error(message));
    }
    let labels: Vec<u32> = labels.iter().map(|id| u32::try_from(*id).unwrap_or(NO_LABEL)).collect();
    let agrees =
        |tokens: &[u32]| labels.iter().zip(tokens).all(|(label, token)| *label == NO_LABEL || label == token);
    if agrees(&tokens) {
        return Ok(Formed { beside, ..Formed::aligned(tokens, &labels) });
    }
    match agrees(tokens.get(1..).unwrap_or_default()) {
        true => Ok(Formed { tokens, targets: labels, beside, ..Formed::default() }),
        false => Err(record.error(
            "its `labels` are neither the `input_ids` nor these shifted by one; write -100 for tokens that are not predicted",
        )),
    }
}

/// The whole numbers of a column.
fn numbers(record: &Record, key: &str) -> Result<Vec<i64>> {
    let values = record.list(key)?;
    let numbers: Option<Vec<i64>> = values.iter().map(Value::as_i64).collect();
    numbers.ok_or_else(|| record.error(format!("expected whole numbers in `{key}`")))
}

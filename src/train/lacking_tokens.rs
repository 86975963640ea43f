//! Tokens that a chat template writes and a vocabulary lacks: a model reads them letter by letter.

use crate::data::Codec;
use crate::durable::read_error;
use crate::error::{Error, Result};
use crate::model::groups::compile;
use std::collections::BTreeSet;
use std::path::Path;

/// Tokens as templates write them: `<|im_end|>`, `<end_of_turn>`, `[INST]`.
const TOKENS: &str = r"<\|[^|<>\s]+\|>|</?[a-z]+(?:_[a-z]+)+>|\[/?[A-Z_]{3,}\]";

/// A line with the tokens that the template in `file` writes and the tokenizer does not have.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn lacking_tokens(file: &Path, codec: &Codec) -> Result<Option<String>> {
    let text = std::fs::read(file).map_err(|error| read_error(file, "read", &error))?;
    let tokens = compile(TOKENS).map_err(Error::Plan)?;
    let written: BTreeSet<_> = tokens.find_iter(&text).map(|token| token.as_bytes()).collect();
    let mut lacking = Vec::new();
    for token in written.into_iter().filter_map(|token| std::str::from_utf8(token).ok()) {
        // A token that the model lacks is refused together with the text that has it.
        let Ok(ids) = codec.encode(token) else { continue };
        let count = ids.len();
        if count > 1 {
            lacking.push(format!("`{token}` ({count} tokens)"));
        }
    }
    let (file, said) = (file.display(), lacking.join(", "));
    let line = format!("{file} writes what the tokenizer has no token for, and spells out: {said}");
    Ok((!lacking.is_empty()).then_some(line))
}

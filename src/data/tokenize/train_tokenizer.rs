//! Trains a tokenizer on text files.

use std::io::Write;
use std::path::Path;

use super::{check_output, expand};
use crate::data::config::DocumentFormat;
use crate::data::documents::Lines;
use crate::data::files::{self, InputFile};
use crate::data::output;
use crate::data::tokenizer::Tokenizer;
use crate::error::{Error, Result};

/// Trains a byte-level BPE tokenizer on text files and writes its `tokenizer.json` to `output`. It has at most
/// `vocab_size` tokens; pairs of tokens that occur less than `min_frequency` times are not merged. See
/// [`Tokenizer::train`].
///
/// # Errors
/// If an input is missing or is not UTF-8, no input has text, the vocabulary is too small, or `output` exists and not
/// `force`.
pub fn train_tokenizer(
    inputs: &[String],
    output: &Path,
    vocab_size: usize,
    min_frequency: u64,
    force: bool,
) -> Result<Tokenizer> {
    output::check_free(output, force)?;
    let files = expand(inputs, &DocumentFormat::File)?;
    check_output(&files, output)?;
    let mut has_text = false;
    let text = files.into_iter().flat_map(|file| blocks(&file)).inspect(|block| {
        has_text |= block.as_ref().is_ok_and(|block| !block.trim().is_empty());
    });
    let tokenizer = Tokenizer::train(text, vocab_size, min_frequency)?;
    if !has_text {
        return Err(Error::file(inputs.join(", "), "no text to learn from; name files with text"));
    }
    let json = tokenizer.to_json()?;
    let mut file = output::begin(output, force)?;
    file.fill(|out| out.write_all(json.as_bytes()))?;
    file.finish()?;
    Ok(tokenizer)
}

/// The text of a file in blocks of whole lines, so that the text may be larger than memory. A binary file that was
/// found (not named) has no text.
fn blocks(file: &InputFile) -> Box<dyn Iterator<Item = Result<String>> + Send> {
    const BLOCK_BYTES: usize = 1 << 16;
    let lines = match files::is_binary(&file.path) {
        Ok(true) if file.is_found => return Box::new(std::iter::empty()),
        Ok(_) => Lines::open(&file.path),
        Err(error) => Err(error),
    };
    let mut lines = match lines {
        Ok(lines) => lines,
        Err(error) => return Box::new(std::iter::once(Err(error))),
    };
    Box::new(std::iter::from_fn(move || {
        let mut block = String::new();
        while block.len() < BLOCK_BYTES {
            match lines.next() {
                Ok(Some(line)) => block.push_str(line),
                Ok(None) => break,
                Err(error) => return Some(Err(error)),
            }
        }
        (!block.is_empty()).then_some(Ok(block))
    }))
}

//! The tokenizer in a folder.

use super::beside_weights;
use crate::data::tokenizer::SpecialTokens;
use crate::durable::read_json;
use crate::error::Result;
use crate::hugging_face::generation::GenerationConfig;
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The tokenizer in a folder of Hugging Face's.
pub(crate) struct TokenizerFiles {
    /// `tokenizer.json`.
    pub file: PathBuf,
    /// The token that ends a text: the one that the files beside it say, or else the one at which the model stops.
    pub eos_token: Option<String>,
}

impl TokenizerFiles {
    /// The tokenizer beside `weights`, a file or its folder; `None` if there is no `tokenizer.json`.
    ///
    /// # Errors
    /// A file of its special tokens that cannot be read.
    pub fn of(weights: &Path) -> Result<Option<Self>> {
        let file = beside_weights(weights, "tokenizer.json");
        if !file.is_file() {
            return Ok(None);
        }
        let special = SpecialTokens::beside(&file)?;
        let named = special.named("eos_token").map(str::to_string);
        let eos_token = match named {
            Some(token) => Some(token),
            None => spelt(&file, &GenerationConfig::of(weights)?.stops)?,
        };
        Ok(Some(Self { file, eos_token }))
    }
}

/// How the tokenizer in `file` spells the first of the tokens `ids` that it has.
fn spelt(file: &Path, ids: &[u32]) -> Result<Option<String>> {
    if ids.is_empty() {
        return Ok(None);
    }
    let tokenizer: Value = read_json(file, "a tokenizer", "name a tokenizer.json in Hugging Face's format")?;
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
    let added =
        added.filter_map(|token| Some((token["id"].as_u64()?, token["content"].as_str()?.to_string())));
    let known = tokenizer["model"]["vocab"].as_object().into_iter().flatten();
    let known = known.filter_map(|(text, id)| Some((id.as_u64()?, text.clone())));
    let tokens: HashMap<u64, String> = known.chain(added).collect();
    Ok(ids.iter().find_map(|id| tokens.get(&u64::from(*id)).cloned()))
}

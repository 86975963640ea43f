//! The tokenizer in a folder.

use super::beside_weights;
use crate::durable::read_json;
use crate::error::Result;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The tokenizer in a folder of Hugging Face's.
pub(crate) struct TokenizerFiles {
    /// `tokenizer.json`.
    pub file: PathBuf,
    /// The token that ends a text, as `tokenizer_config.json` says.
    pub eos_token: Option<String>,
}

impl TokenizerFiles {
    /// That beside `weights`, a file or its folder; `None` if there is no `tokenizer.json`.
    ///
    /// # Errors
    /// A `tokenizer_config.json` that cannot be read.
    pub fn of(weights: &Path) -> Result<Option<Self>> {
        let file = beside_weights(weights, "tokenizer.json");
        if !file.is_file() {
            return Ok(None);
        }
        let beside = beside_weights(weights, "tokenizer_config.json");
        let config = match beside.is_file() {
            true => read_json(&beside, "JSON", "fetch it again")?,
            false => Value::Null,
        };
        // A token is its text, or a section that has it.
        let token = &config["eos_token"];
        let eos_token = token.as_str().or_else(|| token["content"].as_str()).map(str::to_string);
        Ok(Some(Self { file, eos_token }))
    }
}

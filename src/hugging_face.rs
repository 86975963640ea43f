//! Folders of Hugging Face: what the class of a `config.json` computes, what ours is called there, and the tokenizer beside it.

pub(crate) mod config_json;
pub(crate) mod export;
pub mod generation;
pub(crate) mod tokenizer;

use std::path::{Path, PathBuf};

/// The file `name` beside `weights`, which are a file or its folder.
pub(crate) fn beside_weights(weights: &Path, name: &str) -> PathBuf {
    if weights.is_dir() { weights.join(name) } else { weights.with_file_name(name) }
}

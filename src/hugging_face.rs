//! Folders of Hugging Face: what the class of a `config.json` computes, what ours is called there, and the tokenizer beside it.

pub(crate) mod config_json;
pub(crate) mod export;
pub mod generation;
pub(crate) mod tokenizer;

//! `config.json`, which describes a model in a folder of Hugging Face's: what its class computes, and what ours is called there.

pub(crate) mod config_json;
pub(crate) mod export;

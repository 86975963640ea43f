//! `tokenizer` of a data set: the path of a `tokenizer.json`, or a section that names it and the token that ends documents.

use crate::config::document::Document;
use crate::config::known_keys;
use crate::config::node::Node;
use crate::config::section::{Notes, Section};
use crate::data::TokenizerConfig;
use crate::data::tokenizer::END_OF_TEXT;
use crate::error::Result;

pub(super) fn read(
    document: &Document,
    dataset: &Section,
    notes: &mut Notes,
) -> Result<Option<TokenizerConfig>> {
    let Some(node) = dataset.node("tokenizer") else { return Ok(None) };
    let (file, eos_token): (String, String) = match node {
        Node::Text(file) => (file.clone(), END_OF_TEXT.to_string()),
        _ => {
            let path = dataset.path("tokenizer");
            let section = Section::open(document, &path, &known_keys::TOKENIZER, notes)?;
            (section.require("tokenizer_file")?, section.or("eos_token", END_OF_TEXT.to_string())?)
        }
    };
    if file.is_empty() {
        return Err(dataset.error("tokenizer", "is empty; name a tokenizer.json, or remove the key"));
    }
    Ok(Some(TokenizerConfig { file: file.into(), eos_token }))
}

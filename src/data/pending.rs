//! Documents that wait to be encoded together.

use super::codec::Codec;
use crate::error::Result;

/// Documents are encoded once this many bytes of text are pending: enough work for all cores.
const BATCH_BYTES: usize = 4 << 20;

/// Documents that were read and not yet encoded. [`Codec::encode_all`] encodes them in parallel.
#[derive(Debug)]
pub(super) struct Pending<'a> {
    codec: &'a Codec,
    texts: Vec<String>,
    /// Bytes of all `texts`.
    bytes: usize,
}

impl<'a> Pending<'a> {
    /// No documents yet.
    ///
    /// # Errors
    /// If the tokenizer has no token that ends a text.
    pub fn new(codec: &'a Codec) -> Result<Self> {
        codec.end()?;
        Ok(Self { codec, texts: Vec::new(), bytes: 0 })
    }

    /// Adds a document. Returns whether enough are pending to encode them.
    pub fn push(&mut self, text: String) -> bool {
        self.bytes += text.len();
        self.texts.push(text);
        self.bytes >= BATCH_BYTES
    }

    /// Bytes of the pending documents.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Encodes and removes the pending documents. Returns the token ids of each, [whole](Codec::whole).
    ///
    /// # Errors
    /// If the tokenizer has no token for a part of the text.
    pub fn encode(&mut self) -> Result<Vec<Vec<u32>>> {
        let documents = self.codec.encode_all(&self.texts)?.into_iter().map(|ids| self.codec.whole(ids));
        let documents = documents.collect::<Result<_>>()?;
        self.texts.clear();
        self.bytes = 0;
        Ok(documents)
    }
}

#[cfg(all(test, feature = "tokenizers"))]
mod tests {
    use super::*;
    use crate::data::tokenizer::{END_OF_TEXT, Tokenizer};
    use std::sync::Arc;

    /// As for records of texts: a document ends, once, with the token that ends documents, or, if the tokenizer has no
    /// such token, with the token that the tokenizer adds.
    #[test]
    fn documents_end_as_whole_texts_do() {
        let text = [Ok("the mill ".repeat(9))];
        let json = Tokenizer::train(text.into_iter(), 260, 2).unwrap().to_json().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        let mut value: serde_json::Value = serde_json::from_str(&json).unwrap();
        value["post_processor"] = serde_json::json!({
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": END_OF_TEXT, "type_id": 0}}],
            "pair": [],
            "special_tokens": {END_OF_TEXT: {"id": END_OF_TEXT, "ids": [0], "tokens": [END_OF_TEXT]}}
        });
        std::fs::write(&file, value.to_string()).unwrap();
        let tokenizer = Arc::new(Tokenizer::load(&file).unwrap());
        for eos_token in [END_OF_TEXT, "<no token>"] {
            let codec = Codec::Tokenizer { tokenizer: tokenizer.clone(), eos_token: eos_token.to_string() };
            let mut pending = Pending::new(&codec).unwrap();
            pending.push("mill".to_string());
            pending.push(format!("mill{END_OF_TEXT}"));
            let documents = pending.encode().unwrap();
            assert_eq!(documents[0], documents[1]);
            assert_eq!(documents[0].iter().filter(|id| **id == 0).count(), 1);
            assert_eq!(documents[0].last(), Some(&0));
        }
    }
}

//! Documents that wait to be encoded together.

use super::codec::Codec;
use crate::error::Result;

/// Documents are encoded once this many bytes of text are pending: enough work for all cores.
const BATCH_BYTES: usize = 4 << 20;

/// Documents that were read and not yet encoded. [`Codec::encode_all`] encodes them in parallel.
#[derive(Debug)]
pub(super) struct Pending<'a> {
    codec: &'a Codec,
    eod: u32,
    texts: Vec<String>,
    /// Bytes of all `texts`.
    bytes: usize,
}

impl<'a> Pending<'a> {
    /// No documents yet.
    ///
    /// # Errors
    /// If the tokenizer has no token that ends a document.
    pub fn new(codec: &'a Codec) -> Result<Self> {
        Ok(Self { codec, eod: codec.eod()?, texts: Vec::new(), bytes: 0 })
    }

    /// Adds a document. Returns whether enough are pending to encode them.
    pub fn push(&mut self, text: String) -> bool {
        self.bytes += text.len();
        self.texts.push(text);
        self.bytes >= BATCH_BYTES
    }

    /// Encodes and removes the pending documents. Returns the token ids of each: from those that the tokenizer adds before a text, if
    /// any, to the token that ends a document.
    ///
    /// # Errors
    /// If the tokenizer has no token for a part of the text.
    pub fn encode(&mut self) -> Result<Vec<Vec<u32>>> {
        let mut documents = self.codec.encode_all(&self.texts)?;
        for ids in &mut documents {
            *ids = self.codec.started(std::mem::take(ids));
            ids.push(self.eod);
        }
        self.texts.clear();
        self.bytes = 0;
        Ok(documents)
    }
}

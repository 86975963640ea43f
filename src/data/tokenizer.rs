//! Tokenizers in Hugging Face's format, and byte-level BPE trained on text. A build without the feature `tokenizers`
//! reads and trains none.

#[cfg(not(feature = "tokenizers"))]
mod absent;
#[cfg(feature = "tokenizers")]
mod hugging_face;

#[cfg(not(feature = "tokenizers"))]
pub use absent::Tokenizer;
#[cfg(feature = "tokenizers")]
pub use hugging_face::Tokenizer;

/// The token ids of a text, and those that a tokenizer adds to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Encoded {
    /// Added before the text.
    pub before: Vec<u32>,
    /// Of the text.
    pub ids: Vec<u32>,
    /// Added after the text.
    pub after: Vec<u32>,
}

impl Encoded {
    /// Number of tokens that were added.
    pub fn added(&self) -> usize {
        self.before.len() + self.after.len()
    }

    /// The same with at most `most` tokens of the text.
    pub fn cut(mut self, most: usize) -> Self {
        self.ids.truncate(most);
        self
    }

    /// All ids in order.
    pub fn all(self) -> Vec<u32> {
        [self.before, self.ids, self.after].concat()
    }
}

/// The default token that ends a document: GPT-2's.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// Smallest vocabulary of byte-level BPE, in tokens: all 256 bytes and [`END_OF_TEXT`].
pub const SMALLEST_VOCABULARY: usize = 257;

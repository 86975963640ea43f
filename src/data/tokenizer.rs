//! Tokenizers in Hugging Face's format, and byte-level BPE trained on text. A build without the feature `tokenizers`
//! reads and trains none.

#[cfg(not(feature = "tokenizers"))]
mod absent;
#[cfg(feature = "tokenizers")]
mod hugging_face;
mod special;

#[cfg(not(feature = "tokenizers"))]
pub use absent::Tokenizer;
#[cfg(feature = "tokenizers")]
pub use hugging_face::Tokenizer;
pub(crate) use special::SpecialTokens;

/// The tokens that a tokenizer adds to a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Added {
    /// Tokens before the text, such as Llama's `<s>`.
    pub before: Vec<u32>,
    /// Tokens after the text.
    pub after: Vec<u32>,
}

/// The default token that ends a document: GPT-2's.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// Smallest vocabulary of byte-level BPE, in tokens: all 256 bytes and [`END_OF_TEXT`].
pub const SMALLEST_VOCABULARY: usize = 257;

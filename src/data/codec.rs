//! How text becomes token ids and token ids become text: bytes, or a tokenizer.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};

/// Turns text into token ids and back.
///
/// # Examples
///
/// ```
/// use gristmill::data::Codec;
///
/// # fn main() -> gristmill::error::Result<()> {
/// let codec = Codec::Bytes { eod: b'\n' }; // or `Codec::of_tokenizer(file, "</s>", vocab_size)?`
/// let tokens = codec.encode("mill")?;
/// assert_eq!(tokens, [109, 105, 108, 108]);
/// assert_eq!((codec.decode(&tokens).as_str(), codec.eod()?), ("mill", 10));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub enum Codec {
    /// Each byte of UTF-8 is a token.
    Bytes {
        /// The byte that ends a document.
        eod: u8,
    },
    /// A tokenizer.
    Tokenizer {
        /// The tokenizer, shared among clones of the codec.
        tokenizer: Arc<Tokenizer>,
        /// The token that ends a document, as the vocabulary spells it.
        eos_token: String,
    },
}

impl Codec {
    /// The tokenizer in the `tokenizer.json` at `file`, whose token `eos_token` ends a document.
    ///
    /// # Errors
    /// If the tokenizer cannot be read, or its own vocabulary is larger than the model's `vocab_size`.
    pub fn of_tokenizer(file: &Path, eos_token: &str, vocab_size: usize) -> Result<Self> {
        let tokenizer = Arc::new(Tokenizer::load(file)?.within(vocab_size)?);
        Ok(Self::Tokenizer { tokenizer, eos_token: eos_token.to_string() })
    }

    /// Id of the token that ends a document.
    ///
    /// # Errors
    /// If the tokenizer has no such token.
    pub fn eod(&self) -> Result<u32> {
        match self {
            Self::Bytes { eod } => Ok(u32::from(*eod)),
            Self::Tokenizer { tokenizer, eos_token } => tokenizer.token_id(eos_token).ok_or_else(|| {
                let message =
                    format!("has no token `{eos_token}`; set `eos_token` to the token that ends a document");
                Error::file(tokenizer.file(), message)
            }),
        }
    }

    /// A text that identifies everything that decides the tokens of a text; `None` if the tokenizer has no identity.
    pub(super) fn identity(&self) -> Option<String> {
        match self {
            Self::Bytes { eod } => Some(format!("bytes, {eod}")),
            Self::Tokenizer { tokenizer, eos_token } => {
                Some(format!("{}, {eos_token}", tokenizer.identity()?))
            }
        }
    }

    /// The tokenizer, if there is one.
    pub(crate) fn tokenizer(&self) -> Option<&Tokenizer> {
        match self {
            Self::Bytes { .. } => None,
            Self::Tokenizer { tokenizer, .. } => Some(tokenizer),
        }
    }

    /// The file of the tokenizer, if there is one.
    pub fn tokenizer_file(&self) -> Option<&Path> {
        self.tokenizer().map(Tokenizer::file)
    }

    /// The id of the token with this spelling, if a tokenizer has one.
    pub(super) fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer()?.token_id(token)
    }

    /// Number of different tokens.
    pub fn vocab_size(&self) -> usize {
        self.tokenizer().map_or(256, Tokenizer::vocab_size)
    }

    /// The token ids of a text.
    ///
    /// # Errors
    /// If the tokenizer has no token for a part of the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Self::Bytes { .. } => Ok(text.bytes().map(u32::from).collect()),
            Self::Tokenizer { tokenizer, .. } => tokenizer.encode(text),
        }
    }

    /// The tokens that the tokenizer adds before a text, such as Llama's `<s>`; most add none, and bytes have none.
    pub fn before_text(&self) -> &[u32] {
        self.tokenizer().map_or(&[], |tokenizer| &tokenizer.added().before)
    }

    /// The tokens that the tokenizer adds after a text.
    pub(super) fn after_text(&self) -> &[u32] {
        self.tokenizer().map_or(&[], |tokenizer| &tokenizer.added().after)
    }

    /// The ids of a text as models expect them: with the tokens that the tokenizer adds before a text, unless the text
    /// begins with them already.
    pub fn started(&self, ids: Vec<u32>) -> Vec<u32> {
        let before = self.before_text();
        if ids.starts_with(before) { ids } else { [before, &ids].concat() }
    }

    /// The ids of a complete text: [started](Self::started), and with the token that ends a document at its end, or
    /// else with the token that the tokenizer adds after a text, unless the text ends with it already. Every loader and
    /// every command that reads whole texts does this.
    ///
    /// # Errors
    /// If the tokenizer has no such token.
    pub(super) fn whole(&self, ids: Vec<u32>) -> Result<Vec<u32>> {
        let mut ids = self.started(ids);
        let end = self.end()?;
        if ids.last() != Some(&end) {
            ids.push(end);
        }
        Ok(ids)
    }

    /// The token that ends a text: the token that ends a document, or else the one that the tokenizer adds.
    ///
    /// # Errors
    /// If there is neither token.
    pub(super) fn end(&self) -> Result<u32> {
        match (self.eod(), self.after_text()) {
            (Err(_), [.., last]) => Ok(*last),
            (eod, _) => eod,
        }
    }

    /// The spelling of the tokens that the tokenizer adds before a text, if it adds any.
    pub(super) fn start_text(&self) -> Option<String> {
        let before = self.before_text();
        (!before.is_empty()).then(|| self.decode(before))
    }

    /// The spellings of the special tokens; bytes have none.
    pub(super) fn special_texts(&self) -> Vec<String> {
        self.tokenizer().map_or_else(Vec::new, Tokenizer::special_texts)
    }

    /// A token that a text may start after: the token that ends a document, or a line feed if tokens are bytes.
    pub fn separator(&self) -> u32 {
        match self {
            Self::Bytes { .. } => u32::from(b'\n'),
            Self::Tokenizer { .. } => self.eod().unwrap_or(0),
        }
    }

    /// The token ids of a text, each with the bytes of the text that it stands for.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub(super) fn encode_with_ranges(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>> {
        match self {
            Self::Bytes { .. } => {
                Ok(text.bytes().enumerate().map(|(at, byte)| (u32::from(byte), at..at + 1)).collect())
            }
            Self::Tokenizer { tokenizer, .. } => tokenizer.encode_with_ranges(text),
        }
    }

    /// Calls `take` with the token ids of each piece of a text and the bytes of the piece, in order, until it returns
    /// false. A tokenizer encodes pieces in parallel.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub(super) fn encode_pieces(
        &self,
        text: &str,
        take: &mut dyn FnMut(Vec<u32>, usize) -> bool,
    ) -> Result<()> {
        match self {
            Self::Bytes { .. } => {
                take(text.bytes().map(u32::from).collect(), text.len());
                Ok(())
            }
            Self::Tokenizer { tokenizer, .. } => tokenizer.encode_pieces(text, take),
        }
    }

    /// The token ids of each of `texts`. A tokenizer encodes them in parallel.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_all(&self, texts: &[String]) -> Result<Vec<Vec<u32>>> {
        match self {
            Self::Bytes { .. } => texts.iter().map(|text| self.encode(text)).collect(),
            Self::Tokenizer { tokenizer, .. } => tokenizer.encode_all(texts),
        }
    }

    /// The text of token ids. Bytes that are not UTF-8 become U+FFFD, and ids that are not bytes become `?`. Ids that a
    /// tokenizer does not have are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        match self {
            Self::Bytes { .. } => {
                let bytes: Vec<u8> = ids.iter().map(|&id| u8::try_from(id).unwrap_or(b'?')).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Self::Tokenizer { tokenizer, .. } => tokenizer.decode(ids),
        }
    }

    /// The byte that ends documents, if `text` contains it: encoded as bytes, the text would be two documents.
    pub(super) fn eod_byte_in(&self, text: &str) -> Option<u8> {
        match self {
            Self::Bytes { eod } if text.as_bytes().contains(eod) => Some(*eod),
            _ => None,
        }
    }
}

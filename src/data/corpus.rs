//! Documents of text files as one sequence of tokens in memory.

use std::path::Path;

use super::codec::Codec;
use super::config::DocumentFormat;
use super::documents::{self, Document};
use super::files::{self, InputFile};
use super::pending::Pending;
use super::plural::{plural, skipped};
use super::stream::{Chunk, TokenStream};
use crate::error::{Error, Result};

/// Documents as tokens, each followed by the token that ends a document, up to a limit of text.
pub(super) struct Corpus<'a> {
    codec: &'a Codec,
    tokens: Tokens<'a>,
    /// Number of documents taken.
    pub documents: u64,
    /// Number of files with at least one of them.
    pub files: u64,
    /// Number of files that were skipped because they are not text.
    pub binary: u64,
    /// Number of documents that were skipped because they have no text.
    pub empty: u64,
    /// Bytes of text taken, and one for the end of each document.
    bytes: usize,
    /// The most that `bytes` may become.
    limit: usize,
}

/// The tokens, in the width that the codec needs.
enum Tokens<'a> {
    /// One byte a token, `eod` after each document.
    Bytes { tokens: Vec<u8>, eod: u8 },
    /// Token ids, and the documents that are not encoded yet.
    Ids { tokens: Vec<u32>, pending: Pending<'a> },
}

impl<'a> Corpus<'a> {
    /// An empty corpus of at most `max_bytes`.
    ///
    /// # Errors
    /// If the tokenizer has no token that ends a document.
    pub fn new(max_bytes: Option<u64>, codec: &'a Codec) -> Result<Self> {
        let tokens = match codec {
            Codec::Bytes { eod } => Tokens::Bytes { tokens: Vec::new(), eod: *eod },
            Codec::Tokenizer { .. } => Tokens::Ids { tokens: Vec::new(), pending: Pending::new(codec)? },
        };
        let limit = max_bytes.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(Self { codec, tokens, documents: 0, files: 0, binary: 0, empty: 0, bytes: 0, limit })
    }

    /// Whether the limit leaves no room for another document.
    pub fn is_full(&self) -> bool {
        self.bytes + 1 >= self.limit
    }

    /// Takes the documents of a file until the corpus is full. Where whole files are documents, one that was found and
    /// is not text is skipped.
    ///
    /// # Errors
    /// If the file cannot be read or is not text, or its text cannot be encoded.
    pub fn take_file(&mut self, file: &InputFile, format: &DocumentFormat) -> Result<()> {
        let before = self.documents;
        let is_bytes = matches!(self.codec, Codec::Bytes { .. });
        let may_skip = file.is_found && *format == DocumentFormat::File;
        let taken = documents::for_each(file, format, |document| {
            match self.codec.eod_byte_in(&document.text) {
                Some(_) if may_skip => self.binary += 1,
                Some(eod) => return Err(contains_eod(&document, &file.path, eod)),
                None => self.push(document.text)?,
            }
            Ok(!self.is_full())
        });
        match taken {
            Ok(true) => {}
            Ok(false) => self.binary += 1,
            // Without a zero byte it did not look binary, but neither is it text.
            Err(_) if is_bytes && may_skip && !is_utf8(&file.path) => self.binary += 1,
            Err(error) => return Err(error),
        }
        self.files += u64::from(self.documents > before);
        Ok(())
    }

    /// Encodes what is pending and hands over all tokens; the counts remain.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    pub fn finish(&mut self) -> Result<TokenStream> {
        self.encode_pending()?;
        let mut stream = TokenStream::default();
        stream.push(match &mut self.tokens {
            Tokens::Bytes { tokens, .. } => Chunk::Bytes(std::mem::take(tokens)),
            Tokens::Ids { tokens, .. } => Chunk::Ids(std::mem::take(tokens)),
        });
        Ok(stream)
    }

    /// The size of `stream`, which this corpus became: `7 bytes`, or `3 tokens of 7 bytes`.
    pub fn size(&self, stream: &TokenStream) -> String {
        match self.codec {
            Codec::Bytes { .. } => format!("{} bytes", stream.len()),
            // The token that ends a document is not text.
            Codec::Tokenizer { .. } => {
                format!("{} tokens of {} bytes", stream.len(), self.bytes as u64 - self.documents)
            }
        }
    }

    /// What `stream`, which this corpus became, was read from, for the log.
    pub fn sentence(&self, stream: &TokenStream, format: &DocumentFormat) -> String {
        let mut sentence = format!("{} of text from {}", self.size(stream), plural(self.files, "file"));
        if *format != DocumentFormat::File {
            sentence += &format!(" in {}", plural(self.documents, "document"));
        }
        let skipped = skipped(self.binary, self.empty);
        if skipped.is_empty() { sentence } else { format!("{sentence} ({skipped})") }
    }

    /// Takes a document, cut at the limit.
    fn push(&mut self, mut text: String) -> Result<()> {
        if text.is_empty() {
            self.empty += 1;
            return Ok(());
        }
        if self.is_full() {
            return Ok(());
        }
        let mut room = text.len().min(self.limit - self.bytes - 1);
        while !text.is_char_boundary(room) {
            room -= 1;
        }
        text.truncate(room);
        self.documents += 1;
        self.bytes += room + 1;
        match &mut self.tokens {
            Tokens::Bytes { tokens, eod } => {
                tokens.extend_from_slice(text.as_bytes());
                tokens.push(*eod);
            }
            Tokens::Ids { pending, .. } => {
                if pending.push(text) {
                    self.encode_pending()?;
                }
            }
        }
        Ok(())
    }

    fn encode_pending(&mut self) -> Result<()> {
        if let Tokens::Ids { tokens, pending } = &mut self.tokens {
            for ids in pending.encode()? {
                if tokens.is_empty() { *tokens = ids } else { tokens.extend(ids) }
            }
        }
        Ok(())
    }
}

fn contains_eod(document: &Document, path: &Path, eod: u8) -> Error {
    let message = format!("contains the byte {eod}, which ends documents (`eod_byte`)");
    document.error(path, &format!("{message}; remove it, or choose another byte"))
}

fn is_utf8(path: &Path) -> bool {
    files::read(path).is_ok_and(|bytes| std::str::from_utf8(&bytes).is_ok())
}

//! Documents of text files as one sequence of tokens.

use std::path::Path;

use super::codec::Codec;
use super::config::DocumentFormat;
use super::documents::{self, Document};
use super::files::{self, InputFile};
use super::kept_tokens::{Making, kept_or_made};
use super::notes::{plural, skipped};
use super::pending::Pending;
use super::sample_store::TextCounts;
use super::stream::{Chunk, TokenStream};
use super::token_cache::{bytes_of, length};
use crate::error::{Error, Result};
use std::sync::Arc;

/// A file with more bytes than this that is one document is mapped, and encoded in pieces.
const LONG_FILE: u64 = 4 << 20;

/// Documents as tokens, each followed by the token that ends a document, up to a limit of text.
pub(super) struct Corpus<'a> {
    codec: &'a Codec,
    tokens: Tokens<'a>,
    /// Counts of the text that was taken.
    pub counts: TextCounts,
    /// The most bytes that the corpus may have.
    limit: u64,
}

/// The tokens of a corpus, in the width that the codec needs.
enum Tokens<'a> {
    /// One byte for each token, with `eod` after each document.
    Bytes { tokens: Vec<u8>, eod: u8 },
    /// The store to which token ids go, and the documents that are not encoded yet.
    Ids { making: &'a mut Making, pending: Pending<'a> },
}

/// A corpus of at most `max_bytes` with the documents that `read` takes into it. If the corpus has an identity, token
/// ids are kept in the cache under a key of `identity` and the contents of `files`.
///
/// # Errors
/// If the tokenizer has no token that ends a document; the errors of `read`.
pub(super) fn corpus_of(
    codec: &Codec,
    max_bytes: Option<u64>,
    identity: Option<String>,
    files: &[InputFile],
    read: &dyn Fn(&mut Corpus<'_>) -> Result<()>,
) -> Result<(TokenStream, TextCounts)> {
    let limit = max_bytes.unwrap_or(u64::MAX);
    let counts = TextCounts::default();
    let mut stream = TokenStream::default();
    if let Codec::Bytes { eod } = codec {
        let tokens = Tokens::Bytes { tokens: Vec::new(), eod: *eod };
        let mut corpus = Corpus { codec, tokens, counts, limit };
        read(&mut corpus)?;
        if let Tokens::Bytes { tokens, .. } = corpus.tokens {
            stream.push(Chunk::Bytes(tokens));
        }
        return Ok((stream, corpus.counts));
    }
    // If only a part of the files is read, hashing all of them would take longer than reading that part. Each document
    // has at least one byte, and one for its end.
    let reads_all = limit / 2 >= bytes_of(files);
    let identity = identity.filter(|_| reads_all).map(|own| format!("text\n{own}\n{limit}"));
    let store = kept_or_made(identity, files, &|making| {
        let tokens = Tokens::Ids { making: &mut *making, pending: Pending::new(codec)? };
        let mut corpus = Corpus { codec, tokens, counts, limit };
        read(&mut corpus)?;
        corpus.encode_pending()?;
        let counts = corpus.counts;
        making.writer.count(counts);
        Ok(())
    })?;
    let counts = store.notes.text.unwrap_or_default();
    stream.push(Chunk::Stored(Arc::new(store).whole()));
    Ok((stream, counts))
}

impl Corpus<'_> {
    /// Whether the limit leaves no room for another document.
    pub fn is_full(&self) -> bool {
        let has_failed = matches!(&self.tokens, Tokens::Ids { making, .. } if making.failed.is_some());
        self.counts.bytes + 1 >= self.limit || has_failed
    }

    /// Takes the documents of a file until the corpus is full. Where whole files are documents, a file that was found
    /// (not named) and is not text is skipped.
    ///
    /// # Errors
    /// If the file cannot be read or is not text, or its text cannot be encoded.
    pub fn take_file(&mut self, file: &InputFile, format: &DocumentFormat) -> Result<()> {
        let before = self.counts.documents;
        let is_bytes = matches!(self.codec, Codec::Bytes { .. });
        let may_skip = file.is_found && *format == DocumentFormat::File;
        let taken = match *format == DocumentFormat::File && !is_bytes && length(&file.path) > LONG_FILE {
            true => self.take_long(file),
            false => documents::for_each(file, format, |document| {
                match self.codec.eod_byte_in(&document.text) {
                    Some(_) if may_skip => self.counts.binary += 1,
                    Some(eod) => return Err(contains_eod(&document, &file.path, eod)),
                    None => self.push(document.text)?,
                }
                Ok(!self.is_full())
            }),
        };
        match taken {
            Ok(true) => {}
            Ok(false) => self.counts.binary += 1,
            // Without a zero byte the file did not look binary, but it is not text either.
            Err(_) if is_bytes && may_skip && !is_utf8(&file.path) => self.counts.binary += 1,
            Err(error) => return Err(error),
        }
        self.counts.files += u64::from(self.counts.documents > before);
        Ok(())
    }

    /// Takes a document, cut at the limit.
    fn push(&mut self, mut text: String) -> Result<()> {
        let Some(room) = self.room_for(&text) else { return Ok(()) };
        text.truncate(room);
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

    /// Takes a long file that is one document. Its tokens are written while they are made. Returns whether the file is
    /// text.
    fn take_long(&mut self, file: &InputFile) -> Result<bool> {
        let map = files::map(&file.path)?;
        if !files::is_text(file, &map)? {
            return Ok(false);
        }
        let text = std::str::from_utf8(&map)
            .map_err(|error| files::not_utf8(&file.path, error.valid_up_to() as u64))?;
        self.encode_pending()?;
        let Some(room) = self.room_for(text) else { return Ok(true) };
        let (codec, end) = (self.codec, self.codec.end()?);
        let Tokens::Ids { making, .. } = &mut self.tokens else { return Ok(true) };
        let (mut is_first, mut last) = (true, None);
        codec.encode_pieces(&text[..room], &mut |mut ids, bytes| {
            if std::mem::take(&mut is_first) {
                ids = codec.started(ids);
            }
            last = ids.last().copied().or(last);
            making.shown.add(bytes as u64, ids.len() as u64);
            making.write(|writer| writer.push_tokens(&ids));
            making.failed.is_none()
        })?;
        making.write(|writer| {
            if last != Some(end) {
                writer.push_tokens(&[end])?;
            }
            writer.end();
            Ok(())
        });
        Ok(true)
    }

    /// Counts a document, and returns how many of its bytes there is room for; `None` if it is empty or there is no
    /// room for any.
    fn room_for(&mut self, text: &str) -> Option<usize> {
        if text.is_empty() {
            self.counts.empty += 1;
            return None;
        }
        if self.is_full() {
            return None;
        }
        let left = usize::try_from(self.limit - self.counts.bytes - 1).unwrap_or(usize::MAX);
        let mut room = text.len().min(left);
        while !text.is_char_boundary(room) {
            room -= 1;
        }
        self.counts.documents += 1;
        self.counts.bytes += room as u64 + 1;
        Some(room)
    }

    fn encode_pending(&mut self) -> Result<()> {
        let Tokens::Ids { making, pending } = &mut self.tokens else { return Ok(()) };
        let bytes = pending.bytes() as u64;
        let (documents, mut tokens) = (pending.encode()?, 0);
        for ids in documents {
            tokens += ids.len() as u64;
            making.write(|writer| {
                writer.push_tokens(&ids)?;
                writer.end();
                Ok(())
            });
        }
        making.shown.add(bytes, tokens);
        Ok(())
    }
}

impl TextCounts {
    /// The size of `stream`, to which this text belongs: `7 bytes`, or `3 tokens of 7 bytes`.
    pub fn size(&self, codec: &Codec, stream: &TokenStream) -> String {
        match codec {
            Codec::Bytes { .. } => format!("{} bytes", stream.len()),
            // The token that ends a document is not text.
            Codec::Tokenizer { .. } => {
                format!("{} tokens of {} bytes", stream.len(), self.bytes - self.documents)
            }
        }
    }

    /// A sentence for the log on the files that `stream` was read from.
    pub fn sentence(&self, codec: &Codec, stream: &TokenStream, format: &DocumentFormat) -> String {
        let mut sentence =
            format!("{} of text from {}", self.size(codec, stream), plural(self.files, "file"));
        if *format != DocumentFormat::File {
            sentence += &format!(" in {}", plural(self.documents, "document"));
        }
        let skipped = skipped(self.binary, self.empty);
        if skipped.is_empty() { sentence } else { format!("{sentence} ({skipped})") }
    }
}

fn contains_eod(document: &Document, path: &Path, eod: u8) -> Error {
    let message = format!("contains the byte {eod}, which ends documents (`eod_byte`)");
    document.error(path, &format!("{message}; remove it, or choose another byte"))
}

fn is_utf8(path: &Path) -> bool {
    files::read(path).is_ok_and(|bytes| std::str::from_utf8(&bytes).is_ok())
}

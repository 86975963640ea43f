//! Token files in each format.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::TokenFormat;
use crate::data::llm_c::{HEADER_BYTES, Header};
use crate::data::megatron::MegatronWriter;
use crate::data::output;
use crate::data::token_encoding::TokenEncoding;
use crate::durable::AtomicFile;
use crate::error::{Error, Result};

/// The largest vocabulary whose ids fit 16 bits, in tokens.
const U16_TOKENS: usize = 1 << 16;

/// A token file being written.
#[derive(Debug)]
pub(super) enum TokenWriter {
    /// One file: plain, or with the header of llm.c.
    Flat(Flat),
    /// A pair of `.bin` and `.idx` files.
    Megatron(Box<MegatronWriter>),
}

#[derive(Debug)]
pub(super) struct Flat {
    file: AtomicFile,
    encoding: TokenEncoding,
    has_header: bool,
    /// Number of tokens written.
    tokens: u64,
    /// The bytes of the current document, in a buffer that is reused.
    bytes: Vec<u8>,
}

impl TokenWriter {
    /// Starts the file or files at `path`, with ids wide enough for the vocabulary.
    ///
    /// # Errors
    /// If a file exists and not `force`, or cannot be created.
    pub fn create(path: &Path, format: TokenFormat, vocab_size: usize, force: bool) -> Result<Self> {
        if format == TokenFormat::Megatron {
            let prefix =
                path.to_str().ok_or_else(|| Error::file(path, "is not UTF-8; choose another name"))?;
            let encoding = MegatronWriter::encoding_for(vocab_size);
            return MegatronWriter::create(prefix, encoding, force)
                .map(|writer| Self::Megatron(Box::new(writer)));
        }
        let encoding = if vocab_size <= U16_TOKENS { TokenEncoding::U16 } else { TokenEncoding::U32 };
        let has_header = format == TokenFormat::LlmC;
        let mut file = output::begin(path, force)?;
        if has_header {
            file.fill(|out| out.write_all(&[0; HEADER_BYTES]))?;
        }
        Ok(Self::Flat(Flat { file, encoding, has_header, tokens: 0, bytes: Vec::new() }))
    }

    /// Appends a document.
    ///
    /// # Errors
    /// If the disk is full, or the document is too long for the format.
    pub fn document(&mut self, ids: &[u32]) -> Result<()> {
        match self {
            Self::Flat(flat) => {
                flat.bytes.clear();
                flat.encoding.encode(ids, &mut flat.bytes);
                flat.tokens += ids.len() as u64;
                flat.file.fill(|out| out.write_all(&flat.bytes))
            }
            Self::Megatron(writer) => {
                writer.sequence(ids)?;
                writer.end_document();
                Ok(())
            }
        }
    }

    /// Completes the files, gives them their names, and returns these.
    ///
    /// # Errors
    /// If the disk is full, or there are too many tokens for the header.
    pub fn finish(self) -> Result<Vec<PathBuf>> {
        match self {
            Self::Flat(mut flat) => {
                if flat.has_header {
                    let header = flat.header()?.bytes();
                    flat.file.write_start(&header)?;
                }
                Ok(vec![flat.file.finish()?])
            }
            Self::Megatron(writer) => writer.finish(),
        }
    }
}

impl Flat {
    fn header(&self) -> Result<Header> {
        let Ok(tokens) = i32::try_from(self.tokens) else {
            let message = format!(
                "{} tokens are more than the header of llm.c can count; write several files, or `--format plain`",
                self.tokens
            );
            return Err(Error::file(self.file.path(), message));
        };
        Ok(Header { encoding: self.encoding, tokens: tokens as u32 })
    }
}

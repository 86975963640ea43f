//! Token files in each of their formats.

use std::path::{Path, PathBuf};

use super::TokenFormat;
use crate::data::megatron::MegatronWriter;
use crate::data::output::Output;
use crate::data::stream::TokenEncoding;
use crate::data::token_file::{HEADER_BYTES, MAGIC_U16, MAGIC_U32};
use crate::error::{Error, Result};

/// The widest vocabulary of 16-bit ids.
const U16_TOKENS: usize = 1 << 16;

/// A token file being written.
#[derive(Debug)]
pub(super) enum TokenWriter {
    /// Plain, or after the header of llm.c.
    Flat(Flat),
    /// Two files.
    Megatron(Box<MegatronWriter>),
}

#[derive(Debug)]
pub(super) struct Flat {
    file: Output,
    encoding: TokenEncoding,
    has_header: bool,
    tokens: u64,
    bytes: Vec<u8>,
}

impl TokenWriter {
    /// Starts a file at `path` for a vocabulary.
    ///
    /// # Errors
    /// If the file exists and not `force`, or cannot be made.
    pub fn create(path: &Path, format: TokenFormat, vocab_size: usize, force: bool) -> Result<Self> {
        if format == TokenFormat::Megatron {
            let prefix =
                path.to_str().ok_or_else(|| Error::file(path, "is no UTF-8; choose another name"))?;
            let encoding = MegatronWriter::encoding_for(vocab_size);
            return MegatronWriter::create(prefix, encoding, force)
                .map(|writer| Self::Megatron(Box::new(writer)));
        }
        let encoding = if vocab_size <= U16_TOKENS { TokenEncoding::U16 } else { TokenEncoding::U32 };
        let has_header = format == TokenFormat::LlmC;
        let mut file = Output::create(path, force)?;
        if has_header {
            file.write(&[0; HEADER_BYTES])?;
        }
        Ok(Self::Flat(Flat { file, encoding, has_header, tokens: 0, bytes: Vec::new() }))
    }

    /// Appends a document.
    ///
    /// # Errors
    /// If the disk takes no more, or the document is longer than the format can say.
    pub fn document(&mut self, ids: &[u32]) -> Result<()> {
        match self {
            Self::Flat(flat) => {
                flat.bytes.clear();
                flat.encoding.encode(ids, &mut flat.bytes);
                flat.tokens += ids.len() as u64;
                flat.file.write(&flat.bytes)
            }
            Self::Megatron(writer) => {
                writer.sequence(ids)?;
                writer.end_document();
                Ok(())
            }
        }
    }

    /// Gives the files their names.
    ///
    /// # Errors
    /// If the disk takes no more, or there are more tokens than the header can say.
    pub fn finish(self) -> Result<Vec<PathBuf>> {
        match self {
            Self::Flat(mut flat) => {
                if flat.has_header {
                    let header = flat.header()?;
                    flat.file.write_start(&header)?;
                }
                Ok(vec![flat.file.finish()?])
            }
            Self::Megatron(writer) => writer.finish(),
        }
    }
}

impl Flat {
    /// The header of llm.c: magic, version, number of tokens.
    fn header(&self) -> Result<Vec<u8>> {
        let Ok(tokens) = i32::try_from(self.tokens) else {
            let message = format!(
                "{} tokens are more than the header of llm.c can say; write several files, or `plain`",
                self.tokens
            );
            return Err(Error::file(self.file.path(), message));
        };
        let ([magic, version], _) = if self.encoding == TokenEncoding::U16 { MAGIC_U16 } else { MAGIC_U32 };
        let mut header: Vec<u8> =
            [magic, version, tokens as u32].into_iter().flat_map(u32::to_le_bytes).collect();
        header.resize(HEADER_BYTES, 0);
        Ok(header)
    }
}

//! Megatron's pair of files, written one sequence at a time.

use std::io::Write;
use std::path::PathBuf;

use super::{index, paths};
use crate::data::output;
use crate::data::token_encoding::TokenEncoding;
use crate::durable::AtomicFile;
use crate::error::{Error, Result};

/// A pair of `.bin` and `.idx` files being written. They have temporary names until [`finish`](Self::finish).
#[derive(Debug)]
pub struct MegatronWriter {
    bin: AtomicFile,
    idx: AtomicFile,
    encoding: TokenEncoding,
    /// Number of tokens of each sequence.
    lengths: Vec<i32>,
    /// Number of sequences before each document, and up to the end of the last document that was ended.
    boundaries: Vec<i64>,
    /// The bytes of the current sequence, in a buffer that is reused.
    bytes: Vec<u8>,
}

impl MegatronWriter {
    /// Starts `prefix.bin` and `prefix.idx`, which will hold tokens as `encoding`. If `force`, existing files are
    /// replaced when the new files are finished.
    ///
    /// # Errors
    /// If a file exists and not `force`, or cannot be created; if the format has no code for `encoding`.
    pub fn create(prefix: &str, encoding: TokenEncoding, force: bool) -> Result<Self> {
        let (bin, idx) = paths(prefix);
        if index::code(encoding).is_none() {
            return Err(Error::file(
                idx,
                format!("the format has no code for {encoding}; use {}", TokenEncoding::I32),
            ));
        }
        output::check_free(&idx, force)?;
        let bin = output::begin(&bin, force)?;
        let idx = output::begin(&idx, force)?;
        let (lengths, bytes) = (Vec::new(), Vec::new());
        Ok(Self { bin, idx, encoding, lengths, boundaries: vec![0], bytes })
    }

    /// The encoding that Megatron chooses for a vocabulary: 16 bits if it has less than 65,500 tokens, otherwise
    /// signed 32 bits.
    pub fn encoding_for(vocab_size: usize) -> TokenEncoding {
        if vocab_size < 65_500 { TokenEncoding::U16 } else { TokenEncoding::I32 }
    }

    /// Appends a sequence to the current document.
    ///
    /// # Errors
    /// If an id does not fit the encoding, the sequence is too long for the index, or the disk is full.
    pub fn sequence(&mut self, ids: &[u32]) -> Result<()> {
        let Ok(length) = i32::try_from(ids.len()) else {
            let message = format!("a document of {} tokens is too long for the index; split it", ids.len());
            return Err(Error::file(self.bin.path(), message));
        };
        if let Some(id) = ids.iter().find(|id| **id > self.encoding.largest()) {
            let message =
                format!("token {id} does not fit {}; write the file with a wider type", self.encoding);
            return Err(Error::file(self.bin.path(), message));
        }
        self.bytes.clear();
        self.encoding.encode(ids, &mut self.bytes);
        self.bin.fill(|out| out.write_all(&self.bytes))?;
        self.lengths.push(length);
        Ok(())
    }

    /// Ends the current document.
    pub fn end_document(&mut self) {
        self.boundaries.push(self.lengths.len() as i64);
    }

    /// Writes the index and gives both files their names, first the tokens, so that an index never points to missing
    /// tokens. Returns both paths.
    ///
    /// # Errors
    /// If the disk is full.
    ///
    /// # Panics
    /// If sequences follow the last document.
    #[track_caller]
    pub fn finish(self) -> Result<Vec<PathBuf>> {
        let Self { bin, mut idx, encoding, lengths, boundaries, .. } = self;
        assert_eq!(boundaries.last(), Some(&(lengths.len() as i64)), "the last document must be ended");
        idx.fill(|out| index::write(out, encoding, &lengths, &boundaries))?;
        Ok(vec![bin.finish()?, idx.finish()?])
    }
}

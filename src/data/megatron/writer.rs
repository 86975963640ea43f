//! Writes Megatron's pair of files.

use std::path::PathBuf;

use super::{index, paths};
use crate::data::output::Output;
use crate::data::stream::TokenEncoding;
use crate::error::{Error, Result};

/// A pair of `.bin` and `.idx` files being written, under temporary names until [`finish`](Self::finish).
#[derive(Debug)]
pub struct MegatronWriter {
    bin: Output,
    idx: Output,
    encoding: TokenEncoding,
    lengths: Vec<i32>,
    modes: Vec<u8>,
    /// The first sequence of each document, and the number of sequences at the end of the last.
    boundaries: Vec<i64>,
    bytes: Vec<u8>,
}

impl MegatronWriter {
    /// Starts `prefix.bin` and `prefix.idx`. What exists under these names is replaced if `force`, at the end.
    ///
    /// # Errors
    /// If a file exists, or none can be made there; if the format does not know `encoding`.
    pub fn create(prefix: &str, encoding: TokenEncoding, force: bool) -> Result<Self> {
        let (bin, idx) = paths(prefix);
        if index::code(encoding).is_none() {
            return Err(Error::file(
                idx,
                format!("the format has no code for {encoding:?}; use 32 bits with a sign"),
            ));
        }
        Output::check_free(&idx, force)?;
        let bin = Output::create(&bin, force)?;
        let idx = Output::create(&idx, force)?;
        let (lengths, modes, bytes) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { bin, idx, encoding, lengths, modes, boundaries: vec![0], bytes })
    }

    /// Stores ids as Megatron does for a vocabulary: in 16 bits where it is below 65,500, else in 32 with a sign.
    pub fn encoding_for(vocab_size: usize) -> TokenEncoding {
        if vocab_size < 65_500 { TokenEncoding::U16 } else { TokenEncoding::I32 }
    }

    /// Appends a sequence to the current document.
    ///
    /// # Errors
    /// If an id does not fit, or the disk takes no more.
    pub fn sequence(&mut self, ids: &[u32]) -> Result<()> {
        let Ok(length) = i32::try_from(ids.len()) else {
            let message =
                format!("a document of {} tokens is longer than an index can say; split it", ids.len());
            return Err(Error::file(self.bin.path(), message));
        };
        if let Some(id) = ids.iter().find(|id| **id > self.encoding.largest()) {
            let message =
                format!("token {id} does not fit {:?}; write the file with a wider type", self.encoding);
            return Err(Error::file(self.bin.path(), message));
        }
        self.bytes.clear();
        self.encoding.encode(ids, &mut self.bytes);
        self.bin.write(&self.bytes)?;
        self.lengths.push(length);
        Ok(())
    }

    /// Gives the last sequence a mode, as multimodal data sets do: to all sequences or to none.
    pub fn mode(&mut self, mode: u8) {
        self.modes.push(mode);
    }

    /// Ends the current document.
    pub fn end_document(&mut self) {
        self.boundaries.push(self.lengths.len() as i64);
    }

    /// Writes the index, and gives both files their names: the tokens first, so that no index names tokens that are not there.
    ///
    /// # Errors
    /// If the disk takes no more.
    ///
    /// # Panics
    /// If some sequences have modes and others have none, or sequences follow the last document.
    #[track_caller]
    pub fn finish(self) -> Result<Vec<PathBuf>> {
        let Self { bin, mut idx, encoding, lengths, modes, boundaries, .. } = self;
        assert!(modes.is_empty() || modes.len() == lengths.len(), "all sequences have modes or none has");
        assert_eq!(boundaries.last(), Some(&(lengths.len() as i64)), "the last document must be ended");
        idx.fill(|out| index::write(out, encoding, &lengths, &boundaries, &modes))?;
        Ok(vec![bin.finish()?, idx.finish()?])
    }
}

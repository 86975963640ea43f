//! Samples written one after the other.

use std::hash::Hasher;
use std::io::{self, Write};

use twox_hash::XxHash3_64;

use super::{
    Bytes, HAS_NEXT, HEADER_BYTES, IS_CUT, MAGIC, MOST_TOKENS, PREDICTS, SampleStore, StoredNotes, TextCounts,
};
use crate::data::batch::NO_LABEL;
use crate::data::sample_formats::Formed;
use crate::durable::AtomicFile;
use crate::error::Result;

/// A store being written.
pub(in crate::data) struct StoreWriter {
    out: Out,
    hasher: XxHash3_64,
    words: u64,
    /// The entries of the samples, which are written after the words.
    samples: Vec<u8>,
    notes: StoredNotes,
    /// The words of a sample, in a buffer that is reused.
    buffer: Vec<u8>,
}

enum Out {
    Memory(Vec<u8>),
    File(AtomicFile),
}

/// A store that was written. A file has still its temporary name.
pub(in crate::data) enum Written {
    Memory(SampleStore),
    File(AtomicFile),
}

impl StoreWriter {
    /// Begins a store in memory.
    pub fn in_memory() -> Self {
        Self::to(Out::Memory(vec![0; HEADER_BYTES]))
    }

    /// Begins a store in a file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn in_file(mut file: AtomicFile) -> Result<Self> {
        file.fill(|out| out.write_all(&[0; HEADER_BYTES]))?;
        Ok(Self::to(Out::File(file)))
    }

    fn to(out: Out) -> Self {
        let (samples, buffer) = (Vec::new(), Vec::new());
        Self { out, hasher: XxHash3_64::new(), words: 0, samples, notes: StoredNotes::default(), buffer }
    }

    /// Appends tokens without labels to the document that [`end`](Self::end) ends.
    ///
    /// # Errors
    /// If the file cannot be written.
    ///
    /// # Panics
    /// If an id is not below [`MOST_TOKENS`].
    pub fn push_tokens(&mut self, tokens: &[u32]) -> Result<()> {
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.clear();
        for token in tokens {
            assert!(*token < MOST_TOKENS, "token {token} is outside all vocabularies");
            bytes.extend_from_slice(&token.to_le_bytes()[..3]);
        }
        self.words += tokens.len() as u64;
        self.write(&bytes)?;
        self.buffer = bytes;
        Ok(())
    }

    /// Ends a document. It consists of the tokens since the last end.
    pub fn end(&mut self) {
        self.samples.extend_from_slice(&self.words.to_le_bytes());
    }

    /// Stores the counts of the text that was read.
    pub fn count(&mut self, text: TextCounts) {
        self.notes.text = Some(text);
    }

    /// Appends a sample. Each target must be the next token or none.
    ///
    /// # Errors
    /// If the file cannot be written.
    ///
    /// # Panics
    /// If an id is not below [`MOST_TOKENS`].
    pub fn push(&mut self, sample: Formed) -> Result<()> {
        let Formed { tokens, targets, is_cut, notes, beside, rejected: _ } = sample;
        self.notes.said.add(notes);
        self.notes.beside.add(beside);
        let next = targets.last().filter(|target| **target != NO_LABEL);
        self.buffer.clear();
        let targets = targets.iter().chain(next.map(|_| &NO_LABEL));
        for (at, (token, target)) in tokens.iter().chain(next).zip(targets).enumerate() {
            let is_predicted = *target != NO_LABEL;
            debug_assert!(!is_predicted || at + 1 >= tokens.len() || tokens[at + 1] == *target);
            assert!(*token < MOST_TOKENS, "token {token} is outside all vocabularies");
            let word = token | if is_predicted { PREDICTS } else { 0 };
            self.buffer.extend_from_slice(&word.to_le_bytes()[..3]);
        }
        self.words += (tokens.len() + usize::from(next.is_some())) as u64;
        let flags = if next.is_some() { HAS_NEXT } else { 0 } | if is_cut { IS_CUT } else { 0 };
        self.samples.extend_from_slice(&(self.words | flags).to_le_bytes());
        let bytes = std::mem::take(&mut self.buffer);
        self.write(&bytes)?;
        self.buffer = bytes;
        Ok(())
    }

    /// Completes the store.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self) -> Result<Written> {
        let samples = std::mem::take(&mut self.samples);
        let notes = serde_json::to_vec(&self.notes).unwrap_or_default();
        self.write(&samples)?;
        self.write(&notes)?;
        let mut header = [0; HEADER_BYTES];
        let numbers = [self.words, samples.len() as u64 / 8, notes.len() as u64];
        header[..16].copy_from_slice(&MAGIC);
        for (at, number) in numbers.into_iter().enumerate() {
            header[16 + 8 * at..24 + 8 * at].copy_from_slice(&number.to_le_bytes());
        }
        self.hasher.write(&header[..40]);
        header[40..48].copy_from_slice(&self.hasher.finish().to_le_bytes());
        Ok(match self.out {
            Out::Memory(mut bytes) => {
                bytes[..HEADER_BYTES].copy_from_slice(&header);
                let (words, samples) = (numbers[0] as usize, numbers[1] as usize);
                let bytes = Bytes::Memory(bytes);
                Written::Memory(SampleStore { bytes, words, samples, notes: self.notes })
            }
            Out::File(mut file) => {
                file.write_start(&header)?;
                Written::File(file)
            }
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.write(bytes);
        match &mut self.out {
            Out::Memory(all) => {
                all.extend_from_slice(bytes);
                Ok(())
            }
            Out::File(file) => file.fill(|out: &mut io::BufWriter<_>| out.write_all(bytes)),
        }
    }
}

//! One pass over a stream: every token is checked against the vocabulary, and every part that a run uses is hashed.
//!
//! The hash of a run's data is XXH3 of every token and label. It is made in the pass that checks the vocabulary anyway:
//! at the start if data are in memory or short, in the background if long files are mapped. Until that pass is done, a
//! run knows only the fingerprint of a sample (`statistics.rs`), and its checkpoints carry the hash of the checkpoint
//! that the run continues, or none.

use std::hash::Hasher;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use twox_hash::XxHash3_64;

use super::statistics::check_chunk;
use super::stream::TokenStream;
use crate::error::Error;

/// A stream to be read once, from its start to its end. Clones share the results.
#[derive(Clone, Debug)]
pub(super) struct StreamPass {
    pub stream: Arc<TokenStream>,
    /// The vocabulary that the stream's tokens must fit.
    pub vocab_size: usize,
    /// A token that may be outside the vocabulary, since a model never reads it.
    pub pad: Option<u32>,
    /// The parts that are hashed.
    parts: Vec<Range<u64>>,
    /// The hashes of the parts, once the whole stream was read.
    hashes: Arc<OnceLock<Vec<u64>>>,
}

/// Why a pass ended early.
#[derive(Debug)]
pub(super) enum Stopped {
    /// The pass was asked to stop.
    Cancelled,
    /// A token is outside the vocabulary.
    Fault(Error),
}

impl StreamPass {
    pub fn new(stream: Arc<TokenStream>, vocab_size: usize, pad: Option<u32>) -> Self {
        Self { stream, vocab_size, pad, parts: Vec::new(), hashes: Arc::default() }
    }

    /// Whether this is a pass over `stream`.
    pub fn is_of(&self, stream: &Arc<TokenStream>) -> bool {
        Arc::ptr_eq(&self.stream, stream)
    }

    /// Adds a part to hash, and returns its number.
    pub fn add_part(&mut self, part: Range<u64>) -> usize {
        self.parts.push(part);
        self.parts.len() - 1
    }

    /// The hash of part number `part`, once the stream was read: XXH3 of its tokens as 32-bit words. Checkpoints store
    /// a hash that depends on it: it must not change.
    pub fn hash(&self, part: usize) -> Option<u64> {
        self.hashes.get().map(|hashes| hashes[part])
    }

    /// Reads the stream, until `must_stop` returns true.
    ///
    /// # Errors
    /// If the pass was stopped, or a token is outside the vocabulary.
    pub fn read(&self, must_stop: impl Fn() -> bool) -> Result<(), Stopped> {
        let mut hashers: Vec<XxHash3_64> = self.parts.iter().map(|_| XxHash3_64::new()).collect();
        self.stream.try_for_each_chunk(0..self.stream.len(), |start, chunk| {
            if must_stop() {
                return Err(Stopped::Cancelled);
            }
            check_chunk(start, chunk, self.vocab_size, self.pad).map_err(Stopped::Fault)?;
            for (part, hasher) in self.parts.iter().zip(&mut hashers) {
                hasher.write(bytemuck::cast_slice(&chunk[within(part, start, chunk.len())]));
            }
            Ok(())
        })?;
        let _ = self.hashes.set(hashers.iter().map(XxHash3_64::finish).collect()); // a second pass finds the same
        Ok(())
    }
}

/// The hash of several numbers.
pub(super) fn hash_of(numbers: &[u64]) -> u64 {
    XxHash3_64::oneshot(bytemuck::cast_slice(numbers))
}

/// The range of the tokens that belong to `part` within the chunk of `len` tokens from position `start` on.
fn within(part: &Range<u64>, start: u64, len: usize) -> Range<usize> {
    let local = |position: u64| (position.saturating_sub(start)).min(len as u64) as usize;
    local(part.start)..local(part.end).max(local(part.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(tokens: &[u8], parts: &[Range<u64>]) -> Vec<u64> {
        let stream = Arc::new(TokenStream::from_bytes(tokens.to_vec()));
        let mut pass = StreamPass::new(stream, 256, None);
        let numbers: Vec<usize> = parts.iter().map(|part| pass.add_part(part.clone())).collect();
        assert_eq!(pass.hash(0), None);
        pass.read(|| false).unwrap();
        numbers.into_iter().map(|number| pass.hash(number).unwrap()).collect()
    }

    #[test]
    fn every_token_of_a_part_counts_and_none_outside() {
        // More than one chunk, and parts whose borders lie within chunks.
        let tokens: Vec<u8> = (0..200_000u64).map(|i| ((i * i) >> 7) as u8).collect();
        let parts = [0..150_001, 150_001..200_000, 7..7];
        let before = hashes(&tokens, &parts);
        for position in (0..200_000).step_by(9_973).chain([150_000, 150_001, 199_999]) {
            let mut changed = tokens.clone();
            changed[position] ^= 1;
            let differs: Vec<bool> =
                hashes(&changed, &parts).iter().zip(&before).map(|(now, before)| now != before).collect();
            assert_eq!(differs, [position < 150_001, position >= 150_001, false], "{position}");
        }
    }

    #[test]
    fn a_part_has_the_hash_of_its_words_wherever_it_lies() {
        let words: Vec<u8> = [1u32, 2, 3].iter().flat_map(|word| word.to_le_bytes()).collect();
        let expected = XxHash3_64::oneshot(&words);
        for (tokens, part) in [(&[9, 1, 2, 3, 9][..], 1..4), (&[1, 2, 3], 0..3)] {
            assert_eq!(hashes(tokens, std::slice::from_ref(&part)), [expected]);
        }
        // These hashes are in the files of checkpoints.
        assert_eq!(format!("{expected:016x} {:016x}", hash_of(&[1, 2])), "6bbf7429332bea48 07ee86c281446bef");
    }

    #[test]
    fn a_reading_stops_when_asked() {
        let pass = StreamPass::new(Arc::new(TokenStream::from_bytes(vec![1, 2])), 256, None);
        assert!(matches!(pass.read(|| true), Err(Stopped::Cancelled)));
        let pass = StreamPass::new(Arc::new(TokenStream::from_bytes(vec![1, 2])), 2, None);
        assert!(matches!(pass.read(|| false), Err(Stopped::Fault(_))));
    }
}

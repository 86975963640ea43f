//! Properties of a range of tokens: its entropy, its fingerprint, whether it fits a vocabulary.

use std::collections::HashMap;
use std::ops::Range;

use super::stream::TokenStream;
use super::token_encoding::NO_TOKEN;
use crate::error::{Error, Result};

/// How often each token occurs.
#[derive(Debug, Default)]
pub(super) struct TokenCounts(HashMap<u32, u64>);

impl TokenCounts {
    /// Adds tokens.
    pub fn add<'a>(&mut self, tokens: impl IntoIterator<Item = &'a u32>) {
        tokens.into_iter().for_each(|token| *self.0.entry(*token).or_default() += 1);
    }

    /// Adds a range of a stream.
    pub fn add_range(&mut self, stream: &TokenStream, range: Range<u64>) {
        let _ = stream.try_for_each_chunk(range, |_, chunk| {
            self.add(chunk);
            Ok::<(), std::convert::Infallible>(())
        });
    }

    /// The entropy of the tokens' distribution in nats: -Σ p ln p. A model that ignores its context has at least this
    /// loss.
    pub fn entropy(self) -> f64 {
        let total = self.0.values().sum::<u64>() as f64;
        // A hash map's order varies: sort, so that the sum rounds the same in every run.
        let mut counts: Vec<u64> = self.0.into_values().collect();
        counts.sort_unstable();
        counts.into_iter().map(|count| count as f64 / total).map(|share| -share * share.ln()).sum()
    }
}

/// A hash of the length and a sample of the tokens, by which a resumed run notices that its data have changed. Reads 64
/// evenly spaced stretches of at most 1,024 tokens, however long the range. Checkpoints store it: it must not change.
pub fn fingerprint(stream: &TokenStream, range: Range<u64>) -> u64 {
    const STRETCHES: u64 = 64;
    const STRETCH: u64 = 1024;
    let len = range.end.saturating_sub(range.start);
    let mut hash = fnv1a(0xcbf2_9ce4_8422_2325, &len.to_le_bytes());
    let mut buffer = [0; STRETCH as usize];
    let count = len.min(STRETCH);
    for stretch in 0..STRETCHES {
        // The product may exceed 64 bits.
        let offset = u128::from(len - count) * u128::from(stretch) / u128::from(STRETCHES - 1);
        let start = range.start + offset as u64;
        let tokens = &mut buffer[..count as usize];
        stream.read(start..start + count, tokens);
        for token in tokens {
            hash = fnv1a(hash, &token.to_le_bytes());
        }
    }
    hash
}

/// Checks that every token of `chunk`, which starts at position `start` of its stream, is below `vocab_size`. `pad` is
/// allowed, because a model never reads it.
///
/// # Errors
/// Names the first token that is outside the vocabulary, and its position.
pub(super) fn check_chunk(start: u64, chunk: &[u32], vocab_size: usize, pad: Option<u32>) -> Result<()> {
    match chunk.iter().position(|token| *token as usize >= vocab_size && Some(*token) != pad) {
        None => Ok(()),
        Some(index) if chunk[index] == NO_TOKEN => Err(Error::Plan(format!(
            "the value at position {} of the data is not a token id, but negative or wider than 32 bits: check `dtype`, or write the file again",
            start + index as u64
        ))),
        Some(index) => Err(Error::Plan(format!(
            "token {} at position {} of the data is outside vocab_size {vocab_size}: raise model.model_config.vocab_size or check `dtype`",
            chunk[index],
            start + index as u64
        ))),
    }
}

/// The 64-bit FNV-1a hash (Fowler, Noll, Vo) of `bytes`, continued from `hash`.
pub(super) fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_of_known_distributions() {
        let stream = TokenStream::from_bytes(b"abcdabcdaaaa".to_vec());
        let entropy = |range| {
            let mut counts = TokenCounts::default();
            counts.add_range(&stream, range);
            counts.entropy()
        };
        assert!((entropy(0..8) - 4f64.ln()).abs() < 1e-12);
        assert_eq!(entropy(8..12), 0.0);
        assert_eq!(entropy(3..3), 0.0);
    }

    #[test]
    fn fingerprint_sees_length_and_content() {
        let bytes: Vec<u8> = (0..200_000u64).map(|i| ((i * i) >> 7) as u8).collect();
        let whole = TokenStream::from_bytes(bytes.clone());
        let print = fingerprint(&whole, 0..200_000);
        assert_eq!(print, fingerprint(&TokenStream::from_bytes(bytes.clone()), 0..200_000));
        assert_ne!(print, fingerprint(&whole, 0..199_999));
        for position in [0, 199_999] {
            let mut changed = bytes.clone();
            changed[position] ^= 1;
            assert_ne!(print, fingerprint(&TokenStream::from_bytes(changed), 0..200_000));
        }
        fingerprint(&TokenStream::default(), 0..0);
    }

    #[test]
    fn a_token_outside_the_vocabulary_is_named() {
        let error = check_chunk(5, &[1, 2, 9], 9, None).unwrap_err().to_string();
        assert!(error.starts_with("token 9 at position 7 of the data is outside vocab_size 9:"), "{error}");
        assert!(check_chunk(5, &[1, 2, 9], 9, Some(9)).is_ok());
    }
}

//! Hashes by which a run notices that any of its data have changed.

use super::batches::Batches;
use super::stream_pass::{StreamPass, hash_of};

/// Hashes of everything that a run may read of its data: tokens, labels, where samples end, and what decides how they are
/// read. Equal data have equal hashes, whatever files they lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHashes {
    /// Of the training data.
    pub train: u64,
    /// Of the evaluation data, if there are any.
    pub eval: Option<u64>,
}

impl DataHashes {
    /// One number that stands for both, other than 0.
    pub fn combined(&self) -> u64 {
        hash_of(&[self.train, self.eval.unwrap_or(0)]).max(1)
    }
}

/// What the hash of some batches is made of.
#[derive(Clone, Debug)]
pub(super) struct HashParts {
    /// That of lengths, weights, ends of samples and rules, for which no stream needs to be read.
    fingerprint: u64,
    /// The numbers of a pass, and of a part of its stream.
    parts: Vec<(usize, usize)>,
}

impl HashParts {
    /// What the hash of `batches` is made of; their streams' parts are added to `passes`.
    pub fn of(batches: &Batches, passes: &mut [StreamPass]) -> Self {
        let parts = batches.streams().into_iter().filter_map(|(stream, range)| {
            let index = passes.iter().position(|pass| pass.is_of(stream))?;
            Some((index, passes[index].add_part(range)))
        });
        Self { parts: parts.collect(), fingerprint: batches.fingerprint() }
    }

    /// The hash, once all of `passes` that it takes were read.
    pub fn hash(&self, passes: &[StreamPass]) -> Option<u64> {
        let parts = self.parts.iter().map(|(pass, part)| passes[*pass].hash(*part));
        let numbers: Option<Vec<u64>> = [Some(self.fingerprint)].into_iter().chain(parts).collect();
        numbers.map(|numbers| hash_of(&numbers))
    }
}

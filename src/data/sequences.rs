//! Sequences of tokens whose losses are wanted one by one, packed into the rows of batches.

use super::batch::{Batch, NO_LABEL};
use super::batches::{BatchSpec, Batches};
use super::document_rules::DocumentRules;
use super::sample_collector::SampleCollector;
use super::sample_formats::fill_rows;
use super::source::DataSource;
use crate::error::Result;
use std::ops::Range;

/// Tokens that a model reads from an empty context, and for each the token to predict or [`NO_LABEL`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// The target of each token.
    pub targets: Vec<u32>,
}

impl Sequence {
    /// Whether anything is predicted.
    pub fn has_target(&self) -> bool {
        self.targets.iter().any(|target| *target != NO_LABEL)
    }
}

/// Sequences in the rows of batches, each a document of its own that attends to no other.
pub struct PackedSequences {
    batches: Batches,
    /// The place of each sequence, in tokens from the first batch on.
    places: Vec<Range<usize>>,
}

impl PackedSequences {
    /// Packs `sequences`, none of which is empty or longer than a row of `spec`.
    ///
    /// # Errors
    /// If there is no sequence.
    pub fn new(sequences: &[Sequence], spec: &BatchSpec) -> Result<Self> {
        let length = |member: usize| sequences[member].tokens.len();
        let filled = fill_rows(sequences.len(), length, spec.seq_length);
        let rows = filled.rows().len();
        let mut collector = SampleCollector::default();
        let mut places = vec![0..0; sequences.len()];
        for (row, members) in filled.rows().enumerate() {
            let mut start = row * spec.seq_length;
            for member in members.iter().map(|member| *member as usize) {
                let Sequence { tokens, targets } = &sequences[member];
                collector.push_document(tokens, targets);
                places[member] = start..start + tokens.len();
                start += tokens.len();
            }
            collector.end_sample();
        }
        // The last batch is filled with rows in which nothing is predicted.
        for _ in rows..rows.next_multiple_of(spec.batch_size) {
            collector.push(&[0], &[NO_LABEL]);
        }
        let source = DataSource::from(collector.finish());
        let rules =
            DocumentRules { resets_positions: true, isolates_documents: true, ..DocumentRules::default() };
        let batches = Batches::of_sources(vec![source], spec.clone(), None, None)?.with_rules(rules);
        Ok(Self { batches, places })
    }

    /// Number of batches.
    pub fn batches(&self) -> u64 {
        self.batches.micro_steps_per_epoch()
    }

    /// Batch number `number`.
    ///
    /// # Errors
    /// If the batch holds a token outside the vocabulary.
    pub fn batch(&self, number: u64) -> Result<Batch> {
        self.batches.batch(number)
    }

    /// Splits the values of all tokens of all batches into the values of each sequence.
    pub fn split(&self, values: &[f32]) -> Vec<Vec<f32>> {
        self.places.iter().map(|place| values[place.clone()].to_vec()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sequence_gets_its_own_values() {
        let sequence = |length: usize, first: u32| Sequence {
            tokens: (first..first + length as u32).collect(),
            targets: (first + 1..=first + length as u32).collect(),
        };
        let sequences = [sequence(3, 10), sequence(5, 20), sequence(2, 30), sequence(4, 40)];
        let spec = BatchSpec {
            seq_length: 8,
            batch_size: 3,
            micro_batches: 1,
            vocab_size: 100,
            ignore_id: 99,
            sorts_positions: true,
            ahead: 0,
            rank: 0,
            world: 1,
        };
        let packed = PackedSequences::new(&sequences, &spec).unwrap();
        assert_eq!(packed.batches(), 1);
        let batch = packed.batch(0).unwrap();
        let values = |ids: &[u32]| packed.split(&ids.iter().map(|id| *id as f32).collect::<Vec<_>>());
        let as_values = |ids: &[u32]| ids.iter().map(|id| *id as f32).collect::<Vec<_>>();
        for (sequence, got) in sequences.iter().zip(values(&batch.tokens)) {
            assert_eq!(got, as_values(&sequence.tokens));
        }
        for (sequence, got) in sequences.iter().zip(values(&batch.targets)) {
            assert_eq!(got, as_values(&sequence.targets));
        }
        for (sequence, got) in sequences.iter().zip(values(&batch.positions)) {
            assert_eq!(got, as_values(&(0..sequence.tokens.len() as u32).collect::<Vec<_>>()));
        }
        let predicted = batch.targets.iter().filter(|target| **target != 99).count();
        assert_eq!(predicted, 14);
    }
}

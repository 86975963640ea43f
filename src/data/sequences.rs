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

/// Rows of the last batch are a multiple of this many tokens long, unless others are shorter.
const LENGTHS: usize = 64;

/// Sequences in the rows of batches, each a document of its own that attends to no other.
pub struct PackedSequences {
    /// The full batches, and the last one if fewer rows are left for it: these are only as long as their tokens.
    parts: Vec<Batches>,
    /// The place of each sequence, in tokens from the first batch on.
    places: Vec<Range<usize>>,
}

impl PackedSequences {
    /// Packs `sequences`, none of which is empty or longer than a row of `spec`.
    ///
    /// # Errors
    /// If there is no sequence.
    pub fn new(sequences: &[&Sequence], spec: &BatchSpec) -> Result<Self> {
        let length = |member: usize| sequences[member].tokens.len();
        let filled = fill_rows(sequences.len(), length, spec.seq_length);
        let rows: Vec<&[u32]> = filled.rows().collect();
        let (full, left) = rows.split_at(rows.len() / spec.batch_size * spec.batch_size);
        let tokens = |row: &&[u32]| row.iter().map(|member| length(*member as usize)).sum::<usize>();
        let longest = left.iter().map(tokens).max().unwrap_or(0).next_multiple_of(LENGTHS);
        let last =
            BatchSpec { batch_size: left.len(), seq_length: longest.min(spec.seq_length), ..spec.clone() };
        let mut places = vec![0..0; sequences.len()];
        let (mut parts, mut first) = (Vec::new(), 0);
        for (rows, spec) in [(full, spec.clone()), (left, last)] {
            if rows.is_empty() && !sequences.is_empty() {
                continue; // without any sequence the batches below say so
            }
            let mut collector = SampleCollector::default();
            for members in rows {
                let mut start = first;
                for member in members.iter().map(|member| *member as usize) {
                    let Sequence { tokens, targets } = sequences[member];
                    collector.push_document(tokens, targets);
                    places[member] = start..start + tokens.len();
                    start += tokens.len();
                }
                collector.end_sample();
                first += spec.seq_length;
            }
            let source = DataSource::from(collector.finish());
            let rules = DocumentRules {
                resets_positions: true,
                isolates_documents: true,
                ..DocumentRules::default()
            };
            parts.push(Batches::of_sources(vec![source], spec, None, None)?.with_rules(rules));
        }
        Ok(Self { parts, places })
    }

    /// The shapes of batches: of full ones and of the last, or of one of these.
    pub fn specs(&self) -> impl Iterator<Item = &BatchSpec> {
        self.parts.iter().map(Batches::spec)
    }

    /// The batches in order, each as the place of its shape among [`specs`](Self::specs) and its number among those of
    /// that shape.
    pub fn batches(&self) -> Vec<(usize, u64)> {
        let numbers = |part: &Batches| 0..part.micro_steps_per_epoch();
        let parts = self.parts.iter().map(numbers).enumerate();
        parts.flat_map(|(part, numbers)| numbers.map(move |number| (part, number))).collect()
    }

    /// One of [`batches`](Self::batches).
    ///
    /// # Errors
    /// If the batch holds a token outside the vocabulary.
    pub fn batch(&self, (part, number): (usize, u64)) -> Result<Batch> {
        self.parts[part].batch(number)
    }

    /// Splits the values of all tokens of all batches into the values of each sequence.
    pub fn split(&self, values: &[f32]) -> Vec<Vec<f32>> {
        self.places.iter().map(|place| values[place.clone()].to_vec()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three rows, of which two are in a full batch and one, with room for 64 of 80 tokens, in the last.
    #[test]
    fn each_sequence_gets_its_own_values() {
        let sequence = |length: u32| Sequence {
            tokens: (length..2 * length).collect(),
            targets: (length + 1..=2 * length).collect(),
        };
        let sequences = [30, 70, 20, 40].map(sequence);
        let spec = BatchSpec {
            seq_length: 80,
            batch_size: 2,
            micro_batches: 1,
            vocab_size: 200,
            ignore_id: 199,
            sorts_positions: true,
            ahead: 0,
            rank: 0,
            world: 1,
        };
        let packed = PackedSequences::new(&sequences.each_ref(), &spec).unwrap();
        let shapes: Vec<_> = packed.specs().map(|spec| (spec.batch_size, spec.seq_length)).collect();
        assert_eq!((packed.batches(), shapes), (vec![(0, 0), (1, 0)], vec![(2, 80), (1, 64)]));
        let batches = packed.batches().into_iter().map(|batch| packed.batch(batch).unwrap());
        let mut batch = Batch::default();
        for next in batches {
            assert_eq!(next.tokens.len(), next.targets.len());
            batch.tokens.extend(next.tokens);
            batch.targets.extend(next.targets);
            batch.positions.extend(next.positions);
        }
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
        let predicted = batch.targets.iter().filter(|target| **target != 199).count();
        assert_eq!(predicted, 160);
    }
}

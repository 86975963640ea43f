//! Windows of a token stream dealt into micro-batches, each a pure function of its number.

use std::ops::Range;
use std::sync::Arc;

use super::batch::Batch;
use super::statistics::{self, check_chunk};
use super::stream::TokenStream;
use crate::error::{Error, Result};
use crate::random::{Permutation, SHUFFLE_STREAM};

/// How windows are dealt.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchSpec {
    /// Tokens a window feeds to the model.
    pub seq_length: usize,
    /// Windows in a micro-batch of one rank.
    pub batch_size: usize,
    /// Micro-batches in a step.
    pub gradient_accumulation_steps: usize,
    /// Number of different tokens.
    pub vocab_size: usize,
    /// Whether batches come with their tokens sorted by position.
    pub sorts_positions: bool,
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
}

/// A range of a token stream as micro-batches. Windows take `seq_length + 1` tokens and start every `seq_length`,
/// so each token of the range but the first is predicted once an epoch; what does not fill a step is dropped.
#[derive(Clone, Debug)]
pub struct Batches {
    stream: Arc<TokenStream>,
    range: Range<u64>,
    spec: BatchSpec,
    windows: u64,
    steps_per_epoch: u64,
    /// Seed of the order; without one, windows come as they lie.
    shuffle: Option<u64>,
}

impl Batches {
    /// Deals the windows of `range`, shuffled by the seed `shuffle`.
    ///
    /// # Errors
    /// If the range is shorter than a window or has fewer windows than a step takes.
    ///
    /// # Panics
    /// If a size in `spec` is 0.
    #[track_caller]
    pub fn new(
        stream: Arc<TokenStream>,
        range: Range<u64>,
        spec: BatchSpec,
        shuffle: Option<u64>,
    ) -> Result<Self> {
        let (tokens, seq_length) = (range.end.saturating_sub(range.start), spec.seq_length as u64);
        if tokens <= seq_length {
            return Err(Error::Plan(format!(
                "seq_length {seq_length} is longer than the data: a window takes {} tokens, {tokens} were found; lower model.model_config.seq_length or name more data",
                seq_length + 1
            )));
        }
        let sizes = [spec.seq_length, spec.batch_size, spec.gradient_accumulation_steps, spec.world];
        assert!(!sizes.contains(&0), "a batch has rows, and rows have tokens: {spec:?}");
        let windows = (tokens - 1) / seq_length;
        let per_step = sizes[1..].iter().fold(1u64, |product, size| product.saturating_mul(*size as u64));
        let steps_per_epoch = windows / per_step;
        if steps_per_epoch == 0 {
            return Err(Error::Plan(format!(
                "a step takes {per_step} windows of {seq_length} tokens, the data has {windows}: lower batch_size, gradient_accumulation_steps or seq_length, or name more data"
            )));
        }
        Ok(Self { stream, range, spec, windows, steps_per_epoch, shuffle })
    }

    /// How the windows are dealt.
    pub fn spec(&self) -> &BatchSpec {
        &self.spec
    }

    /// Number of windows in the range.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Whole steps in an epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch
    }

    /// Micro-batches in an epoch: its steps times `gradient_accumulation_steps`.
    pub fn micro_steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch * self.spec.gradient_accumulation_steps as u64
    }

    /// The tokens these batches come from.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Entropy of single tokens in nats over what an epoch predicts, at most `batches` micro-batches of it.
    pub fn unigram_entropy(&self, batches: u64) -> f64 {
        let windows = batches.min(self.micro_steps_per_epoch()) * self.windows_per_batch();
        let start = self.range.start + 1;
        statistics::unigram_entropy(&self.stream, start..start + windows * self.spec.seq_length as u64)
    }

    /// A number that changes with the data; a resumed run compares it.
    pub fn fingerprint(&self) -> u64 {
        statistics::fingerprint(&self.stream, self.range())
    }

    /// The micro-batch with the number `micro_step`, counted from the start of training through all epochs.
    ///
    /// # Errors
    /// If it holds a token outside the vocabulary.
    pub fn batch(&self, micro_step: u64) -> Result<Batch> {
        let mut batch = Batch::default();
        self.fill(micro_step, &mut batch)?;
        Ok(batch)
    }

    /// [`Batches::batch`] into a batch that exists; allocates nothing once it has been filled.
    ///
    /// # Errors
    /// If it holds a token outside the vocabulary.
    pub fn fill(&self, micro_step: u64, batch: &mut Batch) -> Result<()> {
        let seq_length = self.spec.seq_length;
        batch.resize(self.spec.batch_size * seq_length, self.spec.sorts_positions);
        let epoch = micro_step / self.micro_steps_per_epoch();
        let first = micro_step % self.micro_steps_per_epoch() * self.windows_per_batch();
        let order = self.shuffle.map(|seed| Permutation::new(self.windows, seed, SHUFFLE_STREAM + epoch));
        for row in 0..self.spec.batch_size {
            // Ranks take turns, so that the windows of a step do not depend on their number.
            let sample = first + (row * self.spec.world + self.spec.rank) as u64;
            let window = order.map_or(sample, |order| order.at(sample));
            let start = self.range.start + window * seq_length as u64;
            let columns = row * seq_length..(row + 1) * seq_length;
            let (tokens, targets) = (&mut batch.tokens[columns.clone()], &mut batch.targets[columns]);
            self.stream.read(start..start + seq_length as u64, tokens);
            targets[..seq_length - 1].copy_from_slice(&tokens[1..]);
            let end = start + seq_length as u64;
            self.stream.read(end..end + 1, &mut targets[seq_length - 1..]);
            check_chunk(start, tokens, self.spec.vocab_size)?;
            check_chunk(end, &targets[seq_length - 1..], self.spec.vocab_size)?;
        }
        batch.index(seq_length);
        Ok(())
    }

    /// Windows that one micro-batch takes on all ranks together.
    fn windows_per_batch(&self) -> u64 {
        (self.spec.batch_size * self.spec.world) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(seq_length: usize, batch_size: usize) -> BatchSpec {
        BatchSpec {
            seq_length,
            batch_size,
            gradient_accumulation_steps: 1,
            vocab_size: 256,
            sorts_positions: false,
            rank: 0,
            world: 1,
        }
    }

    fn batches(tokens: u32, spec: BatchSpec, shuffle: Option<u64>) -> Result<Batches> {
        let stream = TokenStream::from_bytes((0..tokens).map(|token| token as u8).collect());
        let range = 0..stream.len();
        Batches::new(Arc::new(stream), range, spec, shuffle)
    }

    #[test]
    fn windows_in_order() {
        let batches = batches(14, spec(4, 2), None).unwrap();
        assert_eq!((batches.windows(), batches.steps_per_epoch()), (3, 1));
        let batch = batches.batch(0).unwrap();
        assert_eq!(batch.tokens, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(batch.targets, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(batch.positions, [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(batch.order, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(batch.position_order, [0; 0]);
        assert_eq!(batches.batch(1).unwrap(), batch);
    }

    #[test]
    fn each_epoch_deals_every_window_once_in_a_new_order() {
        let batches = batches(201, spec(4, 5), Some(9)).unwrap();
        let firsts = |epoch: u64| -> Vec<u32> {
            let steps = epoch * 10..epoch * 10 + 10;
            steps
                .flat_map(|step| {
                    batches.batch(step).unwrap().tokens.into_iter().step_by(4).collect::<Vec<_>>()
                })
                .collect()
        };
        let sorted = |mut values: Vec<u32>| {
            values.sort_unstable();
            values
        };
        assert_ne!(firsts(0), firsts(1));
        assert_eq!(sorted(firsts(0)), (0..200).step_by(4).collect::<Vec<_>>());
        assert_eq!(sorted(firsts(0)), sorted(firsts(1)));
    }

    #[test]
    fn accumulation_and_ranks_split_the_same_step() {
        let whole = batches(1000, spec(4, 8), Some(3)).unwrap();
        let rows = |batch: Batch| batch.tokens.chunks(4).map(<[u32]>::to_vec).collect::<Vec<_>>();
        let accumulated = BatchSpec { gradient_accumulation_steps: 4, ..spec(4, 2) };
        let accumulated = batches(1000, accumulated, Some(3)).unwrap();
        let parts: Vec<_> = (4..8).flat_map(|step| rows(accumulated.batch(step).unwrap())).collect();
        assert_eq!(parts, rows(whole.batch(1).unwrap()));
        let of_rank = |rank| {
            batches(1000, BatchSpec { rank, world: 2, ..spec(4, 4) }, Some(3)).unwrap().batch(1).unwrap()
        };
        let (even, odd) = (rows(of_rank(0)), rows(of_rank(1)));
        let turns: Vec<_> = even.into_iter().zip(odd).flat_map(|(even, odd)| [even, odd]).collect();
        assert_eq!(turns, rows(whole.batch(1).unwrap()));
    }

    #[test]
    fn filling_again_allocates_nothing() {
        let batches = batches(500, spec(8, 4), Some(1)).unwrap();
        let mut batch = batches.batch(0).unwrap();
        let pointers = |batch: &Batch| {
            [&batch.tokens, &batch.targets, &batch.positions, &batch.order].map(|b| b.as_ptr())
        };
        let before = pointers(&batch);
        batches.fill(5, &mut batch).unwrap();
        assert_eq!(before, pointers(&batch));
        assert_eq!(batch, batches.batch(5).unwrap());
    }

    #[test]
    fn positions_are_sorted_where_a_model_learns_them() {
        let batches = batches(14, BatchSpec { sorts_positions: true, ..spec(4, 2) }, None).unwrap();
        let batch = batches.batch(0).unwrap();
        assert_eq!(batch.position_order, [0, 4, 1, 5, 2, 6, 3, 7]);
    }

    #[test]
    fn too_little_data_is_named() {
        let message = |result: Result<Batches>| result.unwrap_err().to_string();
        assert_eq!(
            message(batches(8, spec(8, 1), None)),
            "seq_length 8 is longer than the data: a window takes 9 tokens, 8 were found; lower model.model_config.seq_length or name more data"
        );
        assert!(batches(9, spec(8, 1), None).is_ok());
        let error = message(batches(30, spec(8, 4), None));
        assert!(
            error.starts_with("a step takes 4 windows of 8 tokens, the data has 3: lower batch_size"),
            "{error}"
        );
        let narrow = BatchSpec { vocab_size: 16, ..spec(4, 1) };
        let error = batches(18, narrow, None).unwrap().batch(3).unwrap_err().to_string();
        assert!(error.starts_with("token 16 at position 16 of the data is outside vocab_size 16"), "{error}");
    }
}

//! Several samples in one row.

use super::Formed;
use crate::data::sample_collector::SampleCollector;

/// How samples are packed into rows, as MindFormers' `PackingHandler` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackStrategy {
    /// Whole samples, in order, as long as they fit; one that is longer than a row is dropped.
    Pack,
    /// All samples in a row, cut where a row is full.
    Truncate,
}

/// MindFormers packs this many samples at a time when it cuts them, and pads what is left of the last row.
const CUT_AT_A_TIME: u64 = 1000;

/// Fills rows with samples, each a document of its own.
#[derive(Debug)]
pub(in crate::data) struct Packer {
    strategy: PackStrategy,
    seq_length: usize,
    /// Tokens in the row that is being filled.
    filled: usize,
    /// Number of samples taken.
    taken: u64,
    /// The rows.
    pub rows: SampleCollector,
    /// Number of samples that were dropped because they are longer than a row.
    pub dropped: u64,
}

impl Packer {
    /// An empty packer of rows of `seq_length` tokens.
    pub fn new(strategy: PackStrategy, seq_length: usize) -> Self {
        Self { strategy, seq_length, filled: 0, taken: 0, rows: SampleCollector::default(), dropped: 0 }
    }

    /// Takes a sample.
    pub fn push(&mut self, sample: &Formed) {
        self.taken += 1;
        match self.strategy {
            PackStrategy::Pack => self.pack(sample),
            PackStrategy::Truncate => self.cut(sample),
        }
    }

    /// The rows, the last one included.
    pub fn finish(mut self) -> SampleCollector {
        self.end_row();
        self.rows
    }

    fn pack(&mut self, sample: &Formed) {
        let len = sample.tokens.len();
        if len > self.seq_length {
            self.dropped += 1;
            return;
        }
        if self.filled + len > self.seq_length {
            self.end_row();
        }
        self.rows.push_document(&sample.tokens, &sample.targets);
        self.filled += len;
    }

    fn cut(&mut self, sample: &Formed) {
        let mut start = 0;
        while start < sample.tokens.len() {
            let end = sample.tokens.len().min(start + self.seq_length - self.filled);
            self.rows.push_document(&sample.tokens[start..end], &sample.targets[start..end]);
            self.filled += end - start;
            start = end;
            if self.filled == self.seq_length {
                self.end_row();
            }
        }
        if self.taken.is_multiple_of(CUT_AT_A_TIME) {
            self.end_row();
        }
    }

    fn end_row(&mut self) {
        if self.filled > 0 {
            self.rows.end_sample();
            self.filled = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documents of each row when samples of these lengths are packed into rows of `seq_length`.
    fn rows(strategy: PackStrategy, seq_length: usize, lengths: &[usize]) -> (Vec<Vec<usize>>, u64) {
        let mut packer = Packer::new(strategy, seq_length);
        for length in lengths {
            let tokens: Vec<u32> = (0..*length as u32).collect();
            packer.push(&Formed { targets: tokens.clone(), tokens, ..Formed::default() });
        }
        let dropped = packer.dropped;
        let samples = packer.finish().finish();
        let row = |sample| {
            let mut lengths = Vec::new();
            samples.for_each_document(sample, seq_length, |range| lengths.push(range.len()));
            lengths
        };
        ((0..samples.len()).map(row).collect(), dropped)
    }

    #[test]
    fn whole_samples_fill_rows_and_long_ones_are_dropped() {
        let (rows, dropped) = rows(PackStrategy::Pack, 8, &[3, 4, 2, 9, 6, 8]);
        assert_eq!(rows, [vec![3, 4, 1], vec![2, 6], vec![8]]);
        assert_eq!(dropped, 1);
    }

    #[test]
    fn samples_are_cut_where_a_row_is_full() {
        let (rows, dropped) = rows(PackStrategy::Truncate, 8, &[3, 4, 2, 17, 1]);
        assert_eq!(rows, [vec![3, 4, 1], vec![1, 7], vec![8], vec![2, 1, 5]]);
        assert_eq!(dropped, 0);
    }

    #[test]
    fn a_thousand_samples_end_a_row_when_they_are_cut() {
        let (rows, _) = rows(PackStrategy::Truncate, 8, &[1; 1003]);
        assert_eq!(rows.len(), 126);
        assert_eq!(rows[125], [1, 1, 1, 5]);
    }
}

//! Several samples in one row.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// How samples are packed into rows; the first two as MindFormers' `PackingHandler` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackStrategy {
    /// Whole samples, in order, as long as they fit; one that is longer than a row is dropped.
    Pack,
    /// All samples in a row, cut where a row is full.
    Truncate,
    /// Whole samples, the longest first, each into the fullest row that has room for it; one that is longer than a row is cut, as
    /// without packing.
    BestFit,
}

/// MindFormers packs this many samples at a time when it cuts them, and pads what is left of the last row.
const CUT_AT_A_TIME: usize = 1000;

/// Rows of samples, or of parts of them, each a document of its own.
#[derive(Debug, Default)]
pub(in crate::data) struct Packed {
    /// The documents: the first word of each, and its tokens.
    pub documents: Vec<(u64, usize)>,
    /// The end of each row, in documents.
    pub ends: Vec<u64>,
    /// Number of samples that were dropped because they are longer than a row.
    pub dropped: u64,
}

impl PackStrategy {
    /// Whether samples are cut to the length of a row before they are packed.
    pub(in crate::data) fn cuts_samples(self) -> bool {
        self == Self::BestFit
    }

    /// The number of rows that samples of these tokens fill.
    pub fn rows(self, seq_length: usize, samples: impl IntoIterator<Item = usize>) -> usize {
        let most = if self.cuts_samples() { seq_length } else { usize::MAX };
        let samples: Vec<(u64, usize)> = samples.into_iter().map(|tokens| (0, tokens.min(most))).collect();
        self.pack(seq_length, &samples).ends.len()
    }

    /// Rows of at most `seq_length` tokens of samples with these first words and tokens.
    pub(in crate::data) fn pack(self, seq_length: usize, samples: &[(u64, usize)]) -> Packed {
        let mut packed = Packed::default();
        let mut filled = 0;
        match self {
            Self::Pack => {
                for &(start, tokens) in samples {
                    if tokens > seq_length {
                        packed.dropped += 1;
                        continue;
                    }
                    if filled + tokens > seq_length {
                        packed.end_row(&mut filled);
                    }
                    packed.documents.push((start, tokens));
                    filled += tokens;
                }
            }
            Self::Truncate => {
                for (number, &(start, tokens)) in (1..).zip(samples) {
                    let mut done = 0;
                    while done < tokens {
                        let count = (tokens - done).min(seq_length - filled);
                        packed.documents.push((start + done as u64, count));
                        filled += count;
                        done += count;
                        if filled == seq_length {
                            packed.end_row(&mut filled);
                        }
                    }
                    if usize::is_multiple_of(number, CUT_AT_A_TIME) {
                        packed.end_row(&mut filled);
                    }
                }
            }
            Self::BestFit => {
                let lengths: Vec<usize> = samples.iter().map(|(_, tokens)| *tokens).collect();
                for row in fill_rows(&lengths, seq_length) {
                    packed.documents.extend(row.into_iter().map(|member| samples[member]));
                    packed.ends.push(packed.documents.len() as u64);
                }
            }
        }
        packed.end_row(&mut filled);
        packed
    }
}

impl Packed {
    fn end_row(&mut self, filled: &mut usize) {
        if *filled > 0 {
            self.ends.push(self.documents.len() as u64);
            *filled = 0;
        }
    }

    /// Appends the rows of `others`.
    pub fn extend(&mut self, others: Self) {
        let before = self.documents.len() as u64;
        self.documents.extend(others.documents);
        self.ends.extend(others.ends.into_iter().map(|end| before + end));
        self.dropped += others.dropped;
    }
}

/// The members of each row of `room` tokens: the longest first, each into the fullest row that has room for it.
pub(in crate::data) fn fill_rows(lengths: &[usize], room: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&member| Reverse(lengths[member]));
    let mut rows: Vec<Vec<usize>> = Vec::new();
    let mut left = BTreeSet::new();
    for member in order {
        let length = lengths[member];
        assert!(length <= room, "a sequence of {length} tokens is longer than a row of {room}");
        let (rest, row) = left.range((length, 0)..).next().copied().unwrap_or((room, rows.len()));
        if row == rows.len() {
            rows.push(Vec::new());
        }
        left.remove(&(rest, row));
        rows[row].push(member);
        left.insert((rest - length, row));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documents of each row when samples of these lengths are packed into rows of `seq_length`.
    fn rows(strategy: PackStrategy, seq_length: usize, lengths: &[usize]) -> (Vec<Vec<usize>>, u64) {
        let samples: Vec<(u64, usize)> = lengths.iter().map(|length| (0, *length)).collect();
        let packed = strategy.pack(seq_length, &samples);
        let starts = [0].into_iter().chain(packed.ends.iter().copied());
        let row = |(start, end): (u64, &u64)| {
            packed.documents[start as usize..*end as usize].iter().map(|(_, tokens)| *tokens).collect()
        };
        (starts.zip(&packed.ends).map(row).collect(), packed.dropped)
    }

    #[test]
    fn whole_samples_fill_rows_and_long_ones_are_dropped() {
        let (rows, dropped) = rows(PackStrategy::Pack, 8, &[3, 4, 2, 9, 6, 8]);
        assert_eq!(rows, [vec![3, 4], vec![2, 6], vec![8]]);
        assert_eq!(dropped, 1);
    }

    #[test]
    fn rows_are_filled_without_splitting_a_sequence() {
        assert_eq!(fill_rows(&[3, 8, 4, 1, 5, 2], 8), [vec![1], vec![4, 0], vec![2, 5, 3]]);
        assert!(fill_rows(&[], 8).is_empty());
        let (rows, dropped) = rows(PackStrategy::BestFit, 8, &[3, 8, 4, 1, 5, 2]);
        assert_eq!((rows, dropped), (vec![vec![8], vec![5, 3], vec![4, 2, 1]], 0));
    }

    #[test]
    fn samples_are_cut_where_a_row_is_full() {
        let (rows, dropped) = rows(PackStrategy::Truncate, 8, &[3, 4, 2, 17, 1]);
        assert_eq!(rows, [vec![3, 4, 1], vec![1, 7], vec![8], vec![2, 1]]);
        assert_eq!(dropped, 0);
    }

    #[test]
    fn a_thousand_samples_end_a_row_when_they_are_cut() {
        let (rows, _) = rows(PackStrategy::Truncate, 8, &[1; 1003]);
        assert_eq!(rows.len(), 126);
        assert_eq!(rows[125], [1, 1, 1]);
    }
}

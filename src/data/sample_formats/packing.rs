//! Several samples in one row.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat_n;
use std::ops::Range;

use crate::data::sample_store::Runs;

/// How samples are packed into rows. The first two strategies are those of MindFormers' `PackingHandler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackStrategy {
    /// Whole samples, in order, as long as they fit; a sample that is longer than a row is dropped.
    Pack,
    /// All samples in a row, cut where a row is full.
    Truncate,
    /// Whole samples, the longest first, each into the fullest row that has room for it. A sample that is longer than a
    /// row is cut, as without packing.
    BestFit,
}

/// MindFormers packs this many samples at a time when it cuts them, and pads the rest of the last row.
const CUT_AT_A_TIME: usize = 1000;

/// Rows of samples, or of parts of samples, each of which is a document of its own.
#[derive(Debug, Default)]
pub(in crate::data) struct Packed {
    pub documents: Runs,
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

    /// Appends rows of at most `seq_length` tokens, filled with a part of `samples`.
    pub(in crate::data) fn pack(
        self,
        seq_length: usize,
        samples: &Runs,
        part: Range<usize>,
        packed: &mut Packed,
    ) {
        let (room, mut filled) = (seq_length as u64, 0);
        match self {
            Self::Pack => {
                for (start, tokens) in part.map(|number| samples.at(number)) {
                    if tokens > room {
                        packed.dropped += 1;
                        continue;
                    }
                    if filled + tokens > room {
                        packed.end_row(&mut filled);
                    }
                    packed.documents.push(start, tokens);
                    filled += tokens;
                }
            }
            Self::Truncate => {
                for (number, (start, tokens)) in (1..).zip(part.map(|number| samples.at(number))) {
                    let mut done = 0;
                    while done < tokens {
                        let count = (tokens - done).min(room - filled);
                        packed.documents.push(start + done, count);
                        filled += count;
                        done += count;
                        if filled == room {
                            packed.end_row(&mut filled);
                        }
                    }
                    if usize::is_multiple_of(number, CUT_AT_A_TIME) {
                        packed.end_row(&mut filled);
                    }
                }
            }
            Self::BestFit => {
                let length = |member: usize| samples.at(part.start + member).1 as usize;
                for row in fill_rows(part.len(), length, seq_length).rows() {
                    for member in row {
                        let (start, tokens) = samples.at(part.start + *member as usize);
                        packed.documents.push(start, tokens);
                    }
                    packed.ends.push(packed.documents.len() as u64);
                }
            }
        }
        packed.end_row(&mut filled);
    }
}

impl Packed {
    fn end_row(&mut self, filled: &mut u64) {
        if *filled > 0 {
            self.ends.push(self.documents.len() as u64);
            *filled = 0;
        }
    }
}

/// The sequences that share each row. There may be millions of rows, with a few bytes each.
#[derive(Debug, Default)]
pub(in crate::data) struct FilledRows {
    members: Vec<u32>,
    /// The end of each row in `members`.
    ends: Vec<u32>,
}

impl FilledRows {
    /// The sequences in each row, in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        let start = |row: usize| if row == 0 { 0 } else { self.ends[row - 1] as usize };
        (0..self.ends.len()).map(move |row| &self.members[start(row)..self.ends[row] as usize])
    }
}

/// Packs `count` sequences into rows of `room` tokens, the longest first, each into the fullest row that has room for
/// it. `length` returns the length of a sequence.
pub(in crate::data) fn fill_rows(count: usize, length: impl Fn(usize) -> usize, room: usize) -> FilledRows {
    let count = u32::try_from(count).expect("a tokenizer makes fewer sequences in a year");
    let mut order: Vec<u32> = (0..count).collect();
    order.sort_unstable_by_key(|&member| (Reverse(length(member as usize)), member));
    let shortest = order.last().map_or(0, |&member| length(member as usize));
    let mut sizes: Vec<u32> = Vec::new();
    // The rows that have room for the shortest sequence, by the room that is left.
    let mut left: BTreeSet<(usize, u32)> = BTreeSet::new();
    let mut rows = Vec::with_capacity(order.len());
    for &member in &order {
        let length = length(member as usize);
        assert!(length <= room, "a sequence of {length} tokens is longer than a row of {room}");
        let (rest, row) = left.range((length, 0)..).next().copied().unwrap_or((room, sizes.len() as u32));
        if row as usize == sizes.len() {
            sizes.push(0);
        }
        left.remove(&(rest, row));
        sizes[row as usize] += 1;
        rows.push(row);
        if rest - length >= shortest {
            left.insert((rest - length, row));
        }
    }
    let mut ends = sizes;
    let mut end = 0;
    for size in &mut ends {
        end += *size;
        *size = end - *size; // the place of the row's next member; in the end, the end of the row
    }
    let mut members = vec![0; order.len()];
    for (member, row) in order.into_iter().zip(rows) {
        let place = &mut ends[row as usize];
        members[*place as usize] = member;
        *place += 1;
    }
    FilledRows { members, ends }
}

/// The number of rows that [`fill_rows`] fills with this many sequences of each length.
pub(in crate::data) fn count_rows(
    lengths: impl DoubleEndedIterator<Item = (usize, u64)>,
    room: usize,
) -> u64 {
    let mut rows = 0;
    // The number of rows by the room that is left in them.
    let mut left: BTreeMap<usize, u64> = BTreeMap::new();
    for length in lengths.rev().flat_map(|(length, count)| repeat_n(length, count as usize)) {
        let rest = match left.range_mut(length..).next() {
            Some((rest, count)) => {
                *count -= 1;
                *rest
            }
            None => {
                rows += 1;
                room
            }
        };
        if left.get(&rest) == Some(&0) {
            left.remove(&rest);
        }
        *left.entry(rest - length).or_default() += 1;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documents of each row when samples of these lengths are packed into rows of `seq_length`.
    fn rows(strategy: PackStrategy, seq_length: usize, lengths: &[usize]) -> (Vec<Vec<usize>>, u64) {
        let mut samples = Runs::default();
        lengths.iter().for_each(|length| samples.push(0, *length as u64));
        let mut packed = Packed::default();
        strategy.pack(seq_length, &samples, 0..samples.len(), &mut packed);
        let starts = [0].into_iter().chain(packed.ends.iter().copied());
        let tokens = |document: u64| packed.documents.at(document as usize).1 as usize;
        let rows = starts.zip(&packed.ends).map(|(start, end)| (start..*end).map(tokens).collect());
        (rows.collect(), packed.dropped)
    }

    #[test]
    fn whole_samples_fill_rows_and_long_ones_are_dropped() {
        let (rows, dropped) = rows(PackStrategy::Pack, 8, &[3, 4, 2, 9, 6, 8]);
        assert_eq!(rows, [vec![3, 4], vec![2, 6], vec![8]]);
        assert_eq!(dropped, 1);
    }

    #[test]
    fn rows_are_filled_without_splitting_a_sequence() {
        assert_eq!(filled(&[3, 8, 4, 1, 5, 2], 8), [vec![1], vec![4, 0], vec![2, 5, 3]]);
        assert!(filled(&[], 8).is_empty());
        let (rows, dropped) = rows(PackStrategy::BestFit, 8, &[3, 8, 4, 1, 5, 2]);
        assert_eq!((rows, dropped), (vec![vec![8], vec![5, 3], vec![4, 2, 1]], 0));
    }

    fn filled(lengths: &[usize], room: usize) -> Vec<Vec<u32>> {
        fill_rows(lengths.len(), |member| lengths[member], room).rows().map(<[u32]>::to_vec).collect()
    }

    proptest::proptest! {
        /// A search through every row finds the same row.
        #[test]
        fn each_sequence_goes_into_the_fullest_row(lengths in proptest::collection::vec(1usize..40, 0..60)) {
            let mut order: Vec<usize> = (0..lengths.len()).collect();
            order.sort_by_key(|member| Reverse(lengths[*member]));
            let mut rows: Vec<(usize, Vec<u32>)> = Vec::new();
            for member in order {
                let fits = rows.iter_mut().filter(|(room, _)| *room >= lengths[member]);
                match fits.min_by_key(|(room, _)| *room) {
                    Some((room, members)) => {
                        *room -= lengths[member];
                        members.push(member as u32);
                    }
                    None => rows.push((40 - lengths[member], vec![member as u32])),
                }
            }
            let counts = lengths.iter().fold(BTreeMap::new(), |mut counts, length| {
                *counts.entry(*length).or_insert(0) += 1;
                counts
            });
            proptest::prop_assert_eq!(count_rows(counts.into_iter(), 40), rows.len() as u64);
            let rows: Vec<Vec<u32>> = rows.into_iter().map(|(_, members)| members).collect();
            proptest::prop_assert_eq!(filled(&lengths, 40), rows);
        }
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

//! Token rows on their way to the ranks of their experts and back, on the host.

use crate::error::Result;
use crate::ranks::collectives::all_to_all;
use crate::ranks::{Group, Transport};
use std::ops::Range;

/// How the token rows of all ranks are sorted by expert, read from the offsets that the ranks gathered.
pub(super) struct RowMap {
    /// For each rank, the first row of each expert, and the end.
    offsets: Vec<Vec<usize>>,
    /// This rank's place in the group.
    place: usize,
    row_bytes: usize,
}

impl RowMap {
    /// Reads `offsets`: for each of `ranks` ranks the end of every expert's rows as u32, preceded by 0, and padding.
    pub fn read(offsets: &[u8], experts: usize, ranks: usize, place: usize, row_bytes: usize) -> Self {
        let rows = offsets.chunks_exact(offsets.len() / ranks);
        let words = |row: &[u8]| {
            let words = row[..4 * (experts + 1)].chunks_exact(4);
            words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as usize).collect()
        };
        Self { offsets: rows.map(words).collect(), place, row_bytes }
    }

    /// Bytes in use of a tensor of rows: of this rank's own rows, or with `to_experts: false` of the rows for its
    /// experts.
    pub fn used(&self, to_experts: bool) -> usize {
        match to_experts {
            true => self.sent_parts().last().map_or(0, |part| part.end),
            false => self.received_blocks().map(|block| block.len()).sum(),
        }
    }

    /// Sends `rows` to the ranks of their experts; `arrived` becomes the rows for the experts of this rank.
    pub fn send_out(
        &self,
        transport: &mut dyn Transport,
        group: &Group,
        rows: &[u8],
        arrived: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let parts = self.received_parts();
        let end = parts.last().map_or(0, |part| part.end);
        scratch.resize(end, 0);
        all_to_all(transport, group, rows, &self.sent_parts(), scratch, &parts)?;
        arrived.clear();
        self.received_blocks().for_each(|block| arrived.extend_from_slice(&scratch[block]));
        Ok(())
    }

    /// Sends `rows`, computed by this rank's experts, back to their ranks; `arrived` becomes this rank's own rows.
    pub fn send_back(
        &self,
        transport: &mut dyn Transport,
        group: &Group,
        rows: &[u8],
        arrived: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let parts = self.received_parts();
        scratch.resize(parts.last().map_or(0, |part| part.end), 0);
        let mut at = 0;
        for block in self.received_blocks() {
            let length = block.len();
            scratch[block].copy_from_slice(&rows[at..at + length]);
            at += length;
        }
        let own = self.sent_parts();
        arrived.resize(own.last().map_or(0, |part| part.end), 0);
        all_to_all(transport, group, scratch, &parts, arrived, &own)
    }

    /// The experts of a rank.
    fn experts_of(&self, rank: usize) -> Range<usize> {
        let ranks = self.offsets.len();
        let each = (self.offsets[rank].len() - 1) / ranks;
        rank * each..(rank + 1) * each
    }

    /// For each rank, the bytes of this rank's rows that go to the rank's experts.
    fn sent_parts(&self) -> Vec<Range<usize>> {
        let own = &self.offsets[self.place];
        let part = |rank| {
            let experts = self.experts_of(rank);
            self.row_bytes * own[experts.start]..self.row_bytes * own[experts.end]
        };
        (0..self.offsets.len()).map(part).collect()
    }

    /// The bytes that arrive from each rank, one after the other.
    fn received_parts(&self) -> Vec<Range<usize>> {
        let experts = self.experts_of(self.place);
        let mut end = 0;
        let part = |offsets: &Vec<usize>| {
            let start = end;
            end += self.row_bytes * (offsets[experts.end] - offsets[experts.start]);
            start..end
        };
        self.offsets.iter().map(part).collect()
    }

    /// The ranges of the arrived rows, ordered by expert, and for each expert by rank.
    fn received_blocks(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let experts = self.experts_of(self.place);
        let parts = self.received_parts();
        experts.clone().flat_map(move |expert| {
            let first = experts.start;
            let blocks: Vec<Range<usize>> = self
                .offsets
                .iter()
                .zip(&parts)
                .map(|(offsets, part)| {
                    let byte = |row: usize| part.start + self.row_bytes * (row - offsets[first]);
                    byte(offsets[expert])..byte(offsets[expert + 1])
                })
                .collect();
            blocks
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::in_process;

    /// Three ranks with two experts each; the row of token t of rank r for expert e holds 100 r + 10 e + t.
    #[test]
    fn rows_go_to_their_experts_and_return() {
        let counts = [[2usize, 0, 1, 3, 0, 2], [0, 0, 4, 1, 1, 0], [1, 2, 0, 0, 0, 0]];
        let offsets: Vec<u8> = counts
            .iter()
            .flat_map(|counts| {
                let mut end = 0u32;
                let ends = counts.iter().map(|count| {
                    end += *count as u32;
                    end
                });
                [0].into_iter().chain(ends.collect::<Vec<_>>()).chain([77]).collect::<Vec<_>>() // padding
            })
            .flat_map(u32::to_le_bytes)
            .collect();
        let row = |rank: usize, expert: usize, token: usize| {
            ((100 * rank + 10 * expert + token) as u64).to_le_bytes().to_vec()
        };
        let rows_of = |rank: usize| -> Vec<u8> {
            let experts = counts[rank].iter().enumerate();
            experts.flat_map(|(expert, count)| (0..*count).flat_map(move |t| row(rank, expert, t))).collect()
        };
        let rows_for = |rank: usize| -> Vec<u8> {
            let experts = 2 * rank..2 * rank + 2;
            experts
                .flat_map(|expert| {
                    (0..3).flat_map(move |from| {
                        (0..counts[from][expert]).flat_map(move |t| row(from, expert, t))
                    })
                })
                .collect()
        };
        std::thread::scope(|scope| {
            for (rank, mut end) in in_process::connect(3).into_iter().enumerate() {
                let (offsets, rows_of, rows_for) = (&offsets, &rows_of, &rows_for);
                scope.spawn(move || {
                    let map = RowMap::read(offsets, 6, 3, rank, 8);
                    let group = Group::all(3);
                    let (mut arrived, mut returned, mut scratch) = (vec![1; 3], Vec::new(), Vec::new());
                    let sent = rows_of(rank);
                    map.send_out(&mut end, &group, &sent, &mut arrived, &mut scratch).unwrap();
                    assert_eq!(arrived, rows_for(rank), "rank {rank}");
                    assert_eq!((map.used(true), map.used(false)), (sent.len(), arrived.len()));
                    map.send_back(&mut end, &group, &arrived, &mut returned, &mut scratch).unwrap();
                    assert_eq!(returned, sent, "rank {rank}");
                });
            }
        });
    }
}

//! Which ranks hold which parts of a checkpoint's tensors, and which rank writes each tensor.
//!
//! A tensor is written by a rank that holds it whole: the one with the fewest bytes so far. A tensor that no rank holds
//! whole is written by any rank.

use super::arena_tensors::{ArenaTensor, HeldCells};
use super::router_tensors::RouterTensor;
use super::tensor_file::TensorInfo;
use crate::element::Element;
use crate::record::Tensor;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// A tensor of a checkpoint, and the ranks that hold it or a part of it.
pub(super) struct Holding<'a> {
    pub info: TensorInfo,
    pub content: TensorOrigin<'a>,
    /// The rank that writes it.
    pub writer: usize,
    /// The cells that each rank holds, ascending; ranks without any are left out.
    holders: Vec<(usize, Vec<HeldCells>)>,
}

/// Where the content of a tensor comes from.
#[derive(Clone, Copy)]
pub(super) enum TensorOrigin<'a> {
    /// A piece of a parameter, as one of its holders sees it.
    Parameter(&'a ArenaTensor<'a>),
    /// The state of a router, which all ranks have.
    Router(Tensor),
}

impl<'a> Holding<'a> {
    /// The tensors that any rank has, followed by `router_state`; `by_rank` lists the tensors of each rank. They are
    /// divided evenly by bytes among the first `writers` ranks, except that a tensor is not moved to another rank where
    /// one of these holds it whole.
    pub fn list(
        by_rank: &'a [Vec<ArenaTensor<'a>>],
        router_state: &[RouterTensor],
        writers: usize,
    ) -> Vec<Self> {
        let mut holdings: Vec<Self> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (rank, tensors) in by_rank.iter().enumerate() {
            for tensor in tensors {
                let place = *places.entry(&tensor.name).or_insert_with(|| {
                    let (info, content) = (tensor.info(), TensorOrigin::Parameter(tensor));
                    holdings.push(Self { info, content, writer: 0, holders: Vec::new() });
                    holdings.len() - 1
                });
                let runs = tensor.runs();
                if !runs.is_empty() {
                    holdings[place].holders.push((rank, runs));
                }
            }
        }
        holdings.extend(router_state.iter().map(|RouterTensor { info, tensor }| {
            let (info, content) = (info.clone(), TensorOrigin::Router(*tensor));
            Self { info, content, writer: 0, holders: Vec::new() }
        }));
        divide(&mut holdings, writers);
        holdings
    }

    /// Which cells come from which rank: cells that the writer holds come from itself, and every other cell from the
    /// first rank that holds it.
    pub fn sources(&self) -> Vec<RankCells> {
        let (mut sources, mut missing) = (Vec::<RankCells>::new(), BTreeMap::new());
        missing.extend(Some((0, self.cells())).filter(|(_, cells)| *cells > 0));
        let of_writer = self.holders.iter().filter(|(rank, _)| *rank == self.writer);
        let of_others = self.holders.iter().filter(|(rank, _)| *rank != self.writer);
        for (rank, runs) in of_writer.chain(of_others) {
            if missing.is_empty() {
                break;
            }
            for taken in runs.iter().flat_map(|run| take(&mut missing, run)) {
                match sources.last_mut().filter(|last| last.is_followed_by(*rank, &taken)) {
                    Some(last) => last.extend(taken),
                    None => sources.push(RankCells::new(*rank, taken)),
                }
            }
        }
        assert!(missing.is_empty(), "no rank holds the cells {missing:?} of {}", self.info.name);
        sources
    }

    /// The number of its cells.
    pub fn cells(&self) -> usize {
        match self.content {
            TensorOrigin::Parameter(tensor) => tensor.cells(),
            TensorOrigin::Router(_) => 0,
        }
    }

    /// The storage type of a cell.
    pub fn element(&self) -> Element {
        match self.content {
            TensorOrigin::Parameter(tensor) => tensor.element(),
            TensorOrigin::Router(tensor) => tensor.element,
        }
    }

    /// The ranks that hold all of it; `None`: all ranks do.
    fn whole_on(&self) -> Option<Vec<usize>> {
        let is_whole =
            |runs: &[HeldCells]| runs.iter().map(|run| run.cells.len()).sum::<usize>() == self.cells();
        match self.content {
            TensorOrigin::Router(_) => None,
            TensorOrigin::Parameter(_) => {
                let whole = self.holders.iter().filter(|(_, runs)| is_whole(runs));
                Some(whole.map(|(rank, _)| *rank).collect())
            }
        }
    }
}

/// The tensors that each of `ranks` ranks writes, in the order of its file.
pub(super) fn written(holdings: &[Holding<'_>], ranks: usize) -> Vec<Vec<usize>> {
    let mut written = vec![Vec::new(); ranks];
    let mut order: Vec<usize> = (0..holdings.len()).collect();
    // The order in which a file is written.
    order.sort_by_key(|&index| Reverse(holdings[index].info.dtype.bitsize()));
    order.into_iter().for_each(|index| written[holdings[index].writer].push(index));
    written
}

/// Gives each tensor to the writer with the fewest bytes so far, among the writers that hold it whole or, if there are
/// none, among all writers.
fn divide(holdings: &mut [Holding<'_>], writers: usize) {
    let mut bytes = vec![0; writers];
    for holding in holdings {
        let candidates = holding.whole_on().map(|ranks| ranks.into_iter().filter(|rank| *rank < writers));
        let candidates = candidates.map(Iterator::collect::<Vec<_>>).filter(|ranks| !ranks.is_empty());
        let candidates = candidates.unwrap_or_else(|| (0..writers).collect());
        holding.writer = candidates.into_iter().min_by_key(|rank| bytes[*rank]).unwrap_or(0);
        bytes[holding.writer] += holding.info.size_bytes().unwrap_or(0);
    }
}

/// Removes the cells of `run` from `missing`, which has the ends of ranges by their starts, and returns the parts of
/// `run` that were missing.
fn take(missing: &mut BTreeMap<usize, usize>, run: &HeldCells) -> Vec<HeldCells> {
    let before = missing.range(..run.cells.start).next_back().map(|(start, _)| *start);
    let within = missing.range(run.cells.clone()).map(|(start, _)| *start);
    let gaps: Vec<usize> = before.into_iter().chain(within).collect();
    let mut taken = Vec::new();
    for first in gaps {
        let Some(last) = missing.get(&first).copied().filter(|last| *last > run.cells.start) else {
            continue;
        };
        let (start, end) = (first.max(run.cells.start), last.min(run.cells.end));
        let at = |cell: usize| run.place.start + (cell - run.cells.start) as u64;
        taken.push(HeldCells { cells: start..end, segment: run.segment, place: at(start)..at(end) });
        missing.remove(&first);
        let left = [(first, start), (end, last)];
        missing.extend(left.into_iter().filter(|(start, end)| start < end));
    }
    taken
}

/// Cells that come from one rank, on which they lie one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankCells {
    pub rank: usize,
    /// The ranges of cells, in the order in which they lie on that rank.
    pub cells: Vec<Range<usize>>,
    /// The segment of that rank's arena.
    pub segment: usize,
    /// The range of elements in that segment.
    pub place: Range<u64>,
}

impl RankCells {
    fn new(rank: usize, HeldCells { cells, segment, place }: HeldCells) -> Self {
        Self { rank, cells: vec![cells], segment, place }
    }

    /// Whether `next`, which comes from `rank`, lies right behind these cells.
    fn is_followed_by(&self, rank: usize, next: &HeldCells) -> bool {
        (self.rank, self.segment, self.place.end) == (rank, next.segment, next.place.start)
    }

    fn extend(&mut self, next: HeldCells) {
        self.place.end = next.place.end;
        self.cells.push(next.cells);
    }

    /// Copies the cells, which lie one after the other in `bytes`, to their places in the `whole` tensor; `width`:
    /// bytes of a cell.
    pub fn scatter(&self, bytes: &[u8], width: usize, whole: &mut [u8]) {
        let mut at = 0;
        for cells in &self.cells {
            let (start, length) = (cells.start * width, cells.len() * width);
            whole[start..start + length].copy_from_slice(&bytes[at..at + length]);
            at += length;
        }
    }

    /// The number of cells.
    pub fn count(&self) -> usize {
        (self.place.end - self.place.start) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(cells: Range<usize>) -> HeldCells {
        let place = 100 + cells.start as u64..100 + cells.end as u64;
        HeldCells { cells, segment: 3, place }
    }

    #[test]
    fn what_is_taken_is_no_longer_missing() {
        let mut missing = BTreeMap::from([(0, 20), (30, 40)]);
        assert_eq!(take(&mut missing, &run(12..32)), [run(12..20), run(30..32)]);
        assert_eq!(missing, BTreeMap::from([(0, 12), (32, 40)]));
        assert_eq!(take(&mut missing, &run(4..8)), [run(4..8)]);
        assert_eq!(missing, BTreeMap::from([(0, 4), (8, 12), (32, 40)]));
        assert_eq!(take(&mut missing, &run(13..14)), []);
    }
}

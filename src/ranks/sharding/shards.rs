//! Which rank owns which part of the parameters, and in which buckets gradients are exchanged.
//!
//! A bucket is a range of a segment of at least 16 MiB that ends with a parameter, in the order of the layers, so that
//! the gradients of the last layers are exchanged while the backward pass of earlier ones runs. It is divided among its
//! *owners*, in multiples of 128 elements or, under Muon, between matrices. If there are fewer owners than replicas,
//! the blocks of owners also sum their parts among each other.

use crate::model::arena::{ArenaLayout, Segment, SegmentKind};
use crate::model::parameters::UpdateRule;
use crate::ranks::{Group, RankLayout};
use std::ops::Range;

/// Bytes of f32 gradients that are exchanged at once: enough that latency does not matter, and few enough that the
/// exchange of the last layers is finished when the backward pass ends.
const BUCKET_BYTES: u64 = 16 << 20;

/// Ranges start at multiples of this many elements, so that they can be bound in any storage type.
const UNIT: u64 = 128;

/// A range of a segment whose gradients are exchanged at once, divided among the ranks of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Index of the segment.
    pub segment: usize,
    /// The elements of the range.
    pub range: Range<u64>,
    /// The elements of the segment that each of the owners owns, in order; together they are `range`.
    pub parts: Vec<Range<u64>>,
    /// Whether the parameters are experts that are spread over ranks.
    pub is_spread: bool,
    /// The ranks that hold these parameters, and over which their gradients are summed.
    pub replicas: Group,
    /// The replicas that own the range together with this rank: all of them, unless they are divided into blocks.
    pub owners: Group,
    /// The replicas that own the same part as this rank: one in each block.
    pub copies: Group,
}

/// The buckets of all trained segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// Segment by segment, in order.
    pub buckets: Vec<Bucket>,
    ranks: RankLayout,
    block: usize,
}

impl Bucket {
    /// The parts in bytes from the start of the bucket, where an element takes `element_bytes`.
    pub(crate) fn parts_in_bytes(&self, element_bytes: u64) -> Vec<Range<u64>> {
        let byte = |element: u64| (element - self.range.start) * element_bytes;
        self.parts.iter().map(|part| byte(part.start)..byte(part.end)).collect()
    }
}

impl Shards {
    /// Divides the trained segments of `layout` among `block` neighbouring data ranks, which own everything together.
    /// Large parameters are divided into several buckets if `divides` is true.
    pub fn new(layout: &ArenaLayout, ranks: &RankLayout, block: usize, divides: bool) -> Self {
        let segments = layout.segments.iter().enumerate().filter(|(_, segment)| !segment.kind.is_frozen);
        let buckets = segments.flat_map(|(index, segment)| {
            let starts = starts_of_parts(layout, index, segment);
            let ends = ends_of_buckets(segment, &starts, divides);
            let mut start = 0;
            let is_spread = segment.kind.is_spread;
            let (replicas, owners) = (replicas(ranks, is_spread), owners(ranks, is_spread, block));
            let copies = copies(ranks, is_spread, block);
            ends.into_iter().map(move |end| {
                let range = std::mem::replace(&mut start, end)..end;
                let parts = parts_of(&range, owners.size(), segment.kind, &starts);
                let (replicas, owners, copies) = (replicas.clone(), owners.clone(), copies.clone());
                Bucket { segment: index, range, parts, is_spread, replicas, owners, copies }
            })
        });
        Self { buckets: buckets.collect(), ranks: *ranks, block }
    }

    /// The data ranks that own everything together with this one.
    pub fn block(&self) -> Group {
        block_of(&self.ranks, self.ranks.data_group(), self.block)
    }

    /// The rank of the [`block`](Self::block) that owns the most elements; of several the first.
    pub(crate) fn fullest_rank(&self) -> usize {
        // Bucket by bucket, since there may be thousands of both ranks and buckets.
        let mut owned = [Vec::new(), Vec::new()];
        for bucket in &self.buckets {
            let sums = &mut owned[usize::from(bucket.is_spread)];
            sums.resize(bucket.parts.len(), 0);
            let parts = sums.iter_mut().zip(&bucket.parts);
            parts.for_each(|(sum, part)| *sum += part.end - part.start);
        }
        let elements = |rank: usize| {
            let sums = |is_spread: bool| {
                let sums = &owned[usize::from(is_spread)];
                if sums.is_empty() { 0 } else { sums[self.place(rank, is_spread) % sums.len()] }
            };
            sums(false) + sums(true)
        };
        let ranks = self.block().ranks;
        let most = ranks.iter().map(|&rank| elements(rank)).max();
        ranks.into_iter().find(|&rank| Some(elements(rank)) == most).unwrap_or(self.ranks.rank)
    }

    /// The elements of a bucket that this rank owns.
    pub(crate) fn own_of(&self, bucket: &Bucket) -> Range<u64> {
        bucket.parts[self.place(self.ranks.rank, bucket.is_spread) % bucket.parts.len()].clone()
    }

    /// The elements of a segment that this rank owns, ascending.
    pub fn own(&self, segment: usize) -> Vec<Range<u64>> {
        self.own_of_rank(self.ranks.rank, segment)
    }

    /// The elements of a segment that `rank` owns, ascending.
    pub(crate) fn own_of_rank(&self, rank: usize, segment: usize) -> Vec<Range<u64>> {
        let buckets = self.buckets.iter().filter(|bucket| bucket.segment == segment);
        let part =
            |bucket: &Bucket| bucket.parts[self.place(rank, bucket.is_spread) % bucket.parts.len()].clone();
        buckets.map(part).filter(|range| !range.is_empty()).collect()
    }

    /// The place of `rank` among the ranks that hold the same parameters. A block has as many of them as a bucket has
    /// parts.
    fn place(&self, rank: usize, is_spread: bool) -> usize {
        let data_rank = RankLayout { rank, ..self.ranks }.data_rank();
        if is_spread { data_rank / self.ranks.expert } else { data_rank }
    }
}

/// The ranks that hold the same parameters as this one.
fn replicas(ranks: &RankLayout, is_spread: bool) -> Group {
    if is_spread { ranks.expert_replicas() } else { ranks.data_group() }
}

/// The replicas in this rank's block.
fn owners(ranks: &RankLayout, is_spread: bool, block: usize) -> Group {
    let size = if is_spread { block / ranks.expert } else { block };
    block_of(ranks, replicas(ranks, is_spread), size)
}

/// The replicas that have this rank's place in their block.
fn copies(ranks: &RankLayout, is_spread: bool, block: usize) -> Group {
    let (replicas, owners) = (replicas(ranks, is_spread), owners(ranks, is_spread, block));
    let place = owners.place(ranks.rank).unwrap_or(0);
    Group::new(replicas.ranks.chunks(owners.size()).map(|block| block[place]).collect())
}

/// The block of this rank, with the members of `group` divided into blocks of `size`.
fn block_of(ranks: &RankLayout, group: Group, size: usize) -> Group {
    let place = group.place(ranks.rank).unwrap_or(0);
    Group::new(group.ranks[place / size * size..][..size].to_vec())
}

/// The start of each part of a parameter in a segment, and the segment's end.
fn starts_of_parts(layout: &ArenaLayout, index: usize, segment: &Segment) -> Vec<u64> {
    let parts = layout.parameters.iter().flat_map(|(_, parts)| parts);
    let mut starts: Vec<u64> = parts.filter(|part| part.segment == index).map(|part| part.offset).collect();
    starts.sort_unstable();
    starts.push(segment.elements);
    starts
}

/// The ends of buckets: at borders of parameters, so that few buckets wait for several layers. A large parameter that
/// is updated element by element is divided.
fn ends_of_buckets(segment: &Segment, starts: &[u64], divides: bool) -> Vec<u64> {
    let most = BUCKET_BYTES / 4;
    let mut ends = Vec::new();
    let mut start = 0;
    for border in starts.windows(2).map(|pair| pair[1]) {
        while divides && segment.kind.rule == UpdateRule::Elementwise && border - start > 2 * most {
            start += most;
            ends.push(start);
        }
        if border - start >= most || border == segment.elements {
            ends.push(border);
            start = border;
        }
    }
    ends
}

/// Divides a bucket among `count` ranks as evenly as [`UNIT`] allows or, if matrices are updated whole, between
/// matrices.
fn parts_of(range: &Range<u64>, count: usize, kind: SegmentKind, starts: &[u64]) -> Vec<Range<u64>> {
    let length = range.end - range.start;
    let even = |number: usize| range.start + (length / UNIT * number as u64 / count as u64) * UNIT;
    let border = |number: usize| match kind.rule {
        _ if number == 0 => range.start,
        _ if number == count => range.end,
        UpdateRule::Elementwise => even(number),
        UpdateRule::Matrix => {
            let borders = starts.iter().filter(|start| (range.start..=range.end).contains(start));
            borders.min_by_key(|start| start.abs_diff(even(number))).copied().unwrap_or(range.end)
        }
    };
    (0..count).map(|number| border(number)..border(number + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element;

    fn segment(elements: u64, rule: UpdateRule) -> Segment {
        let kind = SegmentKind {
            is_frozen: false,
            group: 0,
            rule,
            is_exempt: false,
            compute: Element::F32,
            is_spread: false,
            is_copied: false,
        };
        Segment { elements, kind }
    }

    /// Borders of parameters, given their lengths in units.
    fn starts(lengths: &[u64]) -> Vec<u64> {
        let ends = lengths.iter().scan(0, |end, length| {
            *end += length * UNIT;
            Some(*end)
        });
        [0].into_iter().chain(ends).collect()
    }

    #[test]
    fn buckets_end_with_parameters() {
        let most = BUCKET_BYTES / 4 / UNIT;
        let ends = |rule, lengths: &[u64]| {
            let starts = starts(lengths);
            let ends = ends_of_buckets(&segment(*starts.last().unwrap(), rule), &starts, true);
            ends.into_iter().map(|end| end / UNIT).collect::<Vec<_>>()
        };
        assert_eq!(ends(UpdateRule::Elementwise, &[3, 4]), [7], "a small segment is one bucket");
        assert_eq!(ends(UpdateRule::Elementwise, &[most - 1, 2, 5, 1]), [most + 1, most + 7]);
        assert_eq!(ends(UpdateRule::Elementwise, &[3 * most, 2]), [most, 3 * most, 3 * most + 2]);
        assert_eq!(ends(UpdateRule::Matrix, &[3 * most, 2]), [3 * most, 3 * most + 2], "matrices stay whole");
    }

    #[test]
    fn parts_are_even_and_cover_the_bucket() {
        let kind = |rule| segment(0, rule).kind;
        let range = 2 * UNIT..13 * UNIT;
        for count in 1..6 {
            let parts = parts_of(&range, count, kind(UpdateRule::Elementwise), &[]);
            assert_eq!((parts[0].start, parts[count - 1].end), (range.start, range.end));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            let units: Vec<u64> = parts.iter().map(|part| (part.end - part.start) / UNIT).collect();
            assert!(units.iter().max().unwrap() - units.iter().min().unwrap() <= 1, "{units:?}");
        }
        let starts = starts(&[2, 5, 1, 5]);
        let parts = parts_of(&range, 2, kind(UpdateRule::Matrix), &starts);
        assert_eq!(parts, [2 * UNIT..7 * UNIT, 7 * UNIT..13 * UNIT]);
        let parts = parts_of(&range, 4, kind(UpdateRule::Matrix), &starts);
        assert!(parts.iter().all(|part| starts.contains(&part.start) && starts.contains(&part.end)));
        assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
    }

    #[test]
    fn the_fullest_rank_owns_the_most() {
        let ranks = RankLayout { rank: 5, data: 8, expert: 2, ..RankLayout::one() };
        let bucket = |segment: usize, lengths: &[u64], is_spread: bool| {
            let starts = starts(lengths);
            let parts: Vec<_> = starts.windows(2).map(|pair| pair[0]..pair[1]).collect();
            let (replicas, owners) = (replicas(&ranks, is_spread), owners(&ranks, is_spread, 4));
            let copies = copies(&ranks, is_spread, 4);
            let range = 0..*starts.last().unwrap();
            Bucket { segment, range, parts, is_spread, replicas, owners, copies }
        };
        // Ranks 4 to 7 own 1, 2, 3, 3 units of the first bucket and, in pairs, 9 and 1 of the second.
        let buckets = vec![bucket(0, &[1, 2, 3, 3], false), bucket(1, &[9, 1], true)];
        let shards = Shards { buckets, ranks, block: 4 };
        let of_rank = |rank| {
            let own = [0, 1].into_iter().flat_map(|segment| shards.own_of_rank(rank, segment));
            own.map(|range| range.end - range.start).sum::<u64>() / UNIT
        };
        assert_eq!([4, 5, 6, 7].map(of_rank), [10, 11, 4, 4]);
        assert_eq!(shards.fullest_rank(), 5);
        let own: Vec<u64> = shards.own(1).into_iter().map(|range| range.end / UNIT).collect();
        assert_eq!(own, [9]);
    }
}

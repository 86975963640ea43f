//! Which pool buffers are in use, by dispatch: a segment tree over the dispatches whose nodes hold sets of buffers.
//!
//! A training step of many layers has thousands of transients that live until the backward pass, and as many buffers.
//! Without this index, a plan would look through all of them for each transient.

/// The sets of buffers in use over the dispatches `0..dispatches`.
#[derive(Debug)]
pub(super) struct Occupancy {
    nodes: Vec<Node>,
    leaves: usize,
}

/// A range of dispatches: the root covers all of them, and each child covers half of its parent's range.
#[derive(Clone, Debug, Default)]
struct Node {
    /// Buffers in use at every dispatch of the range, except those already listed by an ancestor.
    throughout: Set,
    /// Buffers in use at some dispatch of the range, except those that an ancestor lists as in use throughout.
    sometime: Set,
}

/// A set of buffers, one bit each.
#[derive(Clone, Debug, Default)]
pub(super) struct Set(Vec<u64>);

impl Occupancy {
    /// No buffer is in use.
    pub(super) fn new(dispatches: usize) -> Self {
        let leaves = dispatches.max(1).next_power_of_two();
        Self { nodes: vec![Node::default(); 2 * leaves], leaves }
    }

    /// Marks `buffer` as in use from dispatch `first` to `last`, which may lie beyond the last dispatch.
    pub(super) fn occupy(&mut self, buffer: usize, first: usize, last: usize) {
        for (node, is_covered) in self.cover(first, last) {
            let Node { throughout, sometime } = &mut self.nodes[node];
            sometime.insert(buffer);
            if is_covered {
                throughout.insert(buffer);
            }
        }
    }

    /// The buffers in use at any dispatch from `first` to `last`.
    pub(super) fn busy(&self, first: usize, last: usize) -> Set {
        let mut busy = Set::default();
        for (node, is_covered) in self.cover(first, last) {
            let Node { throughout, sometime } = &self.nodes[node];
            busy.add(if is_covered { sometime } else { throughout });
        }
        busy
    }

    /// The largest nodes that `first..=last` covers (`true`), and the ancestors of these nodes (`false`).
    fn cover(&self, first: usize, last: usize) -> Vec<(usize, bool)> {
        let last = last.min(self.leaves - 1);
        let (mut open, mut cover) = (vec![(1, 0, self.leaves)], Vec::new());
        while let Some((node, start, end)) = open.pop() {
            if end <= first || last < start {
                continue;
            }
            let is_covered = first <= start && end <= last + 1;
            cover.push((node, is_covered));
            if !is_covered {
                let middle = start.midpoint(end);
                open.extend([(2 * node, start, middle), (2 * node + 1, middle, end)]);
            }
        }
        cover
    }
}

impl Set {
    pub(super) fn insert(&mut self, buffer: usize) {
        let word = buffer / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (buffer % 64);
    }

    pub(super) fn contains(&self, buffer: usize) -> bool {
        self.0.get(buffer / 64).is_some_and(|word| word >> (buffer % 64) & 1 == 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The smallest member.
    pub(super) fn first(&self) -> Option<usize> {
        let word = self.0.iter().position(|word| *word != 0)?;
        Some(64 * word + self.0[word].trailing_zeros() as usize)
    }

    /// The members that are not in `other`.
    pub(super) fn without(&self, other: &Self) -> Self {
        let others = other.0.iter().copied().chain(std::iter::repeat(0));
        Self(self.0.iter().zip(others).map(|(word, other)| word & !other).collect())
    }

    fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_buffers_are_those_with_an_overlapping_use() {
        let dispatches = 37;
        // Multiplicative hashing, for numbers without a pattern that these sets could share.
        let draw = |i: u32, below: usize| (i.wrapping_mul(2_654_435_769) >> 16) as usize % below;
        let mut occupancy = Occupancy::new(dispatches);
        let mut uses = Vec::new();
        for i in 0..200 {
            let [a, b] = [draw(3 * i, dispatches), draw(3 * i + 1, dispatches)];
            // Some buffers are kept to the end.
            let (first, last) = (a.min(b), if i % 7 == 0 { usize::MAX } else { a.max(b) });
            let overlaps = |&(_, start, end): &(usize, usize, usize)| start <= last && first <= end;
            let busy: Vec<usize> = uses.iter().filter(|one| overlaps(one)).map(|one| one.0).collect();
            let found = occupancy.busy(first, last);
            (0..130).for_each(|id| {
                assert_eq!(found.contains(id), busy.contains(&id), "{id} in {first}..={last}")
            });
            let buffer = draw(3 * i + 2, 130);
            occupancy.occupy(buffer, first, last);
            uses.push((buffer, first, last));
        }
    }
}

//! A matrix of which tensor-parallel ranks hold a part each: rows, those of several heads, or columns.
//!
//! Every rank gathers the directions of all, orthogonalises the whole matrix and keeps its part: one exchange for each matrix, of the
//! bytes of its gradient, and the same work on each rank ("duplicated" in Megatron's words). Sharing the steps of an iteration
//! instead would take two sums of a Gram matrix in each of them.

use crate::element::Element;
use crate::ops::add::add;
use crate::ranks::Group;
use crate::record::{Collective, Recorder, Span, Tensor};

/// Who holds what of a matrix. Parts are equally large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The ranks that hold a part each.
    pub group: Group,
    /// Rows and columns of the whole matrix.
    pub whole: [u32; 2],
    /// The blocks of this rank's part.
    pub own: Vec<Block>,
    /// Blocks that are the whole matrix together, each with the place in the group of a rank that holds it.
    pub all: Vec<(usize, Block)>,
}

/// Consecutive rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first row and column in the part that holds them.
    pub held: [u32; 2],
    /// The same in the whole matrix.
    pub whole: [u32; 2],
    /// How many rows and columns there are.
    pub size: [u32; 2],
}

impl Parts {
    /// The whole matrix, of this rank's part of it.
    pub(super) fn gather(&self, rec: &mut Recorder, own: Tensor) -> Tensor {
        let [rows, cols] = self.whole;
        let parts = self.parts(rec, own);
        let is_in_order = |(place, block): &(usize, Block)| block.whole == [*place as u32 * own.rows, 0];
        if (parts.rows, parts.cols) == (rows, cols) && self.all.iter().all(is_in_order) {
            return parts;
        }
        let x = rec.tensor("x", rows, cols, Element::F32);
        for (place, block) in &self.all {
            let part = parts.rows(*place as u32 * own.rows, own.rows);
            add(rec, block.of(part, block.held), block.of(x, block.whole), 1.0, false);
        }
        x
    }

    /// The parts of all ranks, one below the other.
    fn parts(&self, rec: &mut Recorder, own: Tensor) -> Tensor {
        if self.group.is_single() {
            return own;
        }
        let (ranks, bytes) = (self.group.size() as u32, own.bytes());
        let parts = rec.tensor("parts", ranks * own.rows, own.cols, Element::F32);
        let collective = Collective::AllGather {
            own: Span::of(&own),
            whole: Span::of(&parts),
            parts: (0..u64::from(ranks)).map(|rank| rank * bytes..(rank + 1) * bytes).collect(),
        };
        rec.exchange("direction", collective, &self.group);
        parts
    }

    /// This rank's part, of `rows` and `cols`, of the whole matrix `x`.
    pub(super) fn own_of(&self, rec: &mut Recorder, x: Tensor, [rows, cols]: [u32; 2]) -> Tensor {
        let own = rec.tensor("own", rows, cols, Element::F32);
        for block in &self.own {
            add(rec, block.of(x, block.whole), block.of(own, block.held), 1.0, false);
        }
        own
    }
}

impl Block {
    /// It, where its first row and column in `x` are these.
    fn of(&self, x: Tensor, [row, col]: [u32; 2]) -> Tensor {
        x.rows(row, self.size[0]).columns(col, self.size[1])
    }
}

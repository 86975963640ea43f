//! Ranges of a value, as values of their own.
//!
//! Ranges of columns are for products that compute everything that depends on a value at once, such as the first
//! product of latent attention: a norm reads a range of columns, and each part writes its range of the gradient. Ranges
//! of rows are for the rows of experts that are exchanged in different ways.

use super::{Tape, Target, Var};
use crate::ops::add::add;
use crate::record::Tensor;
use std::collections::{HashMap, HashSet};

/// The values that are ranges of others.
#[derive(Default)]
pub(super) struct Splits {
    /// By the id of a part, its whole and its range of the whole.
    wholes: HashMap<usize, (Var, Range)>,
    /// The wholes whose gradient is made by their parts, each of which writes its own range.
    filled: HashSet<usize>,
}

/// The columns or rows from this one on.
#[derive(Clone, Copy)]
enum Range {
    Columns(u32),
    Rows(u32),
}

impl Range {
    /// The range of `whole` that starts there and is as large as `part`.
    fn of(self, whole: Tensor, part: Tensor) -> Tensor {
        match self {
            Self::Columns(first) => whole.columns(first, part.cols),
            Self::Rows(first) => whole.rows(first, part.rows),
        }
    }
}

impl Splits {
    pub fn contains(&self, var: Var) -> bool {
        self.wholes.contains_key(&var.id)
    }
}

impl Tape<'_, '_> {
    /// All columns of `x`, in consecutive parts of these `widths`, which are multiples of 4 except for the last.
    /// Nothing is copied: a part is a range of x's tensor, and its gradient the same range of x's gradient. x must have
    /// no other reader.
    ///
    /// # Panics
    /// If the widths do not add up to the columns of x. In the backward pass, if some parts have a gradient and others
    /// do not.
    #[track_caller]
    pub fn split<const K: usize>(&mut self, x: Var, widths: [u32; K]) -> [Var; K] {
        let total: u32 = widths.iter().sum();
        assert!(total == x.tensor.cols, "parts of {total} columns of a value of {}", x.tensor.cols);
        let mut first = 0;
        let ranges = widths.map(|width| {
            first += width;
            (x.tensor.columns(first - width, width), Range::Columns(first - width))
        });
        self.parts_of(x, ranges)
    }

    /// All columns of `x`, in `count` consecutive parts of the same width, a multiple of 4; otherwise as
    /// [`split`](Self::split).
    #[track_caller]
    pub fn split_evenly(&mut self, x: Var, count: u32) -> Vec<Var> {
        let width = x.tensor.cols / count;
        assert!(width * count == x.tensor.cols, "{count} even parts of {} columns", x.tensor.cols);
        let range = |first| (x.tensor.columns(first, width), Range::Columns(first));
        let parts: Vec<Var> = (0..count).map(|part| self.part_of(x, range(part * width))).collect();
        self.check_parts(parts.clone());
        parts
    }

    /// All rows of `x`, in two parts, the first `count` rows and the others; otherwise as [`split`](Self::split).
    #[track_caller]
    pub fn split_rows(&mut self, x: Var, count: u32) -> [Var; 2] {
        let others = x.tensor.rows - count;
        let first = (x.tensor.rows(0, count), Range::Rows(0));
        self.parts_of(x, [first, (x.tensor.rows(count, others), Range::Rows(count))])
    }

    /// Two values as one: `whole` has the rows of `first`, followed by those of `second`. Nothing is copied: both are
    /// ranges of `whole`, and their gradients ranges of its gradient.
    #[track_caller]
    pub fn join_rows(&mut self, whole: Tensor, [first, second]: [Var; 2]) -> Var {
        let (count, others) = (first.tensor.rows, second.tensor.rows);
        let parts = [whole.rows(0, count), whole.rows(count, others)];
        assert!(
            count + others == whole.rows && parts == [first.tensor, second.tensor],
            "the parts are not the rows of the whole"
        );
        self.result(whole, &[first, second], false, move |tape, dy| {
            tape.give(first, dy.rows(0, count));
            tape.give(second, dy.rows(count, others));
        })
    }

    fn parts_of<const K: usize>(&mut self, x: Var, ranges: [(Tensor, Range); K]) -> [Var; K] {
        let parts = ranges.map(|range| self.part_of(x, range));
        self.check_parts(parts.to_vec());
        parts
    }

    fn part_of(&mut self, x: Var, (tensor, range): (Tensor, Range)) -> Var {
        let part = self.leaf(tensor, self.needs_gradient[x.id]);
        self.parts.wholes.insert(part.id, (x, range));
        part
    }

    /// In the backward pass, asserts that all of `parts`, or none, have a gradient.
    fn check_parts(&mut self, parts: Vec<Var>) {
        self.always(move |tape| {
            let (given, all) =
                (parts.iter().filter(|part| tape.gradient(**part).is_some()).count(), parts.len());
            assert!(given == 0 || given == all, "only {given} of {all} parts of a value have a gradient");
        });
    }

    /// Where the first gradient of `var` is written if it is a part: its range of the gradient of the whole.
    pub(super) fn target_of_part(&mut self, var: Var) -> Option<Target> {
        let (whole, range) = *self.parts.wholes.get(&var.id)?;
        let gradient = match self.gradients[whole.id] {
            Some(gradient) => gradient,
            None => {
                self.parts.filled.insert(whole.id);
                self.target(whole)?.tensor
            }
        };
        let tensor = range.of(gradient, var.tensor);
        self.gradients[var.id] = Some(tensor);
        Some(Target { tensor, accumulate: !self.parts.filled.contains(&whole.id) })
    }

    /// Copies the first gradient of a part to its range of the gradient of the whole.
    pub(super) fn copy_to_part(&mut self, part: Var, gradient: Tensor) {
        if let Some(Target { tensor, accumulate }) = self.target_of_part(part) {
            add(self.rec, gradient, tensor, 1.0, accumulate);
        }
    }
}

//! Sums of squares of tensors of any size and type, for norms that only the host reads.

use super::grad_norm::{BLOCK, PartialRows, groups, length};
use super::{fold, per_row};
use crate::element::Element;
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        count4: u32,
        offset4: u32,
        rows: u32,
        blocks: u32,
        first_partial: u32,
        index: u32,
    }
}

/// A sum of squares in the form in which the device leaves it: the sum over values above 2^40, times 2^-176; over the
/// values in between; over values below 2^-40, times 2^150; and the number of groups of 4 values with one that is not
/// finite.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct SquareSum(pub [f32; 4]);

impl SquareSum {
    /// The root of the sum; infinite if a value is not finite.
    ///
    /// ```
    /// use gristmill::ops::squares::SquareSum;
    /// assert_eq!(SquareSum([0.0, 9.0, 0.0, 0.0]).norm(), 3.0);
    /// assert_eq!(SquareSum([0.0, 0.0, 4.0, 0.0]).norm(), 2f64.powi(1 - 75));
    /// assert_eq!(SquareSum([0.0, 9.0, 0.0, 1.0]).norm(), f64::INFINITY);
    /// ```
    pub fn norm(&self) -> f64 {
        let [large, ordinary, small, overflows] = self.0.map(f64::from);
        match overflows > 0.0 {
            true => f64::INFINITY,
            false => (large * 2f64.powi(176) + ordinary + small * 2f64.powi(-150)).sqrt(),
        }
    }
}

/// Writes the sum of squares of all elements of `parts`, which are flat, to row `index` of `sums` (S, 4): a
/// [`SquareSum`].
#[track_caller]
pub fn squares(rec: &mut Recorder, parts: &[Tensor], sums: Tensor, index: u32) {
    assert!(sums.cols == 4 && index < sums.rows, "{} sums have no number {index}", sums.rows);
    let lengths: Vec<u64> = parts.iter().map(length).collect();
    let rows = PartialRows::of(&lengths);
    if rows.total() == 1 {
        return square_rows(rec, parts, &rows, sums, index);
    }
    let partials = rec.tensor("partials", rows.total(), 4, Element::F32);
    square_rows(rec, parts, &rows, partials, 0);
    let bindings = [partials.bind("partials_in", Element::F32), sums.bind("sums", Element::F32)];
    let params = Params { count4: 0, offset4: 0, rows: rows.total(), blocks: 0, first_partial: 0, index };
    let kernel = fold("squares", "fold_squares", Element::F32).constant("BLOCK", BLOCK);
    rec.dispatch(kernel, &bindings, &params, [1, 1, 1]);
}

fn square_rows(rec: &mut Recorder, parts: &[Tensor], rows: &PartialRows, partials: Tensor, first: u32) {
    let mut params =
        Params { count4: 0, offset4: 0, rows: 0, blocks: rows.blocks, first_partial: first, index: 0 };
    for (part, &count) in parts.iter().zip(&rows.counts) {
        params = Params { count4: groups(length(part)), offset4: part.offset4(), rows: count, ..params };
        let (kernel, grid) = per_row(rec, "squares", "square_rows", part.element, count);
        let bindings = [part.bind_with_offset("x", part.element), partials.bind("partials", Element::F32)];
        rec.dispatch(kernel.constant("BLOCK", BLOCK), &bindings, &params, grid);
        params.first_partial += count;
    }
}

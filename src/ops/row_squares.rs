//! Sums of squares of the rows of a matrix to which the product of low-rank factors is added, and what DoRA makes of
//! them (Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation", 2024).

use super::per_item;
use crate::element::Element;
use crate::kernels::{Condition, Kernel, Tier};
use crate::record::{Recorder, Tensor, fold_grid};

crate::params! {
    struct Params {
        rows: u32,
        cols4: u32,
        rank4: u32,
        w_offset: u32,
        w_stride: u32,
        a_offset: u32,
        a_stride: u32,
        b_offset: u32,
        b_stride: u32,
        s_offset: u32,
        factor: f32,
    }
}

/// The factors A (r, K) and B (N, r) of a product that is added to a matrix (N, K), times `factor`. The rows of A go on
/// with zeros up to a multiple of 4.
#[derive(Clone, Copy, Debug)]
pub struct LowRankFactors {
    /// A.
    pub a: Tensor,
    /// B, of the element type of A.
    pub b: Tensor,
    /// The factor of B A.
    pub factor: f32,
}

/// squares (1, N) f32 = Σ over the columns of the rows of (W + factor · B A)²; without `added` of those of W. `w`
/// (N, K) may be quantised.
#[track_caller]
pub fn row_squares(rec: &mut Recorder, w: Tensor, added: Option<LowRankFactors>, squares: Tensor) {
    assert!(
        (squares.rows, squares.cols, squares.element) == (1, w.rows, Element::F32),
        "row_squares of {} rows writes as many f32 numbers",
        w.rows
    );
    let element =
        added.map_or(if w.element.is_quantised() { Element::F32 } else { w.element }, |of| of.a.element);
    assert!(
        w.element.is_quantised() || w.element == element,
        "row_squares needs tensors of one element type"
    );
    let kernel = Kernel::new("row_squares", "row_squares", element)
        .with_weights(w.element)
        .condition(Condition::LowRank, added.is_some());
    let groups = w.rows.div_ceil(4);
    let (kernel, grid) = match rec.capabilities().tier {
        // Small workgroups, so that a few hundred rows keep several cores busy.
        Tier::Software => (kernel.constant("LANES", 16), fold_grid(u64::from(groups.div_ceil(16)))),
        Tier::Portable | Tier::Matrix => {
            (kernel.constant("LANES", 128).condition(Condition::SharedTile, true), fold_grid(groups.into()))
        }
    };
    let mut params = Params {
        rows: w.rows,
        cols4: w.cols.div_ceil(4),
        rank4: 0,
        w_offset: w.offset4(),
        w_stride: w.stride4(),
        a_offset: 0,
        a_stride: 0,
        b_offset: 0,
        b_stride: 0,
        s_offset: squares.offset4(),
        factor: 1.0,
    };
    let mut bindings = vec![w.bind_with_offset("w", w.element), squares.bind_with_offset("s", Element::F32)];
    if let Some(LowRankFactors { a, b, factor }) = added {
        assert!(
            (a.cols, b.rows) == (w.cols, w.rows)
                && a.rows == b.cols.next_multiple_of(4)
                && b.element == element,
            "factors of {} x {} and {} x {} do not fit a matrix of {} x {}",
            b.rows,
            b.cols,
            a.rows,
            a.cols,
            w.rows,
            w.cols
        );
        params = Params {
            rank4: a.rows / 4,
            a_offset: a.offset4(),
            a_stride: a.stride4(),
            b_offset: b.offset4(),
            b_stride: b.stride4(),
            factor,
            ..params
        };
        bindings.extend([a.bind_with_offset("a", element), b.bind_with_offset("b", element)]);
    }
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// magnitudes (1, N) = √squares: the norms of the rows.
#[track_caller]
pub fn row_norms(rec: &mut Recorder, squares: Tensor, magnitudes: Tensor) {
    of_rows(rec, "row_norms", squares, magnitudes);
}

/// magnitudes (1, N) /= √squares, or 1 where that is 0: the factors of the rows.
#[track_caller]
pub fn row_factors(rec: &mut Recorder, squares: Tensor, magnitudes: Tensor) {
    of_rows(rec, "row_factors", squares, magnitudes);
}

#[track_caller]
fn of_rows(rec: &mut Recorder, entry: &'static str, squares: Tensor, magnitudes: Tensor) {
    let shape = |tensor: Tensor| (tensor.rows, tensor.cols, tensor.element);
    assert!(
        shape(squares) == (1, magnitudes.cols, Element::F32) && shape(magnitudes) == shape(squares),
        "{entry} needs one f32 number of each for a row"
    );
    let groups = magnitudes.cols.div_ceil(4);
    let (kernel, grid) = per_item("row_squares", entry, Element::F32, groups.into());
    let params = Params {
        rows: magnitudes.cols,
        cols4: 0,
        rank4: 0,
        w_offset: 0,
        w_stride: 0,
        a_offset: 0,
        a_stride: 0,
        b_offset: 0,
        b_stride: 0,
        s_offset: 0,
        factor: 1.0,
    };
    let bindings = [squares.bind("s", Element::F32), magnitudes.bind("m", Element::F32)];
    rec.dispatch(kernel, &bindings, &params, grid);
}

//! Sums over rows: the gradient of a bias, and the last step of every weight gradient that is summed over tokens.

use super::per_block;
use crate::element::Element;
use crate::kernels::Condition;
use crate::record::{Recorder, Tensor};

/// Rows that the first launch sums into one.
const BLOCK: u32 = 64;

crate::params! {
    struct Params {
        rows: u32,
        block: u32,
        x_offset4: u32,
        x_stride4: u32,
        y_stride4: u32,
        factor: f32,
    }
}

/// y (1, D) += factor · Σ_rows x (N, D), without a factor the sum; y is f32.
#[track_caller]
pub fn column_sum(rec: &mut Recorder, x: Tensor, y: Tensor, factor: Option<f32>) {
    assert!(x.cols == y.cols, "column_sum of {} columns into {}", x.cols, y.cols);
    let partials = rec.tensor("partials", x.rows.div_ceil(BLOCK), x.cols, Element::F32);
    launch(rec, x, partials, BLOCK, false, None);
    fold_scaled(rec, partials, y, factor);
}

/// y (E, D) += Σ over the rows of each expert of x (R, D), whose rows are sorted by expert: `offsets` (1, E + 1), u32,
/// holds the first row of each expert and the end of the last one's rows. y is f32.
#[track_caller]
pub fn grouped_column_sum(rec: &mut Recorder, x: Tensor, offsets: Tensor, y: Tensor) {
    assert!(x.cols == y.cols, "grouped_column_sum of {} columns into {}", x.cols, y.cols);
    assert!(y.element == Element::F32, "gradients of parameters must be f32");
    assert!(offsets.cols == y.rows + 1, "{} offsets for {} experts", offsets.cols, y.rows);
    let (kernel, grid) = per_block(rec, "column_sum", "column_sum", x.element, [y.stride4(), y.rows]);
    let kernel = kernel.condition(Condition::Grouped, true).condition(Condition::Accumulate, true);
    let offsets = offsets.bind("offsets", Element::U32);
    let bindings = [x.bind_with_offset("x", x.element), y.bind("y", Element::F32), offsets];
    rec.dispatch(kernel, &bindings, &params(x, y, 0), grid);
}

/// y (1, D) += Σ_rows of f32 partials (P, D).
#[track_caller]
pub(super) fn fold_partials(rec: &mut Recorder, partials: Tensor, y: Tensor) {
    fold_scaled(rec, partials, y, None);
}

/// y (1, D) += factor · Σ_rows of f32 partials (P, D).
#[track_caller]
pub(super) fn fold_scaled(rec: &mut Recorder, partials: Tensor, y: Tensor, factor: Option<f32>) {
    assert!(y.rows == 1 && y.element == Element::F32, "a sum over rows must go to one f32 row");
    launch(rec, partials, y, partials.rows, true, factor);
}

#[track_caller]
fn launch(rec: &mut Recorder, x: Tensor, y: Tensor, block: u32, is_gradient: bool, factor: Option<f32>) {
    let (kernel, grid) = per_block(rec, "column_sum", "column_sum", x.element, [y.stride4(), y.rows]);
    let kernel = kernel
        .condition(Condition::Gradient, is_gradient)
        .condition(Condition::Accumulate, is_gradient)
        .condition(Condition::Scaled, factor.is_some());
    let bindings = [x.bind_with_offset("x", x.element), y.bind("y", Element::F32)];
    let params = Params { factor: factor.unwrap_or(1.0), ..params(x, y, block) };
    rec.dispatch(kernel, &bindings, &params, grid);
}

fn params(x: Tensor, y: Tensor, block: u32) -> Params {
    let [x_stride4, y_stride4] = [x, y].map(|tensor| tensor.stride4());
    Params { rows: x.rows, block, x_offset4: x.offset4(), x_stride4, y_stride4, factor: 1.0 }
}

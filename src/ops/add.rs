//! Sums of tensors that no other kernel can fuse.

use super::per_item;
use crate::kernels::Condition;
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        rows: u32,
        cols4: u32,
        x_offset: u32,
        y_offset: u32,
        x_stride: u32,
        y_stride: u32,
        factor: f32,
    }
}

/// y = factor · x, or y += factor · x with `accumulate`.
#[track_caller]
pub fn add(rec: &mut Recorder, x: Tensor, y: Tensor, factor: f32, accumulate: bool) {
    assert!(
        (x.rows, x.cols, x.element) == (y.rows, y.cols, y.element),
        "add needs tensors of one shape and element type"
    );
    let cols4 = x.cols.div_ceil(4);
    let (kernel, grid) = per_item("add", "add", x.element, x.rows as u64 * cols4 as u64);
    let ((x_range, x_offset), (y_range, y_offset)) = (x.offset_binding(), y.offset_binding());
    let (x_stride, y_stride) = (x.stride4(), y.stride4());
    let params = Params { rows: x.rows, cols4, x_offset, y_offset, x_stride, y_stride, factor };
    rec.dispatch(
        kernel.condition(Condition::Accumulate, accumulate),
        &[(1, x_range), (2, y_range)],
        &params,
        grid,
    );
}

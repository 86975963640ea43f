//! Clipping of the elements of a tensor, as MPT, OLMo and OLMoE clip queries, keys and values.

use super::per_item;
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        rows: u32,
        cols4: u32,
        x_offset: u32,
        y_offset: u32,
        x_stride: u32,
        y_stride: u32,
        limit: f32,
    }
}

/// y (N, F) = x (N, F) with each element between -limit and limit.
#[track_caller]
pub fn clip(rec: &mut Recorder, x: Tensor, y: Tensor, limit: f32) {
    launch(rec, "clip", x, ("y", y), limit);
}

/// The gradient of [`clip`], in place on `dy` (N, F): 0 where x is beyond the limit.
#[track_caller]
pub fn clip_backward(rec: &mut Recorder, x: Tensor, dy: Tensor, limit: f32) {
    launch(rec, "clip_backward", x, ("gradient", dy), limit);
}

#[track_caller]
fn launch(rec: &mut Recorder, entry: &'static str, x: Tensor, (name, y): (&'static str, Tensor), limit: f32) {
    let is_alike = (x.rows, x.cols, x.element) == (y.rows, y.cols, y.element);
    assert!(is_alike, "clip needs tensors of one shape and element type");
    let cols4 = x.cols.div_ceil(4);
    let (kernel, grid) = per_item("clip", entry, x.element, u64::from(x.rows) * u64::from(cols4));
    let params = Params {
        rows: x.rows,
        cols4,
        x_offset: x.offset4(),
        y_offset: y.offset4(),
        x_stride: x.stride4(),
        y_stride: y.stride4(),
        limit,
    };
    let bindings = [x.bind_with_offset("x", x.element), y.bind_with_offset(name, x.element)];
    rec.dispatch(kernel, &bindings, &params, grid);
}

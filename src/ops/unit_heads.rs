//! Heads divided by their length, as queries and keys of linear attention are (Yang, Kautz and Hatamizadeh, 2024).

use super::per_item;
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        rows: u32,
        heads: u32,
        head4: u32,
        x_offset: u32,
        x_stride: u32,
        y_offset: u32,
        y_stride: u32,
        dx_offset: u32,
        dx_stride: u32,
        epsilon: f32,
    }
}

/// y (N, heads · C) = x / sqrt(Σ x² + epsilon), head by head of C = `head_dim` columns, a multiple of 4. x may be a range
/// of columns.
#[track_caller]
pub fn unit_heads(rec: &mut Recorder, x: Tensor, y: Tensor, head_dim: u32, epsilon: f32) {
    let params = params(x, y, head_dim, epsilon);
    let items = u64::from(params.rows) * u64::from(params.heads);
    let (kernel, grid) = per_item("unit_heads", "unit_heads", x.element, items);
    let bindings = [x.bind_with_offset("x", x.element), y.bind_with_offset("y", x.element)];
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// dx (N, heads · C), written, from x and dy of its shape; x and dx may be ranges of columns.
#[track_caller]
pub fn unit_heads_backward(
    rec: &mut Recorder,
    x: Tensor,
    dy: Tensor,
    dx: Tensor,
    head_dim: u32,
    epsilon: f32,
) {
    let fits = (dx.rows, dx.cols, dx.element) == (x.rows, x.cols, x.element);
    assert!(fits, "dx must have the shape of unit_heads' input");
    let params =
        Params { dx_offset: dx.offset4(), dx_stride: dx.stride4(), ..params(x, dy, head_dim, epsilon) };
    let items = u64::from(params.rows) * u64::from(params.heads);
    let (kernel, grid) = per_item("unit_heads", "unit_heads_backward", x.element, items);
    let bindings = [
        x.bind_with_offset("x", x.element),
        dy.bind_with_offset("dy", x.element),
        dx.bind_with_offset("dx", x.element),
    ];
    rec.dispatch(kernel, &bindings, &params, grid);
}

#[track_caller]
fn params(x: Tensor, y: Tensor, head_dim: u32, epsilon: f32) -> Params {
    assert!(head_dim.is_multiple_of(4) && x.cols.is_multiple_of(head_dim), "heads of {head_dim} columns");
    assert!((x.rows, x.cols) == (y.rows, y.cols), "y must have the shape of unit_heads' input");
    Params {
        rows: x.rows,
        heads: x.cols / head_dim,
        head4: head_dim / 4,
        x_offset: x.offset4(),
        x_stride: x.stride4(),
        y_offset: y.offset4(),
        y_stride: y.stride4(),
        dx_offset: 0,
        dx_stride: 0,
        epsilon,
    }
}

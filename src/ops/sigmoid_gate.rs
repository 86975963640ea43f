//! A gate for each element: that of softmax attention's output in Qwen3-Next (Qiu et al., 2025).

use super::per_item;
use crate::kernels::{Condition, Kernel};
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        rows: u32,
        cols4: u32,
        g_offset: u32,
        g_stride: u32,
        dg_offset: u32,
        dg_stride: u32,
    }
}

/// y (N, D) = x · sigmoid(g), all of the same shape and element type; D is a multiple of 4, and g may be a range of
/// columns.
#[track_caller]
pub fn sigmoid_gate(rec: &mut Recorder, x: Tensor, g: Tensor, y: Tensor) {
    let params = params(x, g, y);
    let (kernel, grid) = per_group("sigmoid_gate", x, params);
    let element = x.element;
    let bindings = [x.bind("x", element), g.bind_with_offset("g", element), y.bind("y", element)];
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// dx (N, D), written, and dg (N, D), written or, with `accumulate`, added to; dg may be a range of columns.
#[track_caller]
pub fn sigmoid_gate_backward(
    rec: &mut Recorder,
    [x, g]: [Tensor; 2],
    dy: Tensor,
    dx: Tensor,
    (dg, accumulate): (Tensor, bool),
) {
    let element = x.element;
    let fits = |of: Tensor| (of.rows, of.cols, of.element) == (x.rows, x.cols, element);
    assert!(fits(dx) && fits(dg), "gradients must have the shape of sigmoid_gate's inputs");
    let params = Params { dg_offset: dg.offset4(), dg_stride: dg.stride4(), ..params(x, g, dy) };
    let (kernel, grid) = per_group("sigmoid_gate_backward", x, params);
    let bindings = [
        x.bind("x", element),
        g.bind_with_offset("g", element),
        dy.bind("dy", element),
        dx.bind("dx", element),
        dg.bind_with_offset("dg", element),
    ];
    rec.dispatch(kernel.condition(Condition::Accumulate, accumulate), &bindings, &params, grid);
}

fn per_group(entry: &'static str, x: Tensor, params: Params) -> (Kernel, [u32; 3]) {
    per_item("sigmoid_gate", entry, x.element, u64::from(params.rows) * u64::from(params.cols4))
}

#[track_caller]
fn params(x: Tensor, g: Tensor, y: Tensor) -> Params {
    assert!(x.cols.is_multiple_of(4), "gates of {} columns, which 4 does not divide", x.cols);
    for of in [g, y] {
        let fits = (of.rows, of.cols, of.element) == (x.rows, x.cols, x.element);
        assert!(fits, "sigmoid_gate's tensors must have the shape and element type of its input");
    }
    assert!(x.stride == x.cols && y.stride == y.cols, "only the gate may be a range of columns");
    Params {
        rows: x.rows,
        cols4: x.cols / 4,
        g_offset: g.offset4(),
        g_stride: g.stride4(),
        dg_offset: 0,
        dg_stride: 0,
    }
}

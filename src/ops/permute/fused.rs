//! Permute and combine as one kernel each, and each backward.

use super::{CombineSaved, Placement, lanes_of};
use crate::element::Element;
use crate::kernels::{Condition, Kernel};
use crate::ops::per_row;
use crate::record::{Binding, Recorder, Tensor, fold_grid};

/// Gate gradients that each item past the rows clears; the shader uses the same number.
const CLEARED: u32 = 16;

crate::params! {
    struct Params {
        tokens: u32,
        chosen: u32,
        rows: u32,
        stride4: u32,
        gates_stride: u32,
    }
}

pub(super) fn permute(rec: &mut Recorder, placement: &Placement, x: Tensor, rows: Tensor) {
    let bindings = [
        x.bind("x", x.element),
        placement.sources.bind("sources", Element::U32),
        rows.bind("rows_out", x.element),
    ];
    let kernel = kernel(rec, "permute", rows);
    launch(rec, kernel, placement, rows, rows, &bindings);
}

pub(super) fn permute_backward(
    rec: &mut Recorder,
    placement: &Placement,
    d_rows: Tensor,
    dx: Tensor,
    accumulate: bool,
) {
    let bindings = [
        d_rows.bind("d_rows", dx.element),
        placement.places.bind("places", Element::U32),
        dx.bind("dx", dx.element),
    ];
    let kernel = kernel(rec, "permute_backward", dx).condition(Condition::Accumulate, accumulate);
    launch(rec, kernel, placement, dx, dx, &bindings);
}

pub(super) fn combine(
    rec: &mut Recorder,
    placement: &Placement,
    rows: Tensor,
    gates: Tensor,
    residual: Option<Tensor>,
    y: Tensor,
) {
    let mut bindings = vec![
        rows.bind("rows", y.element),
        placement.places.bind("places", Element::U32),
        y.bind("y", y.element),
        gates.bind("gates", Element::F32),
    ];
    bindings.extend(residual.map(|residual| residual.bind("residual", y.element)));
    let kernel = kernel(rec, "combine", y).condition(Condition::Residual, residual.is_some());
    launch(rec, kernel, placement, y, gates, &bindings);
}

pub(super) fn combine_backward(
    rec: &mut Recorder,
    placement: &Placement,
    saved: &CombineSaved,
    dy: Tensor,
    d_rows: Tensor,
    d_gates: Tensor,
) {
    let bindings = [
        saved.rows.bind("rows", dy.element),
        placement.sources.bind("sources", Element::U32),
        placement.places.bind("choice_places", Element::U32),
        saved.gates.bind("gates", Element::F32),
        dy.bind("dy", dy.element),
        d_rows.bind("d_rows_out", dy.element),
        d_gates.bind("d_gates", Element::F32),
    ];
    assert!(d_gates.stride == saved.gates.stride, "gates and their gradient must have one stride");
    let items = d_rows.rows + (d_gates.rows * d_gates.stride).div_ceil(CLEARED);
    let (kernel, grid) = per_row(rec, "permute/fused", "combine_backward", dy.element, items);
    rec.dispatch(kernel, &bindings, &params(placement, dy, d_gates), grid);
}

fn kernel(rec: &Recorder, entry: &'static str, result: Tensor) -> Kernel {
    let lanes = lanes_of(rec, result.stride4());
    Kernel::new("permute/fused", entry, result.element).constant("LANES", lanes)
}

fn launch(
    rec: &mut Recorder,
    kernel: Kernel,
    placement: &Placement,
    result: Tensor,
    gates: Tensor,
    bindings: &[Binding],
) {
    let groups = result.stride4().div_ceil(lanes_of(rec, result.stride4()));
    let grid = fold_grid(u64::from(groups) * u64::from(result.rows));
    rec.dispatch(kernel, bindings, &params(placement, result, gates), grid);
}

fn params(placement: &Placement, wide: Tensor, gates: Tensor) -> Params {
    let config = &placement.config;
    Params {
        tokens: config.tokens,
        chosen: config.chosen,
        rows: config.rows(),
        stride4: wide.stride4(),
        gates_stride: gates.stride,
    }
}

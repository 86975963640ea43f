//! Permute and combine from single-purpose kernels: rows are repeated, gathered, scaled and summed in separate passes,
//! through tensors (N·k, D) in the order of choices.

use super::per_row;
use gristmill::element::Element;
use gristmill::kernels::{Condition, Kernel, Tier};
use gristmill::ops::permute::{CombineSaved, Placement};
use gristmill::record::{Binding, Recorder, Tensor, fold_grid};

gristmill::params! {
    struct Params {
        rows: u32,
        chosen: u32,
        stride4: u32,
        gates_stride: u32,
    }
}

pub fn permute(rec: &mut Recorder, placement: &Placement, x: Tensor, rows: Tensor) {
    let repeated = choices(rec, "repeated", placement, x);
    repeat_rows(rec, placement, x, repeated);
    gather_rows(rec, repeated, placement.sources, rows);
}

pub fn permute_backward(
    rec: &mut Recorder,
    placement: &Placement,
    d_rows: Tensor,
    dx: Tensor,
    accumulate: bool,
) {
    let unpermuted = choices(rec, "unpermuted", placement, dx);
    gather_rows(rec, d_rows, placement.places, unpermuted);
    let kernel = kernel(rec, "sum_choices", dx).condition(Condition::Accumulate, accumulate);
    let params = params(dx, placement.config.chosen, 0);
    let bindings = [unpermuted.bind("x", dx.element), dx.bind("y", dx.element)];
    launch(rec, kernel, dx, &params, &bindings);
}

pub fn combine(
    rec: &mut Recorder,
    placement: &Placement,
    rows: Tensor,
    gates: Tensor,
    residual: Option<Tensor>,
    y: Tensor,
) {
    let unpermuted = choices(rec, "unpermuted", placement, y);
    gather_rows(rec, rows, placement.places, unpermuted);
    let mut bindings =
        vec![unpermuted.bind("x", y.element), y.bind("y", y.element), gates.bind("gates", Element::F32)];
    bindings.extend(residual.map(|residual| residual.bind("residual", y.element)));
    let kernel = kernel(rec, "weigh_choices", y).condition(Condition::Residual, residual.is_some());
    let params = params(y, placement.config.chosen, gates.stride);
    launch(rec, kernel, y, &params, &bindings);
}

pub fn combine_backward(
    rec: &mut Recorder,
    placement: &Placement,
    saved: &CombineSaved,
    dy: Tensor,
    d_rows: Tensor,
    d_gates: Tensor,
) {
    let CombineSaved { rows, gates } = *saved;
    let [repeated, unpermuted, scaled] =
        ["repeated", "unpermuted", "scaled"].map(|label| choices(rec, label, placement, dy));
    repeat_rows(rec, placement, dy, repeated);
    gather_rows(rec, rows, placement.places, unpermuted);
    dot_rows(rec, placement, [repeated, unpermuted], d_gates);
    let kernel = kernel(rec, "scale_rows", scaled);
    let params = params(scaled, placement.config.chosen, gates.stride);
    let bindings =
        [repeated.bind("x", dy.element), scaled.bind("y", dy.element), gates.bind("gates", Element::F32)];
    launch(rec, kernel, scaled, &params, &bindings);
    gather_rows(rec, scaled, placement.sources, d_rows);
}

/// A tensor with a row for each choice.
fn choices(rec: &mut Recorder, label: &str, placement: &Placement, like: Tensor) -> Tensor {
    rec.tensor(label, placement.config.choices(), like.cols, like.element)
}

fn repeat_rows(rec: &mut Recorder, placement: &Placement, x: Tensor, y: Tensor) {
    let kernel = kernel(rec, "repeat_rows", y);
    let params = params(y, placement.config.chosen, 0);
    launch(rec, kernel, y, &params, &[x.bind("x", y.element), y.bind("y", y.element)]);
}

fn gather_rows(rec: &mut Recorder, x: Tensor, index: Tensor, y: Tensor) {
    let kernel = kernel(rec, "gather_rows", y);
    let bindings = [x.bind("x", y.element), y.bind("y", y.element), index.bind("index", Element::U32)];
    launch(rec, kernel, y, &params(y, 0, 0), &bindings);
}

fn dot_rows(rec: &mut Recorder, placement: &Placement, factors: [Tensor; 2], d_gates: Tensor) {
    let [x, z] = factors;
    let (kernel, grid) = per_row(rec, "unfused/permute", "dot_rows", x.element, x.rows);
    let bindings = [x.bind("x", x.element), z.bind("z", x.element), d_gates.bind("d_gates", Element::F32)];
    rec.dispatch(kernel, &bindings, &params(x, placement.config.chosen, d_gates.stride), grid);
}

fn kernel(rec: &Recorder, entry: &'static str, result: Tensor) -> Kernel {
    let lanes = lanes_of(rec, result.stride4());
    Kernel::new("unfused/permute", entry, result.element).constant("LANES", lanes)
}

fn launch(rec: &mut Recorder, kernel: Kernel, y: Tensor, params: &Params, bindings: &[Binding]) {
    let groups = y.stride4().div_ceil(lanes_of(rec, y.stride4()));
    rec.dispatch(kernel, bindings, params, fold_grid(u64::from(groups) * u64::from(y.rows)));
}

fn lanes_of(rec: &Recorder, stride4: u32) -> u32 {
    let most = if rec.capabilities().tier == Tier::Software { 32 } else { 128 };
    stride4.next_power_of_two().clamp(8, most)
}

fn params(wide: Tensor, chosen: u32, gates_stride: u32) -> Params {
    Params { rows: wide.rows, chosen, stride4: wide.stride4(), gates_stride }
}

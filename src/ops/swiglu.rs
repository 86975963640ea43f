//! SwiGLU and GeGLU (Shazeer, "GLU Variants Improve Transformer", 2020), the activations of gated feed-forward
//! networks.

use super::gelu::Gelu;
use crate::element::{Element, stride_of};
use crate::kernels::{Condition, Kernel, Tier};
use crate::record::{Recorder, Tensor, fold_grid};

/// The activation of a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// x · sigmoid(x): SwiGLU.
    #[default]
    Silu,
    /// x · Φ(x): GeGLU.
    Gelu(Gelu),
    /// g · sigmoid(1.702 g) of g = min(x, 7), and what it multiplies is clamped to ±7 and increased by 1 (OpenAI,
    /// "gpt-oss", 2025).
    Clamped,
}

impl Gate {
    /// The variant of `kernel` with this activation.
    pub(super) fn of(self, kernel: Kernel) -> Kernel {
        match self {
            Self::Silu => kernel,
            Self::Gelu(kind) => kind.of(kernel.condition(Condition::GeluGate, true)),
            Self::Clamped => kernel.condition(Condition::ClampedGate, true),
        }
    }
}

crate::params! {
    struct Params {
        rows: u32,
        columns4: u32,
        chunks: u32,
        packed_offset: u32,
        packed_stride: u32,
        y_offset: u32,
        y_stride: u32,
        d_packed_offset: u32,
        d_packed_stride: u32,
    }
}

/// Columns of a packed `gate_up` whose halves have `features` columns each: the gate starts at column 0, the up
/// projection at `stride_of(features)`, so that both are column ranges. The columns between them are zero.
pub const fn gate_up_cols(features: u32) -> u32 {
    2 * stride_of(features)
}

/// out (N, F) = activation(gate) · up, where gate and up are the halves of `gate_up` (N, [`gate_up_cols`]\(F)).
#[track_caller]
pub fn swiglu(rec: &mut Recorder, gate_up: Tensor, out: Tensor, gate: Gate) {
    launch(rec, "swiglu", gate_up, out, None, gate);
}

/// d_gate_up (both halves and the zeros between) from `gate_up` and dout (N, F), in one pass.
#[track_caller]
pub fn swiglu_backward(rec: &mut Recorder, gate_up: Tensor, dout: Tensor, d_gate_up: Tensor, gate: Gate) {
    launch(rec, "swiglu_backward", gate_up, dout, Some(d_gate_up), gate);
}

#[track_caller]
fn launch(
    rec: &mut Recorder,
    entry: &'static str,
    gate_up: Tensor,
    y: Tensor,
    d_gate_up: Option<Tensor>,
    gate: Gate,
) {
    let (rows, cols) = (y.rows, gate_up_cols(y.cols));
    for packed in [Some(gate_up), d_gate_up].into_iter().flatten() {
        assert!(
            (packed.rows, packed.cols) == (rows, cols),
            "gate and up of {rows} x {} are packed as {rows} x {cols}, not {} x {}",
            y.cols,
            packed.rows,
            packed.cols
        );
    }
    let columns4 = y.cols.div_ceil(4);
    let (kernel, chunks) = plan(entry, columns4, y.element, rec.capabilities().tier);
    let params = Params {
        rows,
        columns4,
        chunks,
        packed_offset: gate_up.offset4(),
        packed_stride: gate_up.stride4(),
        y_offset: y.offset4(),
        y_stride: y.stride4(),
        d_packed_offset: d_gate_up.map_or(0, |d| d.offset4()),
        d_packed_stride: d_gate_up.map_or(0, |d| d.stride4()),
    };
    let mut bindings = vec![
        gate_up.bind_with_offset("packed", y.element),
        y.bind_with_offset(if d_gate_up.is_some() { "dout" } else { "out" }, y.element),
    ];
    bindings.extend(d_gate_up.map(|d| d.bind_with_offset("d_packed", y.element)));
    rec.dispatch(gate.of(kernel), &bindings, &params, fold_grid(y.rows as u64 * chunks as u64));
}

/// The kernel, and the number of workgroups for each row.
fn plan(entry: &'static str, columns4: u32, element: Element, tier: Tier) -> (Kernel, u32) {
    let widest = match tier {
        Tier::Software => 64,
        Tier::Portable | Tier::Matrix => 256,
    };
    // Not wider than a row: lanes past its end would be idle.
    let lanes = columns4.next_power_of_two().clamp(8, widest);
    (Kernel::new("swiglu", entry, element).constant("LANES", lanes), columns4.div_ceil(lanes))
}

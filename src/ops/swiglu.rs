//! SwiGLU (Shazeer, "GLU Variants Improve Transformer", 2020), the activation of gated feed-forward networks.

use crate::element::{Element, stride_of};
use crate::kernels::{Condition, Kernel, Tier};
use crate::record::{Binding, Recorder, Tensor, fold_grid};

crate::params! {
    struct Params {
        rows: u32,
        columns4: u32,
        chunks: u32,
        gate_offset: u32,
        gate_stride: u32,
        up_offset: u32,
        up_stride: u32,
        y_offset: u32,
        y_stride: u32,
        d_gate_offset: u32,
        d_gate_stride: u32,
        d_up_offset: u32,
        d_up_stride: u32,
    }
}

/// Columns of a packed `gate_up` whose halves have `features` columns each: the gate starts at column 0, the up
/// projection at `stride_of(features)`, so that both are column ranges. The columns between them are zero.
pub const fn gate_up_cols(features: u32) -> u32 {
    2 * stride_of(features)
}

/// out (N, F) = silu(gate) · up, where gate and up are the halves of `gate_up` (N, [`gate_up_cols`]\(F)).
///
/// One product computes both halves packed; [`swiglu_of_two`] takes tensors in different buffers.
#[track_caller]
pub fn swiglu(rec: &mut Recorder, gate_up: Tensor, out: Tensor) {
    launch(rec, "swiglu", &Halves::packed(gate_up, out), out, None);
}

/// d_gate_up (both halves and the zeros between) from `gate_up` and dout (N, F), in one pass.
#[track_caller]
pub fn swiglu_backward(rec: &mut Recorder, gate_up: Tensor, dout: Tensor, d_gate_up: Tensor) {
    let (halves, gradients) = (Halves::packed(gate_up, dout), Halves::packed(d_gate_up, dout));
    launch(rec, "swiglu_backward", &halves, dout, Some(&gradients));
}

/// out (N, F) = silu(gate) · up of gate and up (N, F) in separate buffers.
#[track_caller]
pub fn swiglu_of_two(rec: &mut Recorder, [gate, up]: [Tensor; 2], out: Tensor) {
    launch(rec, "swiglu", &Halves::two(gate, up, out), out, None);
}

/// Both gradients of [`swiglu_of_two`] in one pass, in separate buffers.
#[track_caller]
pub fn swiglu_of_two_backward(
    rec: &mut Recorder,
    [gate, up]: [Tensor; 2],
    dout: Tensor,
    [d_gate, d_up]: [Tensor; 2],
) {
    let (halves, gradients) = (Halves::two(gate, up, dout), Halves::two(d_gate, d_up, dout));
    launch(rec, "swiglu_backward", &halves, dout, Some(&gradients));
}

/// The bindings of gate and up: one for both, or one for each.
struct Halves {
    gate: (Binding, u32, u32), // range, offset and stride in groups of 4
    up: (Option<Binding>, u32, u32),
}

impl Halves {
    #[track_caller]
    fn packed(tensor: Tensor, y: Tensor) -> Self {
        let (rows, cols) = (y.rows, gate_up_cols(y.cols));
        assert!(
            (tensor.rows, tensor.cols) == (rows, cols),
            "gate and up of {rows} x {} are packed as {rows} x {cols}, not {} x {}",
            y.cols,
            tensor.rows,
            tensor.cols
        );
        assert!(tensor.element == y.element, "swiglu needs tensors of one element type");
        let (range, offset) = tensor.offset_binding();
        let stride = tensor.stride4();
        Self { gate: (range, offset, stride), up: (None, offset + y.cols.div_ceil(4), stride) }
    }

    #[track_caller]
    fn two(gate: Tensor, up: Tensor, y: Tensor) -> Self {
        // Column ranges of one buffer overlap, and writable bindings must not.
        assert!(gate.buffer != up.buffer, "gate and up share a buffer: use the packed swiglu");
        for tensor in [gate, up] {
            let fits = (tensor.rows, tensor.cols, tensor.element) == (y.rows, y.cols, y.element);
            assert!(fits, "gate and up must have the shape and element type of swiglu's result");
        }
        let ((gate_range, gate_offset), (up_range, up_offset)) = (gate.offset_binding(), up.offset_binding());
        Self {
            gate: (gate_range, gate_offset, gate.stride4()),
            up: (Some(up_range), up_offset, up.stride4()),
        }
    }
}

fn launch(rec: &mut Recorder, entry: &'static str, halves: &Halves, y: Tensor, gradients: Option<&Halves>) {
    let columns4 = y.cols.div_ceil(4);
    let (kernel, chunks) = plan(entry, columns4, y.element, rec.capabilities().tier);
    let kernel = kernel.condition(Condition::TwoTensors, halves.up.0.is_some());
    let (y_range, y_offset) = y.offset_binding();
    let params = Params {
        rows: y.rows,
        columns4,
        chunks,
        gate_offset: halves.gate.1,
        gate_stride: halves.gate.2,
        up_offset: halves.up.1,
        up_stride: halves.up.2,
        y_offset,
        y_stride: y.stride4(),
        d_gate_offset: gradients.map_or(0, |d| d.gate.1),
        d_gate_stride: gradients.map_or(0, |d| d.gate.2),
        d_up_offset: gradients.map_or(0, |d| d.up.1),
        d_up_stride: gradients.map_or(0, |d| d.up.2),
    };
    let mut bindings = vec![(1, halves.gate.0), (if gradients.is_some() { 3 } else { 2 }, y_range)];
    bindings.extend(gradients.map(|d| (4, d.gate.0)));
    bindings.extend(halves.up.0.map(|range| (5, range)));
    bindings.extend(gradients.and_then(|d| d.up.0).map(|range| (6, range)));
    rec.dispatch(kernel, &bindings, &params, fold_grid(y.rows as u64 * chunks as u64));
}

/// The kernel, and the number of workgroups for each row.
fn plan(entry: &'static str, columns4: u32, element: Element, tier: Tier) -> (Kernel, u32) {
    let widest = match tier {
        Tier::Software => 64,
        Tier::Portable => 256,
    };
    // Not wider than a row: lanes past its end would idle.
    let lanes = columns4.next_power_of_two().clamp(8, widest);
    (Kernel::new("swiglu", entry, element).constant("LANES", lanes), columns4.div_ceil(lanes))
}

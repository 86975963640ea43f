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

/// Gate and up: two tensors, or one tensor that holds both packed.
struct Halves {
    gate: Tensor,
    up: Option<Tensor>,
    /// Offset of up in its binding, in groups of 4.
    up_offset: u32,
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
        Self { gate: tensor, up: None, up_offset: tensor.offset4() + y.cols.div_ceil(4) }
    }

    #[track_caller]
    fn two(gate: Tensor, up: Tensor, y: Tensor) -> Self {
        // Column ranges of one buffer overlap, and writable bindings must not.
        assert!(gate.buffer != up.buffer, "gate and up share a buffer: use the packed swiglu");
        for tensor in [gate, up] {
            let fits = (tensor.rows, tensor.cols) == (y.rows, y.cols);
            assert!(fits, "gate and up must have the shape of swiglu's result");
        }
        Self { gate, up: Some(up), up_offset: up.offset4() }
    }

    fn up_stride(&self) -> u32 {
        self.up.unwrap_or(self.gate).stride4()
    }

    /// Gate, or both packed, as the variable `gates` of the shader, and up alone as `ups`.
    #[track_caller]
    fn bind(&self, gates: &'static str, ups: &'static str, element: Element) -> Vec<Binding> {
        let up = self.up.map(|up| up.bind_with_offset(ups, element));
        [self.gate.bind_with_offset(gates, element)].into_iter().chain(up).collect()
    }
}

#[track_caller]
fn launch(rec: &mut Recorder, entry: &'static str, halves: &Halves, y: Tensor, gradients: Option<&Halves>) {
    let columns4 = y.cols.div_ceil(4);
    let (kernel, chunks) = plan(entry, columns4, y.element, rec.capabilities().tier);
    let kernel = kernel.condition(Condition::TwoTensors, halves.up.is_some());
    let params = Params {
        rows: y.rows,
        columns4,
        chunks,
        gate_offset: halves.gate.offset4(),
        gate_stride: halves.gate.stride4(),
        up_offset: halves.up_offset,
        up_stride: halves.up_stride(),
        y_offset: y.offset4(),
        y_stride: y.stride4(),
        d_gate_offset: gradients.map_or(0, |d| d.gate.offset4()),
        d_gate_stride: gradients.map_or(0, |d| d.gate.stride4()),
        d_up_offset: gradients.map_or(0, |d| d.up_offset),
        d_up_stride: gradients.map_or(0, Halves::up_stride),
    };
    let mut bindings = halves.bind("gates", "ups", y.element);
    bindings.push(y.bind_with_offset(if gradients.is_some() { "dout" } else { "out" }, y.element));
    bindings.extend(gradients.into_iter().flat_map(|d| d.bind("d_gates", "d_ups", y.element)));
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

//! The gated activation of the feed-forward network.

use crate::element::{Element, stride_of};
use crate::kernels::{Kernel, Tier};
use crate::record::{Recorder, Tensor, fold_grid};

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
/// projection at `stride_of(features)`, so that both are column ranges. Columns between are zero.
pub const fn gate_up_cols(features: u32) -> u32 {
    2 * stride_of(features)
}

/// out (N, F) = silu(gate) · up, where gate and up are the halves of `gate_up` (N, [`gate_up_cols`]\(F)).
///
/// Gate and up share a tensor because their gradients do: two writable bindings must not overlap, and two column ranges
/// of one buffer always would.
#[track_caller]
pub fn swiglu(rec: &mut Recorder, gate_up: Tensor, out: Tensor) {
    launch(rec, "swiglu", gate_up, out, None);
}

/// d_gate_up (both halves and the zeros between) from `gate_up` and dout (N, F), in one pass.
#[track_caller]
pub fn swiglu_backward(rec: &mut Recorder, gate_up: Tensor, dout: Tensor, d_gate_up: Tensor) {
    launch(rec, "swiglu_backward", gate_up, dout, Some(d_gate_up));
}

#[track_caller]
fn launch(rec: &mut Recorder, entry: &'static str, packed: Tensor, y: Tensor, d_packed: Option<Tensor>) {
    for tensor in [Some(packed), d_packed].into_iter().flatten() {
        let (rows, cols) = (y.rows, gate_up_cols(y.cols));
        assert!(
            (tensor.rows, tensor.cols) == (rows, cols),
            "gate and up of {rows} x {} are packed as {rows} x {cols}, not {} x {}",
            y.cols,
            tensor.rows,
            tensor.cols
        );
        assert!(tensor.element == y.element, "swiglu's tensors are stored alike");
    }
    let columns4 = y.cols.div_ceil(4);
    let (kernel, chunks) = plan(entry, columns4, y.element, rec.capabilities().tier);
    let ((packed_range, packed_offset), (y_range, y_offset)) = (packed.offset_binding(), y.offset_binding());
    let mut params = Params {
        rows: y.rows,
        columns4,
        chunks,
        packed_offset,
        packed_stride: packed.stride4(),
        y_offset,
        y_stride: y.stride4(),
        d_packed_offset: 0,
        d_packed_stride: 0,
    };
    let mut bindings = vec![(1, packed_range)];
    match d_packed {
        None => bindings.push((2, y_range)),
        Some(d_packed) => {
            let (range, offset) = d_packed.offset_binding();
            params.d_packed_offset = offset;
            params.d_packed_stride = d_packed.stride4();
            bindings.extend([(3, y_range), (4, range)]);
        }
    }
    rec.dispatch(kernel, &bindings, &params, fold_grid(y.rows as u64 * chunks as u64));
}

/// The kernel, and into how many workgroups it cuts a row.
fn plan(entry: &'static str, columns4: u32, element: Element, tier: Tier) -> (Kernel, u32) {
    let widest = match tier {
        Tier::Software => 64,
        Tier::Portable => 256,
    };
    // No wider than a row needs: lanes past its end idle.
    let lanes = columns4.next_power_of_two().clamp(8, widest);
    (Kernel::new("swiglu", entry, element).constant("LANES", lanes), columns4.div_ceil(lanes))
}

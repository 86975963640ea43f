//! Products that yield gate and up, together with their SwiGLU or GeGLU.

use super::{Epilogue, Layout, Params, Plan, factors, matmul};
use crate::element::stride_of;
use crate::ops::swiglu::{Gate, swiglu};
use crate::record::{Recorder, Tensor};

/// Records the product of `a` and `b` to `y`, gate and up, and its activation(gate) · up to `value`. One kernel does both if
/// sums are not split and an invocation or a subgroup has columns of both, as in the wide tiles of GPUs and in all by
/// matrices.
pub(super) fn matmul_with_swiglu(
    rec: &mut Recorder,
    layout: Layout,
    plan: Plan,
    [a, b, y, value]: [Tensor; 4],
    gate: Gate,
    epilogue: Epilogue,
    params: Params,
) {
    let pairs = pairs(&plan, params.k).filter(|_| layout == Layout::Nt);
    let Some(pairs) = pairs else {
        matmul(rec, layout, a, b, y, Epilogue { activated: None, ..epilogue });
        return swiglu(rec, y, value, gate);
    };
    let params = Params {
        n: value.cols,
        up_start: stride_of(value.cols),
        activation_stride: value.stride4(),
        ..params
    };
    let mut bindings = factors(rec, &plan.kernel, [a, b], [None; 2]);
    let kernel = epilogue.apply(plan.kernel, a.element, y, &mut bindings);
    rec.dispatch(kernel, &bindings, &params, [value.cols.div_ceil(pairs), plan.grid[1], 1]);
}

/// The columns of gate in a tile of `plan` that has as many of up beside them.
fn pairs(plan: &Plan, k: u32) -> Option<u32> {
    let is_wide = plan.kernel.constants().contains(&("TN4", 2));
    match plan.kernel.file {
        _ if plan.part_k < k => None,
        "matmul/portable" if is_wide => Some(64),
        "matmul/matrix" => Some(if is_wide { 64 } else { 32 }),
        _ => None,
    }
}

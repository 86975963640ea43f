//! Products that yield gate and up, together with their SwiGLU.

use super::{Epilogue, Layout, Params, Plan, factors, matmul};
use crate::element::stride_of;
use crate::ops::swiglu::swiglu;
use crate::record::{Recorder, Tensor};

/// Columns of gate, and as many of up, in a tile that has both.
const PAIRS: u32 = 64;

/// Records the product of `a` and `b` to `y`, gate and up, and its silu(gate) · up to `value`. One kernel does both if
/// an invocation sums columns of both, as in the wide tiles of GPUs whose sums are not split.
pub(super) fn matmul_with_swiglu(
    rec: &mut Recorder,
    layout: Layout,
    plan: Plan,
    [a, b, y, value]: [Tensor; 4],
    epilogue: Epilogue,
    params: Params,
) {
    if layout != Layout::Nt || !has_pairs(&plan, params.k) {
        matmul(rec, layout, a, b, y, Epilogue { activated: None, ..epilogue });
        return swiglu(rec, y, value);
    }
    let params = Params {
        n: value.cols,
        up_start: stride_of(value.cols),
        activation_stride: value.stride4(),
        ..params
    };
    let mut bindings = factors(rec, &plan.kernel, [a, b], [None; 2]);
    let kernel = epilogue.apply(plan.kernel, a.element, y, &mut bindings);
    rec.dispatch(kernel, &bindings, &params, [value.cols.div_ceil(PAIRS), plan.grid[1], 1]);
}

/// Whether the tiles of `plan` have columns of gate beside columns of up.
fn has_pairs(plan: &Plan, k: u32) -> bool {
    plan.kernel.file == "matmul/portable" && plan.kernel.constants().contains(&("TN4", 2)) && plan.part_k == k
}

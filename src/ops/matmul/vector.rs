//! Products of few rows, as in decoding a token: as fast as the weights can be read.

use super::{Epilogue, Layout, Params, Plan, Problem, check_factors, factors};
use crate::element::{Element, stride_of};
use crate::kernels::{Capabilities, Condition, Kernel, Tier};
use crate::ops::rms_norm::RmsNorm;
use crate::ops::sharing;
use crate::ops::swiglu::Gate;
use crate::record::{Recorder, Tensor};

/// Most rows: more rows would need more sums than there are registers, and reuse weights enough to be worth a tile.
pub const FEW_ROWS: u32 = 4;

/// Most workgroups along a dimension of a grid.
const MOST_WORKGROUPS: u32 = 65535;

/// Additional computations of a product of few rows, in the same launch.
#[derive(Clone, Copy, Debug, Default)]
pub struct FewRows {
    /// RMSNorm of the left factor, and its weight (1, K).
    pub norm: Option<(Tensor, RmsNorm)>,
    /// Bias, added to every row of the product.
    pub bias: Option<Tensor>,
    /// The activation of the gate, if the right factor is packed as [`gate_up_cols`](crate::ops::swiglu::gate_up_cols)
    /// describes and the result is activation(gate) · up.
    pub gate: Option<Gate>,
}

/// y (M, N) = norm(a) (M, K) · b (N, K)ᵀ + bias, or activation(gate) · up of it, for up to [`FEW_ROWS`] rows. Only y is
/// rounded to 16-bit storage.
#[track_caller]
pub fn matmul_of_few_rows(rec: &mut Recorder, a: Tensor, b: Tensor, y: Tensor, more: FewRows) {
    let FewRows { norm, bias, gate } = more;
    let is_gated = gate.is_some();
    let (m, n, k) = (a.rows, y.cols, a.cols);
    let b_rows = if is_gated { 2 * stride_of(n) } else { n };
    assert!(
        (b.rows, b.cols, y.rows) == (b_rows, k, m),
        "{m} x {n} is no product of {m} x {k} and {} x {}",
        b.rows,
        b.cols
    );
    assert!(m <= FEW_ROWS, "{m} rows are more than {FEW_ROWS}");
    check_factors(a, b);
    let epilogue = Epilogue { bias, ..Epilogue::default() };
    assert!(bias.is_none_or(|bias| bias.cols == b_rows), "the bias must have {b_rows} elements");
    assert!(norm.is_none_or(|(_, norm)| norm.factor.is_none()), "a norm within a product has no factor");
    let (kernel, columns) = kernel(m, is_gated, a.element, rec.capabilities());
    let kernel = kernel
        .with_weights(b.element)
        .condition(Condition::Normed, norm.is_some())
        .condition(Condition::ZeroCentered, norm.is_some_and(|(_, norm)| norm.is_zero_centered))
        .condition(Condition::Gated, is_gated);
    let kernel = gate.unwrap_or_default().of(kernel);
    let params = Params {
        up_start: stride_of(n),
        epsilon: norm.map_or(0.0, |(_, norm)| norm.epsilon),
        ..Params::new([m, n, k], [a, b, y], &epilogue)
    };
    let mut bindings = factors(rec, &kernel, [a, b], [None; 2]);
    bindings.extend(norm.map(|(weight, _)| weight.bind("norm", a.element)));
    let kernel = epilogue.apply(kernel, a.element, y, &mut bindings);
    rec.dispatch(kernel, &bindings, &params, [n.div_ceil(columns), 1, 1]);
}

/// Kernel and grid for `problem`, if it has few rows and the weights are stored row by row.
pub(super) fn plan(problem: Problem, element: Element, capabilities: Capabilities) -> Option<Plan> {
    let Problem { layout, m, n, k } = problem;
    if layout != Layout::Nt || m > FEW_ROWS {
        return None;
    }
    let (kernel, columns) = kernel(m, false, element, capabilities);
    let workgroups = n.div_ceil(columns);
    (workgroups <= MOST_WORKGROUPS).then_some(Plan { kernel, grid: [workgroups, 1, 1], part_k: k })
}

/// The kernel for `rows` rows, and how many columns of the result a workgroup writes.
fn kernel(rows: u32, is_gated: bool, element: Element, capabilities: Capabilities) -> (Kernel, u32) {
    let lanes = if capabilities.tier == Tier::Software { capabilities.software_workgroup } else { 64 };
    if capabilities.prefetches() {
        let kernel = Kernel::new("matmul/gathered", "matmul", element)
            .condition(Condition::Shuffled, true)
            .condition(Condition::Wide, true);
        let columns = if is_gated { lanes } else { 2 * lanes };
        return (kernel.constant("ROWS", rows).constant("LANES", lanes), columns);
    }
    // Compilers keep a sum for each of up to 16 pairs of a row and a column in registers.
    let columns4 = if rows <= 2 { 2 } else { 1 };
    let kernel = Kernel::new("matmul/vector", "matmul", element)
        .condition(sharing(capabilities), true)
        .constant("ROWS", rows)
        .constant("COLUMNS4", columns4)
        .constant("LANES", lanes);
    (kernel, 4 * columns4)
}

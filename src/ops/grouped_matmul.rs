//! Grouped matrix products: rows sorted by expert, each times the matrix of its expert.
//!
//! Letters: R rows, E experts, whose matrices (out, in) are stacked to E · out rows. A stack over the binding limit
//! comes in parts of whole experts. Launches are indirect: the [`WorkList`] holds the tiles of the rows that there are,
//! and the grids, so that the work is proportional to the rows of each expert, rounded up to tiles.

use super::matmul::{Activated, Epilogue, Layout, Problem, Tile, check_factors, factors};
use super::work_list::{WorkList, weight_tile};
use crate::element::Element;
use crate::kernels::{Condition, Kernel};
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        m: u32,
        n: u32,
        k: u32,
        a_offset: u32,
        b_offset: u32,
        y_offset: u32,
        a_stride: u32,
        b_stride: u32,
        y_stride: u32,
        residual_stride: u32,
        first_expert: u32,
        experts: u32,
        matrix_stride: u32,
        bias_stride: u32,
    }
}

/// y (R, out): row r is x_r W_eᵀ for the expert e it belongs to, plus the epilogue; x (R, in), `stack` (E · out, in) in
/// parts. A bias has a row for each expert; a residual, a factor and SwiGLU have no kernel.
///
/// Rows that belong to no expert are not written.
#[track_caller]
pub fn grouped_matmul(
    rec: &mut Recorder,
    x: Tensor,
    stack: &[Tensor],
    work: &WorkList,
    y: Tensor,
    epilogue: Epilogue,
) {
    let stack = Stack::new(stack, work.experts);
    assert!(
        (x.cols, y.cols) == (stack.cols, stack.out),
        "experts of {} x {} do not map {} columns to {}",
        stack.out,
        stack.cols,
        x.cols,
        y.cols
    );
    launch_rows(rec, Layout::Nt, x, &stack, work, y, epilogue);
}

/// dx (R, in): row r is dy_r W_e, plus the epilogue; dy (R, out).
///
/// Rows that belong to no expert are not written.
#[track_caller]
pub fn grouped_matmul_backward(
    rec: &mut Recorder,
    dy: Tensor,
    stack: &[Tensor],
    work: &WorkList,
    dx: Tensor,
    epilogue: Epilogue,
) {
    let stack = Stack::new(stack, work.experts);
    assert!(
        (dy.cols, dx.cols) == (stack.out, stack.cols),
        "the backward of experts of {} x {} does not map {} columns to {}",
        stack.out,
        stack.cols,
        dy.cols,
        dx.cols
    );
    launch_rows(rec, Layout::Nn, dy, &stack, work, dx, epilogue);
}

/// `d_stack` (E · out, in), f32, in parts: dy_eᵀ x_e is added to each expert's matrix; dy (R, out), x (R, in). The
/// matrix of an expert without rows is not touched.
#[track_caller]
pub fn grouped_matmul_backward_weight(
    rec: &mut Recorder,
    dy: Tensor,
    x: Tensor,
    work: &WorkList,
    d_stack: &[Tensor],
) {
    let stack = Stack::new(d_stack, work.experts);
    assert!(
        (dy.cols, x.cols) == (stack.out, stack.cols),
        "gradients of {} x {} for rows of {} and {}",
        stack.out,
        stack.cols,
        dy.cols,
        x.cols
    );
    assert!(dy.rows == work.rows && x.rows == work.rows, "the work list is for {} rows", work.rows);
    assert!(dy.element == x.element, "both factors must have one element type");
    let capabilities = rec.capabilities().for_factors([dy.element, x.element]);
    let (tile, problem) = weight_tile(stack.out, stack.cols, x.rows, work.experts, capabilities);
    let kernel = grouped(tile, Layout::Tn, dy.element)
        .condition(Condition::Gradient, dy.element != Element::F32)
        .condition(Condition::Accumulate, true);
    for part in &stack.parts {
        assert!(part.tensor.element == Element::F32, "gradients of parameters must be f32");
        let params = params_of(problem, [dy, x, part.tensor], part, stack.out);
        let mut bindings = factors(rec, &kernel, [dy, x], [Some(work.offsets); 2]);
        bindings.push(part.tensor.bind_with_offset("y", Element::F32));
        bindings.push(work.offsets.bind("offsets", Element::U32));
        let [across, down, _] = tile.grid(problem);
        // Experts vary fastest: software adapters give each core a contiguous run of workgroups, and the workgroups of
        // a busy expert should be spread over the cores.
        rec.dispatch(kernel.clone(), &bindings, &params, [part.experts, down, across]);
    }
}

/// The matrices of all experts.
struct Stack {
    parts: Vec<ExpertRange>,
    /// Rows of one expert's matrix.
    out: u32,
    /// Columns of a matrix.
    cols: u32,
}

/// A range of whole experts in a stack.
struct ExpertRange {
    tensor: Tensor,
    first_expert: u32,
    experts: u32,
}

impl Stack {
    #[track_caller]
    fn new(tensors: &[Tensor], experts: u32) -> Self {
        let rows: u32 = tensors.iter().map(|part| part.rows).sum();
        assert!(rows > 0 && rows.is_multiple_of(experts), "{rows} rows are not a stack of {experts} experts");
        let (out, cols) = (rows / experts, tensors[0].cols);
        let mut first_expert = 0;
        let part = |&tensor: &Tensor| {
            assert!(tensor.rows.is_multiple_of(out), "a stack of experts must be split between experts");
            assert!(tensor.cols == cols, "the parts of a stack must have the same number of columns");
            let experts = tensor.rows / out;
            first_expert += experts;
            ExpertRange { tensor, first_expert: first_expert - experts, experts }
        };
        Self { parts: tensors.iter().map(part).collect(), out, cols }
    }
}

/// y = a · b for the tiles of the work list: one launch for each part of the stack, which skips the tiles of other
/// parts.
#[track_caller]
fn launch_rows(
    rec: &mut Recorder,
    layout: Layout,
    a: Tensor,
    stack: &Stack,
    work: &WorkList,
    y: Tensor,
    epilogue: Epilogue,
) {
    epilogue.check(y);
    let has_kernel = matches!(epilogue.activated, None | Some(Activated::Gelu(..) | Activated::Slope(..)));
    let is_plain = epilogue.residual.is_none() && epilogue.factor.is_none();
    assert!(has_kernel && is_plain, "a grouped product has no such epilogue");
    assert!(
        epilogue.bias.is_none_or(|bias| bias.rows == work.experts),
        "a bias of grouped rows must have a row for each of {} experts",
        work.experts
    );
    assert!(a.rows == work.rows && y.rows == work.rows, "the work list is for {} rows", work.rows);
    assert!(a.element == y.element, "the result must have the element type of its factors");
    let problem = Problem { layout, m: work.rows, n: y.cols, k: a.cols };
    for part in &stack.parts {
        check_factors(a, part.tensor);
        let capabilities = rec.capabilities().for_factors([a.element, part.tensor.element]);
        let tile = work.tile_of(layout, y.cols, a.cols, capabilities);
        let (arguments, bound) = work.grid(y.cols, tile);
        let params = params_of(problem, [a, part.tensor, y], part, stack.out);
        let params = Params { bias_stride: epilogue.bias.map_or(0, |bias| bias.stride4()), ..params };
        let kernel = grouped(tile, layout, a.element).with_weights(part.tensor.element);
        let mut bindings = factors(rec, &kernel, [a, part.tensor], [Some(work.offsets), None]);
        let kernel = epilogue.apply(kernel, a.element, y, &mut bindings);
        bindings.push(work.tiles.bind("tiles", Element::U32));
        rec.dispatch_indirect(kernel, &bindings, &params, arguments, bound);
    }
}

fn grouped(tile: Tile, layout: Layout, element: Element) -> Kernel {
    tile.kernel(layout, element).condition(Condition::Grouped, true)
}

/// Params of a plain product with the part of the stack that is bound.
fn params_of(problem: Problem, [a, b, y]: [Tensor; 3], part: &ExpertRange, out: u32) -> Params {
    Params {
        m: problem.m,
        n: problem.n,
        k: problem.k,
        a_offset: a.offset4(),
        b_offset: b.offset4(),
        y_offset: y.offset4(),
        a_stride: a.stride4(),
        b_stride: b.stride4(),
        y_stride: y.stride4(),
        residual_stride: 0,
        first_expert: part.first_expert,
        experts: part.experts,
        matrix_stride: out * part.tensor.stride4(),
        bias_stride: 0,
    }
}

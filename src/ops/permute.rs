//! Permutation of tokens to the rows of their experts, and back.
//!
//! Routed rows are one tensor (R, D) in which expert e has the rows `offsets[e]..offsets[e + 1]`; R is fixed when the
//! recording is written. [`place`] assigns rows to the choices of tokens, [`permute`] fills the rows, [`combine`] sums
//! the outputs of the experts for each token. The last two are one kernel each, and so are their backwards:
//! `benches/unfused/permute.rs` composes them from simple kernels, which write and read choices × D elements in
//! between.
//!
//! R is N k if dispatch is dropless, plus one per expert with safe tokens, and the sum of all slots under capacities. A
//! dropped choice has no row, adds nothing and gets no gradient. An unassigned row is zero, and has no effect on an
//! expert's output or gradients.

mod config;
mod gates;
mod sort;

pub use config::{DropOrder, HotAndCold, PlacementConfig, RowAllocation, Slots, capacity_slots};
pub use gates::{renormalise_gates, renormalise_gates_backward};
pub use sort::{place, place_hot_last};

use super::per_row;
use crate::element::Element;
use crate::kernels::{Condition, Kernel, Tier};
use crate::record::{Binding, Recorder, Tensor, fold_grid};

/// The place of a dropped choice, and the source of an unassigned row.
pub const NONE: u32 = u32::MAX;

/// Gate gradients that each item past the rows clears; the shader has the same constant.
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

/// The assignment of rows to choices, on the device. All tensors are u32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// Sizes and policy.
    pub config: PlacementConfig,
    /// (1, E): choices of each expert, including dropped ones.
    pub counts: Tensor,
    /// (1, E + 1): the first row of each expert, and R; if hot experts come last, in that order ([`place_hot_last`]).
    pub offsets: Tensor,
    /// (1, N·k): the row of choice j of token t at t·k + j, or [`NONE`].
    pub places: Tensor,
    /// (1, R): the choice t·k + j of each row, or [`NONE`] for an unassigned row, which is zeros.
    pub sources: Tensor,
}

impl Placement {
    #[track_caller]
    fn assert_shapes(&self) {
        let Self { config, counts, offsets, places, sources } = self;
        config.assert_valid();
        let cols = [counts, offsets, places, sources].map(|tensor| tensor.cols);
        let want = [config.experts, config.experts + 1, config.choices(), config.rows()];
        assert!(cols == want, "a placement of {cols:?} counts, offsets, places and sources, not {want:?}");
    }

    /// Asserts that `x` has a row for each token and `rows` has R, of one width and element.
    #[track_caller]
    fn assert_sides(&self, x: Tensor, rows: Tensor) {
        self.assert_shapes();
        let counts = (self.config.tokens, self.config.rows());
        assert!((x.rows, rows.rows) == counts, "{} tokens in {} rows, not {counts:?}", x.rows, rows.rows);
        assert_alike(x, rows);
    }

    #[track_caller]
    fn assert_gates(&self, gates: Tensor) {
        let fits = (gates.rows, gates.cols) == (self.config.tokens, self.config.chosen);
        assert!(fits && gates.element == Element::F32, "gates must be one f32 for each choice of a token");
    }
}

/// `rows` (R, D): each choice's row receives its token's row of x (N, D); unassigned rows become zero.
#[track_caller]
pub fn permute(rec: &mut Recorder, placement: &Placement, x: Tensor, rows: Tensor) {
    placement.assert_sides(x, rows);
    let bindings = [
        x.bind("x", x.element),
        placement.sources.bind("sources", Element::U32),
        rows.bind("rows_out", x.element),
    ];
    launch(rec, kernel(rec, "permute", rows), placement, rows, rows, &bindings);
}

/// dx (N, D) = Σ of `d_rows` (R, D) over the rows of a token's choices; with `accumulate` it is added to dx.
#[track_caller]
pub fn permute_backward(
    rec: &mut Recorder,
    placement: &Placement,
    d_rows: Tensor,
    dx: Tensor,
    accumulate: bool,
) {
    placement.assert_sides(dx, d_rows);
    let bindings = [
        d_rows.bind("d_rows", dx.element),
        placement.places.bind("places", Element::U32),
        dx.bind("dx", dx.element),
    ];
    let kernel = kernel(rec, "permute_backward", dx).condition(Condition::Accumulate, accumulate);
    launch(rec, kernel, placement, dx, dx, &bindings);
}

/// y (N, D) = `residual` + Σ gate · row over the kept choices of a token. `rows` (R, D), `gates` (N, k) f32.
#[track_caller]
pub fn combine(
    rec: &mut Recorder,
    placement: &Placement,
    rows: Tensor,
    gates: Tensor,
    residual: Option<Tensor>,
    y: Tensor,
) {
    placement.assert_sides(y, rows);
    placement.assert_gates(gates);
    if let Some(residual) = residual {
        assert!(residual.rows == y.rows, "a residual of {} rows for {}", residual.rows, y.rows);
        assert_alike(residual, y);
    }
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

/// The inputs of [`combine`] that its backward reads.
#[derive(Clone, Copy, Debug)]
pub struct CombineSaved {
    /// (R, D).
    pub rows: Tensor,
    /// (N, k), f32.
    pub gates: Tensor,
}

/// The gradients of rows and gates given dy (N, D): `d_rows` (R, D) = gate · dy of the token, zero in unassigned rows,
/// and `d_gates` (N, k) = <dy, row>, zero for dropped choices. Both are written, not added to.
#[track_caller]
pub fn combine_backward(
    rec: &mut Recorder,
    placement: &Placement,
    saved: &CombineSaved,
    dy: Tensor,
    d_rows: Tensor,
    d_gates: Tensor,
) {
    placement.assert_sides(dy, saved.rows);
    placement.assert_sides(dy, d_rows);
    placement.assert_gates(saved.gates);
    placement.assert_gates(d_gates);
    assert!(d_gates.stride == saved.gates.stride, "gates and their gradient must have one stride");
    let bindings = [
        saved.rows.bind("rows", dy.element),
        placement.sources.bind("sources", Element::U32),
        placement.places.bind("choice_places", Element::U32),
        saved.gates.bind("gates", Element::F32),
        dy.bind("dy", dy.element),
        d_rows.bind("d_rows_out", dy.element),
        d_gates.bind("d_gates", Element::F32),
    ];
    let items = d_rows.rows + (d_gates.rows * d_gates.stride).div_ceil(CLEARED);
    let (kernel, grid) = per_row(rec, "permute/fused", "combine_backward", dy.element, items);
    rec.dispatch(kernel, &bindings, &params(placement, dy, d_gates), grid);
}

#[track_caller]
fn assert_alike(a: Tensor, b: Tensor) {
    let is_alike = (a.cols, a.stride, a.element) == (b.cols, b.stride, b.element);
    assert!(is_alike, "rows of {} {:?} do not fit rows of {} {:?}", a.cols, a.element, b.cols, b.element);
}

fn kernel(rec: &Recorder, entry: &'static str, result: Tensor) -> Kernel {
    let lanes = lanes_of(rec, result.stride4());
    Kernel::new("permute/fused", entry, result.element).constant("LANES", lanes)
}

/// Records a kernel with an invocation for each 4 columns of `result`.
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

/// Workgroup size for rows of `stride4` groups of 4 columns, one row for each workgroup: as few invocations as cover
/// the row, so that none idle in narrow models.
fn lanes_of(rec: &Recorder, stride4: u32) -> u32 {
    let most = if rec.capabilities().tier == Tier::Software { 32 } else { 128 };
    stride4.next_power_of_two().clamp(8, most)
}

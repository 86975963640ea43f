//! Muon (Jordan et al., 2024): each matrix is updated by its orthogonalised momentum.
//!
//! q, k and v are orthogonalised separately and in f32, for any model; MindFormers' Muon is for latent attention,
//! in bf16, with clipping of the attention logits. Each expert's matrices are orthogonalised separately. Routers
//! stay with AdamW: like a head, a router scores a list of items and does not map one feature space to another.

mod parts;

pub use parts::{Block, DividedMatrix, muon_in_turns};

use super::grad_norm::StepTensors;
use super::matmul::{Epilogue, Layout, matmul};
use super::rounding::Rounding;
use super::step_state::StepState;
use super::{fold, per_item, per_row};
use crate::element::Element;
use crate::record::{Recorder, State, Tensor};

crate::params! {
    struct Params {
        rows: u32,
        cols4: u32,
        offset: u32,
        moments_offset: u32,
        momentum: f32,
        is_nesterov: u32,
        decay: f32,
        scale: f32,
        rate_column: u32,
        schedule_rows: u32,
        schedule_stride: u32,
        seed_low: u32,
        seed_high: u32,
        first4: u32,
        skipped4: u32,
        run4: u32,
        gap4: u32,
    }
}

/// Settings that are constant during a run; the learning rate comes from the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Muon {
    /// Decay rate of the momentum.
    pub momentum: f32,
    /// Nesterov momentum: g + momentum · m is orthogonalised instead of m.
    pub is_nesterov: bool,
    /// Number of Newton-Schulz steps.
    pub steps: u32,
    /// Root mean square of the update. AdamW's updates have 0.2 to 0.4, so 0.2 lets both share a learning rate.
    pub rms: f32,
    /// Weight decay.
    pub decay: f32,
    /// Column of the schedule that holds the learning rate.
    pub rate_column: u32,
    /// The source of the bits that round weights stored in bfloat16.
    pub rounding: Rounding,
}

/// One matrix (rows, cols) in the three arenas; weights may be stored in bfloat16, the others are f32.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Weights.
    pub weights: Tensor,
    /// Gradients.
    pub gradients: Tensor,
    /// Momentum.
    pub moments: Tensor,
}

/// Updates one matrix, unless the step's state says that the step overflowed or the run is halted. Recorded after
/// [`grad_norm`](super::grad_norm::grad_norm).
#[track_caller]
pub fn muon(rec: &mut Recorder, matrix: &Matrix, step: &StepTensors, settings: &Muon) {
    let (x, partials) = direction(rec, matrix, step, settings);
    let update = orthogonalise(rec, x, partials, settings.steps, params_of(matrix, step, settings));
    apply(rec, matrix, update, [x.rows, x.cols], step, settings);
}

/// Updates the momentum; returns the matrix to orthogonalise, with the sum of squares of each row.
#[track_caller]
fn direction(rec: &mut Recorder, matrix: &Matrix, step: &StepTensors, settings: &Muon) -> (Tensor, Tensor) {
    let Matrix { weights, gradients, moments } = *matrix;
    let Tensor { rows, cols, stride, .. } = weights;
    for other in [gradients, moments] {
        let same = (other.rows, other.cols, other.stride) == (rows, cols, stride);
        assert!(same, "weights, gradients and moments of a matrix must have one shape");
    }
    assert!(
        weights.stride == weights.cols.next_multiple_of(4),
        "Muon needs a matrix without gaps between its rows"
    );
    assert!(settings.rate_column < step.schedule.cols, "the schedule has no column {}", settings.rate_column);
    let x = rec.tensor("direction", rows, cols, Element::F32);
    let partials = rec.tensor("partials", 1, rows, Element::F32);
    let (kernel, grid) = per_row(rec, "muon", "direction", Element::F32, rows);
    let bindings = [
        gradients.bind_with_offset("gradients", Element::F32),
        moments.bind_with_offset("moments", Element::F32),
        x.bind("x", Element::F32),
        partials.bind("partials", Element::F32),
        StepState::bind("state", step.state),
    ];
    rec.dispatch(kernel, &bindings, &params_of(matrix, step, settings), grid);
    (x, partials)
}

/// The params of the launches on a matrix.
#[track_caller]
fn params_of(matrix: &Matrix, step: &StepTensors, settings: &Muon) -> Params {
    let Muon { momentum, is_nesterov, rms, decay, rate_column, rounding, .. } = *settings;
    let Matrix { weights, gradients, moments } = *matrix;
    let [seed_low, seed_high, first4, skipped4, run4, gap4] = rounding.params(&weights);
    Params {
        rows: weights.rows,
        cols4: weights.stride4(),
        offset: gradients.offset4(),
        moments_offset: moments.offset4(),
        momentum,
        is_nesterov: is_nesterov.into(),
        decay,
        scale: scale(rms, [weights.rows, weights.cols]),
        rate_column,
        schedule_rows: step.schedule.rows,
        schedule_stride: step.schedule.stride,
        seed_low,
        seed_high,
        first4,
        skipped4,
        run4,
        gap4,
    }
}

/// The factor of an orthogonal matrix of this size that yields a root mean square of `rms`.
fn scale(rms: f32, [rows, cols]: [u32; 2]) -> f32 {
    rms * (rows.max(cols) as f32).sqrt()
}

/// Updates the weights by `update`, which is all or a part of a matrix of the size `whole`.
fn apply(
    rec: &mut Recorder,
    matrix: &Matrix,
    update: Tensor,
    whole: [u32; 2],
    step: &StepTensors,
    settings: &Muon,
) {
    let weights = matrix.weights;
    let params = params_of(matrix, step, settings);
    let params = Params { offset: weights.offset4(), scale: scale(settings.rms, whole), ..params };
    let count4 = u64::from(params.rows) * u64::from(params.cols4);
    let (kernel, grid) = per_item("muon", "apply", weights.element, count4);
    let bindings = [
        update.bind("update", Element::F32),
        weights.bind_with_offset("weights", weights.element),
        step.schedule.bind("schedule", Element::F32),
        StepState::bind("state", step.state),
    ];
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// The sum of squares of each row of x.
fn square_rows(rec: &mut Recorder, x: Tensor, params: Params) -> Tensor {
    let partials = rec.tensor("partials", 1, x.rows, Element::F32);
    let (kernel, grid) = per_row(rec, "muon", "square_rows", Element::F32, x.rows);
    let bindings = [x.bind("x", Element::F32), partials.bind("partials", Element::F32)];
    rec.dispatch(kernel, &bindings, &params, grid);
    partials
}

/// x ← x / ‖x‖, given the sum of squares of each row.
fn normalise(rec: &mut Recorder, x: Tensor, partials: Tensor, params: Params) {
    let norm = rec.tensor("norm", 1, 1, Element::F32);
    let kernel = fold("muon", "inverse_norm", Element::F32);
    let bindings = [partials.bind("partials_in", Element::F32), norm.bind("norm", Element::F32)];
    rec.dispatch(kernel, &bindings, &params, [1, 1, 1]);
    let (kernel, grid) = per_item("muon", "normalise", Element::F32, x.rows as u64 * params.cols4 as u64);
    let bindings = [norm.bind("norm_in", Element::F32), x.bind("x", Element::F32)];
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// Newton-Schulz steps on x / ‖x‖, whose singular values are at most 1, given the sum of squares of each row. The
/// polynomial uses the Gram matrix of the shorter side, x xᵀ or xᵀ x, so that nothing has to be transposed.
fn orthogonalise(rec: &mut Recorder, mut x: Tensor, partials: Tensor, steps: u32, params: Params) -> Tensor {
    normalise(rec, x, partials, params);
    let is_wide = x.rows <= x.cols;
    let n = x.rows.min(x.cols);
    for _ in 0..steps {
        let gram = rec.tensor("gram", n, n, Element::F32);
        let layout = if is_wide { Layout::Nt } else { Layout::Tn };
        matmul(rec, layout, x, x, gram, Epilogue::default());
        let square = rec.tensor("square", n, n, Element::F32);
        matmul(rec, Layout::Nn, gram, gram, square, Epilogue::default());
        let params = Params { rows: n, cols4: gram.stride4(), ..params };
        let (kernel, grid) = per_item("muon", "polynomial", Element::F32, n as u64 * params.cols4 as u64);
        let bindings = [gram.bind("gram", Element::F32), square.bind("square", Element::F32)];
        rec.dispatch(kernel, &bindings, &params, grid);
        let next = rec.tensor("x", x.rows, x.cols, Element::F32);
        let (left, right) = if is_wide { (square, x) } else { (x, square) };
        matmul(rec, Layout::Nn, left, right, next, Epilogue::default());
        x = next;
    }
    x
}

//! The global norm of the gradients, their overflow flag, and the decisions of a step.

use super::step_state::{LossState, StepState};
use super::{fold, per_row};
use crate::element::Element;
use crate::record::{Recorder, State, Tensor};

/// Groups of 4 gradients in each partial sum of the first pass.
const BLOCK: u32 = 256;

crate::params! {
    struct Params {
        count4: u32,
        rows: u32,
        first_partial: u32,
        max_norm: f32,
        schedule_rows: u32,
        schedule_stride4: u32,
    }
}

/// The tensors that the decisions of a step are read from and written to.
#[derive(Clone, Copy, Debug)]
pub struct StepTensors {
    /// [`StepState`].
    pub state: Tensor,
    /// [`LossState`].
    pub loss: Tensor,
    /// (steps, 2 + groups), a row for each global step: the learning rate of group 0, the bias corrections of both
    /// moments, and the learning rates of the other parameter groups; see [`rate_column`].
    pub schedule: Tensor,
}

/// The column of the schedule that holds a parameter group's learning rate.
pub const fn rate_column(group: usize) -> u32 {
    if group == 0 { 0 } else { group as u32 + 2 }
}

/// Computes norm and overflow flag of all `gradients` (a flat tensor for each segment) and updates the step's state. If
/// given, the norm is clipped to `max_norm`.
#[track_caller]
pub fn grad_norm(rec: &mut Recorder, gradients: &[Tensor], tensors: &StepTensors, max_norm: Option<f32>) {
    let rows = |segment: &Tensor| (segment.stride4() * segment.rows).div_ceil(BLOCK);
    let total: u32 = gradients.iter().map(rows).sum();
    let partials = rec.tensor("partials", 1, 2 * total, Element::F32);
    let StepTensors { state, loss, schedule } = tensors;
    let mut params = Params {
        count4: 0,
        rows: 0,
        first_partial: 0,
        max_norm: 0.0,
        schedule_rows: schedule.rows,
        schedule_stride4: schedule.stride4(),
    };
    for segment in gradients {
        params = Params { count4: segment.stride4() * segment.rows, rows: rows(segment), ..params };
        let (kernel, grid) = per_row(rec, "grad_norm", "square_sum", Element::F32, params.rows);
        let bindings = [
            segment.bind("gradients", Element::F32),
            partials.bind("partials", Element::F32),
            StepState::bind("state", *state),
        ];
        rec.dispatch(kernel.constant("BLOCK", BLOCK), &bindings, &params, grid);
        params.first_partial += params.rows;
    }
    let params = Params { rows: total, max_norm: max_norm.unwrap_or(0.0), ..params };
    let kernel = fold("grad_norm", "finish_step", Element::F32).constant("BLOCK", BLOCK);
    let bindings = [
        schedule.bind("schedule", Element::F32),
        partials.bind("partials_in", Element::F32),
        StepState::bind("state_out", *state),
        LossState::bind("loss", *loss),
    ];
    rec.dispatch(kernel, &bindings, &params, [1, 1, 1]);
}

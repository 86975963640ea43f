//! Stochastic gradient descent with momentum over whole arena segments.

use super::grad_norm::StepTensors;
use super::per_item;
use super::rounding::Rounding;
use super::step_state::StepState;
use crate::element::Element;
use crate::record::{Recorder, State, Tensor};

crate::params! {
    struct Params {
        count4: u32,
        offset: u32,
        weights_offset: u32,
        decay: f32,
        momentum: f32,
        dampening: f32,
        is_nesterov: u32,
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Weight decay, coupled: added to the gradient. 0 for norms and biases.
    pub decay: f32,
    /// Decay rate of the momentum.
    pub momentum: f32,
    /// A gradient enters the momentum with the factor 1 - dampening, and the first one with 1.
    pub dampening: f32,
    /// Nesterov momentum: the update is g + momentum · m instead of m.
    pub is_nesterov: bool,
    /// Column of the schedule that holds the learning rate.
    pub rate_column: u32,
    /// The source of the bits that round weights stored in bfloat16.
    pub rounding: Rounding,
}

/// One segment of each of the three arenas, as flat rows of equal length: f32, except weights that are stored in
/// bfloat16.
#[derive(Clone, Copy, Debug)]
pub struct SgdTensors {
    /// Weights.
    pub weights: Tensor,
    /// Gradients.
    pub gradients: Tensor,
    /// Momentum.
    pub moments: Tensor,
}

/// Updates one segment, unless the step's state says that the step overflowed or the run is halted. Recorded after
/// [`grad_norm`](super::grad_norm::grad_norm).
#[track_caller]
pub fn sgd(rec: &mut Recorder, tensors: &SgdTensors, step: &StepTensors, settings: &Sgd) {
    let count4 = tensors.weights.rows * tensors.weights.stride4();
    let (kernel, grid) = per_item("sgd", "sgd", tensors.weights.element, count4 as u64);
    let Sgd { decay, momentum, dampening, is_nesterov, rate_column, rounding } = *settings;
    let [seed_low, seed_high, first4, skipped4, run4, gap4] = rounding.params(&tensors.weights);
    let offset = tensors.gradients.offset4();
    assert!(tensors.moments.offset4() == offset, "gradients and moments start at one offset");
    assert!(rate_column < step.schedule.cols, "the schedule has no column {rate_column}");
    let params = Params {
        count4,
        offset,
        weights_offset: tensors.weights.offset4(),
        decay,
        momentum,
        dampening,
        is_nesterov: is_nesterov.into(),
        rate_column,
        schedule_rows: step.schedule.rows,
        schedule_stride: step.schedule.stride,
        seed_low,
        seed_high,
        first4,
        skipped4,
        run4,
        gap4,
    };
    let bindings = [
        tensors.gradients.bind_with_offset("gradients", Element::F32),
        tensors.weights.bind_with_offset("weights", tensors.weights.element),
        tensors.moments.bind_with_offset("moments", Element::F32),
        StepState::bind("state", step.state),
        step.schedule.bind("schedule", Element::F32),
    ];
    rec.dispatch(kernel, &bindings, &params, grid);
}

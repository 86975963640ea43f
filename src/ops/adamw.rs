//! AdamW (Loshchilov and Hutter, 2019) over whole arena segments.

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
        beta1: f32,
        beta2: f32,
        epsilon: f32,
        corrects_epsilon: u32,
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

/// Settings that are constant during a run; learning rate and bias corrections come from the schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Weight decay; 0 for norms and biases.
    pub decay: f32,
    /// Decay rate of the first moment.
    pub beta1: f32,
    /// Decay rate of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Whether epsilon is added before the bias correction of the second moment, which then applies to it too:
    /// (sqrt(v) + epsilon) / sqrt(1 - beta2^t).
    pub corrects_epsilon: bool,
    /// Column of the schedule that holds the learning rate.
    pub rate_column: u32,
    /// The source of the bits that round weights stored in bfloat16.
    pub rounding: Rounding,
}

/// One segment of each of the four arenas, as flat rows of equal length: f32, except weights that are stored in
/// bfloat16.
#[derive(Clone, Copy, Debug)]
pub struct AdamWTensors {
    /// Weights.
    pub weights: Tensor,
    /// Gradients.
    pub gradients: Tensor,
    /// First moments.
    pub first_moments: Tensor,
    /// Second moments.
    pub second_moments: Tensor,
}

/// Updates one segment, unless the step's state says that the step overflowed or the run is halted. Recorded after
/// [`grad_norm`](super::grad_norm::grad_norm).
#[track_caller]
pub fn adamw(rec: &mut Recorder, tensors: &AdamWTensors, step: &StepTensors, settings: &AdamW) {
    let count4 = tensors.weights.rows * tensors.weights.stride4();
    let (kernel, grid) = per_item("adamw", "adamw", tensors.weights.element, count4 as u64);
    let AdamW { decay, beta1, beta2, epsilon, corrects_epsilon, rate_column, rounding } = *settings;
    let [seed_low, seed_high, first4, skipped4, run4, gap4] = rounding.params(&tensors.weights);
    let offset = tensors.gradients.offset4();
    let is_alike = [tensors.first_moments, tensors.second_moments].iter().all(|m| m.offset4() == offset);
    assert!(is_alike, "gradients and moments start at one offset");
    assert!(rate_column < step.schedule.cols, "the schedule has no column {rate_column}");
    let params = Params {
        count4,
        offset,
        weights_offset: tensors.weights.offset4(),
        decay,
        beta1,
        beta2,
        epsilon,
        corrects_epsilon: corrects_epsilon.into(),
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
        tensors.first_moments.bind_with_offset("first_moments", Element::F32),
        tensors.second_moments.bind_with_offset("second_moments", Element::F32),
        StepState::bind("state", step.state),
        step.schedule.bind("schedule", Element::F32),
    ];
    rec.dispatch(kernel, &bindings, &params, grid);
}

//! The loss scale of the next step, if it adapts to overflows.
//!
//! Recorded after `grad_norm`. It writes the scale of the next step into `StepState`. Its own state keeps the scale
//! that the step used, which logs and `metrics.jsonl` show, and the counters, which checkpoints hold. The settings
//! build the list of windows, and refuse a `max_scale_window` whose list would start with a window of 0 steps.

use super::step_state::StepState;
use crate::element::Element;
use crate::kernels::Kernel;
use crate::record::{Recorder, State, Tensor};

crate::params! {
    struct Params {
        windows: u32,
        factor: f32,
        inverse_factor: f32,
    }
}

crate::state! {
    /// The state of an adaptive loss scale. [`loss_scale`] updates it, and a checkpoint holds all of it except the
    /// scales.
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct LossScaleState {
        /// The scale of the next step.
        #[serde(skip)]
        pub loss_scale: f32,
        /// Steps without overflow after which the scale grows.
        pub window: u32,
        /// Index of the window in the list; -1: a window of one step, which is not in the list.
        pub index: i32,
        /// Increases since the window last changed, modulo 4.
        pub increases: u32,
        /// Decreases since the last increase, modulo 4.
        pub decreases: u32,
        /// Number of the next step, from 1.
        pub step: u32,
        /// The step that last completed a window or overflowed.
        pub last_change: u32,
        /// The scale of the step that has ended.
        #[serde(skip)]
        pub used: f32,
    }
}

/// The tensors and the factor by which a loss scale adapts.
#[derive(Clone, Copy, Debug)]
pub struct LossScaler {
    /// [`LossScaleState`].
    pub state: Tensor,
    /// Steps of each window (1, W), u32, none of them 0.
    pub windows: Tensor,
    /// The factor by which the scale is multiplied and divided, at least 1.
    pub factor: f32,
}

impl LossScaleState {
    /// The state before the first step, with the window at `index` of `windows`.
    pub fn new(loss_scale: f32, windows: &[u32], index: usize) -> Self {
        Self { loss_scale, window: windows[index], index: index as i32, step: 1, ..Self::default() }
    }
}

/// Sets the loss scale of the next step in `step` ([`StepState`]), depending on whether this step overflowed. Recorded
/// after [`grad_norm`](super::grad_norm::grad_norm), which reads the scale of this step.
///
/// The scale stays within 1 and 2^64. A step that is skipped because of its norm counts as a step without overflow;
/// nothing changes while the run is halted.
#[track_caller]
pub fn loss_scale(rec: &mut Recorder, scaler: &LossScaler, step: Tensor) {
    let LossScaler { state, windows, factor } = *scaler;
    assert!(factor >= 1.0, "a loss scale cannot grow by a factor of {factor}");
    assert!(windows.rows == 1 && windows.cols > 0, "a loss scale needs a row of windows");
    let params = Params { windows: windows.cols, factor, inverse_factor: 1.0 / factor };
    let bindings = [
        windows.bind("windows", Element::U32),
        StepState::bind("state", step),
        LossScaleState::bind("scaler", state),
    ];
    let kernel = Kernel::new("loss_scale", "loss_scale", Element::F32).constant("LANES", 1);
    rec.dispatch(kernel, &bindings, &params, [1, 1, 1]);
}

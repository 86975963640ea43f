//! `runner_wrapper`: loss scale and gradient clipping, and which steps make no update.

mod loss_scale;

pub use loss_scale::{Adaptation, Growth, LossScale, LossScaleKind};

use crate::settings::engine::*;

rows! {
    /// `runner_wrapper`: loss scale and gradient clipping, and which steps make no update.
    pub struct Wrapper in "runner_wrapper" {
        /// Loss scale, by which the loss is multiplied before the backward pass and gradients are divided after it: a
        /// number, or a section whose `type` names a class of MindFormers that controls the scale. A step whose
        /// gradients are not finite is skipped. After 20 steps in a row with a gradient or a loss that is not finite,
        /// the run ends with an error; steps after which the scale falls are not counted.
        scale_sense: LossScale = Numbers.default(LossScale::fixed(1.0)).read_by(loss_scale::loss_scale)
            .example("1024.0"),
        /// Whether gradients are scaled down to `max_grad_norm` if their norm is above it. False by default, but True
        /// in a file without a `runner_wrapper`.
        use_clip_grad: bool = Numbers.default(false),
        /// Largest L2 norm of all gradients together; applies with `use_clip_grad`.
        max_grad_norm: Option<f64> = Numbers.default(Some(1.0)).within(ABOVE_ZERO).example("0.5\nuse_clip_grad: True"),
        /// Whether the sum of squares of each parameter's gradient, before clipping, is logged and written to
        /// `metrics.jsonl`.
        local_norm: bool = Numbers.default(false),
        /// Whether all tokens of a step have the same weight, so that micro-batches of different lengths give the
        /// gradients of one large batch; otherwise all micro-batches have the same weight. Also read at the top level.
        calculate_per_token_loss: bool = Numbers.default(false),
        /// Whether a step is skipped if its gradient norm, before clipping, is `global_norm_spike_threshold` or more:
        /// it makes no update and does not advance the learning rate.
        /// `monitor_config.global_norm_spike_count_threshold` such steps in a row end the run. Also read at the top
        /// level.
        use_skip_data_by_global_norm: bool = Numbers.default(false),
        /// Gradient norm from which on `use_skip_data_by_global_norm` skips a step. Also read in `monitor_config`.
        global_norm_spike_threshold: Option<f64> = Numbers.default(Some(1.0)).within(ABOVE_ZERO)
            .example("0.5\nuse_skip_data_by_global_norm: True"),
    }
}

/// Reads the section. A bound whose switch is off is left out of the settings.
pub(crate) fn read(source: &Source) -> Wrapper {
    let reader = Reader::open(source, Wrapper::ID.section, &[Wrapper::ID]);
    let mut wrapper = Wrapper::read(&reader);
    if !wrapper.use_skip_data_by_global_norm {
        reader.ignore_any(&["global_norm_spike_threshold"]);
        wrapper.global_norm_spike_threshold = None;
    }
    if !wrapper.use_clip_grad {
        reader.ignore_any(&["max_grad_norm"]);
        wrapper.max_grad_norm = None;
    }
    wrapper
}

impl Wrapper {
    /// The norm to which gradients are scaled down, if they are clipped.
    pub fn clip(&self) -> Option<f64> {
        self.max_grad_norm.filter(|_| self.use_clip_grad)
    }

    /// The gradient norm from which on a step makes no update, if there is such a bound.
    pub fn spike_norm(&self) -> Option<f64> {
        self.global_norm_spike_threshold.filter(|_| self.use_skip_data_by_global_norm)
    }
}

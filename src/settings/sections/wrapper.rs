//! `runner_wrapper`: loss scale and gradient clipping, and which steps make no update.

mod loss_scale;

pub use loss_scale::{Adaptation, Growth, LossScale, LossScaleKind};

use crate::settings::engine::*;

rows! {
    /// `runner_wrapper`: loss scale and gradient clipping, and which steps make no update.
    pub struct Wrapper in "runner_wrapper" {
        /// The loss is multiplied by this before the backward pass, and gradients are divided by it: a number, or a
        /// section with the `type` of a cell. A step whose gradients are not finite is skipped; 20 in a row, of
        /// gradients or losses, end the run with an error, not counting those after which the scale falls.
        scale_sense: LossScale = Numbers.default(LossScale::fixed(1.0)).read_by(loss_scale::loss_scale)
            .example("1024.0"),
        /// Whether gradients are scaled down to `max_grad_norm` where their norm is above it; False unless written,
        /// but True without a `runner_wrapper`.
        use_clip_grad: bool = Numbers.default(false),
        /// Largest L2 norm of all gradients together, with `use_clip_grad`.
        max_grad_norm: Option<f64> = Numbers.default(Some(1.0)).within(ABOVE_ZERO).example("0.5\nuse_clip_grad: True"),
        /// Whether the sum of squares of each parameter's gradients, before clipping, is logged and in `metrics.jsonl`.
        local_norm: bool = Numbers.default(false),
        /// Whether each token of a step weighs the same, so that micro-batches of different lengths give the
        /// gradients of one large batch; otherwise each micro-batch weighs the same. Also read at the top level.
        calculate_per_token_loss: bool = Numbers.default(false),
        /// Whether a step whose gradient norm, before clipping, is `global_norm_spike_threshold` or more makes no
        /// update and does not advance the learning rate; `monitor_config.global_norm_spike_count_threshold` in a row
        /// end the run. Also read at the top level.
        use_skip_data_by_global_norm: bool = Numbers.default(false),
        /// See `use_skip_data_by_global_norm`. Also read in `monitor_config`.
        global_norm_spike_threshold: Option<f64> = Numbers.default(Some(1.0)).within(ABOVE_ZERO)
            .example("0.5\nuse_skip_data_by_global_norm: True"),
    }
}

/// Reads the section. A bound that is not used is no setting.
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
    /// Gradients are scaled down to this norm, if at all.
    pub fn clip(&self) -> Option<f64> {
        self.max_grad_norm.filter(|_| self.use_clip_grad)
    }

    /// A step whose norm is this or more makes no update, if there is such a bound.
    pub fn spike_norm(&self) -> Option<f64> {
        self.global_norm_spike_threshold.filter(|_| self.use_skip_data_by_global_norm)
    }
}

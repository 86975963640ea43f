//! State that the kernels of a training step share: the twins of the structs in `shaders/lib/step_state.wgsl`.

/// [`StepState::halt`] of a step whose norm spiked: this step makes no update.
pub const SKIPPED: u32 = 1;

/// [`StepState::halt`] of a run whose gradients or loss were not finite: neither this step nor a later one makes an
/// update.
pub const HALTED: u32 = 2;

crate::state! {
    /// The decisions of a step, and the counters that persist from step to step.
    /// [`grad_norm`](super::grad_norm::grad_norm) writes it.
    pub struct StepState {
        /// The factor by which the loss is multiplied before the backward pass. At the end of an update
        /// [`loss_scale`](super::loss_scale::loss_scale) sets the factor of the next step, if the scale adapts.
        pub loss_scale: f32,
        /// Optimizer steps done; a step without an update does not advance it.
        pub global_step: u32,
        /// 1 if a gradient of the step was not finite.
        pub is_overflow: u32,
        /// L2 norm of the unscaled gradients, before clipping.
        pub grad_norm: f32,
        /// The optimizer's factor for gradients: unscaling times clipping.
        pub grad_factor: f32,
        /// The learning rate of the step, for parameters outside of groups with their own.
        pub learning_rate: f32,
        /// 1 / (1 - beta1^t), or 1 if the optimizer does not correct its moments.
        pub bias_correction1: f32,
        /// 1 / (1 - beta2^t), or 1.
        pub bias_correction2: f32,
        /// Mean loss over the step's micro-batches in nats per token.
        pub loss: f32,
        /// 0, or why no update is made although the gradients may be finite: [`SKIPPED`] or [`HALTED`].
        pub halt: u32,
        /// Steps whose gradients were not finite, since the start of this process.
        pub overflows: u32,
        /// Steps done, overflowed ones included.
        pub step: u32,
    }
}

crate::state! {
    /// Sums of the loss since the host cleared them.
    /// [`linear_cross_entropy`](super::linear_cross_entropy::linear_cross_entropy) adds to them.
    pub struct LossState {
        /// Gradient of the objective with respect to each token's loss.
        pub seed: f32,
        /// Tokens of the last micro-batch that are not ignored.
        pub count: f32,
        /// Sum of the losses of tokens that are not ignored, in nats.
        pub loss_sum: f32,
        /// Number of these tokens.
        pub token_sum: f32,
        /// Sum of the mean losses of micro-batches, each divided by their number.
        pub mean_sum: f32,
    }
}

crate::state! {
    /// Sums over pairs of preferences since the host cleared them; [`LossState::token_sum`] is their number.
    /// [`preference_loss`](super::preference::preference_loss) adds to them.
    pub struct PreferenceState {
        /// Rewards of chosen answers.
        pub chosen_reward: f32,
        /// Rewards of rejected answers.
        pub rejected_reward: f32,
        /// Pairs whose chosen answer has the higher reward.
        pub accurate: f32,
        /// Log-probabilities of chosen answers, in nats.
        pub chosen_log_prob: f32,
        /// Log-probabilities of rejected answers, in nats.
        pub rejected_log_prob: f32,
    }
}

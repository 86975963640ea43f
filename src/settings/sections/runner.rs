//! `runner_config`: how long a run is and what a step consists of.

use crate::settings::engine::*;

rows! {
    /// `runner_config`: how long a run is and what a step consists of.
    pub struct Runner in "runner_config" {
        /// Passes over the training data.
        epochs: u64 = Host.default(1).within(SIZE),
        /// Windows in a micro-batch (B).
        batch_size: usize = Numbers.default(1).within(SIZE),
        /// Micro-batches in a step, whose gradients are averaged.
        gradient_accumulation_steps: usize = Numbers.default(1).within(SIZE),
        /// The run ends after this step, 0: after its epochs. The learning rate's schedule does not shrink with it.
        stop_step: u64 = Host.default(0),
        /// Number of steps in which each launch is timed by itself, after three warm-up steps; 0: none. The log has a
        /// table of the times, and `profile.jsonl` has each of them.
        profile_steps: u64 = Host.default(0),
    }
}

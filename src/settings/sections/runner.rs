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
        /// Steps whose launches are timed one by one, after three steps that warm up; 0: none. A table of them is
        /// logged, and profile.jsonl has each.
        profile_steps: u64 = Host.default(0),
    }
}

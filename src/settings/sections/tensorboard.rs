//! `tensorboard`: event files with the numbers of each step.

use crate::settings::engine::*;
use std::path::PathBuf;

rows! {
    /// `tensorboard`: event files with the numbers of each step, for TensorBoard. Without the section none are written.
    pub struct TensorBoard in "tensorboard" {
        /// Folder of the files, which lie in `rank_0` there; by default `tensorboard` in the run's folder.
        tensorboard_dir: PathBuf = Host.optional().example("./tensorboard"),
        /// Whether they have the loss scale.
        log_loss_scale_to_tensorboard: bool = Host.default(false),
        /// Whether they have times and speeds: `iteration-time` in milliseconds, `throughput` in samples per second
        /// and rank.
        log_timers_to_tensorboard: bool = Host.default(false),
        /// Whether they have a histogram of each layer's choices over its experts, `expert_load/LAYER`.
        log_expert_load_to_tensorboard: bool = Host.default(false),
    }
}

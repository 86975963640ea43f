//! `tensorboard`: event files with the numbers of each step.

use crate::settings::engine::*;
use std::path::PathBuf;

rows! {
    /// `tensorboard`: event files with the numbers of each step, for TensorBoard. Without the section none are written.
    pub struct TensorBoard in "tensorboard" {
        /// Folder of the event files, which are written to `rank_0` in it; by default `tensorboard` in the run's
        /// folder.
        tensorboard_dir: PathBuf = Host.optional().example("./tensorboard"),
        /// Whether the event files have the loss scale.
        log_loss_scale_to_tensorboard: bool = Host.default(false),
        /// Whether the event files have times and speeds: `iteration-time` in milliseconds, `throughput` in samples per
        /// second and rank.
        log_timers_to_tensorboard: bool = Host.default(false),
        /// Whether the event files have a histogram, `expert_load/LAYER`, of the choices over the experts in each
        /// layer.
        log_expert_load_to_tensorboard: bool = Host.default(false),
    }
}

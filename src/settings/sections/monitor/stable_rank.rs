//! `monitor_config.stable_rank_config`: the stable ranks of weights.

use super::Formats;
use crate::settings::engine::*;

rows! {
    /// `monitor_config.stable_rank_config`: `weight_stable_rank/{parameter}`, ‖W‖_F² / λ, and `weight_eigenvalue/{parameter}`, λ,
    /// of each matrix that trains, where λ is the largest eigenvalue of WᵀW as power iteration finds it: at most the true one, so
    /// that the stable rank is at least the true one (Rudelson and Vershynin, 2007, section 1). A matrix of zeros has none: `nan`.
    pub struct StableRank in "monitor_config.stable_rank_config" {
        /// Where these numbers go; by default nowhere.
        format: Formats = Host.optional().example("log"),
        /// Steps from one report to the next; the launches are made at these steps alone.
        step_interval: u64 = Host.default(100).within(COUNT),
        /// Parameters of which they are reported: regular expressions as in `monitor_config.target`; by default all matrices that
        /// train.
        target: Vec<String> = Host.optional().example("['wo']"),
        /// Of a stack of experts: `full` reports each expert (`weight_stable_rank/{parameter}/expert_3`), `statistics` the largest,
        /// smallest and mean value (`expert_max`, `expert_min`, `expert_mean`), `all` both.
        moe_show_mode: MoeShowMode = Host.default(MoeShowMode::All),
        /// Iterations from a random unit vector, which follows from the run's seed and the step. More come closer to λ; each reads
        /// the matrix twice.
        power_iteration_num: u64 = Host.default(5).within(COUNT),
    }
}

words! {
    /// What is reported of a stack of experts.
    pub enum MoeShowMode {
        /// Each expert, and statistics over them.
        #[default]
        All = "all",
        /// Each expert.
        Full = "full",
        /// Maximum, minimum and mean.
        Statistics = "statistics",
    }
}

impl MoeShowMode {
    /// Whether each expert is reported.
    pub fn shows_each(self) -> bool {
        self != Self::Statistics
    }

    /// Whether statistics over experts are reported.
    pub(crate) fn shows_statistics(self) -> bool {
        self != Self::Full
    }
}

//! The callbacks that watch experts.

use crate::settings::engine::*;
use std::path::PathBuf;

rows! {
    /// `ColdHotExpertMonitor`: when hot experts are chosen anew, beside `moe_config.update_step`.
    pub struct ColdHotMonitor in "callbacks.ColdHotExpertMonitor" {
        /// Step after which hot experts are selected again; by default that of the `CheckpointMonitor`. -1: none.
        save_checkpoint_steps: i64 = Numbers.default(-1).example("7"),
    }
    sections "type"
}

rows! {
    /// `SummaryMonitor`: where and when `moe_config.save_token_distribution` writes.
    pub struct SummaryMonitor in "callbacks.SummaryMonitor" {
        /// Folder of the files; by default `summary` in the run's folder.
        summary_dir: PathBuf = Host.optional().example("./shown"),
        /// Steps between files.
        collect_freq: u64 = Host.default(COLLECT_FREQ).within(COUNT),
    }
    sections "type export_options"
}

/// MindFormers' `collect_freq`.
pub(crate) const COLLECT_FREQ: u64 = 10;

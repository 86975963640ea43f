//! What a run reports: log lines, the progress bar, `metrics.jsonl`, and the load of experts.
//!
//! Nothing here knows the trainer or the configuration: functions take the numbers of a step and show them.

mod bars;
pub mod expert_load;
pub mod experts;
pub mod instrument;
pub mod log;
pub mod loss_monitor;
pub mod metrics;
mod pace;
mod plain_lines;
pub mod progress;
pub mod remarks;
pub mod tensorboard;

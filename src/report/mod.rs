//! What a run reports: log lines, the progress bar, `metrics.jsonl`, `events.jsonl`, the load of experts, and the
//! report page.
//!
//! Nothing here knows the trainer: functions take the numbers of a step and show them, and the page reads what they left.

mod bars;
pub(crate) mod events;
pub mod expert_load;
pub mod experts;
pub mod instrument;
pub mod log;
pub mod loss_monitor;
pub mod metrics;
pub mod monitor_lines;
mod pace;
pub mod page;
mod plain_lines;
pub mod progress;
pub mod remarks;
pub mod tensorboard;

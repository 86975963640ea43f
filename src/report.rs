//! The reports of a run: log lines, the progress bar, `metrics.jsonl`, `events.jsonl`, the load of experts, and the
//! report page.
//!
//! Nothing here knows the trainer: functions take the numbers of a step and show them, and the page reads the files
//! that they left.
//!
//! `metrics.jsonl` is the one record of a run: a [`metrics::StepMetrics`] is a line of it, and everything else that
//! shows a step is a view of that line. The trainer builds it on the first rank once the step and its evaluation have
//! arrived, and hands it to a list of instruments (`instrument`), in the order of MindFormers' callbacks: loss lines
//! and the bar, norms, lines of `monitor_config`, drop rates, files about experts, event files, `metrics.jsonl`. The
//! report page and `--watch` read only the files of the run folder.
//!
//! An instrument never fails a run: its first error is logged once, and it still gets the later steps. Files that grow
//! are `durable::AppendFile`s. A resumed run first cuts each of them after its checkpoint's step.
//!
//! The console has a bar, or lines of a single form ([`progress`]); `log.txt` has MindFormers' lines
//! ([`mindformers_log`]).

mod bars;
pub(crate) mod events;
pub mod expert_load;
pub mod experts;
pub(crate) mod instrument;
pub mod log;
pub mod metrics;
pub(crate) mod metrics_writer;
pub mod mindformers_log;
pub mod pace;
pub mod page;
pub mod progress;
pub mod scale_changes;
pub mod tensorboard;

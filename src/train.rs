//! The trainer: records a step once and replays it.
//!
//! [`run()`] is a whole training run, from configuration file to run folder; [`Trainer`] is only its device side. The
//! files that a run keeps are in [`store`](crate::store), its reports in [`report`](crate::report).

mod announce;
pub mod arenas;
pub(crate) mod batch_arrays;
mod checkpoint;
mod clocks;
pub mod command;
mod complete;
pub mod dump;
mod evaluation;
mod health;
mod home;
pub(crate) mod hot_copies;
mod instruments;
pub(crate) mod lacking_tokens;
pub mod length;
mod model_chunks;
pub mod monitors;
mod open_device;
mod passes;
pub mod pretrained;
mod programs;
pub(crate) mod readback;
pub mod recordings;
mod references;
mod reporter;
pub(crate) mod resume;
pub mod run;
mod run_parts;
mod sample;
mod saving;
pub mod schedule;
mod stage_step;
mod step;
pub(crate) mod step_results;
mod tensors;
pub mod trainer;
mod update;
pub(crate) mod weight_upload;

pub use dump::dump_wgsl;
pub use open_device::{device_options, open_device_with};
pub use run::{Milestone, TrainingRun, run};
pub use step_results::{FinishedEvaluation, FinishedStep};
pub use trainer::Trainer;

//! The trainer: records a step once and replays it.
//!
//! [`run()`] is a whole training run, from configuration file to run folder; [`Trainer`] is its device side alone. What a
//! run keeps on disk is in [`store`](crate::store), what it reports in [`report`](crate::report).

mod announce;
pub mod arenas;
pub(crate) mod batch_arrays;
mod checkpoint;
mod clocks;
pub mod command;
mod complete;
pub mod dump;
mod evaluation;
pub(crate) mod finished;
mod health;
mod home;
pub(crate) mod hot_copies;
pub(crate) mod initial;
mod instruments;
pub(crate) mod lacking_tokens;
pub mod length;
mod model_chunks;
pub mod monitors;
mod passes;
mod programs;
pub(crate) mod readback;
pub mod recordings;
mod reporter;
pub(crate) mod resume;
pub mod run;
mod run_parts;
mod sample;
mod saving;
pub mod schedule;
pub(crate) mod schedule_table;
mod stage_step;
pub mod starting_weights;
mod step;
mod tensors;
pub mod trainer;
mod update;

pub use dump::dump_wgsl;
pub use finished::{FinishedEvaluation, FinishedStep};
pub use run::run_watched;
pub use run::{Milestone, run, run_on_ranks};
pub use trainer::Trainer;

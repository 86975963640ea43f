//! The trainer: records a step once, replays it, and looks after everything that must survive it.
//!
//! [`run()`] is the whole of a training run; [`Trainer`] is the part that needs a device and nothing else.

pub mod batch_arrays;
pub mod checkpoint;
pub mod checkpoint_folder;
pub mod dump;
pub mod durable;
pub mod expert_load;
mod expert_tensors;
mod finished;
pub mod forecast;
mod hugging_face;
pub mod instruments;
pub mod length;
pub mod log;
pub mod loss_monitor;
pub mod metrics;
pub mod npy;
pub mod peak;
pub mod progress;
pub mod recordings;
mod resume;
pub mod run;
pub mod run_folder;
pub mod sample;
pub mod schedule;
pub mod state;
pub mod tensor_file;
pub mod trained;
pub mod trainer;
pub mod trainer_state;
mod update;

pub use dump::dump_wgsl;
pub use finished::{FinishedEvaluation, FinishedStep};
pub use run::run;
pub use trainer::Trainer;

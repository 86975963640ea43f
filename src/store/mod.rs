//! What a run keeps on disk: the run folder, checkpoints, and files that survive a crash.
//!
//! Nothing here knows the trainer, the configuration or a device. A checkpoint's tensors are read and written through
//! functions that the caller passes in.

use crate::durable::Place;

pub(crate) mod adapter;
pub(crate) mod arena_tensors;
pub(crate) mod checkpoint;
pub mod checkpoint_folder;
mod gathering;
mod holdings;
pub(crate) mod hugging_face;
pub mod json_lines;
pub mod merge;
pub mod npy;
mod published_names;
mod router_tensors;
pub mod run_folder;
pub(crate) mod shared_folder;
pub mod tensor_file;
mod tensor_set;
pub mod trainer_state;
mod weight_files;
mod weight_index;

/// What chose the folder of a run.
pub(crate) const OUTPUT_DIR: Place = Place("--output_dir");

/// Remedy for a damaged file of a checkpoint.
const USE_ANOTHER: &str =
    "use another checkpoint, or delete the folder of this one to resume from the one before it";

//! What a run keeps on disk: its folder, its checkpoints, files that survive a crash.
//!
//! Nothing here knows the trainer: functions take tensors, shapes and states, and return them.

pub(crate) mod arena_tensors;
pub(crate) mod checkpoint;
pub mod checkpoint_folder;
pub mod durable;
mod expert_tensors;
mod hugging_face;
pub mod json_lines;
pub mod npy;
pub mod run_folder;
pub mod tensor_file;
pub mod trainer_state;

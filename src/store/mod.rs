//! What a run keeps on disk: its folder, its checkpoints, files that survive a crash.
//!
//! Nothing here knows the trainer: functions take tensors, shapes and states, and return them.

pub mod checkpoint_folder;
pub mod durable;
pub(crate) mod expert_tensors;
pub(crate) mod hugging_face;
pub mod npy;
pub mod run_folder;
pub mod tensor_file;
pub mod trainer_state;

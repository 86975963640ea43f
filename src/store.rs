//! What a run keeps on disk: the run folder, checkpoints, and files that survive a crash.
//!
//! Nothing here knows the trainer, the configuration or a device. A checkpoint's tensors are read and written through
//! functions that the caller passes in.

use crate::durable::PathOrigin;
use std::path::Path;

pub(crate) mod arena_tensors;
pub(crate) mod base;
pub(crate) mod checkpoint;
pub mod checkpoint_folder;
mod expected_tensors;
mod experts;
pub mod export;
pub mod gguf;
pub(crate) mod hex;
mod holdings;
pub(crate) mod lora;
pub mod merge;
pub(crate) mod model_assets;
pub(crate) mod model_path;
mod mxfp4;
pub mod npy;
mod peft_modules;
mod published_names;
mod rewrite;
mod router_tensors;
pub mod run_folder;
pub(crate) mod shared_folder;
mod stored_floats;
pub mod tensor_file;
mod tensor_set;
pub mod trainer_state;
mod weight_faults;
mod weight_files;
mod weight_index;
mod wrapped;

pub use base::Base;

/// The flag that names the folder of a run.
pub(crate) const OUTPUT_DIR: PathOrigin = PathOrigin("--output_dir");

/// Remedy for a damaged file: another checkpoint, if it belongs to a checkpoint of a run; otherwise to fetch it again,
/// since the user may have no second copy.
fn remedy_for(path: &Path) -> &'static str {
    let is_of_run = path.with_file_name(checkpoint::STATE).is_file();
    match is_of_run {
        true => "use another checkpoint, or delete the folder of this one to resume from the one before it",
        false => "fetch or convert it again, or load another",
    }
}

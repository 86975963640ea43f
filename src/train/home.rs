//! The folder that a trainer saves into.

use crate::store::checkpoint_folder::CheckpointFolder;
use crate::store::run_folder::RunFolder;
use crate::store::trainer_state::TrainerState;

/// Where a trainer saves.
pub(super) struct Home {
    pub folder: RunFolder,
    pub checkpoints: CheckpointFolder,
    /// What it has resumed from: the evaluations before are not its own, and stay noted.
    pub restored: Option<TrainerState>,
}

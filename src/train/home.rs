//! The folder that a trainer saves into.

use crate::store::checkpoint_folder::CheckpointFolder;
use crate::store::run_folder::RunFolder;
use crate::store::trainer_state::TrainerState;

/// The folder and the checkpoints that a trainer saves to.
pub(super) struct Home {
    pub folder: RunFolder,
    pub checkpoints: CheckpointFolder,
    /// The state that the trainer has resumed from: its counts of evaluations stay noted, since this trainer did not
    /// make them.
    pub restored: Option<TrainerState>,
}

//! Notes beside the checkpoints of a run: `best.json` says which checkpoint had the lowest `eval_loss`, and `meta.json`
//! tells scripts written for MindFormers where the newest checkpoint is.
//!
//! The best checkpoint is noted once it is complete. A kill in between leaves the previous note, and the run writes the
//! new one when it resumes: the state of each checkpoint has the best evaluation until then. The newest checkpoint is
//! noted between its rename and the removal of old ones, so the note never names a checkpoint that is gone. A run that
//! resumes writes this note first.

use super::OUTPUT_DIR;
use crate::durable::read_json;
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;

const BEST: &str = "best.json";
const META: &str = "meta.json";

/// The best evaluation of a run so far.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The step after which it was made.
    pub step: u64,
    /// Its loss in nats per token.
    pub eval_loss: f32,
}

/// The note in `folder`, if there is one. A link is not followed, since it might lead out of the folder.
///
/// # Errors
/// The file is damaged.
pub(super) fn read_best(folder: &Path) -> Result<Option<Best>> {
    let path = folder.join(BEST);
    match path.is_file() && !path.is_symlink() {
        true => read_json(&path, "the note of the best checkpoint", "remove it, and the newest one is used")
            .map(Some),
        false => Ok(None),
    }
}

/// Replaces the note in `folder`.
///
/// # Errors
/// The disk is full or fails.
pub(super) fn write_best(folder: &Path, best: Best) -> Result<()> {
    let text = serde_json::to_vec(&best).expect("numbers are JSON");
    OUTPUT_DIR.write(&folder.join(BEST), &text)
}

/// The content of `meta.json`, under MindFormers' keys.
#[derive(Serialize)]
struct Meta<'a> {
    /// The epoch, from 1.
    last_epoch: u64,
    /// The step in the epoch, from 1.
    last_step: u64,
    /// Name of the checkpoint, a folder beside this file.
    last_ckpt_file: &'a str,
}

/// Replaces the file in `folder`: `checkpoint` was written after `step`.
///
/// # Errors
/// The disk is full or fails.
pub(super) fn write_meta(folder: &Path, step: u64, steps_per_epoch: u64, checkpoint: &Path) -> Result<()> {
    let (before, per_epoch) = (step.saturating_sub(1), steps_per_epoch.max(1));
    let meta = Meta {
        last_epoch: before / per_epoch + 1,
        last_step: before % per_epoch + 1,
        last_ckpt_file: checkpoint.file_name().and_then(|name| name.to_str()).unwrap_or_default(),
    };
    let text = serde_json::to_vec(&meta).expect("numbers and a string are JSON");
    OUTPUT_DIR.write(&folder.join(META), &text)
}

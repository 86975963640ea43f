//! `meta.json`, which tells scripts written for MindFormers where the newest checkpoint is.
//!
//! It is replaced between the rename of a new checkpoint and the removal of old ones, so it never names one that is
//! gone. A run that resumes writes it first.

use super::OUTPUT_DIR;
use crate::error::Result;
use serde::Serialize;
use std::path::Path;

const NAME: &str = "meta.json";

/// The keys of MindFormers.
#[derive(Serialize)]
struct Meta<'a> {
    /// From 1.
    last_epoch: u64,
    /// In the epoch, from 1.
    last_step: u64,
    /// Name of the checkpoint, a folder beside this file.
    last_ckpt_file: &'a str,
}

/// Replaces the file in `folder`: `checkpoint` was written after `step`.
///
/// # Errors
/// The disk is full or fails.
pub(super) fn write(folder: &Path, step: u64, steps_per_epoch: u64, checkpoint: &Path) -> Result<()> {
    let (before, per_epoch) = (step.saturating_sub(1), steps_per_epoch.max(1));
    let meta = Meta {
        last_epoch: before / per_epoch + 1,
        last_step: before % per_epoch + 1,
        last_ckpt_file: checkpoint.file_name().and_then(|name| name.to_str()).unwrap_or_default(),
    };
    let text = serde_json::to_vec(&meta).expect("numbers and a string are JSON");
    OUTPUT_DIR.write(&folder.join(NAME), &text)
}

//! `best.json`, which says which checkpoint had the lowest `eval_loss`.
//!
//! It is written once that checkpoint is complete. A kill in between leaves the note of the one before, and the run
//! notes it again when it resumes: the state of each checkpoint has the best until then.

use super::OUTPUT_DIR;
use crate::durable::read_json;
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;

const NAME: &str = "best.json";

/// The best evaluation of a run so far.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The step that it followed.
    pub step: u64,
    /// Its loss in nats per token.
    pub eval_loss: f32,
}

/// What is noted in `folder`, if something is. A link is not followed, since it might lead out of the folder.
///
/// # Errors
/// The file is damaged.
pub(super) fn read(folder: &Path) -> Result<Option<Best>> {
    let path = folder.join(NAME);
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
pub(super) fn write(folder: &Path, best: Best) -> Result<()> {
    let text = serde_json::to_vec(&best).expect("numbers are JSON");
    OUTPUT_DIR.write(&folder.join(NAME), &text)
}

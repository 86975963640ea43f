//! The base weights of adapters. If they came from files, a checkpoint names them in `adapter/base.json`.
//!
//! The note has their absolute path and a hash of their tensors. By the hash, other weights at that path are
//! recognised, and so are the same weights after a move. The hash does not depend on how the tensors are spread over
//! files. Opening such a checkpoint reads all of the base once to compare its hash.

use super::OUTPUT_DIR;
use super::hex::{self, hex};
use super::lora;
use super::weight_files::{STEM, WeightFiles};
use super::weight_index::files_of;
use crate::durable::{read_error, read_json_if_present};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The name of the note, which lies beside the adapter.
const NOTE: &str = "base.json";
/// Remedy for a base that is missing or has other weights.
pub(super) const REMEDY: &str =
    "name the base with `--base-model` (`--load_checkpoint` of `train`), or as BASE of `merge`";

/// Weights that came from files, and that training leaves as they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// A safetensors file, the index of several, or a folder with either.
    path: PathBuf,
    /// XXH3 of all its tensors; in the file as 16 hexadecimal digits.
    #[serde(with = "hex")]
    hash: u64,
}

impl Base {
    /// The weights at `path`, all of which are read.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let hash = WeightFiles::open(path)?.hash()?;
        let path = path.canonicalize().map_err(|error| read_error(path, "read", &error))?;
        Ok(Self { path, hash })
    }

    /// The base that the checkpoint at `path` names instead of holding a model.
    ///
    /// # Errors
    /// The note is damaged.
    pub(super) fn noted(path: &Path) -> Result<Option<Self>> {
        match path.is_dir() && !holds_model(path) {
            true => Self::beside(&path.join(lora::FOLDER).join(lora::WEIGHTS)),
            false => Ok(None),
        }
    }

    /// The base of the adapter in the file `adapter`, if there is a note of it.
    ///
    /// # Errors
    /// The note is damaged.
    pub(super) fn beside(adapter: &Path) -> Result<Option<Self>> {
        let note = adapter.with_file_name(NOTE);
        read_json_if_present(&note, "a note of an adapter's base", REMEDY)
    }

    /// Writes the note into `folder`, the adapter's folder.
    ///
    /// # Errors
    /// A path that JSON cannot hold; a disk that fails.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).map_err(|error| Error::file(&self.path, error))?;
        OUTPUT_DIR.write(&folder.join(NOTE), &text)
    }

    /// The path of the weights when they were last read.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Does [`check`](Self::check), unless the weights at `path` are `known` to be this base.
    pub(super) fn check_unless(&self, path: &Path, known: Option<&Self>) -> Result<()> {
        match known.is_some_and(|known| known.hash == self.hash) {
            true => Ok(()),
            false => self.check(path).map(drop),
        }
    }

    /// Checks that the weights at `path` have these tensors, and returns them as a base.
    ///
    /// # Errors
    /// The weights are others; a file that is missing or damaged.
    pub(super) fn check(&self, path: &Path) -> Result<Self> {
        // The note of another checkpoint says where its base is, but not which weights are there now.
        let weights = Self::noted(path)?.map_or_else(|| path.to_path_buf(), |noted| noted.path);
        let found = Self::of(&weights)?;
        match found.hash == self.hash {
            true => Ok(found),
            false => Err(Error::file(
                path,
                format!(
                    "is not the base that the adapters were trained on: the hash of its tensors is {}, and that of {} was {}; \
                     {REMEDY}",
                    hex(found.hash),
                    self.path.display(),
                    hex(self.hash)
                ),
            )),
        }
    }

    /// The base at its present place: at its path, or else at `moved`, a path that the user may have named.
    ///
    /// # Errors
    /// It is at neither path, or other weights are there.
    pub(super) fn found(&self, moved: Option<&Path>) -> Result<Self> {
        // A path that no longer exists cannot be canonicalised.
        let whole = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
        let moved = moved.filter(|moved| whole(moved).as_ref() != Some(&self.path));
        let here = self.path.exists().then(|| self.check(&self.path));
        match (here, moved.filter(|moved| moved.exists())) {
            (Some(Ok(base)), Some(other)) if Self::noted(other)?.is_none_or(|other| other != base) => {
                let (path, other) = (base.path.display(), other.display());
                tracing::warn!("{other} is not read: the adapters go on with their base, {path}");
                Ok(base)
            }
            (Some(Ok(base)), _) => Ok(base),
            (_, Some(moved)) => self.check(moved),
            (Some(Err(other)), None) => Err(other),
            (None, None) => {
                let path = moved.unwrap_or(&self.path);
                let noted =
                    moved.map_or_else(String::new, |_| format!(", and neither is {}", self.path.display()));
                let message = format!(
                    "is not there, and adapters were trained on it{noted}; if it was moved, {REMEDY}"
                );
                Err(Error::file(path, message))
            }
        }
    }
}

/// Whether the folder `path` has the files of a model.
pub(super) fn holds_model(path: &Path) -> bool {
    files_of(path, STEM).map_or(true, |files| files.iter().any(|file| file.exists()))
}

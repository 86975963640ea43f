//! The folder of checkpoints, `checkpoint/step_NNNNNNN/`, and the protocol that keeps it sound through crashes.
//!
//! A checkpoint is written into `step_NNNNNNN.tmp`, every file is synced to disk, the folder gets its final name in one
//! rename, then `meta.json` names it, and only then are old checkpoints deleted. So a folder under its final name is
//! always complete, and the newest complete one survives a kill, a power cut or a full disk at any moment.
//!
//! A run may give its checkpoints a prefix: `PREFIX-step_NNNNNNN`. Checkpoints of any prefix are found.

mod notes;

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub use self::notes::Best;
use super::OUTPUT_DIR;
use super::base::Base;
use super::model_assets::ModelAssets;
use crate::durable::{UNFINISHED, read_error, with_suffix};
use crate::error::Result;

/// The folder of a run's checkpoints.
pub(crate) const CHECKPOINTS: &str = "checkpoint";
/// Suffix of a checkpoint while a new one of the same step replaces it.
const REPLACED: &str = ".old";

/// Which checkpoints are kept when another is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// All.
    All,
    /// The newest, as many as this.
    Newest(usize),
    /// One for each stretch of this length, and the newest. Of the checkpoints that are younger than the stretch, the
    /// oldest is kept.
    OnePer(Duration),
}

/// The checkpoints of one run.
///
/// # Examples
///
/// The checkpoint to use from those that a run has kept:
///
/// ```
/// use gristmill::store::checkpoint_folder::CheckpointFolder;
///
/// # fn main() -> gristmill::error::Result<()> {
/// let checkpoints = CheckpointFolder::of_run("output/talks");
/// match checkpoints.chosen()? {
///     Some((step, folder)) => println!("the best, or else the newest, is of step {step}: {}", folder.display()),
///     None => println!("there is none"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CheckpointFolder {
    folder: PathBuf,
    keep: Keep,
    /// The start of the names of new checkpoints: empty, or a prefix and a hyphen.
    start_of_name: String,
    /// If `None`, no `meta.json` is written.
    steps_per_epoch: Option<u64>,
    beside: ModelAssets,
}

impl CheckpointFolder {
    /// The checkpoints of the run in the folder `run`, for reading.
    pub fn of_run(run: impl AsRef<Path>) -> Self {
        Self::new(run.as_ref().join(CHECKPOINTS), Keep::All)
    }

    /// The checkpoints in `folder`, which may not exist yet.
    pub fn new(folder: impl Into<PathBuf>, keep: Keep) -> Self {
        Self {
            folder: folder.into(),
            keep,
            start_of_name: String::new(),
            steps_per_epoch: None,
            beside: ModelAssets::default(),
        }
    }

    /// Names new checkpoints `PREFIX-step_NNNNNNN`; an empty prefix leaves out the hyphen too.
    pub(crate) fn with_prefix(mut self, prefix: &str) -> Self {
        self.start_of_name = if prefix.is_empty() { String::new() } else { format!("{prefix}-") };
        self
    }

    /// Writes a `meta.json` that says where in its epoch the newest checkpoint was written.
    pub(crate) fn with_meta(mut self, steps_per_epoch: u64) -> Self {
        self.steps_per_epoch = Some(steps_per_epoch);
        self
    }

    /// Writes `beside` into new checkpoints.
    pub(crate) fn with_beside(self, beside: ModelAssets) -> Self {
        Self { beside, ..self }
    }

    /// Names the checkpoint of `step` in `meta.json`, if the folder has such a file. A run that resumes calls this too,
    /// since a kill may have come before it. A failure is only a warning.
    pub(crate) fn note_newest(&self, step: u64, checkpoint: &Path) {
        let Some(steps_per_epoch) = self.steps_per_epoch else { return };
        if let Err(error) = notes::write_meta(&self.folder, step, steps_per_epoch, checkpoint) {
            tracing::warn!("{error}; training goes on without it");
        }
    }

    /// Starts the checkpoint of `step`: creates a folder to write files into, and writes the files that belong beside
    /// the weights into it. Removes what a killed run left unfinished.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn begin(&self, step: u64) -> Result<PendingCheckpoint> {
        OUTPUT_DIR.create_folder(&self.folder)?;
        self.clear_unfinished()?;
        let path = with_suffix(&self.path_of(step), UNFINISHED);
        fs::create_dir(&path).map_err(|error| OUTPUT_DIR.error(&path, "create the folder", &error))?;
        let newest = self.latest()?;
        let pending = PendingCheckpoint { draft: self.draft(step), is_committed: false };
        self.beside.write(&pending.path, newest.as_ref().map(|(_, newest)| newest.as_path()))?;
        Ok(pending)
    }

    /// The checkpoint of `step` that the first rank of the run has begun and will commit, for another rank to write
    /// files into.
    pub fn draft(&self, step: u64) -> Draft {
        Draft { home: self.clone(), step, path: with_suffix(&self.path_of(step), UNFINISHED) }
    }

    /// The newest complete checkpoint: its step and its folder.
    ///
    /// # Errors
    /// The folder exists and cannot be read.
    pub fn latest(&self) -> Result<Option<(u64, PathBuf)>> {
        Ok(self.list()?.pop())
    }

    /// The checkpoint that stands for the run: the best, if one is [noted](Self::note_best) and still there, or else
    /// the newest.
    ///
    /// # Errors
    /// The folder exists and cannot be read; a note that is damaged.
    pub fn chosen(&self) -> Result<Option<(u64, PathBuf)>> {
        Ok(match self.best()? {
            Some((Best { step, .. }, path)) => Some((step, path)),
            None => self.latest()?,
        })
    }

    /// The best checkpoint, if one is noted and still there.
    ///
    /// # Errors
    /// Those of [`chosen`](Self::chosen).
    pub fn best(&self) -> Result<Option<(Best, PathBuf)>> {
        let Some(best) = notes::read_best(&self.folder)? else { return Ok(None) };
        let found = self.list()?.into_iter().find(|(step, _)| *step == best.step);
        Ok(found.map(|(_, path)| (best, path)))
    }

    /// Notes that the checkpoint of `best.step` is the best so far: it stands for the run, and is not deleted.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn note_best(&self, best: Best) -> Result<()> {
        notes::write_best(&self.folder, best)
    }

    /// All complete checkpoints, oldest step first.
    ///
    /// # Errors
    /// The folder exists and cannot be read.
    pub fn list(&self) -> Result<Vec<(u64, PathBuf)>> {
        let names = self.names()?;
        let mut found: Vec<(u64, PathBuf)> = names
            .iter()
            .filter_map(|name| {
                // A crash between the two renames of a replacement leaves only the old checkpoint: it still counts.
                let original = name.strip_suffix(REPLACED).unwrap_or(name);
                let is_replaced = original != name && names.iter().any(|other| other == original);
                let step = if is_replaced { None } else { step_of(original) };
                step.map(|step| (step, self.folder.join(name)))
            })
            .filter(|(_, path)| path.is_dir())
            .collect();
        found.sort();
        Ok(found)
    }

    /// The folder of the checkpoint of `step`, whether or not it is there.
    pub(crate) fn path_of(&self, step: u64) -> PathBuf {
        self.folder.join(format!("{}{}", self.start_of_name, name_of(step)))
    }

    /// The names in the folder, none if there is no folder. Names that are not UTF-8 are not ours.
    fn names(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(read_error(&self.folder, "read", &error)),
        };
        let name = |entry: std::io::Result<fs::DirEntry>| match entry {
            Ok(entry) => entry.file_name().into_string().ok().map(Ok),
            Err(error) => Some(Err(read_error(&self.folder, "read", &error))),
        };
        entries.filter_map(name).collect()
    }

    /// Removes what a crash left half written, half deleted or half replaced.
    fn clear_unfinished(&self) -> Result<()> {
        for name in self.names()? {
            let path = self.folder.join(&name);
            let is_left =
                |suffix| name.strip_suffix(suffix).is_some_and(|original| step_of(original).is_some());
            if is_left(REPLACED) && !path.with_extension("").exists() {
                rename(&path, &path.with_extension(""))?;
            } else if is_left(REPLACED) || is_left(UNFINISHED) {
                delete_or_warn(&path);
            }
        }
        Ok(())
    }

    /// Deletes the checkpoints that are not to be kept at `now`, but never the one just `written` at `step`: a run that
    /// continued from an earlier step writes checkpoints older than the existing ones.
    fn delete_old(&self, step: u64, written: &Path, now: SystemTime) -> Result<()> {
        let found = self.list()?;
        // `same`: the checkpoints of this step under another prefix.
        let (same, others): (Vec<_>, Vec<_>) =
            found.into_iter().filter(|(_, path)| path != written).partition(|(other, _)| *other == step);
        let best = notes::read_best(&self.folder)?.map(|best| best.step);
        let others: Vec<PathBuf> =
            others.into_iter().filter(|(step, _)| Some(*step) != best).map(|(_, path)| path).collect();
        let excess = match self.keep {
            Keep::All => Vec::new(),
            Keep::Newest(count) => {
                let excess = (others.len() + 1).saturating_sub(count.max(1));
                others.into_iter().take(excess).collect()
            }
            Keep::OnePer(stretch) => young(others, stretch, now).into_iter().skip(1).collect(),
        };
        for path in same.into_iter().map(|(_, path)| path).chain(excess) {
            // Rename first, so that a kill halfway leaves nothing that looks complete.
            let waste = with_suffix(&path, UNFINISHED);
            rename(&path, &waste)?;
            delete_or_warn(&waste);
        }
        Ok(())
    }
}

/// The `checkpoints` that were written less than `stretch` before `now`, the oldest first.
fn young(checkpoints: Vec<PathBuf>, stretch: Duration, now: SystemTime) -> Vec<PathBuf> {
    let written = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).ok();
    let is_young = |at: &SystemTime| now.duration_since(*at).map_or(true, |age| age < stretch);
    let mut young: Vec<(SystemTime, PathBuf)> = checkpoints
        .into_iter()
        .filter_map(|path| written(&path).filter(is_young).map(|at| (at, path)))
        .collect();
    young.sort();
    young.into_iter().map(|(_, path)| path).collect()
}

/// A checkpoint that is being written, as every rank has it.
#[derive(Debug)]
pub struct Draft {
    home: CheckpointFolder,
    step: u64,
    path: PathBuf,
}

/// The [`Draft`] on the rank that began the checkpoint. Dropping it without [`PendingCheckpoint::commit`] removes what
/// was written.
#[derive(Debug)]
#[must_use = "a checkpoint that is not committed is deleted"]
pub struct PendingCheckpoint {
    draft: Draft,
    is_committed: bool,
}

impl Deref for PendingCheckpoint {
    type Target = Draft;

    fn deref(&self) -> &Draft {
        &self.draft
    }
}

impl Draft {
    /// The temporary folder to write files into.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model that adapters train on, if it came from files: the checkpoint names it.
    pub(super) fn base(&self) -> Option<&Base> {
        self.home.beside.base()
    }

    /// Hard-links the `files` of the newest complete checkpoint into this one, so that both share their disk space.
    /// Returns false if there is no such checkpoint or the file system has no hard links: the files then have to be
    /// written.
    ///
    /// # Errors
    /// The folder of checkpoints cannot be read; an error of `files`.
    pub fn link(&self, files: impl FnOnce(&Path) -> Result<Vec<PathBuf>>) -> Result<bool> {
        let Some((_, newest)) = self.home.latest()? else { return Ok(false) };
        let files = files(&newest)?;
        let linked = |file: &PathBuf| file.file_name().map(|name| self.path.join(name));
        let are_linked =
            files.iter().all(|file| linked(file).is_some_and(|to| fs::hard_link(file, to).is_ok()));
        if !are_linked {
            // Writing to a linked file would change the other checkpoint.
            files.iter().filter_map(linked).for_each(|to| drop(fs::remove_file(to)));
        }
        Ok(are_linked)
    }
}

impl PendingCheckpoint {
    /// Syncs the checkpoint to disk, gives it its final name, notes it in `meta.json` and deletes old ones; returns the
    /// final folder. A checkpoint of the same step is replaced.
    ///
    /// # Errors
    /// A file cannot be synced (a full disk may show only here) or the folder cannot be renamed. The earlier
    /// checkpoints are then untouched.
    pub fn commit(mut self) -> Result<PathBuf> {
        OUTPUT_DIR.sync_files(&self.path)?;
        let final_path = self.home.path_of(self.step);
        let replaced = with_suffix(&final_path, REPLACED);
        let replaces = final_path.exists();
        if replaces {
            rename(&final_path, &replaced)?;
        }
        rename(&self.path, &final_path)?;
        self.is_committed = true;
        OUTPUT_DIR.sync_folder(&self.home.folder)?;
        if replaces {
            delete_or_warn(&replaced);
        }
        self.home.note_newest(self.step, &final_path);
        if let Err(error) = self.home.delete_old(self.step, &final_path, SystemTime::now()) {
            tracing::warn!("an old checkpoint was not deleted: {error}");
        }
        Ok(final_path)
    }
}

impl Drop for PendingCheckpoint {
    fn drop(&mut self) {
        if !self.is_committed {
            // Best effort: `list` ignores what remains, and the next `begin` removes it.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|error| OUTPUT_DIR.error(from, "rename", &error))
}

/// Deletes a folder that nothing depends on. A failure costs only disk space, so it does not end the run.
fn delete_or_warn(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!("{}", OUTPUT_DIR.error(path, "delete", &error));
    }
}

fn name_of(step: u64) -> String {
    format!("step_{step:07}")
}

/// The step in a checkpoint's name, if [`name_of`] makes exactly this name, or exactly the part after its prefix.
fn step_of(name: &str) -> Option<u64> {
    let start = name.rfind("step_")?;
    let (before, name) = name.split_at(start);
    let step = name.strip_prefix("step_")?.parse().ok()?;
    ((before.is_empty() || before.ends_with('-')) && name_of(step) == name).then_some(step)
}

#[cfg(test)]
mod tests;

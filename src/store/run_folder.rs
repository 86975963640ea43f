//! The folder of a run: its files, and the lock that lets only one process write there.
//!
//! ```text
//! output/tiny/
//!     config.yaml                  the configuration with every number decided
//!     metrics.jsonl                one object per step
//!     events.jsonl                 one object per start, sample, warning, error and end
//!     checkpoint/step_0000100/     see `checkpoint_folder`
//!     checkpoint/meta.json         which of them is the newest
//!     log.txt                      what the run logged
//!     profile.jsonl                the time of each launch, if that is measured
//!     reference_log_probs.bin      what a preference compares with, if that was computed before the first step
//!     report.html                  a page that shows all of this, written when the run ends
//!     summary/export_tiny/tensor/  layer-L_STEP.npy: choices of each expert, if they are asked for
//!     run.lock                     locked while a process writes here; its existence means nothing
//! ```

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::OUTPUT_DIR;
use super::checkpoint_folder::{CHECKPOINTS, CheckpointFolder, Keep};
use crate::durable::read_error;
use crate::error::{Error, Result};
use serde::Deserialize;

pub(crate) const CONFIG: &str = "config.yaml";
pub(crate) const METRICS: &str = "metrics.jsonl";
pub(crate) const EVENTS: &str = "events.jsonl";
pub(crate) const LOG: &str = "log.txt";
pub(crate) const PROFILE: &str = "profile.jsonl";
pub(crate) const REFERENCES: &str = "reference_log_probs.bin";
pub(crate) const REPORT: &str = "report.html";
const LOCK: &str = "run.lock";

/// Opens a file of a run folder for reading. A folder from elsewhere may hold links to any file of this machine, so a
/// link that leads out of the folder is refused. So is anything but a regular file: a pipe would never end.
///
/// # Errors
/// There is no such file, or it cannot be read.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let (file, folder) = (path.canonicalize()?, path.with_file_name("").canonicalize()?);
    if !file.starts_with(folder) {
        return Err(io::Error::other("it is a link that leads out of the run's folder"));
    }
    if !file.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    File::open(file)
}

/// A pause that is far longer than a look at the lock takes.
const LOOK: Duration = Duration::from_millis(20);

/// What a run expects in its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Start {
    /// Nothing of another run.
    New,
    /// Perhaps a run that ended before its first checkpoint, which this run replaces.
    Again,
    /// A run with a complete checkpoint, which this run continues.
    Resume,
}

/// The folder of one run, locked against other processes for as long as this value lives on its first rank.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    resume_point: Option<(u64, PathBuf)>,
    /// `None` on the other ranks, which do not write here.
    held: Option<Held>,
}

/// What only the first rank has of the folder.
#[derive(Debug)]
struct Held {
    config_yaml: String,
    /// The operating system releases the lock when the file closes, also after a kill, so it is never stale.
    _lock: File,
}

impl RunFolder {
    /// Creates `output_dir` for a new run, or opens the folder of an earlier run.
    ///
    /// A new run gets its folder, the lock and `config.yaml`, so an unwritable place is found here and not at the first
    /// checkpoint. Call it after everything else that can fail early: from then on a second start needs
    /// `--resume_training=True` or another name. For a resumed run it finds the newest checkpoint
    /// ([`RunFolder::resume_point`]) and changes nothing before [`RunFolder::accept_resume`].
    ///
    /// # Errors
    /// One line each: a run exists there already; there is nothing to resume; another process writes there; the folder
    /// cannot be created or written.
    pub fn create(output_dir: &Path, config_yaml: &str, start: Start) -> Result<Self> {
        let path = output_dir.to_path_buf();
        match start {
            Start::New => refuse_existing(&path)?,
            Start::Resume if !path.is_dir() => {
                return Err(Error::file(
                    path,
                    "no run folder is here to continue: correct --output_dir or --run_name, or leave --resume_training out to \
                     start a new run",
                ));
            }
            Start::Again | Start::Resume => {}
        }
        OUTPUT_DIR.create_folder(&path)?;
        let held = Some(Held { config_yaml: config_yaml.to_owned(), _lock: lock(&path)? });
        let mut folder = Self { path, resume_point: None, held };
        // From here on the lock excludes a process that was just about to write.
        match start {
            Start::Resume => {
                folder.resume_point = Some(folder.find_checkpoint()?);
                return Ok(folder);
            }
            Start::Again if folder.checkpoints(Keep::All).latest()?.is_none() => {
                truncate_after(&folder.path.join(METRICS), 0)?;
            }
            Start::New | Start::Again => refuse_existing(&folder.path)?,
        }
        OUTPUT_DIR.write(&folder.path.join(CONFIG), config_yaml.as_bytes())?;
        Ok(folder)
    }

    /// The folder at `output_dir`, which another rank of the run has created and keeps locked; `resume_point` is the
    /// checkpoint that it found there, by step and name.
    pub(crate) fn of_first_rank(output_dir: &Path, resume_point: Option<(u64, String)>) -> Self {
        let path = output_dir.to_path_buf();
        let resume_point = resume_point.map(|(step, name)| (step, path.join(CHECKPOINTS).join(name)));
        Self { path, resume_point, held: None }
    }

    /// To be called once the configuration and data of a resumed run are known to match the checkpoint: rewrites
    /// `config.yaml` and removes the steps after the checkpoint from `metrics.jsonl`, since they will be repeated.
    /// Returns the number of lines removed; 0 for a new run, and on ranks other than the first, which leave the files
    /// alone.
    ///
    /// # Errors
    /// A file cannot be replaced.
    pub fn accept_resume(&self) -> Result<usize> {
        let (Some((step, _)), Some(held)) = (&self.resume_point, &self.held) else { return Ok(0) };
        OUTPUT_DIR.write(&self.path.join(CONFIG), held.config_yaml.as_bytes())?;
        truncate_after(&self.path.join(METRICS), *step)
    }

    /// Step and folder of the checkpoint that a resumed run starts from; `None` for a new run.
    pub fn resume_point(&self) -> Option<(u64, &Path)> {
        self.resume_point.as_ref().map(|(step, path)| (*step, path.as_path()))
    }

    /// The checkpoints of this run.
    pub fn checkpoints(&self, keep: Keep) -> CheckpointFolder {
        CheckpointFolder::new(self.path.join(CHECKPOINTS), keep)
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn find_checkpoint(&self) -> Result<(u64, PathBuf)> {
        self.checkpoints(Keep::All).latest()?.ok_or_else(|| {
            Error::file(
                self.path.join(CHECKPOINTS),
                "no complete checkpoint is here to continue from: begin again with --resume_training=auto, or start a new run \
                 with another --output_dir or --run_name",
            )
        })
    }
}

/// Whether a process trains into the run folder at `path`. Where a file system has no locks, the answer is always no.
pub(crate) fn is_in_use(path: &Path) -> bool {
    // The lock is given back at once, and a run that starts within these microseconds tries again.
    open_file(&path.join(LOCK))
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Removes the files that a new run leaves in `folder` before its first step, and the folder if nothing else is in it.
/// If the run `is_own`, this process was about to make it, and the files stay unless this process holds the lock.
/// Another thread may still be opening files there, so this returns once no file has come back for ten looks in a row.
/// Files that cannot be removed stay.
pub fn forget(folder: &Path, is_own: bool) {
    const TRIES: u32 = 50;
    const QUIET: u32 = 10;
    if is_own && std::fs::read_to_string(folder.join(LOCK)).ok() != Some(holder()) {
        return;
    }
    let files = [CONFIG, METRICS, EVENTS, LOG, REFERENCES, REPORT, LOCK];
    let mut quiet = 0;
    for _ in 0..TRIES {
        let is_left = files.iter().any(|name| folder.join(name).exists());
        quiet = if is_left { 0 } else { quiet + 1 };
        if quiet == QUIET {
            return;
        }
        for name in files {
            let _ = std::fs::remove_file(folder.join(name));
        }
        // Only empty folders are removed.
        let _ = std::fs::remove_dir(folder.join(CHECKPOINTS));
        let _ = std::fs::remove_dir(folder);
        std::thread::sleep(LOOK);
    }
}

fn refuse_existing(path: &Path) -> Result<()> {
    match [CONFIG, METRICS, CHECKPOINTS].into_iter().find(|name| path.join(name).exists()) {
        None => Ok(()),
        Some(name) => Err(Error::file(
            path,
            format!(
                "a run is here already (found {name}): continue it with --resume_training=True, or choose another \
                 --output_dir or --run_name"
            ),
        )),
    }
}

/// Takes the folder's lock and writes this process's id into the file, for the error message of the next process.
fn lock(folder: &Path) -> Result<File> {
    let unwritable = |error: io::Error| OUTPUT_DIR.error(folder, "write into this folder", &error);
    let mut options = OpenOptions::new();
    let opened = options.create(true).truncate(false).read(true).write(true).open(folder.join(LOCK));
    let mut file = opened.map_err(unwritable)?;
    let mut taken = file.try_lock();
    // Perhaps another process only looks (see `is_in_use`), and a busy machine lets it wait meanwhile.
    for _ in 0..10 {
        if !matches!(taken, Err(TryLockError::WouldBlock)) {
            break;
        }
        std::thread::sleep(LOOK);
        taken = file.try_lock();
    }
    match taken {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(locked(folder, file)),
        // Some network file systems have no locks: better a run without one than no run.
        Err(TryLockError::Error(error)) => {
            tracing::warn!(
                "{}: cannot be locked ({error}); do not start a second run here",
                folder.display()
            );
        }
    }
    let written = file.set_len(0).and_then(|()| file.write_all(holder().as_bytes()));
    written.map_err(unwritable)?;
    Ok(file)
}

/// The line about this process in the lock's file.
fn holder() -> String {
    format!("process {}\n", std::process::id())
}

fn locked(folder: &Path, mut file: File) -> Error {
    let mut holder = String::new();
    // Some systems do not let others read a locked file; the message is nearly as good without the id.
    let _ = file.read_to_string(&mut holder);
    let holder = if holder.is_empty() { "another process" } else { holder.trim_end() };
    Error::file(
        folder,
        format!(
            "{holder} is training into this folder: wait for it, or choose another folder (--output_dir, --run_name)"
        ),
    )
}

/// The part of a line of `metrics.jsonl` that matters here.
#[derive(Deserialize)]
struct Line {
    step: u64,
}

/// Removes the lines of JSON objects at `path` after `last_step` and any that a kill left incomplete, so that a resumed
/// run does not write a step twice. Returns how many lines were removed; a missing file has none.
///
/// # Errors
/// The file cannot be read or replaced.
pub(crate) fn truncate_after(path: &Path, last_step: u64) -> Result<usize> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(read_error(path, "read", &error)),
    };
    let mut removed = 0;
    let mut kept = OUTPUT_DIR.begin(path)?;
    kept.fill(|out| {
        // Split as bytes: an incomplete last line may not be UTF-8.
        for line in BufReader::new(file).split(b'\n') {
            let line = line?;
            if serde_json::from_slice::<Line>(&line).is_ok_and(|line| line.step <= last_step) {
                out.write_all(&line)?;
                out.write_all(b"\n")?;
            } else {
                removed += 1;
            }
        }
        Ok(())
    })?;
    kept.finish()?;
    Ok(removed)
}

#[cfg(test)]
mod tests;

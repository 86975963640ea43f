//! Ctrl-C and SIGTERM. A run that trains finishes its step and saves. A run that does not train yet has nothing to
//! save: it ends at once, whatever it waits for, and removes everything that would make the next start fail.
//!
//! A starting run may wait in a library that no flag reaches. So the run reports its milestones (`Milestone`), and
//! until it trains the first signal ends the process: exit code 130, one line, and the folder of a new run is removed.

use super::ranks::FIRST_SPEAKS;
use super::reading;
use crate::data::token_cache;
use crate::ranks::launcher;
use crate::report::log::say_last;
use crate::store::run_folder;
use crate::train::Milestone;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The exit code of a process that an interrupt ended, as shells report SIGINT.
const INTERRUPTED: i32 = 130;

/// The effect of an interrupt, depending on the progress of the run.
#[derive(Clone, Default)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    stage: Arc<Mutex<Stage>>,
}

enum Stage {
    /// Before the first step.
    Starting(Option<NewFolder>),
    Training,
}

/// The run folder of a new run.
struct NewFolder {
    path: PathBuf,
    /// Whether this process creates it, perhaps at this very moment.
    is_own: bool,
}

impl Default for Stage {
    fn default() -> Self {
        Self::Starting(None)
    }
}

impl Interrupt {
    /// Catches signals from here on.
    pub fn listen() -> Self {
        let interrupt = Self::default();
        let handled = interrupt.clone();
        if let Err(error) = ctrlc::set_handler(move || handled.handle()) {
            eprintln!("warning: an interrupt will not save the run: {error}");
        }
        interrupt
    }

    /// The flag that the first interrupt sets while the run trains.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.flag.clone()
    }

    /// Notes the milestone that the run has reached.
    pub fn on_milestone(&self, milestone: &Milestone<'_>) {
        match milestone {
            Milestone::CreatingFolder(folder) => self.start(folder, true),
            Milestone::FolderCreated(folder) => self.start(folder, launcher::process() == 0),
            Milestone::TrainingStarted => *self.stage() = Stage::Training,
            // Blocks while an interrupt ends the process: its files exist, and the run must not get further.
            Milestone::FolderOpened(_) => self.wait_while_ending(),
        }
    }

    /// Blocks while an interrupt ends the process: failures in the meantime, caused by the removal of the folder, are
    /// not reported.
    pub fn wait_while_ending(&self) {
        drop(self.stage());
    }

    fn start(&self, folder: &Path, is_own: bool) {
        *self.stage() = Stage::Starting(Some(NewFolder { path: folder.to_path_buf(), is_own }));
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self) {
        // If the other processes were interrupted too, the first one prints its line and its end ends the others.
        if launcher::process() > 0 && matches!(*self.stage(), Stage::Starting(_)) {
            std::thread::sleep(FIRST_SPEAKS);
        }
        // Held until the process has ended, so that the run gets no further.
        let stage = self.stage();
        if let Stage::Starting(folder) = &*stage {
            leave(folder.as_ref());
        }
        if self.flag.swap(true, Ordering::Relaxed) {
            exit(INTERRUPTED);
        }
        if launcher::process() == 0 {
            eprintln!("finishing the step and saving; interrupt again to exit at once");
        }
    }
}

/// Ends the process before the first step.
fn leave(folder: Option<&NewFolder>) -> ! {
    if let Some(NewFolder { path, is_own }) = folder {
        run_folder::forget(path, *is_own);
    }
    reading::hide();
    token_cache::forget_unfinished();
    say_last("interrupted before the first step; nothing was trained");
    exit(INTERRUPTED);
}

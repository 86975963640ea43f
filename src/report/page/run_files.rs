//! The files of a run folder as the data of a page. What has been read is not read again, so a run can be followed.

use std::io;
use std::path::{Path, PathBuf};

use super::curves::Curves;
use super::journal::Journal;
use super::run_data::RunData;
use super::settings_table::SettingsTable;
use super::state::State;
use super::tail::Tail;
use crate::durable::read_error;
use crate::error::{Error, Result};
use crate::store::run_folder::{self, CONFIG, LOG, METRICS};

/// A run folder, and what has been read of it.
#[derive(Debug)]
pub struct RunFiles {
    folder: PathBuf,
    metrics: Tail,
    log: Tail,
    pub(super) curves: Curves,
    pub(super) journal: Journal,
    pub(super) settings: SettingsTable,
    /// Generations of curves that were read before `metrics.jsonl` was replaced.
    past_generations: u64,
}

/// What a reader of the data has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The last step.
    pub step: u64,
    /// What [`RunFiles::generation`] was.
    pub generation: u64,
}

impl RunFiles {
    /// Reads the files in `folder` as they are now. Each may be missing, end within a line, or be of another version.
    ///
    /// # Errors
    /// There is no such folder; a file in it cannot be read.
    pub fn open(folder: &Path) -> Result<Self> {
        if !folder.is_dir() {
            return Err(Error::file(folder, "no such folder; name the folder of a run, such as output/tiny"));
        }
        let mut files = Self {
            folder: folder.to_path_buf(),
            metrics: Tail::new(&folder.join(METRICS)),
            log: Tail::new(&folder.join(LOG)),
            curves: Curves::default(),
            journal: Journal::default(),
            settings: SettingsTable::read(&folder.join(CONFIG)),
            past_generations: 0,
        };
        files.refresh()?;
        Ok(files)
    }

    /// Reads what was written since the last time.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn refresh(&mut self) -> Result<()> {
        let unreadable = |name: &str| {
            let path = self.folder.join(name);
            move |error: io::Error| read_error(path, "read", &error)
        };
        let (of_metrics, of_log) = (unreadable(METRICS), unreadable(LOG));
        if self.metrics.is_replaced() {
            self.metrics = Tail::new(&self.folder.join(METRICS));
            self.past_generations = self.generation() + 1;
            self.curves = Curves::default();
            self.settings = SettingsTable::read(&self.folder.join(CONFIG));
        }
        if self.log.is_replaced() {
            self.log = Tail::new(&self.folder.join(LOG));
            self.journal = Journal::default();
        }
        self.metrics.read(|line| self.curves.take(line)).map_err(of_metrics)?;
        self.log.read(|line| self.journal.take(line)).map_err(of_log)
    }

    /// The last step; none before the first.
    pub fn step(&self) -> Option<u64> {
        self.curves.step
    }

    /// Changes whenever what was read before is not only continued: a reader must then start anew.
    pub fn generation(&self) -> u64 {
        self.past_generations + self.curves.generation
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The data of the page: all of it, or what follows what a reader knows. `is_running` says whether the run goes on; without
    /// it the folder's lock does.
    pub(super) fn data(&self, known: Option<Known>, is_running: Option<bool>) -> RunData<'_> {
        let known = known.filter(|known| known.generation == self.generation());
        let is_running = is_running.unwrap_or_else(|| run_folder::is_in_use(&self.folder));
        let state = State::of(&self.journal, is_running, self.step());
        RunData::new(self, state, self.metrics.has_unfinished_line && !is_running, known)
    }
}

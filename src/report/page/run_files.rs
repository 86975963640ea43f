//! The files of a run folder as the data of a page. A part that has been read is not read again, so a run can be
//! followed.

use std::path::{Path, PathBuf};

use super::curves::Curves;
use super::history::History;
use super::run_data::RunData;
use super::settings_table::SettingsTable;
use super::state::State;
use super::tail::Tail;
use crate::error::{Error, Result};
use crate::store::checkpoint_folder::{Best, CHECKPOINTS, CheckpointFolder};
use crate::store::run_folder::{self, CONFIG, EVENTS, METRICS};

/// A run folder, and the data read from it so far.
#[derive(Debug)]
pub struct RunFiles {
    folder: PathBuf,
    metrics: Tail,
    events: Tail,
    pub(super) curves: Curves,
    pub(super) history: History,
    pub(super) settings: SettingsTable,
    /// Sum of the generations of curves read before `metrics.jsonl` was replaced.
    past_generations: u64,
}

/// The part of the data that a reader already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The last step.
    pub step: u64,
    /// The value of [`RunFiles::generation`] at that time.
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
            metrics: Tail::new(folder.join(METRICS)),
            events: Tail::new(folder.join(EVENTS)),
            curves: Curves::default(),
            history: History::default(),
            settings: SettingsTable::read(&folder.join(CONFIG)),
            past_generations: 0,
        };
        files.refresh()?;
        Ok(files)
    }

    /// Reads the lines written since the last call.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        if self.metrics.restart() {
            self.past_generations = self.generation() + 1;
            self.curves = Curves::default();
            self.settings = SettingsTable::read(&self.folder.join(CONFIG));
        }
        if self.events.restart() {
            self.history = History::default();
        }
        self.metrics.read(|line| self.curves.take(line))?;
        self.events.read(|line| self.history.take(line))
    }

    /// The last step; none before the first.
    pub fn step(&self) -> Option<u64> {
        self.curves.step
    }

    /// Changes whenever earlier data is changed and not only continued: a reader must then start anew.
    pub fn generation(&self) -> u64 {
        self.past_generations + self.curves.generation
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The data of the page: all of it, or what follows the part that a reader knows. `is_running` says whether the run
    /// is running; without it the folder's lock decides.
    pub(super) fn data(&self, known: Option<Known>, is_running: Option<bool>) -> RunData<'_> {
        let known = known.filter(|known| known.generation == self.generation());
        let is_running = is_running.unwrap_or_else(|| run_folder::is_in_use(&self.folder));
        let total = self.history.total_steps.or_else(|| self.settings.stop_step());
        let state = State::of(&self.history, is_running, total, self.step());
        let mut gaps = [&self.metrics, &self.events].map(|file| file.gaps.clone());
        // While a run is running, its last line may be unfinished.
        gaps.iter_mut().for_each(|gaps| gaps.is_last_line_unfinished &= !is_running);
        RunData::new(self, state, gaps, known)
    }

    /// The best checkpoint, as the run has noted it.
    pub(super) fn best(&self) -> Option<Best> {
        Some(self.checkpoints()?.best().ok()??.0)
    }

    /// The step of the newest checkpoint.
    pub(super) fn newest_checkpoint(&self) -> Option<u64> {
        Some(self.checkpoints()?.latest().ok()??.0)
    }

    /// The checkpoints of the run. A link is not followed, since it might lead out of the folder.
    fn checkpoints(&self) -> Option<CheckpointFolder> {
        (!self.folder.join(CHECKPOINTS).is_symlink()).then(|| CheckpointFolder::of_run(&self.folder))
    }
}

//! A run that is complete: its folder says so, and starting it again neither reads its data nor opens a device.
//!
//! It is if its configuration is the one that it ended with, its last event is its end, and its files are not newer than its last
//! checkpoint. Whatever else there is to do is done on the way of every run: other settings, data that have changed, a note that a kill
//! has left out.

use super::announce::{Summary, announce_complete, announce_files};
use super::command::CommandLine;
use super::length::RunLength;
use crate::error::Result;
use crate::report::events::{Event, Line};
use crate::settings::{Dataset, Resume, RunPlan};
use crate::store::checkpoint::STATE;
use crate::store::checkpoint_folder::{Best, CheckpointFolder};
use crate::store::run_folder::{CHECKPOINTS, CONFIG, EVENTS, REPORT, open_file};
use crate::store::trainer_state::TrainerState;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A complete run, as its folder tells of it.
#[derive(Serialize, Deserialize)]
pub(super) struct Complete {
    step: u64,
    total_steps: u64,
    steps_per_epoch: u64,
    checkpoint: PathBuf,
    best: Option<Best>,
    evaluations_since: u64,
}

impl Complete {
    /// The run of `plan`, if it is to be continued and is complete already.
    ///
    /// # Errors
    /// A checkpoint that cannot be read.
    pub fn find(plan: &RunPlan) -> Result<Option<Self>> {
        let run = &plan.settings.run;
        if !matches!(run.resume_training, Resume::Latest | Resume::Auto | Resume::Extended) {
            return Ok(None);
        }
        let folder = run.folder();
        let checkpoints = CheckpointFolder::new(folder.join(CHECKPOINTS), 0);
        let Some((step, checkpoint)) = checkpoints.latest()? else { return Ok(None) };
        let read = |name: &str| open_file(&folder.join(name)).and_then(std::io::read_to_string).ok();
        let is_same = read(CONFIG).is_some_and(|there| settings_of(&there).eq(settings_of(&plan.to_yaml())));
        let Some((total_steps, steps_per_epoch)) =
            read(EVENTS).filter(|_| is_same).and_then(|all| end_of(&all))
        else {
            return Ok(None);
        };
        let state = TrainerState::load(&checkpoint.join(STATE))?;
        let is_over = step >= total_steps || run.stops_after(state.evaluations_since);
        let is_noted = !run.keep_best || checkpoints.best()?.map(|(best, _)| best) == state.best;
        let datasets = [Some(&plan.settings.train_dataset), plan.settings.eval_dataset.as_ref()];
        let since = modified(&checkpoint.join(STATE));
        let has_changed = datasets
            .into_iter()
            .flatten()
            .flat_map(Dataset::paths)
            .any(|path| modified(Path::new(path)).zip(since).is_some_and(|(data, since)| data > since));
        let TrainerState { best, evaluations_since, .. } = state;
        let complete = Self { step, total_steps, steps_per_epoch, checkpoint, best, evaluations_since };
        Ok(Some(complete).filter(|_| is_over && is_noted && !has_changed))
    }

    /// Says that it is complete, how `command` goes on with it, and what it has left.
    pub fn announce(self, plan: &RunPlan, command: &CommandLine) -> Summary {
        let Self { step, total_steps, steps_per_epoch, checkpoint, .. } = &self;
        let length = RunLength { total_steps: *total_steps, ..RunLength::new(plan, *steps_per_epoch) };
        announce_complete(plan, &length, *step, self.evaluations_since, checkpoint, command);
        let report = Some(plan.settings.run.folder().join(REPORT)).filter(|report| report.exists());
        let summary = self.summary(plan);
        announce_files(plan, command, &summary, report.as_deref());
        summary
    }

    /// What it reports.
    pub fn summary(self, plan: &RunPlan) -> Summary {
        Summary {
            steps: self.step,
            best: self.best.filter(|_| plan.settings.run.judges_evaluations()),
            is_stopped: plan.settings.run.stops_after(self.evaluations_since),
            checkpoint: Some(self.checkpoint),
            ..Summary::default()
        }
    }
}

/// The lines of a configuration but for the one that says whether the run continues.
fn settings_of(yaml: &str) -> impl Iterator<Item = &str> {
    yaml.lines().filter(|line| !line.starts_with("resume_training:"))
}

/// Steps of the run and of its epochs, if the last of its `events` is its end.
fn end_of(events: &str) -> Option<(u64, u64)> {
    let mut events = events.lines().rev().map(|line| serde_json::from_str::<Line>(line).ok());
    let last = events.next()??;
    let start = events.flatten().find_map(|line| match line.event {
        Event::Start { total_steps, steps_per_epoch, .. } => Some((total_steps, steps_per_epoch?)),
        _ => None,
    });
    start.filter(|_| last.event == Event::Complete)
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|data| data.modified()).ok()
}

//! Where a run starts: at step 0, or at its newest checkpoint. From there it continues as it was begun or, if it is
//! extended, with other schedules.

use super::announce::Milestone;
use super::command::CommandLine;
use super::length::RunLength;
use super::trainer::Trainer;
use crate::data::{Batches, DataHashes, DocumentRules};
use crate::error::{Error, Result};
use crate::ops::loss_scale::LossScaleState;
use crate::ops::step_state::StepState;
use crate::ranks::Ranks;
use crate::settings::{Resume, Run, RunPlan, default_decision};
use crate::store::Base;
use crate::store::checkpoint::STATE;
use crate::store::checkpoint_folder::CheckpointFolder;
use crate::store::run_folder::{RunFolder, Start};
use crate::store::shared_folder::unseen;
use crate::store::trainer_state::{Differing, FORMAT_VERSION, TrainerState};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// How a run of `settings` starts. With `auto` the contents of its folder decide.
///
/// # Errors
/// A folder of checkpoints that cannot be read.
pub(super) fn start_of(settings: &Run) -> Result<Start> {
    match settings.resume_training {
        Resume::No => Ok(Start::New),
        Resume::Latest | Resume::Extended | Resume::Named(_) => Ok(Start::Resume),
        Resume::Auto => {
            let checkpoints = CheckpointFolder::of_run(settings.folder());
            Ok(if checkpoints.latest()?.is_some() { Start::Resume } else { Start::Again })
        }
    }
}

/// The state of a new run on `data`; its hashes are known if the data were read to the end. A checkpoint must match
/// this state in everything but its counters.
pub(super) fn fresh_state(
    plan: &RunPlan,
    length: &RunLength,
    data: &Batches,
    hashes: Option<DataHashes>,
) -> TrainerState {
    TrainerState {
        format_version: FORMAT_VERSION,
        step: 0,
        global_step: 0,
        micro_step: 0,
        loss_scale: plan.settings.wrapper.scale_sense.loss_scale_value,
        scaler: None,
        data_fingerprint: data.fingerprint(),
        data_hash: hashes.map(|hashes| hashes.train),
        eval_data_hash: hashes.and_then(|hashes| hashes.eval),
        best: None,
        evaluations_since: 0,
        total_steps: Some(length.total_steps),
        decisions: decisions(plan, length, data.rules()),
    }
}

/// Opens the folder of a run at `path`, whose configuration is `yaml`. The first rank creates or opens it, and the
/// others learn where the run continues. `on_milestone` is called before the folder is created, since from then on it
/// makes the next start fail.
///
/// # Errors
/// As [`RunFolder::create`].
pub(super) async fn open_folder(
    ranks: &Ranks,
    path: &Path,
    yaml: &str,
    start: Start,
    on_milestone: &mut (impl FnMut(Milestone<'_>) + ?Sized),
) -> Result<RunFolder> {
    let mut made = None;
    let resume_point = ranks.by_first(|| {
        if start == Start::New {
            on_milestone(Milestone::CreatingFolder(path));
        }
        let folder = made.insert(RunFolder::create(path, yaml, start)?);
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(folder.resume_point().map(|(step, path)| (step, name(path))))
    });
    let resume_point = resume_point.await?;
    if start == Start::New && made.is_none() {
        on_milestone(Milestone::FolderCreated(path));
    }
    Ok(made.unwrap_or_else(|| RunFolder::of_first_rank(path, resume_point)))
}

/// The point from which a run continues.
pub(super) struct Restored {
    pub state: TrainerState,
    /// The weights that the adapters are trained on, if they came from files.
    pub base: Option<Base>,
    /// The changes that an extended run makes from here on.
    pub changes: Vec<String>,
}

/// Loads the checkpoint that `folder` resumes from onto the devices of all ranks. Returns its state and the base of the
/// adapters that it names; for a new run, returns `fresh` and `base`. `command` has started the run.
///
/// # Errors
/// A checkpoint that is damaged, is of another run, or is not the one that the run names; a rank that does not see it.
pub(super) async fn restore(
    trainer: &mut Trainer<'_>,
    ranks: &Ranks,
    folder: &RunFolder,
    (fresh, base): (TrainerState, Option<Base>),
    command: &CommandLine,
) -> Result<Restored> {
    let Some((_, newest)) = folder.resume_point() else {
        return Ok(Restored { state: fresh, base, changes: Vec::new() });
    };
    let (plan, length) = (&trainer.plan, &trainer.length);
    if let Resume::Named(name) = &plan.settings.run.resume_training
        && !newest.ends_with(name)
    {
        let message = format!(
            "a run continues from its newest checkpoint, which is not `{name}`: remove the later ones"
        );
        return Err(Error::file(newest, message));
    }
    let moved = plan.settings.run.weights();
    let loaded = changes(newest, &fresh, plan, length, command).and_then(|changes| {
        // Settings that the run changes are compared as the checkpoint has them until it is loaded.
        let expected = TrainerState { decisions: changes.as_begun(&fresh), ..fresh.clone() };
        let (state, base) = load(trainer, newest, &expected, moved)?;
        check_counters(&state, plan.micro_batches_per_step() as u64, newest)?;
        Ok((changes, state, base))
    });
    let (changes, mut state, base) = ranks.agree(loaded).await?;
    ranks.by_first(|| folder.accept_resume().map(drop)).await?;
    trainer.set_state(&StepState {
        loss_scale: state.loss_scale as f32,
        global_step: state.global_step as u32,
        step: state.step as u32,
        ..StepState::default()
    });
    if let Some(scaler) = &state.scaler {
        let loss_scale = state.loss_scale as f32;
        trainer.set_scaler(&LossScaleState { loss_scale, used: loss_scale, ..*scaler });
    }
    let changes = changes.applied_to(&mut state, &fresh);
    Ok(Restored { state, base, changes })
}

/// Settings of schedules in which a run differs from the checkpoint that it continues.
#[derive(Default)]
struct Changes {
    differing: Vec<Differing>,
    /// All settings of schedules in the checkpoint.
    begun: BTreeMap<String, Value>,
    /// Steps of the run before and now, if they differ.
    steps: Option<[u64; 2]>,
}

/// Whether a decision belongs to a schedule, which determines later steps but not those before.
pub(crate) fn is_of_schedule(key: &str) -> bool {
    let is_within = ["lr_schedule.", "grouped_lr_schedule."].iter().any(|section| key.starts_with(section));
    // A group also says which parameters it has, and how they decay.
    is_within && ![".params", ".weight_decay"].iter().any(|end| key.ends_with(end))
}

/// The changes that the run of `fresh` makes to the schedules of `checkpoint`: none, unless `plan`, a run of this
/// `length`, extends it.
///
/// # Errors
/// Schedules that are the only difference, if the run does not extend; a run that would end before the checkpoint.
fn changes(
    checkpoint: &Path,
    fresh: &TrainerState,
    plan: &RunPlan,
    length: &RunLength,
    command: &CommandLine,
) -> Result<Changes> {
    if !checkpoint.is_dir() {
        return Err(unseen(checkpoint));
    }
    let there = TrainerState::load(&checkpoint.join(STATE))?;
    let differing = there.differing(fresh, default_decision);
    let (differing, others): (Vec<_>, Vec<_>) =
        differing.into_iter().partition(|one| is_of_schedule(&one.key));
    if plan.settings.run.resume_training != Resume::Extended {
        if differing.is_empty() || !others.is_empty() {
            return Ok(Changes::default());
        }
        let (said, step, more) =
            (shown(&differing).join(", "), there.step, command.beyond(there.step, plan, length));
        let on = match length.total_steps > step {
            true => format!("train on with this one from step {step}"),
            false => format!("train on longer than this one says, since step {step} is done,"),
        };
        let message = format!("{said}: continue with the configuration of the checkpoint, or {on} by {more}");
        return Err(Error::file(checkpoint, message));
    }
    let steps =
        there.total_steps.map(|steps| [steps, length.total_steps]).filter(|[before, now]| before != now);
    if length.total_steps <= there.step && (steps.is_some() || !differing.is_empty()) {
        let message = format!(
            "is of step {}, and the run would have {} steps: give more epochs or steps to extend it",
            there.step, length.total_steps
        );
        return Err(Error::file(checkpoint, message));
    }
    let begun = there.decisions.into_iter().filter(|(key, _)| is_of_schedule(key)).collect();
    Ok(Changes { differing, begun, steps })
}

/// Each setting, in the checkpoint and in this run.
fn shown(differing: &[Differing]) -> Vec<String> {
    differing
        .iter()
        .map(|Differing { key, there, here }| format!("{key} is {there} there, {here} here"))
        .collect()
}

impl Changes {
    /// The decisions of `fresh`, with the schedules of the checkpoint.
    fn as_begun(&self, fresh: &TrainerState) -> BTreeMap<String, Value> {
        let mut decisions = fresh.decisions.clone();
        if !self.differing.is_empty() {
            decisions.retain(|key, _| !is_of_schedule(key));
            decisions.extend(self.begun.clone());
        }
        decisions
    }

    /// Makes `state` continue with the settings of `fresh`, and returns phrases about the changes.
    fn applied_to(self, state: &mut TrainerState, fresh: &TrainerState) -> Vec<String> {
        state.decisions.clone_from(&fresh.decisions);
        state.total_steps = fresh.total_steps;
        let mut said: Vec<String> =
            self.steps.map(|[before, now]| format!("{now} steps in place of {before}")).into_iter().collect();
        // The number of steps already says it.
        let is_told = |one: &&Differing| !(self.steps.is_some() && one.key.ends_with(".total_steps"));
        let changed = self.differing.iter().filter(is_told);
        said.extend(
            changed.map(|Differing { key, there, here }| format!("{key} {here} in place of {there}")),
        );
        if !said.is_empty() {
            state.evaluations_since = 0;
        }
        said
    }
}

/// Loads `checkpoint`, whose base may have been moved to `moved`. Returns its state, which must match the state of the
/// run, and that base.
fn load(
    trainer: &Trainer<'_>,
    checkpoint: &Path,
    fresh: &TrainerState,
    moved: Option<&Path>,
) -> Result<(TrainerState, Option<Base>)> {
    let (state, base) = trainer.load(checkpoint, fresh, moved)?;
    state.scaler.iter().try_for_each(|scaler| check_scaler(trainer, scaler, checkpoint))?;
    Ok((state, base))
}

/// Refuses counters that no run with `micro_batches` per step has: the device counts in 32 bits.
fn check_counters(state: &TrainerState, micro_batches: u64, checkpoint: &Path) -> Result<()> {
    let TrainerState { step, global_step, micro_step, .. } = *state;
    let is_counted = step.checked_mul(micro_batches) == Some(micro_step);
    if step <= u32::MAX.into() && global_step <= step && is_counted {
        return Ok(());
    }
    let message = format!(
        "is damaged: after {step} steps it cannot have {global_step} updates and {micro_step} micro-batches, {micro_batches} a step; \
         continue from another checkpoint"
    );
    Err(Error::file(checkpoint, message))
}

/// Refuses a state outside the list of windows, which no run of these settings leaves behind.
fn check_scaler(trainer: &Trainer<'_>, scaler: &LossScaleState, checkpoint: &Path) -> Result<()> {
    let windows = trainer.recordings().tensors.scaler.map_or(0, |scaler| scaler.windows.cols);
    let is_listed =
        (-1..i64::from(windows)).contains(&scaler.index.into()) && scaler.last_change < scaler.step;
    if is_listed && scaler.increases.max(scaler.decreases) < 4 {
        return Ok(());
    }
    let message = format!(
        "is damaged: its loss scale cannot be at window {} of {windows}; continue from another checkpoint",
        scaler.index
    );
    Err(Error::file(checkpoint, message))
}

/// The decisions that determine the numbers of the run: its settings, and values that follow from the data.
fn decisions(plan: &RunPlan, length: &RunLength, rules: &DocumentRules) -> BTreeMap<String, Value> {
    let mut decisions = plan.decisions();
    // Lengths are in steps, whatever unit they were written in.
    let groups =
        (0..plan.settings.groups.len()).map(|number| format!("grouped_lr_schedule.grouped.{number}"));
    let base = if plan.settings.groups.is_empty() { "lr_schedule" } else { "grouped_lr_schedule.default" };
    let schedules = [&length.schedule].into_iter().chain(&length.group_schedules);
    for (path, schedule) in [base.to_string()].into_iter().chain(groups).zip(schedules) {
        for key in ["warmup_ratio", "warmup_epochs"] {
            decisions.remove(&format!("{path}.{key}"));
        }
        decisions.insert(format!("{path}.warmup_steps"), schedule.warmup_steps().into());
        let total_steps = format!("{path}.total_steps");
        match schedule.depends_on_length() {
            true => decisions.insert(total_steps, schedule.total_steps().into()),
            false => decisions.remove(&total_steps),
        };
    }
    // The token that ends documents may come from the tokenizer, and has no effect if nothing depends on their ends.
    let eod = "train_dataset.eod_token_id".to_string();
    match rules.eod.filter(|_| rules.need_eod()) {
        Some(id) => decisions.insert(eod, id.into()),
        None => decisions.remove(&eod),
    };
    decisions
}

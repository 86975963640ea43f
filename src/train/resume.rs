//! Where a run starts: at step 0, or at its newest checkpoint.

use super::announce::Milestone;
use super::length::RunLength;
use super::trainer::Trainer;
use crate::data::{Dataset, DocumentRules};
use crate::error::{Error, Result};
use crate::ops::loss_scale::LossScaleState;
use crate::ops::step_state::StepState;
use crate::ranks::Ranks;
use crate::settings::{Resume, Run, RunPlan};
use crate::store::Base;
use crate::store::checkpoint_folder::CheckpointFolder;
use crate::store::run_folder::{CHECKPOINTS, RunFolder, Start};
use crate::store::shared_folder::unseen;
use crate::store::trainer_state::{FORMAT_VERSION, TrainerState};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// How a run of `settings` starts, which `auto` leaves to what its folder holds.
///
/// # Errors
/// A folder of checkpoints that cannot be read.
pub(super) fn start_of(settings: &Run) -> Result<Start> {
    match settings.resume_training {
        Resume::No => Ok(Start::New),
        Resume::Latest | Resume::Named(_) => Ok(Start::Resume),
        Resume::Auto => {
            let checkpoints = CheckpointFolder::new(settings.folder().join(CHECKPOINTS), 0);
            Ok(if checkpoints.latest()?.is_some() { Start::Resume } else { Start::Again })
        }
    }
}

/// The state of a new run. A checkpoint must match it in everything but its counters.
pub(super) fn fresh_state(plan: &RunPlan, length: &RunLength, data: &Dataset) -> TrainerState {
    let hashes = data.hashes();
    TrainerState {
        format_version: FORMAT_VERSION,
        step: 0,
        global_step: 0,
        micro_step: 0,
        loss_scale: plan.settings.wrapper.scale_sense.loss_scale_value,
        scaler: None,
        data_fingerprint: data.train.fingerprint(),
        data_hash: hashes.map(|hashes| hashes.train),
        eval_data_hash: hashes.and_then(|hashes| hashes.eval),
        best: None,
        evaluations_since: 0,
        decisions: decisions(plan, length, data.train.rules()),
    }
}

/// The folder of the run of `plan`. The first rank makes or opens it, and the others learn where the run goes on. `on_milestone` is
/// called before it is made, since from then on it refuses the next start.
///
/// # Errors
/// Those of [`RunFolder::create`].
pub(super) async fn open_folder(
    ranks: &Ranks,
    plan: &RunPlan,
    start: Start,
    on_milestone: &mut dyn FnMut(Milestone<'_>),
) -> Result<RunFolder> {
    let path = plan.settings.run.folder();
    let mut made = None;
    let resume_point = ranks.by_first(|| {
        if start == Start::New {
            on_milestone(Milestone::CreatingFolder(&path));
        }
        let folder = made.insert(RunFolder::create(&path, &plan.to_yaml(), start)?);
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(folder.resume_point().map(|(step, path)| (step, name(path))))
    });
    let resume_point = resume_point.await?;
    if start == Start::New && made.is_none() {
        on_milestone(Milestone::FolderCreated(&path));
    }
    Ok(made.unwrap_or_else(|| RunFolder::of_first_rank(&path, resume_point)))
}

/// Loads the checkpoint that `folder` resumes from onto the devices of all ranks and returns its state and the base of
/// adapters that it names; for a new run, returns `fresh` and `base`.
///
/// # Errors
/// A checkpoint that is damaged, is of another run, or is not the one that the run names; a rank that does not see it.
pub(super) async fn restore(
    trainer: &Trainer<'_>,
    ranks: &Ranks,
    folder: &RunFolder,
    plan: &RunPlan,
    fresh: TrainerState,
    base: Option<Base>,
) -> Result<(TrainerState, Option<Base>)> {
    let Some((_, newest)) = folder.resume_point() else { return Ok((fresh, base)) };
    if let Resume::Named(name) = &plan.settings.run.resume_training
        && !newest.ends_with(name)
    {
        let message = format!(
            "a run continues from its newest checkpoint, which is not `{name}`: remove the later ones"
        );
        return Err(Error::file(newest, message));
    }
    let moved = plan.settings.run.weights();
    let loaded = load(trainer, newest, &fresh, moved).and_then(|(state, base)| {
        check_counters(&state, plan.micro_batches_per_step() as u64, newest)?;
        Ok((state, base))
    });
    let (state, base) = ranks.agree(loaded).await?;
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
    Ok((state, base))
}

/// Loads `checkpoint`, whose base may be at `moved`, and returns its state, which must match that of the run, and that base.
fn load(
    trainer: &Trainer<'_>,
    checkpoint: &Path,
    fresh: &TrainerState,
    moved: Option<&Path>,
) -> Result<(TrainerState, Option<Base>)> {
    if !checkpoint.is_dir() {
        return Err(unseen(checkpoint));
    }
    let (state, base) = trainer.load(checkpoint, fresh, moved)?;
    state.scaler.iter().try_for_each(|scaler| check_scaler(trainer, scaler, checkpoint))?;
    Ok((state, base))
}

/// Refuses counters that no run of `micro_batches` a step has: the device counts in 32 bits.
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

/// Refuses a state that would lead out of the list of windows, which no run of these settings left.
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

/// What decides the numbers of the run: its settings, and what of them follows from the data.
fn decisions(plan: &RunPlan, length: &RunLength, rules: &DocumentRules) -> BTreeMap<String, Value> {
    let mut decisions = plan.decisions();
    // Lengths count in steps, whatever they were written in.
    let groups = (0..).map(|number| format!("grouped_lr_schedule.grouped.{number}"));
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
    // The token that ends documents may be the tokenizer's, and has no effect where nothing depends on their ends.
    let eod = "train_dataset.eod_token_id".to_string();
    match rules.eod.filter(|_| rules.need_eod()) {
        Some(id) => decisions.insert(eod, id.into()),
        None => decisions.remove(&eod),
    };
    decisions
}

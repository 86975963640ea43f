//! Where a run starts: at step 0, or at its newest checkpoint.

use super::model_fingerprint;
use super::optimizer::{MuonConfig, OptimizerKind};
use super::settings::settings;
use super::state::StepState;
use super::trainer::Trainer;
use crate::config::{Resume, RunLength, RunPlan};
use crate::data::Batches;
use crate::error::{Error, Result};
use crate::store::run_folder::RunFolder;
use crate::store::trainer_state::{FORMAT_VERSION, TrainerState};
use std::collections::BTreeMap;

/// The state of a new run. A checkpoint must match it in everything but its counters.
pub(super) fn fresh_state(plan: &RunPlan, length: &RunLength, data: &Batches) -> TrainerState {
    TrainerState {
        format_version: FORMAT_VERSION,
        step: 0,
        global_step: 0,
        micro_step: 0,
        seed: plan.seed,
        loss_scale: plan.loss_scale,
        data_fingerprint: data.fingerprint(),
        settings: Some(settings(plan, data.rules())),
        model: fingerprint(plan, length),
        schedule: serde_json::json!({
            "type": format!("{:?}", plan.schedule.decay),
            "learning_rate": plan.schedule.learning_rate,
            "lr_end": plan.schedule.lr_end,
            "warmup_lr_init": plan.schedule.warmup_lr_init,
            "warmup_steps": length.schedule.warmup_steps(),
            "total_steps": length.schedule.total_steps(),
        }),
    }
}

/// Loads the checkpoint that `folder` resumes from onto the device and returns its state; for a new run, returns
/// `fresh`.
///
/// # Errors
/// A checkpoint that is damaged, is of another run, or is not the one that `resume` names.
pub(super) fn restore(
    trainer: &Trainer<'_>,
    folder: &RunFolder,
    resume: &Resume,
    fresh: TrainerState,
) -> Result<TrainerState> {
    let Some((_, newest)) = folder.resume_point() else { return Ok(fresh) };
    if let Resume::Named(name) = resume
        && !newest.ends_with(name)
    {
        let message = format!(
            "a run continues from its newest checkpoint, which is not `{name}`: remove the later ones"
        );
        return Err(Error::file(newest, message));
    }
    let state = trainer.load(newest, &fresh)?;
    folder.accept_resume()?;
    trainer.set_state(&StepState {
        loss_scale: state.loss_scale as f32,
        global_step: state.global_step as u32,
        step: state.step as u32,
        ..StepState::default()
    });
    Ok(state)
}

/// Everything that decides the numbers of a step, for the comparison when a run resumes.
fn fingerprint(plan: &RunPlan, length: &RunLength) -> BTreeMap<String, serde_json::Value> {
    let (data, optimizer) = (&plan.train_dataset, &plan.optimizer);
    let entries: [(&str, serde_json::Value); 8] = [
        ("batch_size", plan.batch_size.into()),
        ("gradient_accumulation_steps", plan.gradient_accumulation_steps.into()),
        ("max_grad_norm", plan.clip.into()),
        ("shuffle", data.shuffle.into()),
        ("train_dataset.seed", data.seed.into()),
        ("optimizer.betas", vec![optimizer.beta1, optimizer.beta2].into()),
        ("optimizer.eps", optimizer.eps.into()),
        ("optimizer.weight_decay", optimizer.weight_decay.into()),
    ];
    let mut fingerprint: BTreeMap<_, _> =
        entries.into_iter().map(|(key, value)| (key.to_string(), value)).collect();
    fingerprint.extend(model_fingerprint::entries(&plan.model));
    // What a plain run does not have is not said, so that checkpoints from before it was known still match.
    let mut say = |key: &str, value: serde_json::Value| fingerprint.insert(key.to_string(), value);
    if optimizer.kind != OptimizerKind::AdamW {
        say("optimizer.type", optimizer.kind.name().into());
    }
    if let OptimizerKind::Muon(MuonConfig { momentum, nesterov, ns_steps, matched_adamw_rms }) =
        optimizer.kind
    {
        say("optimizer.momentum", momentum.into());
        say("optimizer.nesterov", nesterov.into());
        say("optimizer.ns_steps", ns_steps.into());
        say("optimizer.matched_adamw_rms", matched_adamw_rms.into());
    }
    if plan.schedule.scale != 1.0 {
        say("lr_schedule.lr_scale", plan.schedule.scale.into());
    }
    let patterns = [
        ("freeze", &plan.freeze),
        ("freeze_exclude", &plan.freeze_exclude),
        ("no_decay_params", &plan.no_decay_params),
    ];
    for (key, patterns) in patterns.into_iter().filter(|(_, patterns)| !patterns.is_empty()) {
        say(key, patterns.clone().into());
    }
    for (number, (group, schedule)) in plan.groups.iter().zip(&length.group_schedules).enumerate() {
        let written = serde_json::json!({
            "params": group.params,
            "schedule": format!("{:?}", group.schedule),
            "warmup_steps": schedule.warmup_steps(),
            "total_steps": schedule.total_steps(),
            "weight_decay": group.weight_decay,
        });
        say(&format!("grouped_lr_schedule.grouped.{number}"), written);
    }
    fingerprint
}

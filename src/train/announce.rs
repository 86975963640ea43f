//! Messages of a run about itself: milestones of its start; the log lines before the first step, about adapter, model,
//! memory, and the numbers that MFU and losses are compared with; and the lines at the end.

use super::command::CommandLine;
use super::length::RunLength;
use super::trainer::Trainer;
use crate::data::{Batches, plural};
use crate::error::shell_word;
use crate::hugging_face::export;
use crate::model::count;
use crate::model::parameters::{Gpt, Spec};
use crate::perf::peak::Peak;
use crate::report::events::Event;
use crate::report::log::Log;
use crate::settings::{ABOUT_LAZY_INLINE, BaseType, LAZY_INLINE, Resume, Run, RunPlan, Sample};
use crate::store::checkpoint::STATE;
use crate::store::checkpoint_folder::{Best, CheckpointFolder};
use crate::store::trainer_state::TrainerState;
use std::path::{Path, PathBuf};

/// A milestone that a run has reached on a rank.
#[derive(Clone, Copy, Debug)]
pub enum Milestone<'a> {
    /// The first rank is about to create the run folder.
    CreatingFolder(&'a Path),
    /// The first rank has created the run folder; reported on the other ranks.
    FolderCreated(&'a Path),
    /// The log continues in the run folder; only on the first rank.
    FolderOpened(&'a Path),
    /// The first step begins.
    TrainingStarted,
}

/// The outcome of a finished run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Steps done in all, including those before a resume.
    pub steps: u64,
    /// Mean loss of the last step in nats per token, if there was one.
    pub loss: Option<f32>,
    /// The last evaluation's loss in nats per token.
    pub eval_loss: Option<f32>,
    /// The loss of the evaluation before the first step, if this call made one.
    pub start_eval_loss: Option<f32>,
    /// The best evaluation, if evaluations have consequences.
    pub best: Option<Best>,
    /// Whether the run ended early because evaluations stopped improving.
    pub is_stopped: bool,
    /// The sample, if one was asked for.
    pub sample: Option<String>,
    /// Whether an interrupt ended the run early.
    pub is_interrupted: bool,
    /// The checkpoint of the last step, if it was saved.
    pub checkpoint: Option<PathBuf>,
}

/// Logs what the run trains, on which device, and how much memory that takes, the `tokens` of a step, the windows of a
/// loss scale that has several, and that MFU is a share of `peak`.
pub(super) fn announce(
    trainer: &Trainer<'_>,
    tokens: usize,
    peak: Peak,
    scale_windows: Option<Vec<u32>>,
    mut say: impl FnMut(String),
) {
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    let model = &trainer.recordings.model;
    say(format!("adapter: {}, {}", trainer.gpu.report(), trainer.gpu.capabilities()));
    say(format!(
        "model: {} parameters, {:.3} GFLOP per token to train; {tokens} tokens per step",
        count::parameters(model),
        count::training_flops_per_token(model) / 1e9,
    ));
    if model.mixture.is_some() {
        let active = count::active_parameters(model);
        say(format!("experts: {active} of these parameters are active per token"));
    }
    if let Some(note) = export::note(model) {
        tracing::warn!("other programs will not compute the same from checkpoints: {note}");
    }
    let frozen = frozen_parameters(trainer);
    if frozen > 0 {
        say(format!("frozen: {frozen} of these parameters do not train"));
    }
    if let Some(low_rank) = &model.low_rank {
        let (adapted, ranks) = (low_rank.adapted(), low_rank.ranks_in_words());
        let parameters = count::lora(model);
        say(format!("adapters: {adapted} have one of {ranks}, of {parameters} parameters in all"));
        if let Some(base) = low_rank.base.and_then(BaseType::of) {
            let base = base.name();
            say(format!(
                "the base is in {base}: losses, also of evaluations, are on its values as they are stored"
            ));
        }
    }
    say(format!(
        "memory: {:.1} MiB for weights, gradients, moments and tables, {:.1} MiB for activations",
        mib(trainer.persistent_bytes()),
        mib(trainer.pool_bytes())
    ));
    let (micro_step, update) = trainer.launches();
    say(format!(
        "kernels: {} pipelines, ready after {:.1} s; {micro_step} launches for a micro-batch, {update} for an update",
        trainer.pipelines(),
        trainer.preparation().as_secs_f64()
    ));
    if let Some(windows) = scale_windows {
        let windows: Vec<String> = windows.iter().map(u32::to_string).collect();
        say(format!("loss scale: grows after as many steps as its window has, one of {}", windows.join(" ")));
    }
    for name in LAZY_INLINE.into_iter().filter(|name| std::env::var_os(name).is_some()) {
        tracing::info!("{name} {ABOUT_LAZY_INLINE}");
    }
    say(format!("MFU is the share of {peak}"));
}

/// Warns if the warm-up is so long that the rate never reaches `learning_rate`.
pub(super) fn warn_of_warmup(plan: &RunPlan, length: &RunLength) {
    let (warmup, whole) =
        (length.schedule.warmup_steps(), plan.settings.runner.epochs.saturating_mul(length.steps_per_epoch));
    if warmup >= whole.max(1) {
        tracing::warn!(
            "the learning rate rises over {warmup} steps, and the run's epochs have {whole}: it never gets to `learning_rate`; lower \
             `warmup_steps`, or write `warmup_ratio: 0.1`"
        );
    }
}

/// Logs from which step a run continues, or that it has nothing left to do, and what `changes` from there on.
pub(super) fn announce_resume(
    plan: &RunPlan,
    length: &RunLength,
    state: &TrainerState,
    checkpoint: &Path,
    changes: &[String],
    command: &CommandLine,
) -> Option<String> {
    let (step, total) = (state.step, length.total_steps);
    if step >= total || plan.settings.run.stops_after(state.evaluations_since) {
        announce_complete(plan, length, step, state.evaluations_since, checkpoint, command);
        return None;
    }
    tracing::info!("continuing after step {step} of {total}, from {}", checkpoint.display());
    if plan.settings.run.resume_training == Resume::Extended {
        length.outlived().iter().for_each(|line| tracing::warn!("{line}"));
    }
    let changes =
        (!changes.is_empty()).then(|| format!("extended after step {step}: {}", changes.join(", ")));
    changes.inspect(|line| tracing::info!("{line}"))
}

/// Logs that a run has nothing left to do, because it has done its `step`s or because so many evaluations brought no
/// improvement, and how to continue it.
pub(super) fn announce_complete(
    plan: &RunPlan,
    length: &RunLength,
    step: u64,
    evaluations_since: u64,
    checkpoint: &Path,
    command: &CommandLine,
) {
    let (run, runner) = (&plan.settings.run, &plan.settings.runner);
    let (why, longer) = if step < length.total_steps {
        let patience = plural(run.early_stopping_patience, "evaluation");
        let more = command.resumed_with("early_stopping_patience", evaluations_since.saturating_mul(2));
        (format!("after which {patience} in a row had been no better"), more)
    } else {
        ("the last one".to_string(), command.longer(step, runner, length.steps_per_epoch))
    };
    let place = checkpoint.display();
    tracing::info!("this run is complete: {place} is of step {step}, {why}; to train on: {longer}");
}

/// Logs and notes the sample of a run that has ended without an error, and how it ended; `command` started the run.
pub(super) fn announce_end(log: &Log, plan: &RunPlan, command: &CommandLine, summary: &Summary) {
    let Summary { steps, sample, checkpoint, .. } = summary;
    if summary.is_interrupted {
        let text = match checkpoint {
            Some(_) => format!("interrupted after step {steps}: continue with {}", command.resumed()),
            None => {
                format!("interrupted after step {steps} without a checkpoint of it, since that step failed")
            }
        };
        match checkpoint {
            Some(_) => tracing::info!("{text}"),
            None => tracing::warn!("{text}"),
        }
        return log.note(Event::Interrupted { text });
    }
    if let (Some(&Sample { tokens, .. }), Some(text)) = (plan.settings.sample.as_ref(), sample.clone()) {
        tracing::info!("a sample of {tokens} tokens:\n{text}");
        log.note(Event::Sample { tokens, text });
    }
    announce_best(&plan.settings.run, summary);
    log.note(Event::Complete);
}

/// Logs which evaluation was the best, and whether the run ended because evaluations stopped improving.
fn announce_best(run: &Run, summary: &Summary) {
    let Some(Best { step, eval_loss }) = summary.best else { return };
    if summary.is_stopped {
        let Run { early_stopping_patience: patience, min_delta, .. } = run;
        let (patience, were) = (plural(*patience, "evaluation"), if *patience == 1 { "was" } else { "were" });
        let by = if *min_delta > 0.0 { format!(" by more than {min_delta}") } else { String::new() };
        tracing::info!(
            "stopped early after step {}: {patience} in a row {were} no better{by} than the best, as \
             early_stopping_patience says",
            summary.steps
        );
    }
    let kept = if run.keep_best { ", whose checkpoint is kept" } else { "" };
    tracing::info!("best: eval_loss {eval_loss:.4} after step {step}{kept}");
    if let Some(start) = summary.start_eval_loss.filter(|start| *start <= eval_loss) {
        tracing::warn!(
            "no evaluation was better than that before training, eval_loss {start:.4}: lower the learning rate, or give more data"
        );
    }
}

/// Logs which files a run has left, and what can be done with them.
pub(super) fn announce_files(
    plan: &RunPlan,
    command: &CommandLine,
    summary: &Summary,
    report: Option<&Path>,
) {
    let folder = plan.settings.run.folder();
    let best = CheckpointFolder::of_run(&folder).best().ok().flatten();
    if let Some((_, best)) = best.filter(|_| plan.settings.run.keep_best) {
        tracing::info!("best checkpoint: {}", best.display());
    }
    if let Some(checkpoint) = &summary.checkpoint {
        tracing::info!("checkpoint: {}", checkpoint.display());
    }
    if let Some(report) = report {
        tracing::info!("report: {}", report.display());
    }
    match (&summary.checkpoint, summary.is_interrupted) {
        (Some(_), false) if plan.has_text() => {
            let tokenizer = plan.settings.train_dataset.tokenizer_file();
            let talks = plan.conversations().is_some_and(|form| form.is_templated(tokenizer));
            let what = if talks { "--chat" } else { "--prompt \"...\"" };
            let (program, folder) = (command.program(), shell_word(&folder.display().to_string()));
            tracing::info!("next: {program} generate {folder} {what}");
            // Other programs open a folder that is laid out as the one that the run started from.
            let is_published =
                |base: &&Path| base.join("config.json").is_file() && !base.join(STATE).is_file();
            let full = plan.settings.run.weights().filter(|_| plan.model.low_rank.is_none());
            if let Some(base) = full.filter(is_published) {
                let base = shell_word(&base.display().to_string());
                tracing::info!("next: {program} export {folder} {base} OUT");
            }
        }
        (None, false) => {
            tracing::info!(
                "the weights of the last step were not saved, as the configuration says `save_final: False`"
            );
        }
        _ => {}
    }
}

/// A line with the lowest loss that a model without context could reach on `data`, the data of an evaluation.
pub(super) fn entropy(data: &Batches) -> String {
    let nats = data.unigram_entropy();
    format!(
        "the evaluation tokens have a unigram entropy of {nats:.3} nats: no model that ignores context does better"
    )
}

/// Logs the names of the parameters that train, a line each.
pub(super) fn announce_parameters(plan: &RunPlan) {
    // The plan was refused if its patterns do not fit.
    let specs = plan.grouping().apply(Gpt::describe(&plan.model)).unwrap_or_default();
    specs.iter().filter(|spec| spec.trains).for_each(|spec| tracing::info!("{}", spec.path));
    tracing::info!("nothing was trained, as monitor_config.print_struct is on");
}

fn frozen_parameters(trainer: &Trainer<'_>) -> usize {
    trainer.recordings.whole.iter().filter(|spec| !spec.trains).map(Spec::count).sum()
}

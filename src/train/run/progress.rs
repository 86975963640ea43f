//! What the progress of a run is computed from.

use crate::model::count;
use crate::report::progress::ProgressPlan;
use crate::settings::RunPlan;
use crate::train::instruments::loss_parts;
use crate::train::length::RunLength;
use crate::train::peak::Peak;

/// What progress is computed from. Like MindFormers', its lines count samples and operations of one rank.
pub(super) fn progress_plan(plan: &RunPlan, length: &RunLength, start_step: u64, peak: Peak) -> ProgressPlan {
    let (runner, lines) = (&plan.settings.runner, plan.settings.callbacks.loss.as_ref());
    ProgressPlan {
        total_steps: length.total_steps,
        start_step,
        epochs: runner.epochs,
        steps_per_epoch: length.steps_per_epoch,
        samples_per_step: (runner.batch_size * runner.gradient_accumulation_steps) as u64,
        tokens_per_step: plan.tokens_per_step as u64,
        flops_per_token: count::training_flops_per_token(&plan.model) / plan.layout.world() as f64,
        peak_flops: peak.flops(),
        log_every: lines.map_or(1, |lines| lines.per_print_times),
        asks_for_lines: lines.is_some(),
        loss_parts: loss_parts(plan),
    }
}

//! The micro-batches of a step: those that a rank accumulates, and `as_single`, which does the work of several
//! devices on one.
//!
//! A rank accumulates `micro_batch_interleave_num` times `micro_batch_num` where there are pipeline stages, times
//! `gradient_accumulation_steps` where there are none, and with `as_single` times `data_parallel`. In data-parallel
//! mode (`parallel_mode: 0`) gradients accumulate as in the other modes.

use crate::settings::Settings;
use crate::settings::engine::{MAX_SIZE, Source};
use crate::settings::sections::parallel::{Distribution, culprit};

/// Decides how many micro-batches a rank accumulates; with `as_single` it accumulates those of several devices.
pub(super) fn decide(settings: &mut Settings, distribution: &Distribution, source: &Source) {
    let interleave = settings.run.micro_batch_interleave_num.take().unwrap_or(1);
    let is_single = std::mem::take(&mut settings.run.as_single);
    let is_spread = distribution.layout.world() > 1;
    settings.run.use_parallel = is_spread.then_some(true);
    if is_single {
        drop_memory_cap(settings, source);
    }
    if distribution.counts && (is_single || is_spread) {
        accumulate(settings, distribution, interleave, is_single, source);
    } else if interleave > 1 {
        source.note(format!(
            "micro_batch_interleave_num `{interleave}` is taken as 1: a step sees batch_size x \
             gradient_accumulation_steps windows"
        ));
    }
}

/// Drops the cap on memory: it is that of one of several devices, and a device that does the work of all needs the
/// memory of all.
fn drop_memory_cap(settings: &mut Settings, source: &Source) {
    if settings.context.max_device_memory.take().is_some() {
        source.note(
            "context.max_device_memory: not applied with `as_single`, as it is about the file's own devices",
        );
    }
}

/// Decides how many micro-batches a rank accumulates, such that a step keeps its windows, on one rank or on the ranks
/// that share them. With one pipeline stage MindFormers ignores `micro_batch_num`, with several it ignores
/// `gradient_accumulation_steps` (`_check_global_batch_size_for_auto_parallel` in its base trainer).
fn accumulate(
    settings: &mut Settings,
    distribution: &Distribution,
    interleave: u64,
    is_single: bool,
    source: &Source,
) {
    let (runner, degrees) = (&mut settings.runner, &distribution.asked.degrees);
    let written = runner.gradient_accumulation_steps as u64;
    let has_stages = degrees.pipeline_stage > 1;
    let micro_batches = match has_stages {
        true => ("parallel_config.micro_batch_num", degrees.micro_batch_num),
        false => ("runner_config.gradient_accumulation_steps", written),
    };
    if has_stages && written > 1 && written != degrees.micro_batch_num {
        source.note(format!(
            "runner_config.gradient_accumulation_steps: `{written}` does not count beside pipeline stages, as in \
             MindFormers"
        ));
    }
    let data = degrees.data_parallel;
    let factors = [
        micro_batches,
        ("parallel_config.data_parallel", if is_single { data } else { 1 }),
        ("micro_batch_interleave_num", interleave),
    ];
    let product =
        |first: u64| factors.iter().try_fold(first, |product, (_, factor)| product.checked_mul(*factor));
    let in_all = product(if is_single { 1 } else { data });
    let (Some(steps), true) = (product(1), in_all.is_some_and(|steps| steps <= MAX_SIZE as u64)) else {
        source.fault(
            &culprit(source, &[micro_batches, ("parallel_config.data_parallel", data), factors[2]]),
            "makes more micro-batches a step than can be accumulated; lower the degrees",
        );
        return;
    };
    if steps != written {
        let shown: Vec<String> = factors
            .iter()
            .filter(|(_, factor)| *factor > 1)
            .map(|(key, factor)| format!("{key} {factor}"))
            .collect();
        let shown = if shown.is_empty() { "nothing to accumulate".to_string() } else { shown.join(" x ") };
        let windows = steps.saturating_mul(runner.batch_size as u64);
        let whose = if is_single { "" } else { " on each rank" };
        source.note(format!(
            "runner_config.gradient_accumulation_steps: {steps} keeps the {windows} windows of a step{whose} ({shown})"
        ));
    }
    runner.gradient_accumulation_steps = steps as usize;
}

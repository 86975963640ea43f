//! What the original does on several devices, done on one: `as_single`.

use super::engine::{MAX_SIZE, Source};
use super::sections::parallel::{self, Distribution, Parallel};
use super::values::Settings;

/// Turns the batches of several devices into accumulated ones where `as_single` asks for it.
pub(super) fn settle(settings: &mut Settings, distribution: &Distribution, source: &Source<'_>) {
    let interleave = settings.run.micro_batch_interleave_num.take().unwrap_or(1);
    let is_single = std::mem::take(&mut settings.run.as_single);
    settings.run.use_parallel = None;
    if is_single {
        drop_memory_cap(settings, source);
    }
    if is_single && distribution.counts {
        accumulate(settings, &distribution.degrees, interleave, source);
    } else if interleave > 1 {
        source.note(format!(
            "micro_batch_interleave_num `{interleave}` is taken as 1: a step sees batch_size x gradient_accumulation_steps windows"
        ));
    }
}

/// The cap is that of one of several devices; one that does the work of all needs the memory of all.
fn drop_memory_cap(settings: &mut Settings, source: &Source<'_>) {
    if settings.context.max_device_memory.take().is_some() {
        source.note(
            "context.max_device_memory: not applied with `as_single`, as it is about the file's own devices",
        );
    }
}

/// Keeps the windows of a step. With one pipeline stage the original ignores `micro_batch_num`, with several
/// `gradient_accumulation_steps` (`_check_global_batch_size_for_auto_parallel` in its base trainer).
fn accumulate(settings: &mut Settings, degrees: &Parallel, interleave: u64, source: &Source<'_>) {
    let runner = &mut settings.runner;
    let written = runner.gradient_accumulation_steps as u64;
    let has_stages = degrees.pipeline_stage > 1;
    let micro_batches = match has_stages {
        true => ("parallel_config.micro_batch_num", degrees.micro_batch_num),
        false => ("runner_config.gradient_accumulation_steps", written),
    };
    if has_stages && written > 1 {
        source.note(format!(
            "runner_config.gradient_accumulation_steps: `{written}` does not count beside pipeline stages, as in the original"
        ));
    }
    let factors = [
        micro_batches,
        ("parallel_config.data_parallel", degrees.data_parallel),
        ("micro_batch_interleave_num", interleave),
    ];
    let steps = factors.iter().try_fold(1u64, |product, (_, factor)| product.checked_mul(*factor));
    let Some(steps) = steps.filter(|steps| *steps <= MAX_SIZE as u64) else {
        source.fault(
            parallel::PATH,
            "makes more micro-batches a step than can be accumulated; lower its degrees",
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
        source.note(format!(
            "runner_config.gradient_accumulation_steps: {steps} keeps the {} windows of a step ({shown})",
            steps.saturating_mul(runner.batch_size as u64)
        ));
    }
    runner.gradient_accumulation_steps = steps as usize;
}

//! `plan`: the size and the work of a run, without running it.

use super::output::{self, say};
use crate::error::{Error, Result};
use crate::kernels::{Capabilities, Limits, Tier};
use crate::settings::{Override, RunConfig, RunPlan};
use crate::train::forecast::Forecast;
use crate::train::length::RunLength;
use crate::train::recordings::{Recordings, assumed_capabilities};
use indicatif::{HumanBytes, HumanCount};
use std::path::Path;

/// Steps of the schedule that memory is planned for if the data, and so the number of steps, is not known.
const STEPS_IF_UNKNOWN: u64 = 1000;

/// Bindings that a plan assumes where 1 GiB, the most that a run takes, is too little for the model.
const LARGE_BINDING: u64 = 4 << 30;

/// Prints parameters, work, memory and steps of the run of `config` with `overrides`. Needs no adapter, and no data: without
/// it the number of steps stays open.
///
/// # Errors
/// If the configuration is wrong.
pub fn plan(config: &Path, overrides: &[String]) -> Result<()> {
    let config = RunConfig::outline(config, &Override::parse_all(overrides)?)?;
    let plan = &config.plan;
    config.notices.iter().for_each(|notice| say!("{notice}"));
    let data = config.obstacles.first().map_or_else(|| plan.load_data(), |obstacle| Err(obstacle.clone()));
    let length = match data {
        Ok(data) => {
            data.summary.iter().for_each(|line| say!("{line}"));
            Some(RunLength::new(plan, data.train.steps_per_epoch()))
        }
        Err(error) => {
            say!("The number of steps is not known without the data: {error}");
            None
        }
    };
    let adapter = assumed_capabilities(plan.settings.context.tier.unwrap_or(Tier::Portable));
    let steps = length.as_ref().map_or(STEPS_IF_UNKNOWN, |length| length.total_steps);
    let planned = Planned::new(plan, adapter, steps).or_else(|misfit| {
        // Too large to train is not too large to plan for.
        let limits = Limits { binding_bytes: LARGE_BINDING, buffer_bytes: LARGE_BINDING };
        let large = Capabilities { limits, ..adapter };
        let planned =
            (adapter.tier == Tier::Portable).then(|| Planned::new(plan, large, steps).ok()).flatten();
        planned.map(|planned| Planned { misfit: Some(misfit.clone()), ..planned }).ok_or(misfit)
    })?;
    let _ = output::print(&report(plan, length.as_ref(), &planned));
    Ok(())
}

/// What a run takes of an adapter.
struct Planned {
    adapter: Capabilities,
    forecast: Forecast,
    /// Bytes of activations of [`recomputed_otherwise`].
    pool_otherwise: u64,
    /// Why no adapter runs it, if that is so.
    misfit: Option<Error>,
}

impl Planned {
    fn new(plan: &RunPlan, adapter: Capabilities, steps: u64) -> Result<Self> {
        let forecast = Forecast::new(&Recordings::new(plan, adapter, steps)?);
        let otherwise = Forecast::new(&Recordings::new(&recomputed_otherwise(plan), adapter, steps)?);
        Ok(Self { adapter, forecast, pool_otherwise: otherwise.pool_bytes, misfit: None })
    }
}

/// `plan` without recomputation, or with that of every layer if it has none; without a cap on the memory.
fn recomputed_otherwise(plan: &RunPlan) -> RunPlan {
    let mut plan = plan.clone();
    let layers = plan.model.num_layers + plan.model.multi_token.map_or(0, |multi_token| multi_token.depth);
    let recomputed = &mut plan.model.recomputed_layers;
    *recomputed = if recomputed.is_empty() { (0..layers).collect() } else { Vec::new() };
    plan.settings.context.max_device_memory = None;
    plan
}

/// The forecast as text.
fn report(plan: &RunPlan, length: Option<&RunLength>, planned: &Planned) -> String {
    let Planned { adapter, forecast, pool_otherwise, misfit } = planned;
    let (tokens, flops) = (plan.tokens_per_step as u64, forecast.flops_per_token);
    let mut lines = vec![
        format!(
            "model    {} parameters ({} in float32), {}FLOP a token to train",
            HumanCount(forecast.parameters as u64),
            HumanBytes(4 * forecast.parameters as u64),
            with_prefix(flops)
        ),
        format!(
            "step     {} x {} windows of {} tokens: {} tokens, {}FLOP",
            plan.settings.runner.gradient_accumulation_steps,
            plan.settings.runner.batch_size,
            plan.model.seq_length,
            HumanCount(tokens),
            with_prefix(flops * tokens as f64)
        ),
    ];
    if forecast.active_parameters < forecast.parameters {
        let active = HumanCount(forecast.active_parameters as u64);
        lines.insert(1, format!("experts  a token uses {active} of these parameters"));
    }
    if let Some(length) = length {
        let total = length.total_steps.saturating_mul(tokens);
        lines.push(format!(
            "run      {} steps ({} to an epoch): {} tokens, {}FLOP",
            HumanCount(length.total_steps),
            HumanCount(length.steps_per_epoch),
            HumanCount(total),
            with_prefix(flops * total as f64)
        ));
    }
    lines.push(format!(
        "memory   {}: {} of weights, gradients and moments, {} of activations, {} of batches and tables, {} of staging",
        HumanBytes(forecast.bytes()),
        HumanBytes(forecast.arena_bytes),
        HumanBytes(forecast.pool_bytes),
        HumanBytes(forecast.other_bytes),
        HumanBytes(forecast.staging_bytes)
    ));
    let recompute = match plan.model.recomputed_layers.as_slice() {
        [] => "with `recompute_config.recompute: True`".to_string(),
        layers => format!("with nothing recomputed instead of {} layers", layers.len()),
    };
    lines.push(format!("         {} of activations {recompute}", HumanBytes(*pool_otherwise)));
    for consumer in &forecast.largest {
        lines.push(format!("         {:>12}  {}", HumanBytes(consumer.bytes).to_string(), consumer.label));
    }
    let launches: Vec<String> =
        forecast.launches.iter().map(|(name, count)| format!("{name} {count}")).collect();
    lines.push(format!("kernels  tier {}, launches: {}", adapter.tier.name(), launches.join(", ")));
    let limit = adapter.limits.binding_bytes >> 20;
    let kind = match (adapter.tier, misfit) {
        (_, Some(_)) => "more than a run may have",
        (Tier::Software, None) => "as llvmpipe allows",
        (Tier::Portable, None) => "as most GPUs allow",
    };
    lines.push(format!("         planned for tensors of at most {limit} MiB, {kind}"));
    lines.extend(misfit.as_ref().map(|misfit| format!("refused  by `train` as it stands: {misfit}")));
    lines.join("\n") + "\n"
}

/// `5.3 G`: with the SI prefix that leaves one to three digits before the point.
fn with_prefix(value: f64) -> String {
    const PREFIXES: [&str; 8] = ["", "k", "M", "G", "T", "P", "E", "Z"];
    let step = ((value.max(1.0).log10() / 3.0) as usize).min(PREFIXES.len() - 1);
    format!("{:.1} {}", value / 1000f64.powi(step as i32), PREFIXES[step])
}

#[cfg(test)]
mod tests {
    use super::with_prefix;

    #[test]
    fn prefixes() {
        let wanted =
            [(0.0, "0.0 "), (999.0, "999.0 "), (1.5e6, "1.5 M"), (8e21, "8.0 Z"), (1e30, "1000000000.0 Z")];
        wanted.into_iter().for_each(|(value, text)| assert_eq!(with_prefix(value), text));
    }
}

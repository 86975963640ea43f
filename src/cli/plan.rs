//! `plan`: the size and the work of a run, without running it.

use super::output::{self, say};
use crate::error::Result;
use crate::kernels::{Capabilities, Tier};
use crate::model::config::ModelConfig;
use crate::settings::{Override, RunConfig, RunPlan};
use crate::train::forecast::Forecast;
use crate::train::length::RunLength;
use crate::train::recordings::{Recordings, assumed_capabilities};
use indicatif::{HumanBytes, HumanCount};
use std::path::Path;

/// Steps of the schedule that memory is planned for if the data, and so the number of steps, is not known.
const STEPS_IF_UNKNOWN: u64 = 1000;

/// Prints parameters, work, memory and steps of the run of `config` with `overrides`. Needs no adapter.
///
/// # Errors
/// If the configuration is wrong.
pub fn plan(config: &Path, overrides: &[String]) -> Result<()> {
    let config = RunConfig::load(config, &Override::parse_all(overrides)?)?;
    let plan = &config.plan;
    config.notices.iter().for_each(|notice| say!("{notice}"));
    let length = match plan.load_data() {
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
    let forecast = Forecast::new(&Recordings::new(plan, adapter, steps)?);
    let otherwise = Forecast::new(&Recordings::new(&recomputed_otherwise(plan), adapter, steps)?);
    let _ = output::print(&report(plan, length.as_ref(), adapter, &forecast, otherwise.pool_bytes));
    Ok(())
}

/// `plan` without recomputation, or with that of every layer if it has none; without a cap on the memory.
fn recomputed_otherwise(plan: &RunPlan) -> RunPlan {
    let mut plan = plan.clone();
    let layers = plan.model.num_layers + plan.model.multi_token.map_or(0, |multi_token| multi_token.depth);
    let has_recomputation = plan.model.has_recomputation();
    plan.model.recomputed_layers = if has_recomputation { Vec::new() } else { (0..layers).collect() };
    plan.model.recomputed_operators = Vec::new();
    plan.settings.context.max_device_memory = None;
    plan
}

/// The forecast as text; `pool_otherwise` are the bytes of activations of [`recomputed_otherwise`].
fn report(
    plan: &RunPlan,
    length: Option<&RunLength>,
    adapter: Capabilities,
    forecast: &Forecast,
    pool_otherwise: u64,
) -> String {
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
    let recompute = if plan.model.has_recomputation() {
        format!("with nothing recomputed instead of {}", recomputed(&plan.model))
    } else {
        "with `recompute_config.recompute: True`".to_string()
    };
    lines.push(format!("         {} of activations {recompute}", HumanBytes(pool_otherwise)));
    for consumer in &forecast.largest {
        lines.push(format!("         {:>12}  {}", HumanBytes(consumer.bytes).to_string(), consumer.label));
    }
    let launches: Vec<String> =
        forecast.launches.iter().map(|(name, count)| format!("{name} {count}")).collect();
    lines.push(format!("kernels  tier {}, launches: {}", adapter.tier.name(), launches.join(", ")));
    let limit = adapter.limits.binding_bytes >> 20;
    let kind = match adapter.tier {
        Tier::Software => "as llvmpipe allows",
        Tier::Portable => "as most GPUs allow",
    };
    lines.push(format!("         planned for tensors of at most {limit} MiB, {kind}"));
    lines.join("\n") + "\n"
}

/// What is recomputed, in words.
fn recomputed(model: &ModelConfig) -> String {
    let layers = model.recomputed_layers.len();
    let operators: usize = model.recomputed_operators.iter().map(|(_, layers)| layers.len()).sum();
    let counts = [(layers, "layers"), (operators, "operators of layers")];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(" and ")
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

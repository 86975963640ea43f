//! What a run takes, as text.

use crate::kernels::{Capabilities, Tier};
use crate::settings::RunPlan;
use crate::train::forecast::Forecast;
use crate::train::length::RunLength;
use indicatif::{HumanBytes, HumanCount};
use std::fmt;

/// What a run takes. Displays as some twenty lines.
pub struct Report<'a> {
    /// The run.
    pub plan: &'a RunPlan,
    /// Its length, if its data is there.
    pub length: Option<&'a RunLength>,
    /// What it was planned for.
    pub adapter: Capabilities,
    /// What it takes.
    pub forecast: Forecast,
    /// What it would take if other layers were recomputed.
    pub otherwise: Vec<Otherwise>,
}

/// Activations with another recomputation.
pub struct Otherwise {
    /// The layers.
    pub recomputed: Vec<usize>,
    /// Bytes of activations.
    pub pool_bytes: u64,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = [self.work(), self.memory(), self.kernels()].concat();
        lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl Report<'_> {
    fn work(&self) -> Vec<String> {
        let Self { plan, forecast, .. } = self;
        let (tokens, flops) = (plan.tokens_per_step as u64, forecast.flops_per_token);
        let mut lines = vec![format!(
            "model    {} parameters ({} in float32), {}FLOP a token to train",
            HumanCount(forecast.parameters as u64),
            HumanBytes(4 * forecast.parameters as u64),
            with_prefix(flops)
        )];
        if forecast.active_parameters < forecast.parameters {
            let active = HumanCount(forecast.active_parameters as u64);
            lines.push(format!("experts  a token uses {active} of these parameters"));
        }
        lines.push(format!(
            "step     {} x {} windows of {} tokens: {} tokens, {}FLOP",
            plan.settings.runner.gradient_accumulation_steps,
            plan.settings.runner.batch_size,
            plan.model.seq_length,
            HumanCount(tokens),
            with_prefix(flops * tokens as f64)
        ));
        if let Some(length) = self.length {
            let total = length.total_steps.saturating_mul(tokens);
            lines.push(format!(
                "run      {} steps ({} to an epoch): {} tokens, {}FLOP",
                HumanCount(length.total_steps),
                HumanCount(length.steps_per_epoch),
                HumanCount(total),
                with_prefix(flops * total as f64)
            ));
        }
        lines
    }

    fn memory(&self) -> Vec<String> {
        let forecast = &self.forecast;
        let (peak, training) = (HumanBytes(forecast.peak_bytes()), HumanBytes(forecast.bytes()));
        let recomputed = self.recomputed(&self.plan.model.recomputed_layers);
        let copies = format!("weights again, in {}, for the layers", self.plan.model.compute.name());
        let parts = [
            (forecast.weight_bytes, "weights in f32"),
            (forecast.copy_bytes, &copies),
            (forecast.gradient_bytes, "gradients"),
            (forecast.moment_bytes, "moments"),
            (forecast.pool_bytes, &format!("activations with {recomputed}")),
            (forecast.other_bytes, "batches, tables and states"),
            (forecast.staging_bytes, "staging between host and device"),
            (forecast.start_bytes, "initial weights and tables on their way, until the first step"),
        ];
        let mut lines = vec![format!("memory   {peak} at its peak, {training} while it trains")];
        lines.extend(
            parts.iter().filter(|(bytes, _)| *bytes > 0).map(|(bytes, what)| amount(*bytes, "of", what)),
        );
        lines.push("otherwise".to_string());
        lines.extend(self.otherwise.iter().map(|otherwise| {
            let recomputed = self.recomputed(&otherwise.recomputed);
            amount(otherwise.pool_bytes, "of", &format!("activations with {recomputed}"))
        }));
        lines.push("largest buffers".to_string());
        lines.extend(forecast.largest.iter().map(|consumer| amount(consumer.bytes, "", &consumer.label)));
        lines
    }

    /// `layers` in words, with the key that says so where it is short.
    fn recomputed(&self, layers: &[usize]) -> String {
        let model = &self.plan.model;
        let all = model.num_layers + model.multi_token.map_or(0, |ahead| ahead.depth);
        match layers.len() {
            0 => "nothing recomputed".to_string(),
            count if count == all => {
                "every layer recomputed (`recompute_config.recompute: True`)".to_string()
            }
            count => format!("{count} of {all} layers recomputed"),
        }
    }

    fn kernels(&self) -> Vec<String> {
        let Self { adapter, forecast, .. } = self;
        let launches: Vec<String> =
            forecast.launches.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let limit = adapter.limits.binding_bytes >> 20;
        let kind = match adapter.tier {
            Tier::Software => "as llvmpipe allows",
            Tier::Portable => "as most GPUs allow",
        };
        let largest = &forecast.largest_binding;
        vec![
            format!("kernels  tier {}, launches: {}", adapter.tier.name(), launches.join(", ")),
            format!("         planned for tensors of at most {limit} MiB, {kind}"),
            format!("         the largest binding takes {}: {}", HumanBytes(largest.bytes), largest.label),
        ]
    }
}

/// A line with an amount of memory.
fn amount(bytes: u64, of: &str, what: &str) -> String {
    format!("         {:>11} {of} {what}", HumanBytes(bytes).to_string())
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

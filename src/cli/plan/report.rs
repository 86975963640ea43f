//! The forecast of a run, as text.

use super::machine::MachineArguments;
use super::ranks::RankReport;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::kernels::{Capabilities, PublishedGpu, Tier};
use crate::model::config::{LowRank, ModelConfig, Operator};
use crate::model::count;
use crate::perf::forecast::{Forecast, TrafficKind, traffic};
use crate::ranks::RankLayout;
use crate::settings::{Recompute, RunPlan, Sharded, Sharding};
use crate::train::length::RunLength;
use crate::train::recordings::Recordings;
use indicatif::{HumanBytes, HumanCount};
use std::fmt;

/// The forecast of a run. Displays as some twenty lines.
pub struct Report<'a> {
    /// The run.
    pub plan: &'a RunPlan,
    /// The length of the run, if its data is there.
    pub length: Option<&'a RunLength>,
    /// The capabilities that it was planned for.
    pub adapter: Capabilities,
    /// The forecast.
    pub forecast: Forecast,
    /// The exchanges of the run's ranks, and the time of a step.
    pub ranks: RankReport,
    /// The memory of the run if other layers were recomputed, or ranks exchanged differently.
    pub otherwise: Vec<Otherwise>,
    /// Why no adapter can run this plan, if that is so; the run was then planned for an adapter with larger bindings.
    pub misfit: Option<Error>,
}

/// The memory with another recomputation.
pub struct Otherwise {
    /// A phrase for the recomputation.
    pub what: String,
    /// Bytes of activations.
    pub pool_bytes: u64,
    /// Bytes of activations that a rank sends in a step to the ranks with which it shares matrices, if there are any.
    pub sent_bytes: Option<u64>,
}

impl Otherwise {
    fn new(what: String, plan: &RunPlan, adapter: Capabilities, steps: u64) -> Result<Self> {
        let plan = with_few_ranks(plan);
        let recordings = Recordings::new(&plan, adapter, steps)?;
        let pool_bytes = Forecast::new(&recordings).pool_bytes;
        let sent = traffic(&recordings, plan.settings.runner.gradient_accumulation_steps as u64);
        let sent = sent.into_iter().find(|sent| sent.kind == TrafficKind::PartsOfMatrices);
        Ok(Self { what, pool_bytes, sent_bytes: sent.map(|sent| sent.bytes) })
    }

    fn line(&self) -> String {
        let sent =
            self.sent_bytes.map(|bytes| format!(", {} of tensor parallel ones sent", HumanBytes(bytes)));
        amount(self.pool_bytes, "of", &format!("activations with {}{}", self.what, sent.unwrap_or_default()))
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, ranks, .. } = self;
        let lines = [
            self.work(),
            ranks.layout(plan),
            self.memory(),
            ranks.exchanges(plan, self.length),
            self.kernels(),
        ]
        .concat();
        lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl<'a> Report<'a> {
    /// The run of `plan` on `adapter`, with schedules of `steps` steps.
    ///
    /// # Errors
    /// A plan that does not fit the adapter.
    pub fn new(
        plan: &'a RunPlan,
        length: Option<&'a RunLength>,
        adapter: Capabilities,
        steps: u64,
        machine: &MachineArguments,
    ) -> Result<Self> {
        let ranks = RankReport::new(plan, adapter, steps, machine)?;
        let forecast = ranks.forecast.forecast.clone();
        let otherwise = alternatives(plan).into_iter();
        let otherwise = otherwise.map(|(what, plan)| Otherwise::new(what, &plan, adapter, steps));
        let otherwise = otherwise.collect::<Result<_>>()?;
        Ok(Self { plan, length, adapter, forecast, ranks, otherwise, misfit: None })
    }

    fn work(&self) -> Vec<String> {
        let Self { plan, forecast, .. } = self;
        let (tokens, flops) = (plan.tokens_per_step as u64, forecast.flops_per_token);
        let mut lines = vec![format!(
            "model    {} parameters ({} in float32), {}FLOP a token to train",
            HumanCount(forecast.parameters as u64),
            HumanBytes(4 * forecast.parameters as u64),
            with_prefix(flops)
        )];
        if let Some(low_rank) = &plan.model.low_rank {
            let count = HumanCount(count::lora(&plan.model) as u64);
            let (adapted, ranks) = (low_rank.adapted(), low_rank.ranks_in_words());
            lines.push(format!("adapters {adapted} have one of {ranks}: {count} of these parameters train"));
        }
        if forecast.active_parameters < forecast.parameters {
            let active = HumanCount(forecast.active_parameters as u64);
            lines.push(format!("experts  a token uses {active} of these parameters"));
        }
        let data = plan.layout.data;
        let shared = if data > 1 { format!(", shared by {data} ranks") } else { String::new() };
        lines.push(format!(
            "step     {} x {} windows of {} tokens: {} tokens, {}FLOP{shared}",
            plan.micro_batches_per_step(),
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
        lines.push(format!("saves    {} a checkpoint", HumanBytes(plan.checkpoint_bytes())));
        lines
    }

    fn memory(&self) -> Vec<String> {
        let forecast = &self.forecast;
        let (peak, training) = (HumanBytes(forecast.peak_bytes()), HumanBytes(forecast.bytes()));
        let model = &self.plan.model;
        let recomputed = recomputed(model, &model.recomputed.layers, &model.recomputed.operators);
        let half = model.compute.name();
        let weights = match (self.plan.settings.optimizer.stochastic_rounding, &model.low_rank) {
            (_, Some(LowRank { base: Some(base), .. })) => {
                format!("weights, in {} if they are matrices of layers, which are frozen", base.name())
            }
            (true, _) => "weights, in bfloat16 where layers read them".to_string(),
            (false, Some(_)) if model.compute != Element::F32 => {
                format!("weights, in {half} if they are frozen")
            }
            (false, _) => "weights in f32".to_string(),
        };
        let copies = format!("weights again, in {half}, for the layers");
        let host = HumanBytes(forecast.exchange_host_bytes);
        let parts = [
            (forecast.weight_bytes, weights.as_str()),
            (forecast.copy_bytes, &copies),
            (forecast.gradient_bytes, "gradients"),
            (forecast.moment_bytes, "moments"),
            (forecast.hot_copy_bytes, "copies of hot experts and their gradients"),
            (forecast.pool_bytes, &format!("activations with {recomputed}")),
            (forecast.other_bytes, "batches, tables and states"),
            (forecast.staging_bytes, "staging between host and device"),
            (forecast.exchange_bytes, &format!("staging of exchanges, and {host} of the host")),
            (forecast.start_bytes, "initial weights and tables on their way, until the first step"),
        ];
        let of_one = if self.plan.layout.world() > 1 { ", of one rank" } else { "" };
        let mut lines = vec![format!("memory   {peak} at its peak, {training} while it trains{of_one}")];
        lines.extend(
            parts.iter().filter(|(bytes, _)| *bytes > 0).map(|(bytes, what)| amount(*bytes, "of", what)),
        );
        lines.extend((!self.otherwise.is_empty()).then(|| "otherwise".to_string()));
        lines.extend(self.otherwise.iter().map(Otherwise::line));
        lines.push("largest buffers".to_string());
        lines.extend(forecast.largest.iter().map(|consumer| amount(consumer.bytes, "", &consumer.label)));
        lines
    }

    fn kernels(&self) -> Vec<String> {
        let Self { adapter, forecast, misfit, .. } = self;
        let launches: Vec<String> =
            forecast.launches.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let limit = adapter.limits.binding_bytes >> 20;
        let kind = match (adapter.tier, misfit) {
            (_, Some(_)) => "more than a run may have",
            (Tier::Software, None) => "as llvmpipe allows",
            (Tier::Portable | Tier::Matrix, None) => "as most GPUs allow",
        };
        let terms = if adapter.for_factors([Element::F32; 2]).splits_f32 { ", f32 in two terms" } else { "" };
        let largest = &forecast.largest_binding;
        let mut lines = vec![
            format!("kernels  tier {}{terms}, launches: {}", adapter.tier.name(), launches.join(", ")),
            format!("         planned for tensors of at most {limit} MiB, {kind}"),
            format!("         the largest binding takes {}: {}", HumanBytes(largest.bytes), largest.label),
        ];
        lines.extend((adapter.tier != Tier::Software).then(|| self.units()));
        let refusals = [misfit.as_ref(), self.ranks.forecast.over_cap.as_ref()].into_iter().flatten();
        lines.extend(refusals.map(|refusal| format!("refused  by `train` as it stands: {refusal}")));
        lines
    }

    /// The GPU for whose units products are divided: with more units there are more parts, which take memory.
    fn units(&self) -> String {
        let count = self.adapter.units.count;
        match self.plan.settings.context.device_name.as_deref().and_then(PublishedGpu::named) {
            Some(gpu) => format!("         divided for {}, which has {count} compute units", gpu.model),
            None => format!(
                "         divided for {count} compute units, as on an unknown GPU; context.device_name may name one"
            ),
        }
    }
}

/// The run with other layers recomputed, or with other ways to exchange their inputs, each with a phrase for it.
fn alternatives(plan: &RunPlan) -> Vec<(String, RunPlan)> {
    let model = &plan.model;
    let layers = (0..model.num_layers + model.multi_token.map_or(0, |ahead| ahead.depth)).collect();
    let runner = &plan.settings.runner;
    let divided =
        |layers: &[usize]| plan.divided(runner.batch_size, runner.gradient_accumulation_steps, layers);
    let mut plans: Vec<(String, RunPlan)> = [Vec::new(), layers]
        .into_iter()
        .filter(|layers| *layers != model.recomputed.layers || !model.recomputed.operators.is_empty())
        .map(|layers| (recomputed(model, &layers, &[]), divided(&layers)))
        .collect();
    if plan.layout.model > 1 && !model.recomputed.is_empty() {
        let shares_tokens = plan.layout.shares_tokens;
        let mut switched = |key: &str, switch: fn(&mut Recompute) -> &mut bool| {
            let mut plan = plan.clone();
            let switched = switch(&mut plan.settings.recompute);
            *switched = !*switched;
            let value = if *switched { "True" } else { "False" };
            plan.model.recomputed = plan.settings.recompute.recomputed();
            plans.push((format!("`recompute_config.{key}: {value}`"), plan));
        };
        switched("mp_comm_recompute", |recompute| &mut recompute.mp_comm_recompute);
        if !shares_tokens && !model.recomputed.layers.is_empty() {
            switched("recompute_slice_activation", |recompute| &mut recompute.recompute_slice_activation);
        }
    }
    plans
}

/// A phrase for the layers and operators of `model` that are recomputed, with the key for it if that is short.
fn recomputed(model: &ModelConfig, layers: &[usize], operators: &[(Operator, Vec<usize>)]) -> String {
    let all = model.num_layers + model.multi_token.map_or(0, |ahead| ahead.depth);
    let operators: usize = operators.iter().map(|(_, layers)| layers.len()).sum();
    let layers = match layers.len() {
        0 if operators == 0 => return "nothing recomputed".to_string(),
        0 => return format!("{operators} operators of layers recomputed"),
        count if count == all => "every layer recomputed (`recompute_config.recompute: True`)".to_string(),
        count => format!("{count} of {all} layers recomputed"),
    };
    match operators {
        0 => layers,
        _ => format!("{layers} and {operators} operators of others"),
    }
}

/// `plan` with as few ranks as have its activations: each further rank that shares the batch makes recording longer.
fn with_few_ranks(plan: &RunPlan) -> RunPlan {
    let mut few = plan.clone();
    if plan.sharding.what < Sharded::Gradients && !plan.sharding.gathers_again {
        few.layout = RankLayout { rank: 0, data: plan.layout.expert, ..plan.layout };
        few.sharding = Sharding::NONE;
    }
    few
}

/// A line with an amount of memory.
pub(super) fn amount(bytes: u64, of: &str, what: &str) -> String {
    format!("         {:>11} {of} {what}", HumanBytes(bytes).to_string())
}

/// `5.3 G`: with the SI prefix that leaves one to three digits before the point.
pub(super) fn with_prefix(value: f64) -> String {
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

//! The memory, traffic and waiting times of each of many ranks.

use super::Forecast;
use super::step_time::{Machine, StepTime};
use super::traffic::{Traffic, TrafficKind, kept_bytes, traffic};
use crate::error::{Error, Result};
use crate::kernels::Capabilities;
use crate::model::count;
use crate::perf::memory_budget::Shortage;
use crate::settings::RunPlan;
use crate::train::recordings::Recordings;

/// A forecast for the ranks of a run; of each quantity, the value of the rank with the most.
///
/// Ranks are forecast from the recordings that they would replay; of a pipeline, only a few stages.
#[derive(Clone, Debug)]
pub struct RankForecast {
    /// Memory of the rank that takes the most; parameters and operations are those of the whole model.
    pub forecast: Forecast,
    /// Traffic of a step, of the rank that sends the most.
    pub traffic: Vec<Traffic>,
    /// Bytes of rows that it does not send because it has copies of the hot experts.
    pub kept_bytes: u64,
    /// Time of a step on the slowest rank, if the machine is known.
    pub time: Option<StepTime>,
    /// The share of a step in which a stage waits for others at the start and end of the step.
    pub bubble: f64,
    /// The reason for which a run would be refused, if it takes more than `context.max_device_memory`.
    pub over_cap: Option<Error>,
}

impl RankForecast {
    /// The forecast for the ranks of `plan`, whose schedules have `steps` steps.
    ///
    /// # Errors
    /// A plan that does not fit an adapter with `capabilities`.
    pub fn new(
        plan: &RunPlan,
        capabilities: Capabilities,
        steps: u64,
        machine: Option<&Machine>,
    ) -> Result<Self> {
        match plan.layout.pipeline {
            1 => Self::recorded(plan.clone(), capabilities, steps, machine),
            _ => Self::most(plan, Self::of_stages(plan, capabilities, steps, machine)?),
        }
    }

    /// The forecast for the rank that owns the most, of the ranks that share the batch with the rank of `plan`.
    fn recorded(
        mut plan: RunPlan,
        capabilities: Capabilities,
        steps: u64,
        machine: Option<&Machine>,
    ) -> Result<Self> {
        plan.layout.rank = Recordings::fullest_rank(&plan, capabilities)?;
        let recordings = Recordings::new(&plan, capabilities, steps)?;
        let accumulation = plan.settings.runner.gradient_accumulation_steps as u64;
        let forecast = Forecast::new(&recordings);
        let cap = plan.settings.context.max_device_memory.map(|size| size.0);
        let over_cap = Shortage::of(&recordings).check(forecast.peak_bytes(), cap).err();
        let flops = flops_of_stage(&plan) / plan.layout.model as f64;
        let time = machine.map(|machine| {
            let mut time = StepTime::new(&recordings, flops, accumulation, machine);
            time.bubble = bubble_seconds(&plan, &time, accumulation);
            time
        });
        let bubble = bubble(&plan, accumulation);
        let (traffic, kept_bytes) =
            (traffic(&recordings, accumulation), kept_bytes(&recordings, accumulation));
        Ok(Self { forecast, traffic, kept_bytes, time, bubble, over_cap })
    }

    /// The stages that may take the most of some quantity: the first, which keeps the most micro-batches; the last; and
    /// of those between them the first with the most layers.
    fn of_stages(
        plan: &RunPlan,
        capabilities: Capabilities,
        steps: u64,
        machine: Option<&Machine>,
    ) -> Result<Vec<Self>> {
        let last = plan.layout.pipeline - 1;
        let layers = |stage: usize| -> usize {
            plan.stages.chunks(stage).into_iter().map(|chunk| chunk.layers.len()).sum()
        };
        let between = (1..last).max_by_key(|&stage| (layers(stage), last - stage));
        let stages = [0].into_iter().chain(between).chain([last]);
        let of_stage = |stage| {
            let mut plan = plan.clone();
            plan.layout.rank = plan.layout.in_stage(stage);
            Self::recorded(plan, capabilities, steps, machine)
        };
        stages.map(of_stage).collect()
    }

    /// Combines the forecasts `each` of several stages: memory of the fullest, time of the slowest, and traffic of the
    /// one that sends the most.
    fn most(plan: &RunPlan, each: Vec<Self>) -> Result<Self> {
        let seconds = |one: &Self| one.time.as_ref().map_or(0.0, StepTime::seconds);
        let sent = |one: &Self| one.traffic.iter().map(|kind| kind.bytes).sum::<u64>();
        let slowest = each.iter().max_by(|one, other| seconds(one).total_cmp(&seconds(other)));
        let time = slowest.and_then(|one| one.time.clone());
        let busiest = each.iter().max_by_key(|one| sent(one));
        let (traffic, kept_bytes) =
            busiest.map(|one| (one.traffic.clone(), one.kept_bytes)).unwrap_or_default();
        let fullest = each.into_iter().max_by_key(|one| one.forecast.peak_bytes());
        let fullest = fullest.expect("a pipeline has a stage");
        let model = &plan.model;
        let forecast = Forecast {
            parameters: count::parameters(model),
            active_parameters: count::active_parameters(model),
            flops_per_token: count::training_flops_per_token(model),
            ..fullest.forecast
        };
        Ok(Self { forecast, traffic, kept_bytes, time, ..fullest })
    }
}

/// Training operations per token on the stage of `plan`, with recomputed layers counted again: the stage's share is
/// that of its forward operations.
fn flops_of_stage(plan: &RunPlan) -> f64 {
    let model = &plan.model;
    let layers = count::layer_flops_per_token(model);
    let head = count::head_flops_per_token(model);
    let chunks = plan.stages.chunks(plan.layout.stage());
    let is_last = chunks.iter().any(|chunk| chunk.is_last);
    let own: Vec<usize> = chunks.into_iter().flat_map(|chunk| chunk.layers).collect();
    let of_layers =
        |numbers: &mut dyn Iterator<Item = usize>| numbers.map(|layer| layers[layer]).sum::<f64>();
    let forward = of_layers(&mut own.iter().copied()) + if is_last { head } else { 0.0 };
    let all = layers.iter().sum::<f64>() + head;
    let again = own.iter().copied().filter(|layer| model.recomputed.layers.contains(layer));
    count::training_flops_per_token(model) * forward / all + of_layers(&mut again.into_iter())
}

/// The share of a step of `micro_batches` (m) in which a stage waits for others: (p - 1) / (v m + p - 1).
fn bubble(plan: &RunPlan, micro_batches: u64) -> f64 {
    let others = plan.layout.pipeline as f64 - 1.0;
    others / (plan.stages.interleaves() as f64 * micro_batches as f64 + others)
}

/// The time in which a stage waits for others: that of (p - 1) / v micro-batches.
fn bubble_seconds(plan: &RunPlan, time: &StepTime, accumulation: u64) -> f64 {
    let once = |kind: &TrafficKind| {
        matches!(kind, TrafficKind::Gradients | TrafficKind::Weights | TrafficKind::HotCopies)
    };
    let waits: f64 = time.waits.iter().filter(|(kind, _)| !once(kind)).map(|(_, seconds)| seconds).sum();
    let of_one = (time.compute + waits) / accumulation as f64;
    (plan.layout.pipeline - 1) as f64 / plan.stages.interleaves() as f64 * of_one
}

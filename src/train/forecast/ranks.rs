//! What each of many ranks takes, exchanges and waits for.

use super::Forecast;
use super::share::{self, Spread, Stage};
use super::step_time::{Machine, StepTime};
use super::traffic::{Traffic, TrafficKind, traffic};
use crate::device::Exchanger;
use crate::error::Result;
use crate::kernels::Capabilities;
use crate::model::count;
use crate::record::Room;
use crate::settings::RunPlan;
use crate::train::fit::kept_bytes;
use crate::train::recordings::Recordings;
use crate::train::shortage::Shortage;

/// What each of the ranks of a run takes: the one with the most of it.
///
/// Ranks are forecast from the recordings that they would replay. Those that share layers are planned for and not trained; the
/// recordings are then those of one stage, and what goes between stages follows from formulas.
#[derive(Clone, Debug)]
pub struct RankForecast {
    /// Memory of the rank that takes the most; parameters and operations are those of the whole model.
    pub forecast: Forecast,
    /// What the rank that sends the most sends in a step.
    pub traffic: Vec<Traffic>,
    /// The time of a step of the slowest rank, if the machine is known.
    pub time: Option<StepTime>,
    /// The share of a step in which a stage waits for others at its start and end.
    pub bubble: f64,
    /// Whether layers are spread, so that numbers follow from formulas.
    pub is_formula: bool,
}

impl RankForecast {
    /// The forecast for the ranks of `plan`, whose schedules have `steps` steps.
    ///
    /// # Errors
    /// What does not fit an adapter with `capabilities`; degrees that do not divide layers.
    pub fn new(
        plan: &RunPlan,
        capabilities: Capabilities,
        steps: u64,
        machine: Option<&Machine>,
    ) -> Result<Self> {
        match plan.layout.pipeline {
            1 => Self::recorded(plan.clone(), capabilities, steps, machine),
            _ => Self::by_stages(plan, capabilities, steps, machine),
        }
    }

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
        if plan.layout.world() == 1 {
            let cap = plan.settings.context.max_device_memory.map(|size| size.0);
            Shortage::of(&recordings).check(forecast.peak_bytes(), cap)?;
        }
        Ok(Self {
            forecast,
            traffic: traffic(&recordings, accumulation),
            time: machine.map(|machine| StepTime::new(&recordings, &recordings.model, accumulation, machine)),
            bubble: 0.0,
            is_formula: false,
        })
    }

    fn by_stages(
        plan: &RunPlan,
        capabilities: Capabilities,
        steps: u64,
        machine: Option<&Machine>,
    ) -> Result<Self> {
        let stages = share::stages(plan)?;
        let of_stage = |stage: &Stage| Self::of_stage(plan, stage, capabilities, steps, machine);
        let each = stages.iter().map(of_stage).collect::<Result<Vec<_>>>()?;
        let seconds = |one: &Self| one.time.as_ref().map_or(0.0, StepTime::seconds);
        let sent = |one: &Self| one.traffic.iter().map(|kind| kind.bytes).sum::<u64>();
        let slowest = each.iter().max_by(|one, other| seconds(one).total_cmp(&seconds(other)));
        let time = slowest.and_then(|one| one.time.clone());
        let traffic = each.iter().max_by_key(|one| sent(one)).map(|one| one.traffic.clone());
        let fullest = each.into_iter().max_by_key(|one| one.forecast.peak_bytes());
        let fullest = fullest.expect("a pipeline has a stage");
        let model = &plan.model;
        let forecast = Forecast {
            parameters: count::parameters(model),
            active_parameters: count::active_parameters(model),
            flops_per_token: count::training_flops_per_token(model),
            ..fullest.forecast
        };
        Ok(Self { forecast, traffic: traffic.unwrap_or_default(), time, ..fullest })
    }

    fn of_stage(
        plan: &RunPlan,
        stage: &Stage,
        capabilities: Capabilities,
        steps: u64,
        machine: Option<&Machine>,
    ) -> Result<Self> {
        let spread = Spread::of(plan);
        let accumulation = plan.settings.runner.gradient_accumulation_steps as u64;
        let recordings = Recordings::new(&stage.plan, capabilities, steps)?;
        let messages = Messages::new(stage, spread);
        let mut forecast = Forecast::new(&recordings);
        forecast.pool_bytes = activations(stage, &recordings);
        let room = Room { down: messages.bytes, up: messages.bytes, received: 0 };
        let [staging, host] =
            [Exchanger::staging_bytes, Exchanger::host_bytes].map(|bytes| bytes(Exchanger::AT_ONCE, &room));
        forecast.exchange_bytes = forecast.exchange_bytes.max(staging);
        forecast.exchange_host_bytes = forecast.exchange_host_bytes.max(host);
        let mut all = traffic(&recordings, accumulation);
        all.extend(messages.traffic(accumulation));
        let time = machine.map(|machine| {
            let mut time = StepTime::new(&recordings, &stage.work, accumulation, machine);
            messages.add_to(&mut time, accumulation, machine);
            time.bubble = bubble_seconds(&time, spread, accumulation);
            time
        });
        let (p, v) = (spread.pipeline as f64, spread.interleave as f64);
        let bubble = (p - 1.0) / (v * accumulation as f64 + p - 1.0);
        Ok(Self { forecast, traffic: all, time, bubble, is_formula: true })
    }
}

/// Activations of the micro-batches that a stage has under way: the pool of one, and what is kept of each of the others.
fn activations(stage: &Stage, recordings: &Recordings) -> u64 {
    let model = &recordings.model;
    let layers = model.num_layers + model.multi_token.map_or(0, |ahead| ahead.depth);
    let kept: u64 = kept_bytes(&recordings.micro_step, layers).iter().sum();
    let others = kept as f64 * (stage.in_flight - 1.0);
    Forecast::new(recordings).pool_bytes + others as u64
}

/// What goes from stage to stage in a micro-batch.
struct Messages {
    /// Bytes of this rank's rows of a micro-batch.
    bytes: u64,
    /// Times that they go to another stage, forward and backward.
    passes: u64,
}

impl Messages {
    fn new(stage: &Stage, spread: Spread) -> Self {
        let Stage { plan, .. } = stage;
        let tokens = (plan.settings.runner.batch_size * plan.model.seq_length) as u64;
        let bytes = tokens * plan.model.hidden_size as u64 * plan.model.compute.bytes();
        let ranks = if plan.layout.shares_tokens { plan.layout.model as u64 } else { 1 };
        let passes = if spread.pipeline > 1 { 2 * spread.interleave as u64 } else { 0 };
        Self { bytes: bytes / ranks, passes }
    }

    fn traffic(&self, accumulation: u64) -> Option<Traffic> {
        let exchanges = accumulation * self.passes;
        let traffic = Traffic { kind: TrafficKind::Stages, bytes: exchanges * self.bytes, exchanges };
        (traffic.bytes > 0).then_some(traffic)
    }

    /// Adds its time, which hides behind nothing: what follows needs the rows.
    fn add_to(&self, time: &mut StepTime, accumulation: u64, machine: &Machine) {
        if self.passes > 0 {
            let staged = 2.0 * self.bytes as f64 / machine.staging_bytes;
            let one = machine.exchange_seconds(self.bytes, 1, 1) + staged;
            time.wait(TrafficKind::Stages, (accumulation * self.passes) as f64 * one);
        }
    }
}

/// The time of (p - 1) / v micro-batches, in which a stage waits for others.
fn bubble_seconds(time: &StepTime, spread: Spread, accumulation: u64) -> f64 {
    let once = |kind: &TrafficKind| matches!(kind, TrafficKind::Gradients | TrafficKind::Weights);
    let waits: f64 = time.waits.iter().filter(|(kind, _)| !once(kind)).map(|(_, seconds)| seconds).sum();
    let of_one = (time.compute + waits) / accumulation as f64;
    (spread.pipeline - 1) as f64 / spread.interleave as f64 * of_one
}

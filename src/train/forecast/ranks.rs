//! What each of many ranks takes, exchanges and waits for.

use super::Forecast;
use super::share::{self, Spread, Stage};
use super::step_time::{Machine, StepTime};
use super::traffic::{Traffic, TrafficKind, traffic};
use crate::device::Exchanger;
use crate::error::Result;
use crate::kernels::{Capabilities, Limits};
use crate::model::count;
use crate::record::Room;
use crate::settings::RunPlan;
use crate::train::fit::kept_bytes;
use crate::train::recordings::Recordings;
use crate::train::shortage::Shortage;

/// What each of the ranks of a run takes: the one with the most of it.
///
/// Data and expert parallel ranks are forecast from the recordings that they would replay. Those that share matrices or layers are
/// planned for and not trained; the recordings are then those of one stage with its part of each matrix, and what goes between
/// such ranks follows from formulas.
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
    /// Whether matrices or layers are spread, so that numbers follow from formulas.
    pub is_formula: bool,
}

impl RankForecast {
    /// The forecast for the ranks of `plan`, whose schedules have `steps` steps.
    ///
    /// # Errors
    /// What does not fit an adapter with `capabilities`; degrees that divide neither layers nor matrices.
    pub fn new(
        plan: &RunPlan,
        capabilities: Capabilities,
        steps: u64,
        machine: Option<&Machine>,
    ) -> Result<Self> {
        match plan.layout.model * plan.layout.pipeline {
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
        let messages = Messages::new(plan, stage, spread);
        let mut forecast = Forecast::new(&recordings);
        forecast.pool_bytes = activations(plan, stage, &recordings, spread, capabilities, steps)?;
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
fn activations(
    plan: &RunPlan,
    stage: &Stage,
    recordings: &Recordings,
    spread: Spread,
    capabilities: Capabilities,
    steps: u64,
) -> Result<u64> {
    let of = |recordings: &Recordings, parts: usize| {
        let model = &recordings.model;
        let layers = model.num_layers + model.multi_token.map_or(0, |ahead| ahead.depth);
        let kept: u64 = kept_bytes(&recordings.micro_step, layers).iter().sum();
        let others = kept as f64 * (stage.in_flight - 1.0);
        (Forecast::new(recordings).pool_bytes + others as u64) / parts as u64
    };
    if !spread.shares_tokens {
        return Ok(of(recordings, 1));
    }
    // No adapter needs to hold whole matrices.
    let limits = Limits { binding_bytes: u64::MAX >> 24, buffer_bytes: u64::MAX >> 24 };
    let capabilities = Capabilities { limits, ..capabilities };
    let whole = Recordings::new(&share::with_whole_matrices(plan, stage), capabilities, steps)?;
    Ok(of(&whole, spread.model))
}

/// What goes between the ranks that share matrices, and from stage to stage, in a micro-batch.
struct Messages {
    /// Bytes of the rows of a micro-batch.
    bytes: u64,
    /// All-reduces of these over the ranks that share matrices: two forward and two backward in each layer, and the two of the
    /// forward pass again where it is recomputed (Shoeybi et al., "Megatron-LM", 2019, section 3). With tokens shared between
    /// matrices each is a reduce-scatter and an all-gather of as many bytes.
    sums: u64,
    /// Times that they go to another stage, forward and backward.
    passes: u64,
    spread: Spread,
}

impl Messages {
    fn new(plan: &RunPlan, stage: &Stage, spread: Spread) -> Self {
        let model = &stage.plan.model;
        let tokens = (plan.settings.runner.batch_size * model.seq_length) as u64;
        let layers = model.num_layers + model.multi_token.map_or(0, |ahead| ahead.depth);
        Self {
            bytes: tokens * model.hidden_size as u64 * model.compute.bytes(),
            sums: if spread.model > 1 { 4 * layers + 2 * model.recomputed_layers.len() } else { 0 } as u64,
            passes: if spread.pipeline > 1 { 2 * spread.interleave as u64 } else { 0 },
            spread,
        }
    }

    /// Bytes that a rank sends in an all-reduce, and to another stage.
    fn sent(&self) -> [u64; 2] {
        let t = self.spread.model as u64;
        [2 * self.bytes * (t - 1) / t, if self.spread.shares_tokens { self.bytes / t } else { self.bytes }]
    }

    fn traffic(&self, accumulation: u64) -> Vec<Traffic> {
        let [sum, pass] = self.sent();
        let one = |kind, count: u64, bytes, rounds| Traffic {
            kind,
            bytes: accumulation * count * bytes,
            exchanges: accumulation * count * rounds,
        };
        let both = [
            one(TrafficKind::PartsOfMatrices, self.sums, sum, 2),
            one(TrafficKind::Stages, self.passes, pass, 1),
        ];
        both.into_iter().filter(|traffic| traffic.bytes > 0).collect()
    }

    /// Adds the time of both, which hides behind nothing: what follows needs the sum, or the rows.
    fn add_to(&self, time: &mut StepTime, accumulation: u64, machine: &Machine) {
        let [sum, pass] = self.sent();
        let staged = 2.0 * self.bytes as f64 / machine.staging_bytes;
        let one = |bytes, rounds, others| machine.exchange_seconds(bytes, rounds, others) + staged;
        let times = |count: u64| (accumulation * count) as f64;
        if self.sums > 0 {
            let seconds = times(self.sums) * one(sum, 2, self.spread.model as u64 - 1);
            time.wait(TrafficKind::PartsOfMatrices, seconds);
        }
        if self.passes > 0 {
            time.wait(TrafficKind::Stages, times(self.passes) * one(pass, 1, 1));
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

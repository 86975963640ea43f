//! The numbers that `monitor_config` asks for, computed on the device: recordings that are replayed after the updates
//! of due steps, and the buffers that the host reads together with a step's results.
//!
//! These recordings are separate, so a step in which nothing is due runs as it would without them. They read gradients,
//! moments and weights where the update left them. `monitor_report.rs` turns the values that the host reads into
//! numbers with tags. Norms are sums of squares in three ranges (`lib/squares`), which ranks can add and whose root is
//! taken in f64. Losses of micro-batches are differences of the step's running sums, which are copied after each
//! micro-batch without a launch. Only the largest attention scores are computed in the forward pass: a variant of its
//! kernel writes the running maximum beside the log-sum-exp, and `max_logit` reduces it. If ranks have some of the
//! heads, layers, micro-batches or parameters each, they exchange their results in due steps, and the first rank
//! reports the whole.

mod logits;
mod losses;
mod monitor_report;
mod norms;

pub use logits::MaxLogits;
pub use losses::{Losses, MicroLosses, SumCopy};
pub use monitor_report::MonitorReport;
pub use norms::{Norms, Watched};

use super::programs::Programs;
use super::readback::{ReadBuffers, Slot, values};
use super::run_parts::RunParts;
use crate::error::Result;
use crate::ops::squares::SquareSum;
use crate::ops::step_state::LossState;
use crate::ranks::Group;
use crate::record::{Collective, Persistents, Recorder, Recording, Span, Tensor};

/// The monitors of a run. A monitor that is not asked for has no recording and no buffer.
#[derive(Default)]
pub struct Monitors {
    /// Norms of gradients.
    pub gradients: Option<Norms>,
    /// Norms of moments and weights.
    pub states: Option<Norms>,
    /// Losses of micro-batches.
    pub losses: Option<MicroLosses>,
    /// The largest attention scores.
    pub logits: Option<MaxLogits>,
    /// Exchanges the ranks' scores and losses in due steps, if no single rank has all of them.
    pub shared: Option<Recording>,
    /// Number of steps after which the scores and losses are due.
    interval: u64,
    /// `LossState` of the training batches, if norms of gradients depend on it.
    loss: Option<Tensor>,
}

impl Monitors {
    /// The monitors that `run.plan` asks for, in addition to the largest `logits` of attention.
    ///
    /// # Errors
    /// A launch over WebGPU's limits.
    pub(super) fn new(
        run: &RunParts<'_>,
        logits: Option<MaxLogits>,
        persistents: &mut Persistents,
    ) -> Result<Self> {
        let gradients = Norms::of_gradients(run, persistents)?;
        let states = Norms::of_states(run, persistents)?;
        let weighs_tokens = run.plan.settings.wrapper.calculate_per_token_loss;
        let loss = gradients.is_some().then_some(run.tensors.loss).filter(|_| weighs_tokens);
        let losses = MicroLosses::new(run, persistents);
        let shared = shared(run, logits.as_ref(), losses.as_ref())?;
        let interval = run.plan.settings.monitor.step_interval;
        Ok(Self { gradients, states, losses, logits, loss, shared, interval })
    }

    /// The programs that are replayed after the update of step number `step`, counted from 1.
    pub(super) fn due(&self, step: u64, programs: &Programs<usize>) -> Vec<usize> {
        let norms = |norms: &Option<Norms>| norms.as_ref().map(|norms| norms.interval);
        let all = [
            (norms(&self.gradients), programs.gradient_norms),
            (norms(&self.states), programs.state_norms),
            (Some(self.interval), programs.shared),
        ];
        let is_due = |interval: &Option<u64>| interval.is_some_and(|interval| step.is_multiple_of(interval));
        all.into_iter().filter(|(interval, _)| is_due(interval)).filter_map(|(_, program)| program).collect()
    }

    /// The recordings that are replayed after every step.
    pub fn of_every_step(&self) -> impl Iterator<Item = &Recording> {
        let norms = [&self.gradients, &self.states].into_iter().flatten();
        let norms = norms.map(|norms| (norms.interval, &norms.recording));
        let all = norms.chain(self.shared.iter().map(|shared| (self.interval, shared)));
        all.filter(|(interval, _)| *interval == 1).map(|(_, recording)| recording)
    }

    /// The slots that the host reads of the monitors after each step.
    pub(super) fn slots(&self, sources: &mut ReadBuffers) -> WatchedSlots {
        let mut sums = |norms: &Option<Norms>| {
            norms.as_ref().map(|norms| sources.add_tensor(norms.sums, norms.watched.len()))
        };
        let (gradients, states) = (sums(&self.gradients), sums(&self.states));
        let rows = |rows: Tensor| (rows.rows * rows.stride) as usize;
        WatchedSlots {
            gradients,
            states,
            loss: self.loss.map(|loss| sources.add_tensor(loss, 1)),
            losses: self.losses.as_ref().map(|of| sources.add_tensor(of.rows, rows(of.rows))),
            logits: self.logits.as_ref().map(|of| sources.add_tensor(of.largest, rows(of.largest))),
        }
    }
}

/// The exchange of the ranks' scores and losses; `None` if one rank has all of them.
fn shared(
    run: &RunParts<'_>,
    logits: Option<&MaxLogits>,
    losses: Option<&MicroLosses>,
) -> Result<Option<Recording>> {
    let mut rec = Recorder::new("watched", run.capabilities);
    let ranks = &run.ownership.ranks;
    if let Some(logits) = logits {
        let largest = Collective::largest(Span::of(&logits.largest));
        rec.exchange("largest_scores", largest, &Group::all(ranks.world()));
    }
    if let Some(losses) = losses {
        let [own, all] = [losses.own, losses.rows].map(|rows| vec![Span::of(&rows)]);
        let stages = ranks.in_all_stages(&Group::new(vec![ranks.rank]));
        rec.exchange("micro_losses", Collective::sum_into(own, all), &stages);
    }
    let recording = rec.try_finish()?;
    Ok((!recording.exchanges.is_empty()).then_some(recording))
}

/// The places of the monitors' results in the bytes that the host reads after a step.
#[derive(Clone, Debug)]
pub(super) struct WatchedSlots {
    gradients: Option<Slot<SquareSum>>,
    states: Option<Slot<SquareSum>>,
    loss: Option<Slot<LossState>>,
    losses: Option<Slot<f32>>,
    logits: Option<Slot<u32>>,
}

/// The monitors' results of a step; empty for monitors that are off. A result that is not due is that of an earlier
/// step.
#[derive(Clone, Debug, Default)]
pub struct WatchedStep {
    /// Sums for the gradients, in the order of [`Norms::watched`].
    pub gradients: Vec<SquareSum>,
    /// Sums for moments and weights, in the same order.
    pub states: Vec<SquareSum>,
    /// The sums of the step's losses, if norms of gradients depend on them.
    pub loss: Option<LossState>,
    /// The rows of [`MicroLosses`].
    pub losses: Vec<f32>,
    /// The rows of [`MaxLogits`].
    pub logits: Vec<u32>,
}

impl WatchedSlots {
    pub fn read(&self, bytes: &[u8]) -> WatchedStep {
        WatchedStep {
            gradients: values(self.gradients.as_ref(), bytes),
            states: values(self.states.as_ref(), bytes),
            loss: self.loss.as_ref().map(|loss| loss.value(bytes)),
            losses: values(self.losses.as_ref(), bytes),
            logits: values(self.logits.as_ref(), bytes),
        }
    }
}

//! The results of a step and of an evaluation once the device has finished them.

use super::monitors::{WatchedSlots, WatchedStep};
use super::readback::{ReadBuffers, Slot, values};
use super::recordings::Recordings;
use crate::device::Arrival;
use crate::model::ExpertState;
use crate::model::config::BalanceLosses;
use crate::ops::loss_scale::LossScaleState;
use crate::ops::step_state::{LossState, PreferenceState, StepState};
use crate::ops::tally::TallyColumns;
use crate::record::BufferId;
use crate::report::expert_load::LayerLoad;
use std::time::Instant;

/// A step that the device has finished.
#[derive(Clone, Debug)]
pub struct FinishedStep {
    /// Index of the step, from 1.
    pub step: u64,
    /// `StepState` after the step, but with the loss scale that the step used.
    pub state: StepState,
    /// The state of the loss scale after the step, if it adapts.
    pub scaler: Option<LossScaleState>,
    /// Mean loss of multi-token prediction in nats per token, for a model that has it.
    pub ahead_loss: Option<f32>,
    /// Means over the pairs of answers, for a run that learns from such.
    pub preference: Option<PreferenceState>,
    /// The results of the monitors, for [`MonitorReport::values`](super::monitors::MonitorReport::values).
    pub watched: WatchedStep,
    /// The load of each layer with experts, for a mixture.
    pub loads: Option<Vec<LayerLoad>>,
    /// The experts of each layer that are hot after the step, in ascending order, if the model has hot experts.
    pub hot_experts: Option<Vec<Vec<u32>>>,
    /// When the device finished the step.
    pub at: Instant,
}

/// An evaluation that the device has finished.
#[derive(Clone, Copy, Debug)]
pub struct FinishedEvaluation {
    /// The tag that was passed to [`Trainer::evaluate`](super::Trainer::evaluate).
    pub tag: u64,
    /// Mean loss in nats per token.
    pub loss: f32,
    /// The share of targets that have the largest logit, if it is asked for.
    pub accuracy: Option<f32>,
    /// Means over the pairs of answers, for a run that learns from such.
    pub preference: Option<PreferenceState>,
    /// When the device finished the evaluation.
    pub at: Instant,
}

/// The buffers that the host reads after an evaluation.
#[derive(Clone, Debug)]
pub(crate) struct EvaluationReadback {
    pub sources: ReadBuffers,
    sums: Slot<LossState>,
    correct: Option<Slot<f32>>,
    preference: Option<Slot<PreferenceState>>,
}

impl EvaluationReadback {
    pub fn new(recordings: &Recordings) -> Self {
        let mut sources = ReadBuffers::default();
        let sums = sources.add_tensor(recordings.tensors.eval_loss, 1);
        let correct = recordings.tensors.eval_correct.map(|correct| sources.add_tensor(correct, 1));
        let preference = recordings.tensors.preference;
        let preference = preference.map(|preference| sources.add_tensor(preference.eval_state, 1));
        Self { sources, sums, correct, preference }
    }

    pub fn read(&self, Arrival { tag, at, bytes }: Arrival) -> FinishedEvaluation {
        let sums = self.sums.value(&bytes);
        let correct = self.correct.as_ref().map(|correct| correct.value(&bytes));
        let accuracy = correct.map(|correct| correct / sums.token_sum.max(1.0));
        let preference =
            self.preference.as_ref().map(|preference| of_pairs(&preference.value(&bytes), &sums));
        FinishedEvaluation { tag, loss: mean(&sums), accuracy, preference, at }
    }
}

/// The buffers that the host reads after a step.
#[derive(Clone, Debug)]
pub(crate) struct StepReadback {
    pub sources: ReadBuffers,
    state: Slot<StepState>,
    scaler: Option<Slot<LossScaleState>>,
    watched: WatchedSlots,
    ahead_loss: Option<Slot<LossState>>,
    preference: Option<(Slot<PreferenceState>, Slot<LossState>)>,
    tallies: Option<Slot<u32>>,
    hot: Option<Slot<u32>>,
    experts: Option<ExpertState>,
    losses: BalanceLosses,
}

impl StepReadback {
    pub fn new(recordings: &Recordings) -> Self {
        let mut sources = ReadBuffers::default();
        let experts = recordings.tensors.model.experts;
        let words = |sources: &mut ReadBuffers, words: Option<(BufferId, u64)>| {
            let (BufferId::Persistent(id), bytes) = words? else { return None };
            Some(sources.add(id, bytes as usize / size_of::<u32>()))
        };
        Self {
            state: sources.add_tensor(recordings.tensors.state, 1),
            scaler: recordings.tensors.scaler.map(|scaler| sources.add_tensor(scaler.state, 1)),
            watched: recordings.monitors.slots(&mut sources),
            ahead_loss: recordings.tensors.ahead_loss.map(|ahead| sources.add_tensor(ahead, 1)),
            preference: recordings.tensors.preference.map(|preference| {
                let sums = sources.add_tensor(preference.state, 1);
                (sums, sources.add_tensor(recordings.tensors.loss, 1))
            }),
            tallies: words(&mut sources, experts.map(|experts| experts.tallies())),
            hot: words(&mut sources, experts.and_then(|experts| experts.hot_choice())),
            experts,
            losses: recordings
                .model
                .mixture
                .as_ref()
                .map_or(BalanceLosses::default(), |mixture| mixture.losses),
            sources,
        }
    }

    pub fn read(&self, Arrival { tag: step, at, bytes }: Arrival) -> FinishedStep {
        let mut state = self.state.value(&bytes);
        let scaler = self.scaler.as_ref().map(|scaler| scaler.value(&bytes));
        state.loss_scale = scaler.map_or(state.loss_scale, |scaler| scaler.used);
        let tallies = values(self.tallies.as_ref(), &bytes);
        FinishedStep {
            step,
            state,
            scaler,
            watched: self.watched.read(&bytes),
            ahead_loss: self.ahead_loss.as_ref().map(|ahead| mean(&ahead.value(&bytes))),
            preference: (self.preference.as_ref())
                .map(|(sums, losses)| of_pairs(&sums.value(&bytes), &losses.value(&bytes))),
            loads: self.experts.map(|experts| self.loads(&experts, &tallies)),
            hot_experts: self
                .experts
                .zip(self.hot.as_ref())
                .map(|(experts, hot)| experts.hot_experts(&hot.values(&bytes))),
            at,
        }
    }

    fn loads(&self, experts: &ExpertState, tallies: &[u32]) -> Vec<LayerLoad> {
        let rows = tallies.chunks_exact(experts.tally_bytes() as usize / size_of::<u32>());
        let layers = experts.layers().zip(rows);
        layers.map(|(layer, row)| self.layer(layer, experts.experts(), row)).collect()
    }

    fn layer(&self, layer: usize, experts: u32, words: &[u32]) -> LayerLoad {
        let columns = TallyColumns::of(experts);
        let counts = |first: u32| words[first as usize..][..experts as usize].to_vec();
        let loss = |at: u32| f32::from_bits(words[at as usize]);
        let BalanceLosses { expert, sequence, z } = self.losses;
        LayerLoad {
            layer,
            chosen: counts(columns.chosen),
            last: counts(columns.last),
            dropped: words[columns.dropped as usize],
            choices: words[columns.choices as usize],
            balance_loss: expert as f32 * loss(columns.expert_loss)
                + sequence as f32 * loss(columns.sequence_loss),
            z_loss: z as f32 * loss(columns.z_loss),
        }
    }
}

/// The means over pairs whose number is that of `losses`.
fn of_pairs(sums: &PreferenceState, losses: &LossState) -> PreferenceState {
    let mean = |sum: f32| sum / losses.token_sum.max(1.0);
    let PreferenceState { chosen_reward, rejected_reward, accurate, chosen_log_prob, rejected_log_prob } =
        *sums;
    PreferenceState {
        chosen_reward: mean(chosen_reward),
        rejected_reward: mean(rejected_reward),
        accurate: mean(accurate),
        chosen_log_prob: mean(chosen_log_prob),
        rejected_log_prob: mean(rejected_log_prob),
    }
}

fn mean(sums: &LossState) -> f32 {
    sums.loss_sum / sums.token_sum.max(1.0)
}

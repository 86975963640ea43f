//! The results of a step and of an evaluation once the device has finished them.

use super::recordings::{Recordings, persistent};
use crate::device::Arrival;
use crate::model::ExpertState;
use crate::model::config::BalanceLosses;
use crate::ops::loss_scale::LossScaleState;
use crate::ops::step_state::{LossState, StepState};
use crate::ops::tally::TallyColumns;
use crate::record::{BufferId, PersistentId, Tensor};
use crate::report::expert_load::{LayerLoad, MixtureReport};
use std::time::Instant;

/// A step that the device has finished.
#[derive(Clone, Debug)]
pub struct FinishedStep {
    /// Index of the step, from 1.
    pub step: u64,
    /// `StepState` after it, but with the loss scale that it used.
    pub state: StepState,
    /// Where the loss scale stands after it, if it adapts.
    pub scaler: Option<LossScaleState>,
    /// Mean loss of multi-token prediction in nats per token, for a model that has it.
    pub ahead_loss: Option<f32>,
    /// What monitors left, for [`Board::values`](super::monitors::Board::values).
    pub monitors: Vec<f32>,
    /// The load of experts, for a mixture.
    pub mixture: Option<MixtureReport>,
    /// When the device finished it.
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
    /// When the device finished it.
    pub at: Instant,
}

/// The buffers that are read back after an evaluation, and how many bytes of each are.
pub(super) fn evaluation_sources(recordings: &Recordings) -> Vec<(PersistentId, u64)> {
    let loss = persistent(recordings.eval_loss).map(|id| (id, size_of::<LossState>() as u64));
    let correct = recordings.eval_correct.and_then(persistent).map(|id| (id, size_of::<f32>() as u64));
    loss.into_iter().chain(correct).collect()
}

impl FinishedEvaluation {
    pub(super) fn read(arrival: Arrival) -> Self {
        let (sums, correct) = arrival.bytes.split_at(size_of::<LossState>());
        let sums: LossState = bytemuck::pod_read_unaligned(sums);
        let share = |correct: &[u8]| bytemuck::pod_read_unaligned::<f32>(correct) / sums.token_sum.max(1.0);
        let accuracy = (!correct.is_empty()).then(|| share(correct));
        Self { tag: arrival.tag, loss: mean(&sums), accuracy, at: arrival.at }
    }
}

/// The buffers that are read back after a step, and how they are decoded.
#[derive(Clone, Debug)]
pub(super) struct StepReadback {
    state: Tensor,
    scaler: Option<Tensor>,
    monitors: Vec<(PersistentId, u64)>,
    watched_sums: Option<PersistentId>,
    ahead_loss: Option<Tensor>,
    experts: Option<ExpertState>,
    losses: BalanceLosses,
}

impl StepReadback {
    pub fn new(recordings: &Recordings) -> Self {
        let mixture = recordings.model.mixture.as_ref();
        Self {
            state: recordings.state,
            scaler: recordings.scaler.map(|scaler| scaler.state),
            monitors: recordings.monitors.sources(),
            watched_sums: recordings.monitors.cleared(),
            ahead_loss: recordings.ahead_loss,
            experts: recordings.experts,
            losses: mixture.map_or(BalanceLosses::default(), |mixture| mixture.losses),
        }
    }

    /// The buffers, and how many bytes of each are read back.
    pub fn sources(&self) -> Vec<(PersistentId, u64)> {
        let state = persistent(self.state).map(|id| (id, size_of::<StepState>() as u64));
        let scaler = self.scaler.and_then(persistent).map(|id| (id, size_of::<LossScaleState>() as u64));
        let monitors = self.monitors.iter().copied();
        [state, scaler].into_iter().flatten().chain(monitors).chain(self.sums()).collect()
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.sources().iter().map(|(_, bytes)| bytes).sum()
    }

    /// The buffers that accumulate over a step and are cleared before it: all but the states, which persist.
    pub fn cleared(&self) -> impl Iterator<Item = PersistentId> + use<> {
        self.sums().into_iter().map(|(id, _)| id).chain(self.watched_sums)
    }

    pub fn read(&self, arrival: Arrival) -> FinishedStep {
        let Arrival { tag: step, at, bytes } = arrival;
        let (state, rest) = bytes.split_at(size_of::<StepState>());
        let scaler_bytes = if self.scaler.is_some() { size_of::<LossScaleState>() } else { 0 };
        let (scaler, rest) = rest.split_at(scaler_bytes);
        let (monitors, rest) = rest.split_at(self.monitors.iter().map(|(_, bytes)| *bytes as usize).sum());
        let ahead_bytes = if self.ahead_loss.is_some() { size_of::<LossState>() } else { 0 };
        let (ahead, tallies) = rest.split_at(ahead_bytes);
        let mut state: StepState = bytemuck::pod_read_unaligned(state);
        let scaler: Option<LossScaleState> = self.scaler.map(|_| bytemuck::pod_read_unaligned(scaler));
        state.loss_scale = scaler.map_or(state.loss_scale, |scaler| scaler.used);
        FinishedStep {
            step,
            state,
            scaler,
            monitors: bytemuck::pod_collect_to_vec(monitors),
            ahead_loss: self.ahead_loss.map(|_| mean(&bytemuck::pod_read_unaligned(ahead))),
            mixture: self.experts.map(|experts| self.mixture(&experts, tallies)),
            at,
        }
    }

    fn sums(&self) -> Vec<(PersistentId, u64)> {
        let ahead = self.ahead_loss.and_then(persistent).map(|id| (id, size_of::<LossState>() as u64));
        let tallies = self.experts.map(|experts| experts.tallies());
        let tallies = tallies.and_then(|(buffer, bytes)| match buffer {
            BufferId::Persistent(id) => Some((id, bytes)),
            BufferId::Transient(_) => None,
        });
        [ahead, tallies].into_iter().flatten().collect()
    }

    fn mixture(&self, experts: &ExpertState, tallies: &[u8]) -> MixtureReport {
        let rows = tallies.chunks_exact(experts.tally_bytes() as usize);
        let layers = experts.layers().zip(rows).map(|(layer, row)| {
            let words: Vec<u32> = bytemuck::pod_collect_to_vec(row);
            self.layer(layer, experts.experts(), &words)
        });
        MixtureReport { layers: layers.collect() }
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

fn mean(sums: &LossState) -> f32 {
    sums.loss_sum / sums.token_sum.max(1.0)
}

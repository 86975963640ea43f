//! The losses of each micro-batch, from copies of the step's running sums.

use crate::element::Element;
use crate::model::config::BalanceLosses;
use crate::model::stages::Chunk;
use crate::ops::step_state::LossState;
use crate::ops::tally::TallyColumns;
use crate::record::{BufferId, PersistentId, Persistents, State, Tensor};
use crate::train::run_parts::RunParts;

/// Words of a copied `LossState`, including padding.
const SUMS: usize = 8;

/// Words of the losses of a layer's experts, including padding.
const OF_LAYER: usize = 4;

/// The running sums of a step's losses after each of its micro-batches, copied without a launch. Each stage of a
/// pipeline has the sums of its layers, and also takes its micro-batches in order.
#[derive(Clone, Debug)]
pub struct MicroLosses {
    /// A row for each micro-batch of this rank: `LossState` of the next token, `LossState` of multi-token prediction,
    /// and for each layer of experts the expert, sequence and z-loss of its tally.
    pub rows: Tensor,
    /// The rows of this stage of a pipeline, in which the sums of other stages are 0; without stages the same as
    /// `rows`.
    pub own: Tensor,
    /// Each copy, with the chunk of layers after whose forward pass it is made.
    copies: Vec<(usize, SumCopy)>,
    layout: Sums,
    factors: BalanceLosses,
    /// Micro-batches of a step on all ranks, over which a tally's losses are averaged.
    accumulation: f64,
}

/// A copy that is made after each micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct SumCopy {
    /// The buffer that is copied, and the byte at which the copy starts.
    pub from: (PersistentId, u64),
    /// The byte of the micro-batch's row that it is copied to.
    pub to: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Losses of a micro-batch, or their means over several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Losses {
    /// Loss of the next token, in nats per token.
    pub lm: f64,
    /// Loss of multi-token prediction, in nats per token, for a model that has it.
    pub mtp: Option<f64>,
    /// Balance losses of all layers, with their factors, for a mixture that has any.
    pub aux: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Sums {
    has_ahead: bool,
    /// Layers of experts whose balance losses are watched.
    layers: usize,
}

impl MicroLosses {
    /// The losses that the run asks for.
    pub(super) fn new(run: &RunParts<'_>, persistents: &mut Persistents) -> Option<Self> {
        let monitor = &run.plan.settings.monitor;
        if !monitor.local_loss_format.is_on() {
            return None;
        }
        let mixture = run.plan.model.mixture.as_ref();
        let factors = mixture.map(|mixture| mixture.losses).unwrap_or_default();
        let has_balance = factors.expert > 0.0 || factors.sequence > 0.0;
        let experts = run.tensors.model.experts.filter(|_| has_balance);
        let layers = experts.map_or(0, |experts| experts.layers().len());
        let layout = Sums { has_ahead: run.tensors.ahead_loss.is_some(), layers };
        let micro_batches = run.plan.settings.runner.gradient_accumulation_steps as u32;
        let mut rows = |label| persistents.tensor(label, micro_batches, layout.words() as u32, Element::F32);
        let all = rows("micro-batch losses");
        let ranks = &run.ownership.ranks;
        let own = if ranks.pipeline > 1 { rows("own micro-batch losses") } else { all };
        let chunks = match ranks.pipeline {
            1 => vec![Chunk::whole(usize::MAX)],
            _ => run.plan.stages.chunks(ranks.stage()),
        };
        let last = chunks.iter().position(|chunk| chunk.is_last);
        let whole = |tensor: Tensor, to: usize| {
            let bytes = 4 * u64::from(LossState::WORDS);
            tensor.buffer.persistent().map(|id| SumCopy { from: (id, 0), to: 4 * to as u64, bytes })
        };
        let of_layer = |(number, layer): (usize, usize)| {
            let tally = experts?.tally(layer);
            let BufferId::Persistent(id) = tally.buffer else { return None };
            let first = TallyColumns::of(experts?.experts()).expert_loss;
            let to = 4 * (layout.first_layer() + OF_LAYER * number) as u64;
            let chunk = chunks.iter().position(|chunk| chunk.layers.contains(&layer))?;
            Some((chunk, SumCopy { from: (id, tally.offset + 4 * u64::from(first)), to, bytes: 12 }))
        };
        let next = whole(run.tensors.loss, 0);
        let ahead = run.tensors.ahead_loss.and_then(|ahead| whole(ahead, SUMS));
        let of_tokens = next.into_iter().chain(ahead).filter_map(|copy| Some((last?, copy)));
        let of_layers = experts.iter().flat_map(|experts| experts.layers().enumerate()).filter_map(of_layer);
        Some(Self {
            rows: all,
            own,
            copies: of_tokens.chain(of_layers).collect(),
            layout,
            factors,
            accumulation: run.plan.micro_batches_per_step() as f64,
        })
    }

    /// The copies to make after the forward pass of micro-batch number `micro_step` of a step through chunk number
    /// `chunk`, and the buffer that they go to.
    pub(in crate::train) fn copies(
        &self,
        chunk: usize,
        micro_step: u64,
    ) -> impl Iterator<Item = (SumCopy, PersistentId)> {
        let row = micro_step * 4 * u64::from(self.own.stride);
        let to = self.own.buffer.persistent();
        let of_chunk = self.copies.iter().filter(move |(of, _)| *of == chunk);
        of_chunk.filter_map(move |(_, copy)| Some((SumCopy { to: row + copy.to, ..*copy }, to?)))
    }

    /// The losses of each micro-batch, from the `words` that the host read.
    pub(super) fn of_micro_batches(&self, words: &[f32]) -> Vec<Losses> {
        let zeros = vec![0.0; self.layout.words()];
        let rows: Vec<&[f32]> = words.chunks_exact(self.layout.words()).collect();
        let before = [zeros.as_slice()].into_iter().chain(rows.iter().copied());
        before.zip(&rows).map(|(before, after)| self.difference(before, after)).collect()
    }

    fn difference(&self, before: &[f32], after: &[f32]) -> Losses {
        let of_tokens = |first: usize| {
            let [sum, tokens] =
                [2, 3].map(|word| f64::from(after[first + word]) - f64::from(before[first + word]));
            sum / tokens.max(1.0)
        };
        let of_layer = |number: usize| {
            let first = self.layout.first_layer() + OF_LAYER * number;
            let [expert, sequence] = [0, 1].map(|word| f64::from(after[first + word] - before[first + word]));
            self.accumulation * (self.factors.expert * expert + self.factors.sequence * sequence)
        };
        Losses {
            lm: of_tokens(0),
            mtp: self.layout.has_ahead.then(|| of_tokens(SUMS)),
            aux: (self.layout.layers > 0).then(|| (0..self.layout.layers).map(of_layer).sum()),
        }
    }
}

impl Losses {
    /// The name and the loss of each kind that the model has.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let others = [("mtp", self.mtp), ("aux", self.aux)];
        let others = others.into_iter().filter_map(|(name, loss)| Some((name, loss?)));
        [("lm", self.lm)].into_iter().chain(others)
    }
}

impl Sums {
    fn first_layer(self) -> usize {
        if self.has_ahead { 2 * SUMS } else { SUMS }
    }

    fn words(self) -> usize {
        self.first_layer() + OF_LAYER * self.layers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::TransientId;

    /// Sums of two micro-batches, of 3 tokens and of 1 token, and of a layer whose tally has the mean over both.
    #[test]
    fn losses_of_micro_batches_are_differences_of_running_sums() {
        let losses = MicroLosses {
            rows: Tensor::new(BufferId::Transient(TransientId(0)), 0, 2, 12, Element::F32),
            own: Tensor::new(BufferId::Transient(TransientId(0)), 0, 2, 12, Element::F32),
            copies: Vec::new(),
            layout: Sums { has_ahead: false, layers: 1 },
            factors: BalanceLosses { expert: 0.5, sequence: 0.25, z: 0.0 },
            accumulation: 2.0,
        };
        let mut words = [0.0; 24];
        (words[2], words[3], words[8], words[9]) = (6.0, 3.0, 0.5, 1.0);
        (words[14], words[15], words[20], words[21]) = (11.0, 4.0, 1.5, 1.0);
        let want = [(2.0, 2.0 * (0.25 + 0.25)), (5.0, 2.0 * 0.5)];
        let got = losses.of_micro_batches(&words);
        assert_eq!(got.iter().map(|of| (of.lm, of.aux.unwrap())).collect::<Vec<_>>(), want);
        assert_eq!(got[0].kinds().map(|(name, _)| name).collect::<Vec<_>>(), ["lm", "aux"]);
    }
}

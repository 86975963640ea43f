//! The training objective: next-token loss, balance losses of mixtures, and loss of multi-token prediction.
//!
//! objective = CE + Σ over mixtures of factors·losses + factor / depth · Σᵢ CEᵢ, each CE a mean over its non-ignored
//! targets.

use std::collections::BTreeMap;

use super::block::{FeedForward, ReadGradients};
use super::embedding::embedding_backward;
use super::gpt::{HEAD_BIAS, Shape, Weights, accumulate, forward};
use super::linear_cross_entropy::biased_linear_cross_entropy;
use super::mixture::{Losses, Memory};
use super::multi_token::MtpModules;
use super::per_layer;
use super::vector::{add, assert_len, scaled};

/// Router states by layer index.
pub type Memories = BTreeMap<usize, Memory>;

/// A micro-batch of N tokens.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Token ids (N), whole sequences.
    pub tokens: &'a [u32],
    /// Target ids (N), the next token of each.
    pub targets: &'a [u32],
    /// Position of every token, (N).
    pub positions: &'a [u32],
    /// T, tokens per sequence.
    pub sequence_length: usize,
    /// Target id that is ignored.
    pub ignore: u32,
}

/// Losses and routing statistics of a micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Cross-entropy of the next token, summed over the targets that are not ignored.
    pub loss_sum: f64,
    /// Number of those targets.
    pub count: usize,
    /// (loss_sum, count) of each MTP module.
    pub further: Vec<(f64, usize)>,
    /// Routing statistics of the mixtures, by layer index.
    pub mixtures: BTreeMap<usize, MixtureOutcome>,
    /// The largest attention score of each head, layer by layer, those of the MTP modules last.
    pub largest_scores: Vec<Vec<f64>>,
}

/// Routing statistics of a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct MixtureOutcome {
    /// Choices per expert (E), dropped ones included.
    pub counts: Vec<usize>,
    /// Dropped choices.
    pub dropped: usize,
    /// Balance losses, unweighted.
    pub losses: Losses,
}

impl Outcome {
    /// The mean next-token loss, which a run reports; 0 if all targets are ignored.
    pub fn loss(&self) -> f64 {
        mean(self.loss_sum, self.count)
    }

    /// The mean loss of the MTP modules, unweighted; 0 if there are none.
    pub fn further_loss(&self) -> f64 {
        let losses = self.further.iter().map(|&(loss_sum, count)| mean(loss_sum, count));
        losses.sum::<f64>() / self.further.len().max(1) as f64
    }

    /// The value of the objective.
    pub fn objective(&self, shape: &Shape) -> f64 {
        let further = shape.multi_token.map_or(0.0, |further| further.loss_factor * self.further_loss());
        let factors = shape.mixture.map_or(Losses::default(), |mixture| mixture.losses);
        let balance = self.mixtures.values().map(|MixtureOutcome { losses, .. }| {
            factors.expert * losses.expert + factors.sequence * losses.sequence + factors.z * losses.z
        });
        self.loss() + further + balance.sum::<f64>()
    }
}

/// The outcome of a micro-batch, and the gradients of seed·objective.
#[track_caller]
pub fn outcome_and_gradients(
    shape: &Shape,
    weights: &Weights,
    memories: &Memories,
    batch: &Batch<'_>,
    seed: f64,
) -> (Outcome, Weights) {
    let count = batch.targets.iter().filter(|&&target| target != batch.ignore).count();
    with_seeds(shape, weights, memories, batch, seed / count.max(1) as f64, seed)
}

/// The outcome of a micro-batch, and the gradients of loss_seed·loss_sum + seed·(objective − loss).
#[track_caller]
pub(super) fn with_seeds(
    shape: &Shape,
    weights: &Weights,
    memories: &Memories,
    batch: &Batch<'_>,
    loss_seed: f64,
    seed: f64,
) -> (Outcome, Weights) {
    let Shape { hidden_size, storage, .. } = *shape;
    let weights = &storage.copies(weights);
    let Batch { tokens, targets, positions, sequence_length, ignore } = *batch;
    assert_len("targets", targets, tokens.len());
    let mut grads = Weights::new();
    let last = forward(shape, weights, memories, tokens, positions, sequence_length);
    let modules = MtpModules { shape, weights, memories, batch };
    let depths = modules.forward(&last.x);

    let (table, bias) = (shape.head_table(weights), shape.head_bias(weights));
    let (cap, head) = (shape.variant.logit_cap, (&table[..], bias.as_deref()));
    let head = biased_linear_cross_entropy(&last.normed, head, targets, ignore, loss_seed, cap, storage);
    if bias.is_some() {
        accumulate(&mut grads, HEAD_BIAS, scaled(&head.dbias, shape.factors.logits));
    }
    accumulate(&mut grads, shape.head(), shape.head_table_backward(weights, &head.dw));
    let (further, dx_ahead) = modules.backward(&depths, seed, &mut grads);
    let mut dx = if shape.variant.query_layer {
        head.dh
    } else {
        storage.store(add(&shape.head_input_backward(weights, &last.x, &head.dh, &mut grads), &dx_ahead))
    };
    let mut read = ReadGradients::default();
    for (layer, saved) in last.blocks.iter().enumerate().rev() {
        let block = shape.block(weights, memories, layer, batch);
        dx = block.backward(saved, &dx, seed, &mut grads, &mut read);
        if shape.is_query_layer(layer) {
            let of_norm = shape.norm_backward(weights, shape.final_norm(), &last.x, &dx, &mut grads);
            dx = storage.store(of_norm);
        }
    }
    if shape.variant.per_layer_width.is_some() {
        read.inputs.reverse();
        let of = (tokens, &last.first[..]);
        let through = per_layer::backward(shape, weights, of, &last.per_layer, &read.inputs, &mut grads);
        dx = storage.store(add(&dx, &through));
    }
    if shape.variant.embedding_norm {
        let dnorm = shape.norm_backward(weights, shape.embedding_norm(), &last.embedded, &dx, &mut grads);
        dx = storage.store(dnorm);
    }
    shape.embedded_backward(weights, &dx, tokens, &mut grads);
    let rows = shape.position_rows();
    if rows > 0 {
        let dtable = embedding_backward(&dx, &shape.rows_of_positions(positions), rows, hidden_size);
        accumulate(&mut grads, shape.position_table(), dtable);
    }
    let blocks = last.blocks.iter().chain(depths.iter().map(|depth| &depth.block)).enumerate();
    let largest_scores = blocks
        .clone()
        .map(|(layer, saved)| shape.block(weights, memories, layer, batch).largest_scores(saved));
    let largest_scores = largest_scores.collect();
    let mixtures = blocks.filter_map(|(layer, saved)| match &saved.feed_forward {
        FeedForward::Mixture(visit) | FeedForward::Both { visit, .. } => {
            let dropped = visit.kept.iter().filter(|kept| !**kept).count();
            Some((layer, MixtureOutcome { counts: visit.counts.clone(), dropped, losses: visit.losses }))
        }
        FeedForward::Dense { .. } => None,
    });
    let mixtures = mixtures.collect();
    (Outcome { loss_sum: head.loss_sum, count: head.count, further, mixtures, largest_scores }, grads)
}

fn mean(sum: f64, count: usize) -> f64 {
    sum / count.max(1) as f64
}

#[cfg(test)]
mod tests;

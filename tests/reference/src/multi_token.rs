//! Multi-token prediction, MTP (DeepSeek-V3 2024, arXiv:2412.19437, section 2.2).
//!
//! MTP module i of `depth`, stored as layer L + i − 1 after the model's L layers, predicts i tokens further than the
//! model:
//!
//! h₀ is the output of the last layer, before the final norm; eᵢ is the embedding of the tokens shifted left by i, with
//! token 0 past the end of the sequence. hᵢ = block(W·\[norm(eᵢ) ‖ norm(hᵢ₋₁)\]), W (D, 2·D), and the model's own head
//! computes the logits of norm(hᵢ). Targets are shifted by i as well; those past the end of the sequence are ignored.
//!
//! The embedding's half comes first, as in the published checkpoints of DeepSeek-V3 and its relatives.

use super::block::{Activations, Block, ReadGradients, Reads};
use super::gpt::{Shape, Weights, accumulate};
use super::linear_cross_entropy::stored_linear_cross_entropy;
use super::matmul::{linear, linear_backward};
use super::objective::{Batch, Memories};
use super::vector::add;

/// Settings of multi-token prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MultiToken {
    /// Number of MTP modules.
    pub depth: usize,
    /// Weight of their mean loss in the objective.
    pub loss_factor: f64,
}

/// The MTP modules of a model, applied to a micro-batch.
pub(super) struct MtpModules<'a> {
    pub(super) shape: &'a Shape,
    pub(super) weights: &'a Weights,
    pub(super) memories: &'a Memories,
    pub(super) batch: &'a Batch<'a>,
}

/// Activations of one module, saved for the backward pass.
pub(super) struct MtpActivations {
    /// eᵢ and hᵢ₋₁, (N, D) each.
    embedded: Vec<f64>,
    state: Vec<f64>,
    /// Both after their norms, concatenated (N, 2·D).
    joined: Vec<f64>,
    pub(super) block: Activations,
    /// hᵢ, and hᵢ after its norm, (N, D) each.
    out: Vec<f64>,
    normed: Vec<f64>,
}

impl MtpModules<'_> {
    /// Runs all modules, given h₀ (N, D).
    #[track_caller]
    pub(super) fn forward(&self, h: &[f64]) -> Vec<MtpActivations> {
        let (rows, width) = (self.batch.tokens.len(), self.shape.hidden_size);
        let mut depths: Vec<MtpActivations> = Vec::new();
        for ahead in 1..=self.depth() {
            let name = |of: &str| self.name(ahead, of);
            let state = depths.last().map_or(h, |depth| &depth.out).to_vec();
            let embedded = self.shape.embedded(self.weights, &self.shifted(self.batch.tokens, ahead, 0));
            let store = |values| self.shape.storage.store(values);
            let joined = store(side_by_side(
                &self.shape.norm(self.weights, &name(TOKEN_NORM), &embedded),
                &self.shape.norm(self.weights, &name(STATE_NORM), &state),
                width,
            ));
            let fuse = &self.weights[&format!("{}.weight", name(FUSE))];
            let x = store(linear(&joined, fuse, None, rows, width, 2 * width));
            let (out, block) = self.block(ahead).forward(x, Reads::default());
            let normed = store(self.shape.norm(self.weights, &name(NORM), &out));
            depths.push(MtpActivations { embedded, state, joined, block, out, normed });
        }
        depths
    }

    /// (loss_sum, count) of each module, and the gradient (N, D) of h₀ of `seed` times their term of the objective;
    /// adds those of the weights to `grads`.
    #[track_caller]
    pub(super) fn backward(
        &self,
        depths: &[MtpActivations],
        seed: f64,
        grads: &mut Weights,
    ) -> (Vec<(f64, usize)>, Vec<f64>) {
        let Batch { tokens, targets, ignore, .. } = *self.batch;
        let Shape { hidden_size: width, multi_token, storage, .. } = *self.shape;
        let factor = multi_token.map_or(0.0, |further| further.loss_factor / further.depth as f64);
        let mut losses = Vec::new();
        let mut dh = vec![0.0; tokens.len() * width];
        for (ahead, depth) in depths.iter().enumerate().map(|(i, depth)| (i + 1, depth)).rev() {
            let name = |of: &str| self.name(ahead, of);
            let targets = self.shifted(targets, ahead, ignore);
            let counted = targets.iter().filter(|&&target| target != ignore).count();
            let table = self.shape.head_table(self.weights);
            let loss_seed = seed * factor / counted.max(1) as f64;
            let cap = self.shape.variant.logit_cap;
            let head =
                stored_linear_cross_entropy(&depth.normed, &table, &targets, ignore, loss_seed, cap, storage);
            losses.push((head.loss_sum, head.count));
            accumulate(grads, self.shape.head(), self.shape.head_table_backward(self.weights, &head.dw));
            let dnorm = self.shape.norm_backward(self.weights, &name(NORM), &depth.out, &head.dh, grads);
            let dout = storage.store(add(&dh, &dnorm));
            let dx =
                self.block(ahead).backward(&depth.block, &dout, seed, grads, &mut ReadGradients::default());

            let fuse = format!("{}.weight", name(FUSE));
            let w = &self.weights[&fuse];
            let (djoined, dw, _) = linear_backward(&depth.joined, w, &dx, tokens.len(), width, 2 * width);
            accumulate(grads, &fuse, dw);
            let djoined = storage.store(djoined);
            let half = |first: usize| -> Vec<f64> {
                djoined.chunks_exact(2 * width).flat_map(|row| &row[first..][..width]).copied().collect()
            };
            let norm_backward = |of: &str, x: &[f64], dy: &[f64], grads: &mut Weights| {
                self.shape.norm_backward(self.weights, &name(of), x, dy, grads)
            };
            let dembedded = storage.store(norm_backward(TOKEN_NORM, &depth.embedded, &half(0), grads));
            dh = storage.store(norm_backward(STATE_NORM, &depth.state, &half(width), grads));
            let shifted = self.shifted(tokens, ahead, 0);
            self.shape.embedded_backward(self.weights, &dembedded, &shifted, grads);
        }
        losses.reverse();
        (losses, dh)
    }

    fn depth(&self) -> usize {
        self.shape.multi_token.map_or(0, |further| further.depth)
    }

    fn block(&self, ahead: usize) -> Block<'_> {
        self.shape.block(self.weights, self.memories, self.shape.num_layers + ahead - 1, self.batch)
    }

    /// The full name of one of the layers around the block.
    fn name(&self, ahead: usize, of: &str) -> String {
        format!("model.layers.{}.{of}", self.shape.num_layers + ahead - 1)
    }

    /// Each sequence of `values` (N) shifted left by `by`, filled with `end`.
    fn shifted(&self, values: &[u32], by: usize, end: u32) -> Vec<u32> {
        let sequences = values.chunks_exact(self.batch.sequence_length);
        let shift = |sequence: &[u32]| -> Vec<u32> {
            (0..sequence.len()).map(|i| sequence.get(i + by).copied().unwrap_or(end)).collect()
        };
        sequences.flat_map(shift).collect()
    }
}

impl MultiToken {
    /// (name, number of elements) of the tensors around the block, named relative to the layer; `hidden` is D.
    pub(super) fn parameters(hidden: usize) -> [(&'static str, usize); 4] {
        [(TOKEN_NORM, hidden), (STATE_NORM, hidden), (FUSE, 2 * hidden * hidden), (NORM, hidden)]
    }
}

/// Each row of a concatenated with the row of b, both `width` wide.
fn side_by_side(a: &[f64], b: &[f64], width: usize) -> Vec<f64> {
    a.chunks_exact(width).zip(b.chunks_exact(width)).flat_map(|(a, b)| [a, b].concat()).collect()
}

const TOKEN_NORM: &str = "enorm";
const STATE_NORM: &str = "hnorm";
const FUSE: &str = "eh_proj";
const NORM: &str = "shared_head.norm";

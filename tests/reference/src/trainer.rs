//! The whole training step in f64: gradient accumulation, clipping, optimizer, router states. Tests compare runs on
//! the device with it.

use super::adamw::{AdamW, Correction, adamw};
use super::gpt::{Shape, Weights, accumulate};
use super::grad_norm::{clip_coefficient, grad_norm};
use super::muon::{Muon, muon};
use super::objective::{Batch, Memories, Outcome, outcome_and_gradients};
use super::sgd::{Sgd, sgd};
use super::vector::rows_of;
use std::collections::{BTreeMap, BTreeSet};

/// A model in training.
#[derive(Clone, Debug)]
pub struct Trainer {
    /// Sizes and variant of the model.
    pub shape: Shape,
    /// The parameters.
    pub weights: Weights,
    /// First moments, by parameter name.
    pub m: Weights,
    /// Second moments, by parameter name.
    pub v: Weights,
    /// Steps taken so far.
    pub step: u32,
    /// Target id that is ignored; `u32::MAX` unless changed.
    pub ignore: u32,
    /// Whether weight decay applies to the tensor of that name; [`decays`] unless changed.
    pub decays: fn(&str) -> bool,
    /// Learning rates at the next step of tensors with their own.
    pub rates: BTreeMap<String, f64>,
    /// Weight decays of tensors with their own.
    pub weight_decays: BTreeMap<String, f64>,
    /// Tensors that are not trained.
    pub frozen: BTreeSet<String>,
    /// What updates the tensors; AdamW unless changed.
    pub rule: Rule,
    /// Router states of the mixtures: biases, hot experts.
    pub memories: Memories,
}

/// What updates the tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// AdamW.
    AdamW,
    /// Muon for the matrices of the layers, AdamW for all other tensors.
    Muon(MuonSettings),
    /// SGD.
    Sgd(SgdSettings),
}

/// Hyperparameters of SGD other than learning rate and weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdSettings {
    /// Decay of the momentum per step.
    pub momentum: f64,
    /// How much less than 1 a gradient adds to the momentum.
    pub dampening: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
}

/// Hyperparameters of Muon other than learning rate and weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonSettings {
    /// Decay of the momentum per step.
    pub momentum: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
    /// Number of Newton-Schulz steps.
    pub steps: u32,
    /// RMS of an update at learning rate 1.
    pub rms: f64,
}

/// Hyperparameters of AdamW other than the learning rate, which a schedule sets for each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWSettings {
    /// Decay of the first moment per step.
    pub beta1: f64,
    /// Decay of the second moment per step.
    pub beta2: f64,
    /// ε, added to √v̂ outside the root.
    pub eps: f64,
    /// Decoupled weight decay of the tensors that decay.
    pub weight_decay: f64,
    /// How the bias of the moments towards 0 is corrected.
    pub correction: Correction,
}

/// The report of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepResult {
    /// Mean over micro-batches of each one's mean next-token loss, before the update, without the other terms of the
    /// objective.
    pub loss: f64,
    /// Global gradient norm, before clipping.
    pub grad_norm: f64,
    /// The gradient of each tensor that trains, before clipping.
    pub gradients: Weights,
    /// The outcome of each micro-batch.
    pub outcomes: Vec<Outcome>,
}

/// The usual rule for weight decay: matrices decay, embedding and output projection included; norms (`ln_1`,
/// `ln_2`, `ln_f` in GPT-2), biases, sinks, factors of experts, the numbers of heads of linear attention and those of
/// xIELU do not.
pub fn decays(name: &str) -> bool {
    const VECTORS: [&str; 9] = [
        ".bias",
        ".sinks",
        ".attention_sink_bias",
        ".A_log",
        ".dt_bias",
        ".expert_scale",
        ".alpha_p",
        ".alpha_n",
        ".lora_magnitude_vector",
    ];
    let is_vector = VECTORS.iter().any(|end| name.ends_with(end));
    !is_vector && !name.contains("norm") && !name.contains(".ln_")
}

/// Whether Muon optimizes the tensor: projection matrices only. Excluded are the tables, which are looked up by token,
/// routers, whose rows score experts individually, and vectors.
fn is_layer_matrix(name: &str) -> bool {
    let last = name.rsplit('.').nth(1).unwrap_or_default();
    let is_of_lfm2 = ["w1", "w2", "w3"].contains(&last);
    name.ends_with("_proj.weight")
        || is_of_lfm2
        || last == "kv_a_proj_with_mqa"
        || last.starts_with("in_proj_")
}

impl Trainer {
    /// A trainer before its first step, with moments of zero.
    pub fn new(shape: Shape, weights: Weights) -> Self {
        let zeros: Weights = weights.iter().map(|(name, p)| (name.clone(), vec![0.0; p.len()])).collect();
        let (rates, weight_decays, frozen) = Default::default();
        let (m, v, step, ignore) = (zeros.clone(), zeros, 0, u32::MAX);
        let (rule, memories) = (Rule::AdamW, shape.memories());
        Self { shape, weights, m, v, step, ignore, decays, rates, weight_decays, frozen, rule, memories }
    }

    /// One step on micro-batches of (tokens, targets), each of whole sequences with positions from 0.
    ///
    /// The gradient is the mean over micro-batches of the gradient of each one's objective, itself a mean over
    /// non-ignored targets, so a token weighs more in a micro-batch with fewer of them. A micro-batch whose targets are
    /// all ignored contributes a loss of 0 and the gradient of its balance losses only. The gradient is clipped to
    /// `max_grad_norm`, the optimizer updates every tensor that is not frozen, and the router states are updated.
    #[track_caller]
    pub fn train_step<T: AsRef<[u32]>>(
        &mut self,
        micro_batches: &[(T, T)],
        sequence_length: usize,
        lr: f64,
        settings: &AdamWSettings,
        max_grad_norm: Option<f64>,
    ) -> StepResult {
        let (outcomes, mut grads) = self.outcomes_and_gradients(micro_batches, sequence_length);
        grads.retain(|name, _| !self.frozen.contains(name));
        let norm = grad_norm(grads.values().map(Vec::as_slice));
        let gradients = grads.clone();
        if let Some(max_norm) = max_grad_norm {
            let coefficient = clip_coefficient(norm, max_norm);
            grads.values_mut().flatten().for_each(|g| *g *= coefficient);
        }

        self.step += 1;
        for (name, g) in &grads {
            self.update(name, g, lr, settings);
        }
        for (layer, memory) in &mut self.memories {
            let Some(mixture) = self.shape.mixture_of(*layer) else { continue };
            let counts = outcomes.iter().map(|outcome| outcome.mixtures[layer].counts.clone());
            memory.update(mixture, self.step, &counts.collect::<Vec<_>>());
        }
        let loss = outcomes.iter().map(Outcome::loss).sum::<f64>() / outcomes.len() as f64;
        StepResult { loss, grad_norm: norm, gradients, outcomes }
    }

    /// Updates one tensor, given its clipped gradient.
    fn update(&mut self, name: &str, g: &[f64], lr: f64, settings: &AdamWSettings) {
        let AdamWSettings { beta1, beta2, eps, weight_decay, correction } = *settings;
        let lr = self.rates.get(name).copied().unwrap_or(lr);
        let weight_decay = match (self.decays)(name) {
            true => self.weight_decays.get(name).copied().unwrap_or(weight_decay),
            false => 0.0,
        };
        let cols = self.columns(name);
        let settings = AdamW { lr, beta1, beta2, eps, weight_decay, correction };
        let [p, m, v] = [&mut self.weights, &mut self.m, &mut self.v].map(|tensors| {
            tensors
                .get_mut(name)
                .unwrap_or_else(|| panic!("{name} has a gradient, but is not a tensor of the model."))
        });
        match self.rule {
            Rule::Muon(MuonSettings { momentum, nesterov, steps, rms }) if is_layer_matrix(name) => {
                let settings = Muon { lr, momentum, nesterov, steps, rms, weight_decay };
                muon(&settings, p, g, m, g.len() / cols, cols);
            }
            Rule::Sgd(SgdSettings { momentum, dampening, nesterov }) => {
                sgd(&Sgd { lr, momentum, dampening, nesterov, weight_decay }, self.step, p, g, m);
            }
            Rule::AdamW | Rule::Muon(_) => adamw(&settings, self.step, p, g, m, v),
        }
    }

    /// Columns of the matrix `name`.
    fn columns(&self, name: &str) -> usize {
        let Shape { hidden_size, num_heads, head_dim, latent, .. } = self.shape;
        match name {
            _ if name.ends_with("q_b_proj.weight") => self.weights[name].len() / (num_heads * head_dim),
            _ if name.ends_with("kv_b_proj.weight") => latent.map_or(hidden_size, |latent| latent.kv_rank),
            _ if name.ends_with("eh_proj.weight") => 2 * hidden_size,
            _ if ["o_proj.weight", "out_proj.weight", "down_proj.weight", "w2.weight"]
                .iter()
                .any(|end| name.ends_with(end)) =>
            {
                self.weights[name].len() / hidden_size
            }
            _ => hidden_size,
        }
    }

    /// The outcome of each micro-batch, and the gradients of the mean of their objectives.
    #[track_caller]
    fn outcomes_and_gradients<T: AsRef<[u32]>>(
        &self,
        micro_batches: &[(T, T)],
        sequence_length: usize,
    ) -> (Vec<Outcome>, Weights) {
        assert!(!micro_batches.is_empty(), "a step should have at least one micro-batch.");
        let (mut outcomes, mut grads) = (Vec::new(), Weights::new());
        for (tokens, targets) in micro_batches {
            let (tokens, targets) = (tokens.as_ref(), targets.as_ref());
            let sequences = rows_of("a micro-batch", tokens, sequence_length);
            let positions: Vec<u32> = (0..sequences).flat_map(|_| (0..).take(sequence_length)).collect();
            let batch =
                Batch { tokens, targets, positions: &positions, sequence_length, ignore: self.ignore };
            let seed = 1.0 / micro_batches.len() as f64;
            let (outcome, micro_grads) =
                outcome_and_gradients(&self.shape, &self.weights, &self.memories, &batch, seed);
            outcomes.push(outcome);
            for (name, gradient) in micro_grads {
                accumulate(&mut grads, &name, gradient);
            }
        }
        (outcomes, grads)
    }
}

#[cfg(test)]
mod tests;

//! The whole training step in f64: gradient accumulation, clipping, AdamW. A run on the GPU must follow it.

use super::adamw::{AdamW, adamw};
use super::gpt::{Shape, Weights, accumulate, loss_and_gradients};
use super::grad_norm::{clip_coefficient, grad_norm};
use super::vector::rows_of;

/// A model in training.
#[derive(Clone, Debug)]
pub struct Trainer {
    /// Sizes of the model.
    pub shape: Shape,
    /// The parameters.
    pub weights: Weights,
    /// First moments, by the names of the parameters.
    pub m: Weights,
    /// Second moments, by the names of the parameters.
    pub v: Weights,
    /// Steps taken so far.
    pub step: u32,
    /// Targets of this value are not counted; `u32::MAX` unless changed.
    pub ignore: u32,
    /// Whether weight decay acts on the tensor of a name; [`decays`] unless changed.
    pub decays: fn(&str) -> bool,
}

/// What AdamW needs beside the learning rate, which a schedule decides step by step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWSettings {
    /// Decay of the first moment per step.
    pub beta1: f64,
    /// Decay of the second moment per step.
    pub beta2: f64,
    /// Added to the root of the second moment, outside the root.
    pub eps: f64,
    /// Decoupled weight decay of the tensors that decay.
    pub weight_decay: f64,
}

/// What a step reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepResult {
    /// Mean over micro-batches of each one's mean loss, before the update.
    pub loss: f64,
    /// Norm of all gradients together, before clipping.
    pub grad_norm: f64,
}

/// The usual rule for weight decay: matrices decay, embedding and output projection included; norms (`ln_1`,
/// `ln_2`, `ln_f` in GPT-2) and biases do not.
pub fn decays(name: &str) -> bool {
    !name.ends_with("norm.weight") && !name.contains(".ln_") && !name.ends_with(".bias")
}

impl Trainer {
    /// A trainer before its first step, with moments of zero.
    pub fn new(shape: Shape, weights: Weights) -> Self {
        let zeros: Weights = weights.iter().map(|(name, p)| (name.clone(), vec![0.0; p.len()])).collect();
        Self { shape, weights, m: zeros.clone(), v: zeros, step: 0, ignore: u32::MAX, decays }
    }

    /// One step on micro-batches of (tokens, targets), each of whole sequences with positions from 0.
    ///
    /// The gradient is the mean over micro-batches of the gradient of each one's mean loss, so a token counts
    /// for more in a micro-batch that counts fewer. A micro-batch in which no target counts contributes a
    /// loss and a gradient of 0. The gradient is scaled to `max_grad_norm` where it is longer, then AdamW
    /// moves every tensor.
    #[track_caller]
    pub fn train_step<T: AsRef<[u32]>>(
        &mut self,
        micro_batches: &[(T, T)],
        sequence_length: usize,
        lr: f64,
        settings: &AdamWSettings,
        max_grad_norm: Option<f64>,
    ) -> StepResult {
        let (loss, mut grads) = self.mean_loss_and_gradients(micro_batches, sequence_length);
        let norm = grad_norm(grads.values().map(Vec::as_slice));
        if let Some(max_norm) = max_grad_norm {
            let coefficient = clip_coefficient(norm, max_norm);
            grads.values_mut().flatten().for_each(|g| *g *= coefficient);
        }

        self.step += 1;
        let AdamWSettings { beta1, beta2, eps, weight_decay } = *settings;
        let moments = self.m.values_mut().zip(self.v.values_mut());
        // All four maps hold the same names, so they agree in order too.
        for (((name, p), g), (m, v)) in self.weights.iter_mut().zip(grads.values()).zip(moments) {
            let weight_decay = if (self.decays)(name) { weight_decay } else { 0.0 };
            adamw(&AdamW { lr, beta1, beta2, eps, weight_decay }, self.step, p, g, m, v);
        }
        StepResult { loss, grad_norm: norm }
    }

    /// The mean over micro-batches of each one's mean loss, and its gradients.
    #[track_caller]
    fn mean_loss_and_gradients<T: AsRef<[u32]>>(
        &self,
        micro_batches: &[(T, T)],
        sequence_length: usize,
    ) -> (f64, Weights) {
        assert!(!micro_batches.is_empty(), "a step should have at least one micro-batch.");
        let (mut loss, mut grads) = (0.0, Weights::new());
        for (tokens, targets) in micro_batches {
            let (tokens, targets) = (tokens.as_ref(), targets.as_ref());
            let sequences = rows_of("a micro-batch", tokens, sequence_length);
            let positions: Vec<u32> = (0..sequences).flat_map(|_| (0..).take(sequence_length)).collect();
            let count = targets.iter().filter(|&&target| target != self.ignore).count();
            let seed = 1.0 / (count.max(1) * micro_batches.len()) as f64;
            let (loss_sum, _, micro_grads) = loss_and_gradients(
                &self.shape,
                &self.weights,
                tokens,
                targets,
                &positions,
                sequence_length,
                self.ignore,
                seed,
            );
            loss += seed * loss_sum;
            for (name, gradient) in micro_grads {
                accumulate(&mut grads, &name, gradient);
            }
        }
        (loss, grads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::gpt::Architecture;
    use crate::reference::gradient_check::assert_close;
    use crate::reference::random::Random;
    use crate::reference::rope::Rope;

    const IGNORE: u32 = u32::MAX;
    const T: usize = 3;
    const SETTINGS: AdamWSettings = AdamWSettings { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    const SHAPE: Shape = Shape {
        architecture: Architecture::Llama,
        vocab_size: 7,
        hidden_size: 8,
        num_layers: 1,
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 4,
        intermediate_size: 12,
        norm_eps: 1e-6,
        rope: Rope { head_dim: 4, rotary_dim: 4, theta: 1e4, interleaved: false },
        tie_word_embeddings: true,
        qkv_bias: true,
        qk_norm: true,
    };

    fn trainer() -> Trainer {
        let mut random = Random::new(91);
        let parameters = SHAPE.parameters().into_iter();
        Trainer::new(SHAPE, parameters.map(|(name, count)| (name, random.normal(count))).collect())
    }

    fn micro_batch(seed: u64) -> (Vec<u32>, Vec<u32>) {
        let mut random = Random::new(seed);
        (random.below(2 * T, 7), random.below(2 * T, 7))
    }

    #[test]
    fn the_step_runs_down_the_loss() {
        let mut trainer = trainer();
        let batch = [micro_batch(1)];
        let losses: Vec<f64> =
            (0..60).map(|_| trainer.train_step(&batch, T, 0.02, &SETTINGS, Some(1.0)).loss).collect();
        assert!(losses[59] < 0.3 * losses[0], "from {} to {}", losses[0], losses[59]);
        assert_eq!(trainer.step, 60);
    }

    #[test]
    fn micro_batches_of_one_size_equal_one_batch() {
        let (a, b) = (micro_batch(1), micro_batch(2));
        let whole = ([a.0.as_slice(), &b.0].concat(), [a.1.as_slice(), &b.1].concat());
        let (loss, grads) = trainer().mean_loss_and_gradients(&[whole], T);
        let (split_loss, split_grads) = trainer().mean_loss_and_gradients(&[a, b], T);
        assert!((loss - split_loss).abs() < 1e-14);
        for (name, gradient) in &grads {
            assert_close(name, &split_grads[name], gradient, 1e-12);
        }
    }

    #[test]
    fn every_micro_batch_weighs_the_same() {
        let (a, mut b) = (micro_batch(1), micro_batch(2));
        b.1[1..].fill(IGNORE);
        let loss = |batches: &[(Vec<u32>, Vec<u32>)]| trainer().mean_loss_and_gradients(batches, T).0;
        let expected = (loss(std::slice::from_ref(&a)) + loss(std::slice::from_ref(&b))) / 2.0;
        assert!((loss(&[a.clone(), b.clone()]) - expected).abs() < 1e-14);
        b.1.fill(IGNORE);
        assert_eq!(loss(std::slice::from_ref(&b)), 0.0);
    }

    #[test]
    fn the_reported_norm_is_the_one_before_clipping() {
        let batch = [micro_batch(1)];
        let (mut free, mut clipped) = (trainer(), trainer());
        let norm = free.train_step(&batch, T, 0.01, &SETTINGS, None).grad_norm;
        let max_norm = 0.25 * norm;
        assert_eq!(clipped.train_step(&batch, T, 0.01, &SETTINGS, Some(max_norm)).grad_norm, norm);
        // After the first step the moment is (1 − β₁) times the gradient that AdamW saw.
        let seen =
            |trainer: &Trainer| grad_norm(trainer.m.values().map(Vec::as_slice)) / (1.0 - SETTINGS.beta1);
        assert!((seen(&free) / norm - 1.0).abs() < 1e-12);
        assert!((seen(&clipped) / max_norm - 1.0).abs() < 1e-5);
    }

    #[test]
    fn matrices_decay_and_nothing_else() {
        // Without a counted target there is no gradient: a tensor changes by decay or not at all.
        let (tokens, _) = micro_batch(1);
        let batch = [(tokens, vec![IGNORE; 2 * T])];
        let (before, mut trainer) = (trainer(), trainer());
        trainer.train_step(&batch, T, 0.5, &SETTINGS, Some(1.0));
        for (name, p) in &trainer.weights {
            let matrix = name.contains("_proj.weight") || name.contains("embed_tokens");
            let factor = if matrix { 0.95 } else { 1.0 };
            let expected: Vec<f64> = before.weights[name].iter().map(|p| p * factor).collect();
            assert_close(name, p, &expected, 1e-15);
        }
        trainer.decays = |_| false;
        let before = trainer.weights.clone();
        trainer.train_step(&batch, T, 0.5, &SETTINGS, None);
        assert_eq!(trainer.weights, before);
    }
}

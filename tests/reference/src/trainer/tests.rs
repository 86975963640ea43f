//! Properties of the trainer that follow from its formulas.

use super::*;
use crate::gpt::{Architecture, Biases, Factors};
use crate::gradient_check::assert_close;
use crate::mixture::{Capacity, GateNorm, Hot, Losses, Mixture, Network, Score, Shared};
use crate::multi_token::MultiToken;
use crate::random::Random;
use crate::rope::Rope;
use crate::rope_scaling::Scaling;
use crate::storage::Storage;
use crate::swiglu::Gate;
use crate::variant::Variant;

const IGNORE: u32 = u32::MAX;
const T: usize = 3;
const SETTINGS: AdamWSettings = AdamWSettings {
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-8,
    weight_decay: 0.1,
    correction: Correction::Published,
};
const MUON: Rule = Rule::Muon(MuonSettings { momentum: 0.95, nesterov: true, steps: 5, rms: 0.2 });
const SHAPE: Shape = Shape {
    variant: Variant::PLAIN,
    window: None,
    other_layers: None,
    mixture: None,
    multi_token: None,
    low_rank: None,
    storage: Storage::Exact,
    architecture: Architecture::Llama,
    vocab_size: 7,
    hidden_size: 8,
    num_layers: 1,
    num_heads: 2,
    num_kv_heads: 1,
    head_dim: 4,
    gate: Gate::Silu,
    intermediate_size: 12,
    norm_eps: 1e-6,
    rope: Rope { head_dim: 4, rotary_dim: 4, theta: 1e4, interleaved: false, scaling: Scaling::None },
    tie_word_embeddings: true,
    latent: None,
    biases: Biases::QKV,
    factors: Factors::NONE,
    qk_norm: true,
};

fn trainer() -> Trainer {
    let mut random = Random::new(91);
    let parameters = SHAPE.parameters().into_iter();
    Trainer::new(SHAPE, parameters.map(|(name, count)| (name, random.normal(count))).collect())
}

fn mean_loss_and_gradients(trainer: &Trainer, batches: &[(Vec<u32>, Vec<u32>)]) -> (f64, Weights) {
    let (outcomes, grads) = trainer.outcomes_and_gradients(batches, T);
    (outcomes.iter().map(Outcome::loss).sum::<f64>() / outcomes.len() as f64, grads)
}

fn micro_batch(seed: u64) -> (Vec<u32>, Vec<u32>) {
    let mut random = Random::new(seed);
    (random.below(2 * T, 7), random.below(2 * T, 7))
}

#[test]
fn training_reduces_the_loss() {
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
    let (loss, grads) = mean_loss_and_gradients(&trainer(), &[whole]);
    let (split_loss, split_grads) = mean_loss_and_gradients(&trainer(), &[a, b]);
    assert!((loss - split_loss).abs() < 1e-14);
    for (name, gradient) in &grads {
        assert_close(name, &split_grads[name], gradient, 1e-12);
    }
}

#[test]
fn every_micro_batch_weighs_the_same() {
    let (a, mut b) = (micro_batch(1), micro_batch(2));
    b.1[1..].fill(IGNORE);
    let loss = |batches: &[(Vec<u32>, Vec<u32>)]| mean_loss_and_gradients(&trainer(), batches).0;
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
    let seen = |trainer: &Trainer| grad_norm(trainer.m.values().map(Vec::as_slice)) / (1.0 - SETTINGS.beta1);
    assert!((seen(&free) / norm - 1.0).abs() < 1e-12);
    assert!((seen(&clipped) / max_norm - 1.0).abs() < 1e-5);
}

#[test]
fn matrices_decay_and_nothing_else() {
    // With all targets ignored there is no gradient: a tensor changes by decay only.
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

#[test]
fn tensors_may_have_their_own_rates_and_decays() {
    let batch = [micro_batch(1)];
    let (embedding, norm) = ("model.embed_tokens.weight".to_string(), "model.norm.weight".to_string());
    let (mut plain, mut grouped) = (trainer(), trainer());
    grouped.rates = [(embedding.clone(), 0.02), (norm.clone(), 0.0)].into();
    grouped.weight_decays = [(embedding.clone(), 0.3)].into();
    let before = plain.weights.clone();
    plain.train_step(&batch, T, 0.01, &SETTINGS, Some(1.0));
    grouped.train_step(&batch, T, 0.01, &SETTINGS, Some(1.0));
    for (name, p) in &grouped.weights {
        let want: Vec<f64> = before[name]
            .iter()
            .zip(&plain.weights[name])
            .map(|(before, after)| match name {
                // Twice the learning rate and three times the decay of the plain run.
                _ if *name == embedding => {
                    before + 2.0 * (after - before * (1.0 - 0.01 * 0.1)) - 0.02 * 0.3 * before
                }
                _ if *name == norm => *before,
                _ => *after,
            })
            .collect();
        assert_close(name, p, &want, 1e-13);
    }
}

#[test]
fn frozen_tensors_do_not_change_and_are_not_in_the_norm() {
    let batch = [micro_batch(1)];
    let mut trainer = trainer();
    let before = trainer.weights.clone();
    let grads = mean_loss_and_gradients(&trainer, &batch).1;
    let is_frozen = |name: &str| name.contains("q_proj") || name.contains("embed_tokens");
    trainer.frozen = before.keys().filter(|name| is_frozen(name)).cloned().collect();
    let norm = trainer.train_step(&batch, T, 0.01, &SETTINGS, None).grad_norm;
    let rest = grads.iter().filter(|(name, _)| !is_frozen(name)).map(|(_, g)| g.as_slice());
    assert_eq!(norm, grad_norm(rest));
    for (name, p) in &trainer.weights {
        assert_eq!(*p == before[name], is_frozen(name), "{name}");
    }
}

#[test]
fn muon_updates_only_the_matrices_of_layers() {
    let batch = [micro_batch(1)];
    let (mut plain, mut trainer) = (trainer(), trainer());
    trainer.rule = MUON;
    let before = plain.weights.clone();
    plain.train_step(&batch, T, 0.01, &SETTINGS, Some(1.0));
    trainer.train_step(&batch, T, 0.01, &SETTINGS, Some(1.0));
    for (name, p) in &trainer.weights {
        assert_eq!(*p == plain.weights[name], !is_layer_matrix(name), "{name}");
        if is_layer_matrix(name) {
            // RMS of the update: 0.2 times that of a matrix with singular values near 1, except for some near 0.
            let moved: Vec<f64> = p.iter().zip(&before[name]).map(|(p, b)| p - b * 0.999).collect();
            let rms = (moved.iter().map(|x| x * x).sum::<f64>() / moved.len() as f64).sqrt();
            assert!((0.2..1.2).contains(&(rms / 0.002)), "{name}: {rms}");
        }
    }
    let losses: Vec<f64> =
        (0..60).map(|_| trainer.train_step(&batch, T, 0.02, &SETTINGS, Some(1.0)).loss).collect();
    assert!(losses[59] < 0.3 * losses[0], "from {} to {}", losses[0], losses[59]);
}

/// Two mixture blocks, one of them an MTP module.
fn mixture_trainer(mixture: Mixture) -> Trainer {
    let multi_token = Some(MultiToken { depth: 1, loss_factor: 0.5 });
    let shape = Shape { mixture: Some(mixture), multi_token, ..SHAPE };
    let mut random = Random::new(92);
    let tensors = shape.parameters().into_iter().map(|(name, count)| (name, random.normal(count)));
    let weights = tensors.collect();
    Trainer::new(shape, weights)
}

const MIXTURE: Mixture = Mixture {
    experts: 4,
    chosen: 2,
    score: Score::Sigmoid,
    groups: None,
    norm: Some(GateNorm::SUM),
    scaling: 1.0,
    bias_update_rate: 0.0,
    intermediate_size: 6,
    network: Network::Gated(Gate::Silu),
    has_biases: false,
    first_dense_layers: 0,
    is_beside_dense: false,
    shared: Some(Shared { intermediate_size: 4, is_gated: true }),
    losses: Losses { expert: 0.0, sequence: 0.0, z: 0.0 },
    capacity: None,
};

#[test]
fn experts_learn_by_either_optimizer() {
    let batch = [micro_batch(1), micro_batch(2)];
    let losses = Losses { expert: 0.01, sequence: 0.01, z: 0.001 };
    for rule in [Rule::AdamW, MUON] {
        let mut trainer = mixture_trainer(Mixture { losses, ..MIXTURE });
        trainer.rule = rule;
        let mut step = || trainer.train_step(&batch, T, 0.02, &SETTINGS, Some(1.0));
        let first = step();
        let last = (0..60).map(|_| step()).last().unwrap();
        assert!(last.loss < 0.3 * first.loss, "from {} to {}", first.loss, last.loss);
        let further = |result: &StepResult| result.outcomes.iter().map(Outcome::further_loss).sum::<f64>();
        assert!(further(&last) < 0.5 * further(&first), "from {} to {}", further(&first), further(&last));
    }
}

#[test]
fn router_states_are_updated_after_every_step() {
    let hot = Hot { count: 1, cold_token_share: 0.5, update_step: 100, checkpoint_step: None };
    let capacity = Capacity { factor: 1.5, is_token_major: false, renormalises: false, hot: Some(hot) };
    let mut trainer =
        mixture_trainer(Mixture { bias_update_rate: 0.01, capacity: Some(capacity), ..MIXTURE });
    let before = trainer.memories.clone();
    assert_eq!(before.keys().copied().collect::<Vec<usize>>(), [0, 1]);
    let result = trainer.train_step(&[micro_batch(1), micro_batch(2)], T, 0.0, &SETTINGS, None);
    for (layer, memory) in &trainer.memories {
        let [first, last] = [0, 1].map(|i| &result.outcomes[i].mixtures[layer].counts);
        // Two micro-batches of 2·3 tokens with two choices each: a mean of six for each of four experts.
        for (expert, bias) in memory.bias.iter().enumerate() {
            let load = first[expert] + last[expert];
            let expected = match load.cmp(&6) {
                std::cmp::Ordering::Less => 0.01,
                std::cmp::Ordering::Equal => 0.0,
                std::cmp::Ordering::Greater => -0.01,
            };
            assert_eq!(*bias, expected, "expert {expert} of layer {layer} had {load} choices");
        }
        assert_eq!(Some(&last[memory.hot[0]]), last.iter().max());
    }
    // With a learning rate of 0 only the biases change the choices: an expert that all 12 tokens choose, because its
    // bias exceeds any score, soon loses some of them.
    trainer.memories.values_mut().for_each(|memory| memory.bias = vec![1.0, 0.0, 0.0, 0.0]);
    let batch = [micro_batch(1), micro_batch(2)];
    let mut step = || {
        let result = trainer.train_step(&batch, T, 0.0, &SETTINGS, None);
        result.outcomes.iter().map(|outcome| outcome.mixtures[&0].counts[0]).sum::<usize>()
    };
    let first = step();
    let last = (0..120).map(|_| step()).last().unwrap();
    assert!(first == 12 && last <= 9, "from {first} to {last}");
}

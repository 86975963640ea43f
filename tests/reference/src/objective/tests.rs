//! The whole objective against finite differences, and properties that follow from its formulas.

use super::*;
use crate::gelu::Gelu;
use crate::gpt::{self, Architecture, Biases, Factors, loss_and_gradients};
use crate::gradient_check::{assert_close, assert_gradient, assert_slopes};
use crate::linear_cross_entropy::linear_cross_entropy;
use crate::mixture::{Capacity, ExpertGroups, GateNorm, Mixture, Network, Score, Shared};
use crate::multi_token::MultiToken;
use crate::random::Random;
use crate::rope::Rope;
use crate::rope_scaling::Scaling;
use crate::storage::Storage;
use crate::swiglu::Gate;
use crate::variant::{Norms, Variant};

const IGNORE: u32 = u32::MAX;
const T: usize = 5;
const MIXTURE: Mixture = Mixture {
    experts: 4,
    chosen: 2,
    score: Score::Softmax,
    groups: None,
    norm: Some(GateNorm::SUM),
    scaling: 1.0,
    bias_update_rate: 0.0,
    intermediate_size: 3,
    network: Network::Gated(Gate::Silu),
    has_biases: false,
    first_dense_layers: 0,
    is_beside_dense: false,
    shared: None,
    losses: Losses { expert: 0.5, sequence: 0.3, z: 0.2 },
    capacity: None,
};
const SHAPE: Shape = Shape {
    variant: Variant::PLAIN,
    window: None,
    other_layers: None,
    architecture: Architecture::Llama,
    vocab_size: 11,
    hidden_size: 6,
    num_layers: 2,
    num_heads: 2,
    num_kv_heads: 1,
    head_dim: 4,
    gate: Gate::Silu,
    intermediate_size: 5,
    norm_eps: 1e-5,
    rope: Rope { head_dim: 4, rotary_dim: 4, theta: 100.0, interleaved: false, scaling: Scaling::None },
    tie_word_embeddings: false,
    latent: None,
    biases: Biases::NONE,
    factors: Factors::NONE,
    qk_norm: true,
    mixture: Some(MIXTURE),
    multi_token: None,
    low_rank: None,
    storage: Storage::Exact,
};
const FACTORS: Factors = Factors { embedding: 3.0, residual: 0.6, logits: 0.7, ..Factors::NONE };
const AHEAD: MultiToken = MultiToken { depth: 2, loss_factor: 0.6 };

fn weights(shape: &Shape) -> Weights {
    let mut random = Random::new(111);
    let mut tensor = |count| random.normal(count).iter().map(|x| 0.5 * x).collect();
    shape.parameters().into_iter().map(|(name, count)| (name, tensor(count))).collect()
}

/// Two sequences; the fourth target is ignored.
fn data() -> (Vec<u32>, Vec<u32>, Vec<u32>) {
    let mut random = Random::new(112);
    let (tokens, mut targets) = (random.below(2 * T, 11), random.below(2 * T, 11));
    targets[3] = IGNORE;
    (tokens, targets, (0..2 * T as u32).map(|i| i % T as u32).collect())
}

fn batch((tokens, targets, positions): &(Vec<u32>, Vec<u32>, Vec<u32>)) -> Batch<'_> {
    Batch { tokens, targets, positions, sequence_length: T, ignore: IGNORE }
}

fn biased(shape: &Shape) -> Memories {
    let bias = |memory: Memory| Memory { bias: vec![0.0, 0.1, -0.1, 0.05], ..memory };
    shape.memories().into_iter().map(|(layer, memory)| (layer, bias(memory))).collect()
}

#[test]
fn every_gradient_is_the_finite_difference() {
    let deep_seek = Mixture {
        score: Score::Sigmoid,
        groups: Some(ExpertGroups { count: 2, chosen: 1, best: 2 }),
        scaling: 2.0,
        first_dense_layers: 1,
        shared: Some(Shared { intermediate_size: 3, is_gated: true }),
        ..MIXTURE
    };
    let tight = Capacity { factor: 0.8, is_token_major: true, renormalises: true, hot: None };
    let shapes = [
        SHAPE,
        Shape { mixture: Some(deep_seek), multi_token: Some(AHEAD), tie_word_embeddings: true, ..SHAPE },
        Shape { mixture: Some(Mixture { capacity: Some(tight), ..MIXTURE }), ..SHAPE },
        Shape { mixture: None, multi_token: Some(AHEAD), ..SHAPE },
        Shape { mixture: Some(deep_seek), multi_token: Some(AHEAD), factors: FACTORS, ..SHAPE },
        Shape {
            mixture: Some(Mixture { network: Network::Gated(Gate::Gelu(Gelu::Exact)), ..deep_seek }),
            ..SHAPE
        },
        Shape {
            mixture: Some(Mixture { network: Network::Gated(Gate::Clamped), has_biases: true, ..MIXTURE }),
            variant: Variant { sinks: true, ..Variant::PLAIN },
            ..SHAPE
        },
        Shape {
            mixture: Some(Mixture { is_beside_dense: true, first_dense_layers: 1, ..MIXTURE }),
            variant: Variant { norms: Norms::Both, ..Variant::PLAIN },
            ..SHAPE
        },
        Shape { multi_token: Some(MultiToken { depth: 1, ..AHEAD }), num_layers: 0, ..SHAPE },
    ];
    let (data, seed) = (data(), 0.3);
    for shape in shapes {
        let (weights, memories) = (weights(&shape), biased(&shape));
        let run = |weights: &Weights| outcome_and_gradients(&shape, weights, &memories, &batch(&data), seed);
        let (outcome, grads) = run(&weights);
        assert!(grads.keys().eq(weights.keys()), "every tensor has a gradient");
        assert!(outcome.objective(&shape) > outcome.loss());
        let mut moved = weights.clone();
        for (name, tensor) in &weights {
            assert_slopes(name, &grads[name], tensor, |x| {
                moved.insert(name.clone(), x.to_vec());
                seed * run(&moved).0.objective(&shape)
            });
            moved.insert(name.clone(), tensor.clone());
        }
    }
}

#[test]
fn loss_and_gradients_excludes_the_other_terms() {
    let shape = Shape { multi_token: Some(AHEAD), ..SHAPE };
    let (weights, data) = (weights(&shape), data());
    let (tokens, targets, positions) = &data;
    let plain = gpt::loss(&shape, &weights, tokens, targets, positions, T, IGNORE);
    let (outcome, _) = outcome_and_gradients(&shape, &weights, &shape.memories(), &batch(&data), 1.0);
    assert_eq!((outcome.loss_sum, outcome.count), plain);
    let (.., grads) = loss_and_gradients(&shape, &weights, tokens, targets, positions, T, IGNORE, 0.5);
    assert!(grads["model.layers.3.eh_proj.weight"].iter().all(|g| *g == 0.0));
    let mut moved = weights.clone();
    let name = "model.layers.0.mlp.gate.weight";
    assert_gradient(name, &grads[name], &weights[name], |x| {
        moved.insert(name.into(), x.to_vec());
        0.5 * gpt::loss(&shape, &moved, tokens, targets, positions, T, IGNORE).0
    });
}

#[test]
fn targets_past_the_end_of_the_sequence_are_ignored() {
    let shape = Shape { multi_token: Some(AHEAD), ..SHAPE };
    let (weights, data) = (weights(&shape), data());
    let outcome = |data: &(Vec<u32>, Vec<u32>, Vec<u32>)| {
        outcome_and_gradients(&shape, &weights, &shape.memories(), &batch(data), 1.0).0
    };
    // Of 2·5 targets the fourth is ignored, and one or two more of each sequence are past its end. The ignored target
    // is the third with a shift of one and the second with a shift of two.
    let first = outcome(&data);
    assert_eq!((first.count, first.further[0].1, first.further[1].1), (9, 7, 5));
    assert_eq!(first.mixtures.keys().copied().collect::<Vec<usize>>(), [0, 1, 2, 3]);
    for mixture in first.mixtures.values() {
        assert_eq!((mixture.counts.iter().sum::<usize>(), mixture.dropped), (2 * 2 * T, 0));
    }
    // The first module never predicts the first target of a sequence; the model does.
    let mut changed = data.clone();
    changed.1[T] = (changed.1[T] + 1) % 11;
    let second = outcome(&changed);
    assert_ne!(first.loss_sum, second.loss_sum);
    assert_eq!(first.further, second.further);
    changed.1[T + 1] = (changed.1[T + 1] + 1) % 11;
    let third = outcome(&changed);
    assert_ne!(second.further[0], third.further[0]);
    assert_eq!(second.further[1], third.further[1]);
}

#[test]
fn a_module_whose_block_is_the_identity() {
    // Without the contributions of block and state, the embedding of the shifted tokens remains.
    let shape = Shape { mixture: None, multi_token: Some(MultiToken { depth: 1, ..AHEAD }), ..SHAPE };
    let (mut weights, data) = (weights(&shape), data());
    for name in ["self_attn.o_proj", "mlp.down_proj"] {
        weights.get_mut(&format!("model.layers.2.{name}.weight")).unwrap().fill(0.0);
    }
    let identity = (0..6 * 12).map(|i| if i / 12 == i % 12 { 1.0 } else { 0.0 }).collect();
    weights.insert("model.layers.2.eh_proj.weight".into(), identity);
    let of = |weights: &Weights| {
        outcome_and_gradients(&shape, weights, &Memories::new(), &batch(&data), 1.0).0.further[0].0
    };
    let rms = |x: &[f64], w: &str| crate::rms_norm::rms_norm(x, &weights[w], 6, 1e-5);
    let tokens: Vec<u32> = data.0.chunks(T).flat_map(|row| [&row[1..], &[0]].concat()).collect();
    let embedded = super::super::embedding::embedding(&weights["model.embed_tokens.weight"], &tokens, 6);
    let x = rms(&embedded, "model.layers.2.enorm.weight");
    let h = rms(&x, "model.layers.2.shared_head.norm.weight");
    let targets: Vec<u32> = data.1.chunks(T).flat_map(|row| [&row[1..], &[IGNORE]].concat()).collect();
    let want = linear_cross_entropy(&h, &weights["lm_head.weight"], &targets, IGNORE, 1.0).loss_sum;
    assert_close("loss", &[of(&weights)], &[want], 1e-14);
}

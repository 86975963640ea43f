//! The layer against finite differences, examples by hand, and properties that follow from its formulas.

use super::*;
use crate::gelu::gelu;
use crate::gpt::Weights;
use crate::gradient_check::{assert_close, assert_gradient};
use crate::low_rank::{EXPERT_PARAMETERS, LowRank};
use crate::matmul::linear;
use crate::random::Random;
use crate::storage::Storage;
use crate::swiglu::{Gate, swiglu};
use crate::vector::{add, dot};
use std::collections::BTreeSet;

const T: usize = 5;
const N: usize = 2 * T;
const D: usize = 6;
const PLAIN: Mixture = Mixture {
    experts: 6,
    chosen: 2,
    score: Score::Softmax,
    groups: None,
    norm: None,
    scaling: 1.0,
    bias_update_rate: 0.0,
    intermediate_size: 5,
    network: Network::Gated(Gate::Silu),
    has_biases: false,
    first_dense_layers: 0,
    is_beside_dense: false,
    shared: None,
    losses: Losses { expert: 0.0, sequence: 0.0, z: 0.0 },
    capacity: None,
};
/// Experts of GPT-2, and of Bloom.
const GPT2: Network =
    Network::Gelu { activation: Gelu::Tanh, names: ["c_fc", "c_proj"], is_transposed: true };
const BLOOM: Network = Network::Gelu {
    activation: Gelu::Exact,
    names: ["dense_h_to_4h", "dense_4h_to_h"],
    is_transposed: false,
};
/// All balance losses are in the objective.
const LOSSES: Losses = Losses { expert: 0.7, sequence: 0.4, z: 0.3 };
/// As DeepSeek-V3.
const SIGMOID: Mixture = Mixture {
    chosen: 3,
    score: Score::Sigmoid,
    groups: Some(ExpertGroups { count: 3, chosen: 2, best: 2 }),
    norm: Some(GateNorm::SUM),
    scaling: 2.5,
    shared: Some(Shared { intermediate_size: 7, is_gated: false }),
    losses: LOSSES,
    ..PLAIN
};
/// Experts with 3 slots, where 20 choices need 3.3 on average.
const TIGHT: Capacity = Capacity { factor: 0.9, is_token_major: false, renormalises: false, hot: None };
const HOT: Hot = Hot { count: 2, cold_token_share: 0.5, update_step: 10, checkpoint_step: Some(7) };

fn weights(mixture: &Mixture) -> Weights {
    let mut random = Random::new(101);
    let mut tensor = |count| random.normal(count).iter().map(|x| 0.5 * x).collect();
    let list = mixture.parameters(D).into_iter();
    list.map(|(name, count)| (format!("model.layers.0.mlp.{name}"), tensor(count))).collect()
}

fn layer<'a>(mixture: &'a Mixture, weights: &'a Weights, memory: &'a Memory) -> Layer<'a> {
    Layer {
        mixture,
        weights,
        path: "model.layers.0.mlp",
        memory,
        sequence_length: T,
        storage: Storage::Exact,
        low_rank: None,
    }
}

/// A bias that changes choices.
fn memory(mixture: &Mixture) -> Memory {
    let bias = (0..mixture.experts).map(|expert| 0.03 * expert as f64).collect();
    Memory { bias, ..Memory::new(mixture) }
}

/// Adapters of both matrices of experts beside a shared one, and of gate and up alone with choices that are dropped.
#[test]
fn gradients_of_adapters_are_finite_differences() {
    let tight = Mixture { capacity: Some(TIGHT), norm: Some(GateNorm::SUM), ..PLAIN };
    for (mixture, parameters) in [(&SIGMOID, &EXPERT_PARAMETERS[..]), (&tight, &EXPERT_PARAMETERS[..1])] {
        let parameters = parameters.iter().map(|of| format!("model.layers.0.mlp.experts.{of}")).collect();
        let low_rank = LowRank {
            rank: 2,
            scale: 1.5,
            modules: BTreeSet::new(),
            parameters,
            others: Default::default(),
            has_magnitudes: false,
        };
        let (mut weights, memory, mut random) = (weights(mixture), memory(mixture), Random::new(103));
        let without = layer(mixture, &weights, &memory).forward(&[0.1; N * D], &[0.1; N * D]).y;
        let names = |of: &str| {
            let adapter = low_rank.of_experts("model.layers.0.mlp.experts", of);
            adapter.map(|adapter| ["A", "B"].map(|factor| LowRank::factor(&adapter, factor)))
        };
        for (of, sizes) in EXPERT_PARAMETERS.iter().zip([[D, 2 * 5], [5, D]]) {
            for (name, size) in names(of).into_iter().flatten().zip(sizes) {
                let factor = random.normal(size * 2 * mixture.experts).iter().map(|x| 0.5 * x).collect();
                assert!(weights.insert(name, factor).is_none(), "both have names of their own");
            }
        }
        fn adapted<'a>(layer: Layer<'a>, low_rank: &'a LowRank) -> Layer<'a> {
            Layer { low_rank: Some(low_rank), ..layer }
        }
        let with =
            adapted(layer(mixture, &weights, &memory), &low_rank).forward(&[0.1; N * D], &[0.1; N * D]).y;
        assert!(with.iter().zip(&without).any(|(with, without)| (with - without).abs() > 1e-3));
        let (x, dy) = (random.normal(N * D), random.normal(N * D));
        let objective = |weights: &Weights, x: &[f64]| {
            let visit = adapted(layer(mixture, weights, &memory), &low_rank).forward(x, x);
            let Losses { expert, sequence, z } = mixture.losses;
            let losses = expert * visit.losses.expert + sequence * visit.losses.sequence + z * visit.losses.z;
            dot(&visit.y, &dy) + losses
        };
        let own = adapted(layer(mixture, &weights, &memory), &low_rank);
        let (visit, mut grads) = (own.forward(&x, &x), Weights::new());
        let [dx, dscored] = own.backward([&x, &x], &visit, &dy, 1.0, &mut grads);
        assert_gradient("x", &add(&dx, &dscored), &x, |x| objective(&weights, x));
        assert!(grads.keys().eq(weights.keys()), "every tensor has a gradient");
        let mut moved = weights.clone();
        for (name, tensor) in weights.iter().filter(|(name, _)| name.contains(".lora_")) {
            assert_gradient(name, &grads[name], tensor, |tensor| {
                moved.insert(name.clone(), tensor.to_vec());
                objective(&moved, &x)
            });
            moved.insert(name.clone(), tensor.clone());
        }
    }
}

#[test]
fn every_gradient_is_the_finite_difference() {
    let capacity =
        |capacity| Mixture { capacity: Some(capacity), losses: LOSSES, norm: Some(GateNorm::SUM), ..PLAIN };
    let gated = Some(Shared { intermediate_size: 3, is_gated: true });
    let mixtures = [
        PLAIN,
        Mixture { norm: Some(GateNorm::SUM), losses: LOSSES, ..PLAIN },
        Mixture { norm: Some(GateNorm::AtLeast(0.6)), losses: LOSSES, ..PLAIN },
        Mixture { score: Score::SparseMixer(0.4), chosen: 2, scaling: 1.7, losses: LOSSES, ..PLAIN },
        Mixture { score: Score::Sigmoid, shared: gated, losses: LOSSES, scaling: 0.5, ..PLAIN },
        Mixture { chosen: 1, norm: Some(GateNorm::SUM), losses: LOSSES, ..PLAIN },
        Mixture { chosen: 6, norm: Some(GateNorm::SUM), losses: LOSSES, ..PLAIN },
        Mixture { experts: 1, chosen: 1, losses: LOSSES, ..PLAIN },
        SIGMOID,
        capacity(TIGHT),
        capacity(Capacity { is_token_major: true, ..TIGHT }),
        capacity(Capacity { renormalises: true, ..TIGHT }),
        Mixture { norm: None, shared: gated, ..capacity(Capacity { renormalises: true, ..TIGHT }) },
        capacity(Capacity { hot: Some(HOT), ..TIGHT }),
        Mixture { network: GPT2, chosen: 1, norm: Some(GateNorm::SUM), losses: LOSSES, ..PLAIN },
        Mixture { network: GPT2, ..capacity(Capacity { renormalises: true, hot: Some(HOT), ..TIGHT }) },
        Mixture { is_beside_dense: true, norm: Some(GateNorm::SUM), losses: LOSSES, ..PLAIN },
        Mixture { is_beside_dense: true, ..capacity(Capacity { renormalises: true, ..TIGHT }) },
        Mixture { network: BLOOM, ..PLAIN },
        Mixture { network: BLOOM, norm: Some(GateNorm::SUM), losses: LOSSES, ..PLAIN },
    ];
    for (number, mixture) in mixtures.iter().enumerate() {
        let (weights, memory, mut random) = (weights(mixture), memory(mixture), Random::new(102));
        let (x, dy, seed) = (random.normal(N * D), random.normal(N * D), 1.7);
        let objective = |weights: &Weights, x: &[f64]| {
            let visit = layer(mixture, weights, &memory).forward(x, x);
            let Losses { expert, sequence, z } = mixture.losses;
            let losses = expert * visit.losses.expert + sequence * visit.losses.sequence + z * visit.losses.z;
            dot(&visit.y, &dy) + seed * losses
        };
        let visit = layer(mixture, &weights, &memory).forward(&x, &x);
        assert_eq!(visit.kept.contains(&false), mixture.capacity.is_some(), "mixture {number} drops");
        let mut grads = Weights::new();
        let [dx, dscored] =
            layer(mixture, &weights, &memory).backward([&x, &x], &visit, &dy, seed, &mut grads);
        let dx = add(&dx, &dscored);
        assert!(grads.keys().eq(weights.keys()), "every tensor has a gradient");
        assert_gradient(&format!("mixture {number}, x"), &dx, &x, |x| objective(&weights, x));
        let mut moved = weights.clone();
        for (name, tensor) in &weights {
            if name.ends_with("mlp.gate.weight") && mixture.experts == 1 {
                // A single expert has probability 1 whatever its logit; only the z loss depends on it.
                assert_eq!(visit.choices.gates, [1.0; N]);
            }
            assert_gradient(&format!("mixture {number}, {name}"), &grads[name], tensor, |tensor| {
                moved.insert(name.clone(), tensor.to_vec());
                objective(&moved, &x)
            });
            moved.insert(name.clone(), tensor.clone());
        }
    }
}

#[test]
fn one_expert_is_a_dense_network() {
    let mixture = Mixture { experts: 1, chosen: 1, ..PLAIN };
    let (weights, x) = (weights(&mixture), Random::new(103).normal(N * D));
    let w = |name: &str| &weights[&format!("model.layers.0.mlp.experts.0.{name}_proj.weight")];
    let [gate, up] = ["gate", "up"].map(|name| linear(&x, w(name), None, N, 5, D));
    let dense = linear(&swiglu(&gate, &up), w("down"), None, N, D, 5);
    let visit = layer(&mixture, &weights, &Memory::new(&mixture)).forward(&x, &x);
    assert_close("y", &visit.y, &dense, 1e-15);
    assert_eq!((visit.counts, visit.losses), (vec![N], Losses::default()));

    let mixture = Mixture { network: BLOOM, ..mixture };
    let weights = self::weights(&mixture);
    let tensor = |name: &str| &weights[&format!("model.layers.0.mlp.experts.0.{name}")][..];
    let [up, down] = ["dense_h_to_4h", "dense_4h_to_h"]
        .map(|name| [tensor(&format!("{name}.weight")), tensor(&format!("{name}.bias"))]);
    let inner = gelu(&linear(&x, up[0], Some(up[1]), N, 5, D), Gelu::Exact);
    let dense = linear(&inner, down[0], Some(down[1]), N, D, 5);
    assert_close("y", &layer(&mixture, &weights, &Memory::new(&mixture)).forward(&x, &x).y, &dense, 1e-15);
}

#[test]
fn slots_for_all_drop_nothing() {
    let x = Random::new(104).normal(N * D);
    let roomy = Capacity { factor: 6.0, renormalises: true, ..TIGHT };
    let (free, full) = (
        Mixture { norm: Some(GateNorm::SUM), ..PLAIN },
        Mixture { capacity: Some(roomy), norm: Some(GateNorm::SUM), ..PLAIN },
    );
    let (weights, memory) = (weights(&free), memory(&free));
    let [a, b] = [&free, &full].map(|mixture| layer(mixture, &weights, &memory).forward(&x, &x));
    assert!(b.kept.iter().all(|kept| *kept));
    assert_close("y", &b.y, &a.y, 1e-8); // renormalising divides by the sum + 1e-9
}

#[test]
fn choices_by_hand() {
    let groups = |count, chosen, best| Some(ExpertGroups { count, chosen, best });
    // Ties go to the lower index.
    assert_eq!(choose(&[0.3, 0.1, 0.3, 0.3], None, 2), [0, 2]);
    assert_eq!(choose(&[0.1, 0.3, 0.3, 0.2], None, 4), [1, 2, 3, 0]);
    // The second group wins by its best score, the first by its best two.
    let scores = [0.5, 0.4, 0.1, 0.6, 0.2, 0.1];
    assert_eq!(choose(&scores, groups(2, 1, 1), 2), [3, 4]);
    assert_eq!(choose(&scores, groups(2, 1, 2), 2), [0, 1]);
    // Ties between groups go to the first, and no more groups are kept than requested.
    assert_eq!(choose(&[0.1, 0.2, 0.2, 0.1, 0.2, 0.1], groups(3, 2, 1), 3), [1, 2, 0]);
    // Negative scores, which a bias may cause, still come before experts outside the groups.
    assert_eq!(choose(&[-0.5, -0.2, -3.0, -0.3], groups(2, 1, 1), 2), [1, 0]);
}

#[test]
fn gates_by_hand() {
    let logits = [2.0_f64.ln(), 0.0, 5.0_f64.ln(), 0.0]; // softmax: 2/9, 1/9, 5/9, 1/9
    let mixture = Mixture { experts: 4, ..PLAIN };
    let of = |mixture: &Mixture, bias: &[f64]| Choices::new(mixture, &logits, bias);
    let plain = of(&mixture, &[0.0; 4]);
    assert_eq!(plain.ids, [2, 0]);
    assert_close("gates", &plain.gates, &[5.0 / 9.0, 2.0 / 9.0], 1e-15);
    let normed = of(&Mixture { norm: Some(GateNorm::SUM), scaling: 2.5, ..mixture }, &[0.0; 4]);
    assert_close("normalised", &normed.gates, &[2.5 * 5.0 / 7.0, 2.5 * 2.0 / 7.0], 1e-8);
    // The bias puts expert 3 first; its gate is its score, and f is computed without the bias.
    let biased = of(&mixture, &[0.0, 0.0, 0.0, 1.0]);
    assert_eq!((biased.ids.as_slice(), biased.unbiased.as_slice()), (&[3, 2][..], &[2, 0][..]));
    assert_close("biased", &biased.gates, &[1.0 / 9.0, 5.0 / 9.0], 1e-15);
    let single = of(&Mixture { chosen: 1, norm: Some(GateNorm::SUM), ..mixture }, &[0.0; 4]);
    assert_eq!(single.gates, [1.0], "one choice is all there is");
    // σ(ln x) = x / (1 + x).
    let sigmoid = of(&Mixture { score: Score::Sigmoid, ..mixture }, &[0.0; 4]);
    assert_close("sigmoid", &sigmoid.gates, &[5.0 / 6.0, 2.0 / 3.0], 1e-15);
    assert_close("p", &sigmoid.probabilities, &[0.8 / 3.0, 0.2, 1.0 / 3.0, 0.2], 1e-15);
}

#[test]
fn slots_by_hand() {
    let cases =
        [(2, 4096, 1.5, 8, 1536), (8, 4096, 1.5, 256, 192), (2, 4096, 1.1, 8, 1127), (4, 10, 1.5, 4, 10)];
    for (k, tokens, factor, experts, slots) in cases {
        assert_eq!(capacity_slots(k, tokens, factor, experts), slots);
    }
    // Three tokens want expert 0 first or second; it has ceil(2·3·0.9 / 3) = 2 slots.
    let mixture = |capacity| Mixture { experts: 3, capacity: Some(capacity), ..PLAIN };
    let ids = [1, 0, 0, 1, 0, 2];
    let kept = |capacity, hot: &[usize]| slots::kept(&mixture(capacity), &ids, hot);
    // Choice-major: both first choices come before the second choice of the first token.
    assert_eq!(kept(TIGHT, &[]), [true, false, true, true, true, true]);
    let token_major = Capacity { is_token_major: true, ..TIGHT };
    assert_eq!(kept(token_major, &[]), [true, true, true, true, false, true]);
    // Cold experts have one slot: expert 1 and 2 are cold.
    let hot = Capacity { hot: Some(HOT), ..TIGHT };
    assert_eq!(kept(hot, &[0]), [true, false, true, false, true, true]);
    // A token without kept choices has an output of zero; others keep their gates, or the sum of them.
    let kept = [true, false, false, false];
    let gates = |capacity| slots::gates(&mixture(capacity), &[0.6, 0.2, 0.5, 0.3], &kept);
    assert_eq!(gates(TIGHT), [0.6, 0.0, 0.0, 0.0]);
    assert_close(
        "renormalised",
        &gates(Capacity { renormalises: true, ..TIGHT }),
        &[0.8, 0.0, 0.0, 0.0],
        1e-8,
    );
}

#[test]
fn losses_by_hand() {
    // Uniform choices and probabilities cost 1, whatever the number of experts; a single busy expert costs E.
    let mixture = Mixture { experts: 4, chosen: 1, losses: LOSSES, ..PLAIN };
    let even: Vec<f64> = (0..4 * 4).map(|i| if i / 4 == i % 4 { 1e-9 } else { 0.0 }).collect();
    let of = |logits: &[f64], tokens| {
        balance::losses(&mixture, &Choices::new(&mixture, logits, &[0.0; 4]), tokens)
    };
    let Losses { expert, sequence, z } = of(&even, 2);
    assert_close("expert", &[expert, sequence, z], &[1.0, 1.0, 4.0_f64.ln().powi(2)], 1e-8);
    let one: Vec<f64> = (0..4 * 4).map(|i| if i % 4 == 2 { 50.0 } else { 0.0 }).collect();
    let Losses { expert, sequence, z } = of(&one, 4);
    assert_close("expert", &[expert, sequence, z], &[4.0, 4.0, 2500.0], 1e-14);
    // Balanced over the batch, not over each sequence of two tokens.
    let halves: Vec<f64> = (0..4 * 4).map(|i| if i % 4 == i / 8 { 50.0 } else { 0.0 }).collect();
    let Losses { expert, sequence, .. } = of(&halves, 2);
    assert_close("sequence", &[expert, sequence], &[2.0, 4.0], 1e-14);
}

#[test]
fn the_router_state_follows_the_load() {
    let mixture = Mixture { experts: 4, bias_update_rate: 0.1, ..PLAIN };
    let mut memory = Memory::new(&mixture);
    // Choices 6, 2, 4, 4 over two micro-batches: the mean is 4.
    memory.update(&mixture, 1, &[vec![4, 0, 2, 2], vec![2, 2, 2, 2]]);
    assert_eq!(memory, Memory { bias: vec![-0.1, 0.1, 0.0, 0.0], hot: vec![] });
    let hot = Mixture { capacity: Some(Capacity { hot: Some(HOT), ..TIGHT }), ..mixture };
    let mut memory = Memory::new(&hot);
    assert_eq!(memory.hot, [0, 1]);
    memory.update(&hot, 3, &[vec![0, 0, 5, 5]]);
    assert_eq!(memory.hot, [0, 1]);
    // 10, 12, 12 and 13 over the step; ties go to the lower index.
    memory.update(&hot, 4, &[vec![9, 9, 0, 0], vec![1, 3, 12, 13]]);
    assert_eq!(memory.hot, [1, 3]);
    let changes: Vec<u32> = (1..=40).filter(|&step| HOT.changes_at(step)).collect();
    assert_eq!(changes, [1, 2, 4, 7, 8, 10, 20, 30, 40]);
}

#[test]
#[should_panic(expected = "a token should choose 1 to 2 experts, but chooses 3.")]
fn refuses_more_choices_than_the_groups_have() {
    let groups = Some(ExpertGroups { count: 3, chosen: 1, best: 1 });
    Choices::new(&Mixture { chosen: 3, groups, ..PLAIN }, &[0.0; 6], &[0.0; 6]);
}

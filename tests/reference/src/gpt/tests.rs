//! The model against finite differences, and properties that follow from its formulas.

use super::*;
use crate::gradient_check::{assert_close, assert_slopes};
use crate::random::Random;
use crate::rope_scaling::Scaling;
use crate::variant::{Naming, NormBias, Norms, Parallel, QkNorm, SKIPPED, Variant};

const LLAMA: Shape = Shape {
    variant: Variant::PLAIN,
    window: None,
    other_layers: None,
    mixture: None,
    multi_token: None,
    low_rank: None,
    storage: Storage::Exact,
    architecture: Architecture::Llama,
    vocab_size: 11,
    hidden_size: 7,
    num_layers: 2,
    num_heads: 4,
    num_kv_heads: 2,
    head_dim: 6,
    gate: Gate::Silu,
    intermediate_size: 9,
    norm_eps: 1e-5,
    rope: Rope { head_dim: 6, rotary_dim: 6, theta: 100.0, interleaved: false, scaling: Scaling::None },
    tie_word_embeddings: false,
    latent: None,
    biases: Biases::NONE,
    factors: Factors::NONE,
    qk_norm: false,
};
const QWEN2: Shape = Shape { tie_word_embeddings: true, biases: Biases::QKV, ..LLAMA };
const QWEN3: Shape = Shape {
    qk_norm: true,
    rope: Rope { head_dim: 6, rotary_dim: 4, theta: 50.0, interleaved: true, scaling: Scaling::None },
    ..LLAMA
};
/// Values are narrower than keys, and the scale is not 1 / √head_dim.
const LATENT: LatentAttention =
    LatentAttention { q_rank: Some(5), kv_rank: 3, nope_dim: 4, value_dim: 3, scale: 0.6, norm_eps: 0.02 };
const DEEPSEEK: Shape = Shape {
    num_kv_heads: 4,
    rope: Rope { head_dim: 2, rotary_dim: 2, theta: 50.0, interleaved: true, scaling: Scaling::None },
    latent: Some(LATENT),
    ..LLAMA
};
const MINICPM3: Shape = Shape {
    head_dim: 8,
    rope: Rope { head_dim: 4, rotary_dim: 4, interleaved: false, ..DEEPSEEK.rope },
    latent: Some(LatentAttention { q_rank: None, ..LATENT }),
    window: Some(2),
    factors: FACTORS,
    ..DEEPSEEK
};
/// Positions go up to 11.
const GPT2: Shape = Shape {
    architecture: Architecture::Gpt2 { positions: 12, activation: Gelu::Tanh },
    num_kv_heads: 4,
    tie_word_embeddings: true,
    ..LLAMA
};
const UNTIED_GPT2: Shape = Shape {
    architecture: Architecture::Gpt2 { positions: 13, activation: Gelu::Exact },
    tie_word_embeddings: false,
    ..GPT2
};
const BLOOM: Shape = Shape {
    architecture: Architecture::Gpt2 { positions: 0, activation: Gelu::Tanh },
    variant: Variant { naming: Naming::Bloom, alibi: true, embedding_norm: true, ..Variant::PLAIN },
    ..GPT2
};
const BAICHUAN: Shape = Shape {
    num_heads: 3,
    num_kv_heads: 3,
    variant: Variant { naming: Naming::Baichuan, alibi: true, head_epsilon: Some(0.01), ..Variant::PLAIN },
    ..LLAMA
};
const BIG_CODE: Shape =
    Shape { num_kv_heads: 1, variant: Variant { naming: Naming::BigCode, ..Variant::PLAIN }, ..GPT2 };
const PANGU: Shape = Shape {
    architecture: Architecture::Gpt2 { positions: 12, activation: Gelu::Fast },
    variant: Variant { naming: Naming::Pangu, query_layer: true, ..Variant::PLAIN },
    ..GPT2
};
const OPT: Shape = Shape {
    architecture: Architecture::Gpt2 { positions: 12 + SKIPPED as usize, activation: Gelu::Relu },
    variant: Variant { naming: Naming::Opt, ..Variant::PLAIN },
    ..GPT2
};
const OPT_350M: Shape =
    Shape { variant: Variant { norms: Norms::AfterSum, embedding_width: Some(3), ..OPT.variant }, ..OPT };
const GEMMA: Shape =
    Shape { variant: Variant { zero_centered_norms: true, ..Variant::PLAIN }, qk_norm: true, ..QWEN2 };
/// Caps near to which scores and logits come.
const CAPPED: Shape = Shape {
    window: Some(3),
    tie_word_embeddings: true,
    variant: Variant { score_cap: Some(0.4), logit_cap: Some(1.5), ..Variant::PLAIN },
    ..LLAMA
};
const OLMO2: Shape = Shape {
    variant: Variant { norms: Norms::After, qk_norm: QkNorm::AllHeads, ..Variant::PLAIN },
    qk_norm: true,
    ..LLAMA
};
const HUNYUAN: Shape =
    Shape { variant: Variant { qk_norm: QkNorm::RotatedHeads, ..Variant::PLAIN }, ..QWEN3 };
const GEMMA2: Shape = Shape { variant: Variant { norms: Norms::Both, ..GEMMA.variant }, ..GEMMA };
const NEMOTRON: Shape = Shape {
    variant: Variant {
        layer_norm: Some(NormBias::With),
        zero_centered_norms: true,
        ungated: Some(Gelu::ReluSquared),
        ..Variant::PLAIN
    },
    ..LLAMA
};
const GPT_NEOX: Shape = Shape {
    variant: Variant {
        layer_norm: Some(NormBias::With),
        ungated: Some(Gelu::Exact),
        parallel: Some(Parallel::TwoNorms),
        qk_norm: QkNorm::LayerNorm,
        ..Variant::PLAIN
    },
    biases: Biases { qkv: true, output: true, gate_up: true, down: true, head: false },
    qk_norm: true,
    ..LLAMA
};
const COMMAND_R: Shape = Shape {
    variant: Variant {
        layer_norm: Some(NormBias::Without),
        parallel: Some(Parallel::OneNorm),
        qk_norm: QkNorm::LayerNormByHead,
        ..Variant::PLAIN
    },
    tie_word_embeddings: true,
    qk_norm: true,
    ..LLAMA
};
const GATED: Shape =
    Shape { variant: Variant { attention_gate: true, ..GEMMA.variant }, tie_word_embeddings: false, ..GEMMA };
/// Neighbours rotate.
const GPT_J: Shape = Shape {
    variant: Variant {
        layer_norm: Some(NormBias::With),
        ungated: Some(Gelu::Tanh),
        parallel: Some(Parallel::OneNorm),
        logit_cap: Some(1.5),
        ..Variant::PLAIN
    },
    biases: Biases { gate_up: true, down: true, head: true, ..Biases::NONE },
    factors: FACTORS,
    qk_norm: false,
    ..QWEN3
};
const OLMO: Shape = Shape {
    variant: Variant { layer_norm: Some(NormBias::Without), weightless_norms: true, ..Variant::PLAIN },
    ..LLAMA
};
/// A window in the first layer alone, and queries that grow, after a rotation of their own; no rotation in the second,
/// but other widths.
fn mixed() -> Shape {
    let rope = Rope { theta: 7.0, ..LLAMA.rope };
    let scaling = QueryScaling { beta: 0.4, original: 3.0 };
    let common = LLAMA.common_layer();
    let first = Layer { window: Some(2), rope: Some(rope), query_scaling: Some(scaling), ..common };
    let second = Layer { rope: None, num_kv_heads: 1, head_dim: 4, intermediate_size: 5, ..common };
    Shape { other_layers: Some(BTreeMap::from([(0, first), (1, second)])), ..LLAMA }
}
/// A layer whose values are keys beside one with values of their own, all normalised, and factors of layers.
fn gemma4() -> Shape {
    let variant = Variant { value_norm: true, layer_scalars: true, norms: Norms::Both, ..Variant::PLAIN };
    let shared = Layer { key_values: true, num_kv_heads: 1, head_dim: 8, rope: None, ..QWEN3.common_layer() };
    Shape { variant, other_layers: Some(BTreeMap::from([(1, shared)])), ..QWEN3 }
}
/// Linear attention before a layer of softmax with gates, as in Qwen3-Next.
fn qwen3_next() -> Shape {
    let linear = LinearHeads { heads: 4, key_heads: 2, key_dim: 3, value_dim: 2, conv_width: 3 };
    let first = Layer { linear: Some(linear), ..GATED.common_layer() };
    Shape { other_layers: Some(BTreeMap::from([(0, first)])), ..GATED }
}

/// A gated convolution before a layer of attention.
fn lfm2() -> Shape {
    let first = Layer { convolution: Some(3), ..QWEN3.common_layer() };
    let variant = Variant { naming: Naming::Lfm2, ..Variant::PLAIN };
    Shape { other_layers: Some(BTreeMap::from([(0, first)])), variant, tie_word_embeddings: true, ..QWEN3 }
}

/// Two layers that read the keys and values of the first, where values are keys; one has a wider feed-forward network.
fn sharing() -> Shape {
    let first = Layer { window: Some(3), key_values: true, ..QWEN3.common_layer() };
    let second = Layer { kv_source: Some(0), ..first };
    let third = Layer { intermediate_size: 12, ..second };
    let layers = BTreeMap::from([(0, first), (1, second), (2, third)]);
    Shape { num_layers: 3, other_layers: Some(layers), ..gemma4() }
}
/// Embeddings of each of two layers, 5 wide.
fn per_layer() -> Shape {
    let variant = Variant { per_layer_width: Some(5), ..gemma4().variant };
    Shape { variant, gate: Gate::Gelu(Gelu::Tanh), tie_word_embeddings: true, ..gemma4() }
}
/// A layer with a window, sinks and all heads of keys, and one without them and with fewer heads; values are narrower
/// than keys and have a factor.
fn mimo() -> Shape {
    let first = Layer { window: Some(2), sinks: true, num_kv_heads: 2, ..QWEN2.common_layer() };
    let variant = Variant { naming: Naming::MiMo, value_dim: Some(3), ..Variant::PLAIN };
    let second = Layer { num_kv_heads: 1, ..QWEN2.common_layer() };
    let layers = BTreeMap::from([(0, first), (1, second)]);
    Shape { other_layers: Some(layers), variant, factors: Factors { values: 0.7, ..FACTORS }, ..QWEN2 }
}
/// A LayerNorm of each head, of another width in the second layer.
fn heads_of_two_widths() -> Shape {
    let variant = Variant { qk_norm: QkNorm::LayerNormByHead, ..Variant::PLAIN };
    let second = Layer { head_dim: 2, rope: None, ..QWEN3.common_layer() };
    Shape { variant, other_layers: Some(BTreeMap::from([(1, second)])), ..QWEN3 }
}
const FACTORS: Factors =
    Factors { embedding: 3.0, residual: 0.6, scores: Some(0.9), logits: 0.7, ..Factors::NONE };
const IGNORE: u32 = u32::MAX;
const T: usize = 5;
const POSITIONS: [u32; 2 * T] = [0, 1, 2, 3, 4, 7, 8, 9, 10, 11];

/// The shape with adapters of rank 2.
fn adapted(shape: &Shape, modules: &[&str]) -> Shape {
    let modules = modules.iter().map(|module| module.to_string()).collect();
    Shape {
        low_rank: Some(LowRank {
            rank: 2,
            scale: 1.5,
            modules,
            parameters: Default::default(),
            others: Default::default(),
            has_magnitudes: false,
        }),
        ..shape.clone()
    }
}

fn weights(shape: &Shape) -> Weights {
    let mut random = Random::new(81);
    let mut tensor = |count| random.normal(count).iter().map(|x| 0.5 * x).collect();
    shape.parameters().into_iter().map(|(name, count)| (name, tensor(count))).collect()
}

fn batch() -> (Vec<u32>, Vec<u32>) {
    let mut random = Random::new(82);
    let (tokens, mut targets) = (random.below(2 * T, 11), random.below(2 * T, 11));
    targets[3] = IGNORE;
    (tokens, targets)
}

#[test]
fn every_gradient_is_the_finite_difference() {
    let ((tokens, targets), seed) = (batch(), 0.3);
    for shape in [
        LLAMA,
        QWEN2,
        QWEN3,
        GEMMA,
        GEMMA2,
        Shape { variant: Variant { norms: Norms::Both, ..Variant::PLAIN }, factors: FACTORS, ..LLAMA },
        OLMO2,
        HUNYUAN,
        NEMOTRON,
        GPT_NEOX,
        COMMAND_R,
        GPT_J,
        OLMO,
        Shape { variant: Variant { xielu: true, ..Variant::PLAIN }, ..QWEN3 },
        Shape { variant: Variant { clip_qkv: Some(0.6), ..OLMO2.variant }, ..OLMO2 },
        Shape { variant: Variant { weightless_norms: true, ..HUNYUAN.variant }, ..HUNYUAN },
        GPT2,
        UNTIED_GPT2,
        BLOOM,
        BAICHUAN,
        BIG_CODE,
        PANGU,
        OPT,
        OPT_350M,
        Shape { tie_word_embeddings: false, factors: FACTORS, ..OPT_350M },
        DEEPSEEK,
        MINICPM3,
        Shape { window: Some(2), ..LLAMA },
        CAPPED,
        mixed(),
        gemma4(),
        GATED,
        qwen3_next(),
        lfm2(),
        sharing(),
        mimo(),
        adapted(&mimo(), &["model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.v_proj"]),
        heads_of_two_widths(),
        per_layer(),
        adapted(&per_layer(), &["model.per_layer_model_projection", "model.layers.1.per_layer_projection"]),
        Shape { num_layers: 0, ..LLAMA },
        Shape { factors: FACTORS, tie_word_embeddings: true, ..LLAMA },
        Shape { gate: Gate::Gelu(Gelu::Tanh), ..LLAMA },
        adapted(&Shape { factors: FACTORS, ..GPT2 }, &["transformer.h.0.attn.c_proj"]),
        adapted(&LLAMA, &["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"]),
        adapted(&lfm2(), &["model.layers.0.conv.in_proj", "model.layers.0.conv.out_proj"]),
        adapted(
            &qwen3_next(),
            &["model.layers.0.linear_attn.in_proj_z", "model.layers.0.linear_attn.out_proj"],
        ),
        adapted(
            &GPT2,
            &["transformer.h.1.attn.c_attn", "transformer.h.1.attn.c_proj", "transformer.h.0.mlp.c_fc"],
        ),
    ] {
        let weights = weights(&shape);
        let (loss_sum, count, grads) =
            loss_and_gradients(&shape, &weights, &tokens, &targets, &POSITIONS, T, IGNORE, seed);
        assert_eq!((loss_sum, count), loss(&shape, &weights, &tokens, &targets, &POSITIONS, T, IGNORE));
        assert_eq!(count, 2 * T - 1);
        let constants = ["layer_scalar", "act_fn.beta", "act_fn.eps"];
        let trains = |name: &&String| !constants.iter().any(|end| name.ends_with(end));
        assert!(grads.keys().eq(weights.keys().filter(trains)), "every tensor that trains has a gradient");
        let mut moved = weights.clone();
        for (name, tensor) in weights.iter().filter(|(name, _)| trains(name)) {
            // Without rotation it adds the same to all scores of a query, which softmax ignores.
            if name.ends_with("k_proj.bias") && !shape.rotates() {
                assert!(grads[name].iter().all(|gradient| gradient.abs() < 1e-14));
                continue;
            }
            assert_slopes(name, &grads[name], tensor, |x| {
                moved.insert(name.clone(), x.to_vec());
                seed * loss(&shape, &moved, &tokens, &targets, &POSITIONS, T, IGNORE).0
            });
            moved.insert(name.clone(), tensor.clone());
        }
    }
}

#[test]
fn a_zero_output_projection_gives_a_uniform_distribution() {
    let (tokens, targets) = batch();
    let mut weights = weights(&LLAMA);
    weights.insert(HEAD.to_owned(), vec![0.0; 11 * 7]);
    let (loss_sum, count) = loss(&LLAMA, &weights, &tokens, &targets, &POSITIONS, T, IGNORE);
    assert!((loss_sum / count as f64 - 11.0_f64.ln()).abs() < 1e-14);
}

#[test]
fn logits_see_earlier_tokens_of_their_own_sequence() {
    let (mut tokens, _) = batch();
    let weights = weights(&QWEN3);
    let before = logits(&QWEN3, &weights, &QWEN3.memories(), &tokens, &POSITIONS, T);
    tokens[2] = (tokens[2] + 1) % 11;
    let after = logits(&QWEN3, &weights, &QWEN3.memories(), &tokens, &POSITIONS, T);
    let changed: Vec<usize> =
        (0..2 * T).filter(|&row| before[row * 11..][..11] != after[row * 11..][..11]).collect();
    assert_eq!(changed, [2, 3, 4]);
}

#[test]
fn only_distances_between_positions_matter() {
    let (tokens, _) = batch();
    for shape in [QWEN2, DEEPSEEK] {
        let weights = weights(&shape);
        let at = |positions: &[u32]| logits(&shape, &weights, &shape.memories(), &tokens, positions, T);
        assert_close("logits", &at(&POSITIONS.map(|p| p + 100)), &at(&POSITIONS), 1e-11);
    }
}

#[test]
fn a_learned_position_moves_every_logit() {
    let (tokens, _) = batch();
    let mut weights = weights(&GPT2);
    let at = |positions: &[u32], weights: &Weights| {
        logits(&GPT2, weights, &GPT2.memories(), &tokens, positions, T)
    };
    assert_ne!(at(&POSITIONS.map(|p| p.min(10)), &weights)[..11], at(&[1; 2 * T], &weights)[..11]);
    weights.insert(GPT2.position_table().to_owned(), vec![0.0; 12 * 7]);
    assert_eq!(at(&POSITIONS, &weights), at(&[1; 2 * T], &weights));
}

#[test]
#[should_panic(expected = "targets should hold 10 values, but holds 5.")]
fn refuses_fewer_targets_than_tokens() {
    let (tokens, targets) = batch();
    loss_and_gradients(&LLAMA, &weights(&LLAMA), &tokens, &targets[..T], &POSITIONS, T, IGNORE, 1.0);
}

#[test]
#[should_panic(expected = "which this shape does not have")]
fn refuses_a_tensor_it_would_not_use() {
    let (tokens, _) = batch();
    let shape = Shape { tie_word_embeddings: true, ..LLAMA };
    logits(&shape, &weights(&LLAMA), &shape.memories(), &tokens, &POSITIONS, T);
}

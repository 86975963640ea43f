//! The shape of a model as the f64 reference takes it.

use super::weights::reference_name;
use gristmill::element::Element;
use gristmill::model::config::{
    self, Activation, DropOrder, Family, Gate, HotExperts, LayerConfig, LinearAttention, Llama3, LongRope,
    LowRank, Magnitudes, Mixer, MixtureConfig, ModelConfig, Norm, NormPlacement, ParallelResidual, Positions,
    QueryScaling, RopeScaling, TokenDispatch, Values, Yarn,
};
use gristmill::ops::gelu::Gelu;
use gristmill::ops::route::{ExpertGroups, GateNorm, GroupScore, Score};
use reference::gpt::Layer;
use reference::rope_scaling::Scaling;
use reference::storage::Storage;
use reference::variant::{Naming, NormBias, Norms, Parallel, QkNorm, SKIPPED, Variant};
use std::collections::BTreeMap;

pub fn reference_shape(model: &ModelConfig) -> reference::gpt::Shape {
    let architecture = match (model.positions, model.activation) {
        (Positions::Learned | Positions::Alibi, Activation::Gelu(kind)) => {
            reference::gpt::Architecture::Gpt2 {
                positions: match model.positions {
                    Positions::Learned if model.family == Family::Opt => {
                        model.max_positions + SKIPPED as usize
                    }
                    Positions::Learned => model.max_positions,
                    _ => 0,
                },
                activation: reference_gelu(kind),
            }
        }
        (Positions::Rotary, _) | (Positions::Alibi, Activation::Gated(_)) => {
            reference::gpt::Architecture::Llama
        }
        other => panic!("the reference has no model of {other:?}"),
    };
    reference::gpt::Shape {
        architecture,
        vocab_size: model.vocab_size,
        hidden_size: model.hidden_size,
        num_layers: model.num_layers,
        num_heads: model.num_heads,
        num_kv_heads: model.layer.num_kv_heads,
        head_dim: model.layer.head_dim,
        gate: reference_gate(model.activation.gate().unwrap_or_default()),
        intermediate_size: model.layer.intermediate_size,
        norm_eps: model.norm_eps,
        rope: reference_rope(model, &model.layer),
        tie_word_embeddings: model.tie_word_embeddings,
        latent: model.latent.map(|latent| reference::latent_attention::LatentAttention {
            q_rank: latent.q_rank,
            kv_rank: latent.kv_rank,
            nope_dim: latent.nope_dim,
            value_dim: latent.value_dim,
            scale: model.softmax_scale(&model.layer).into(),
            norm_eps: model.latent_norm_eps.unwrap_or(model.norm_eps),
        }),
        biases: reference::gpt::Biases {
            qkv: model.qkv_bias,
            output: model.output_bias,
            gate_up: model.gate_up_bias,
            down: model.down_bias,
            head: model.head_bias,
        },
        factors: reference::gpt::Factors {
            embedding: model.embedding_factor().unwrap_or(1.0).into(),
            residual: model.factors.residual.unwrap_or(1.0),
            scores: model.factors.scores,
            values: model.factors.values.unwrap_or(1.0),
            logits: 1.0 / model.factors.logits_divisor.unwrap_or(1.0),
        },
        qk_norm: model.qk_norm,
        variant: Variant {
            naming: match model.family {
                Family::Llama if (0..model.num_layers).any(|number| model.layer(number).has_sinks) => {
                    Naming::MiMo
                }
                // The tests give Granite's experts the names of others.
                Family::Llama
                | Family::Ernie45
                | Family::Helium
                | Family::Gpt2
                | Family::GraniteMoe
                | Family::GptNeoX
                | Family::Falcon
                | Family::NanoChat
                | Family::Mpt
                | Family::GptJ
                | Family::Phi
                | Family::GptOss
                | Family::Qwen3Next
                | Family::Cohere => Naming::Plain,
                Family::Lfm2 => Naming::Lfm2,
                Family::Glm => Naming::Glm,
                Family::Bloom => Naming::Bloom,
                // The tests give Phi-3's q, k and v Baichuan's name.
                Family::Baichuan | Family::Phi3 => Naming::Baichuan,
                Family::BigCode => Naming::BigCode,
                Family::Pangu => Naming::Pangu,
                Family::Opt => Naming::Opt,
            },
            alibi: model.positions == Positions::Alibi,
            embedding_norm: model.embedding_norm,
            qk_norm: match model.qk_norm_kind {
                config::QkNorm::Heads => QkNorm::Heads,
                config::QkNorm::AllHeads => QkNorm::AllHeads,
                config::QkNorm::RotatedHeads => QkNorm::RotatedHeads,
                config::QkNorm::LayerNorm => QkNorm::LayerNorm,
                config::QkNorm::LayerNormByHead => QkNorm::LayerNormByHead,
            },
            norms: match model.norm_placement {
                NormPlacement::Before => Norms::Before,
                NormPlacement::After => Norms::After,
                NormPlacement::Both => Norms::Both,
                NormPlacement::AfterSum => Norms::AfterSum,
            },
            embedding_width: model.embedding_width,
            zero_centered_norms: model.zero_centered_norms,
            layer_norm: match (model.norm, model.norm_bias) {
                (Norm::RmsNorm, _) => None,
                (Norm::LayerNorm, true) => Some(NormBias::With),
                (Norm::LayerNorm, false) => Some(NormBias::Without),
            },
            weightless_norms: !model.norm_weight,
            ungated: match model.activation {
                Activation::Gated(_) | Activation::Xielu => None,
                Activation::Gelu(kind) => Some(reference_gelu(kind)),
            },
            xielu: model.activation == Activation::Xielu,
            parallel: model.parallel_residual.map(|residual| match residual {
                ParallelResidual::TwoNorms => Parallel::TwoNorms,
                ParallelResidual::OneNorm => Parallel::OneNorm,
            }),
            value_norm: (0..model.num_layers).any(|number| model.layer(number).values != Values::Plain),
            layer_scalars: model.has_layer_scalars,
            per_layer_width: model.per_layer_width,
            query_layer: model.layer(model.num_layers - 1).has_query_table,
            head_epsilon: model.head_epsilon,
            clip_qkv: model.clip_qkv,
            score_cap: model.score_cap,
            logit_cap: model.logit_cap,
            sinks: model.layer.has_sinks,
            value_dim: model.value_head_dim,
            attention_gate: model.attention_gate,
        },
        window: model.layer.sliding_window,
        other_layers: Some(reference_layers(model)),
        mixture: model.mixture.as_ref().map(|mixture| reference_mixture(mixture, model)),
        multi_token: model.multi_token.map(|ahead| reference::multi_token::MultiToken {
            depth: ahead.depth,
            loss_factor: ahead.loss_factor,
        }),
        low_rank: model.low_rank.as_ref().map(|low_rank| reference::low_rank::LowRank {
            rank: low_rank.rank,
            scale: low_rank.scale_of(""),
            others: reference_others(low_rank),
            has_magnitudes: low_rank.magnitudes != Magnitudes::None,
            modules: low_rank.modules.clone(),
            parameters: low_rank.parameters.iter().map(|name| reference_name(name)).collect(),
        }),
        storage: match model.compute {
            Element::F16 => Storage::F16,
            Element::Bf16 => Storage::Bf16,
            _ => Storage::Exact,
        },
    }
}

/// The ranks and factors of all adapters.
fn reference_others(low_rank: &LowRank) -> BTreeMap<String, (usize, f64)> {
    let of = |name: &String| (low_rank.rank_of(name), low_rank.scale_of(name));
    let modules = low_rank.modules.iter().map(|name| (name.clone(), of(name)));
    modules.chain(low_rank.parameters.iter().map(|name| (reference_name(name), of(name)))).collect()
}

fn reference_rope(model: &ModelConfig, layer: &LayerConfig) -> reference::rope::Rope {
    reference::rope::Rope {
        head_dim: model.latent.map_or(layer.head_dim, |latent| latent.rope_dim),
        rotary_dim: layer.rotary_dim,
        theta: layer.rope_theta,
        // Checkpoints hold the rows of q and k in the order of halves, and so do the trainer's tensors; those of GLM,
        // ERNIE 4.5 and Helium are in the order of pairs, and those of latent attention in the order that rotates.
        interleaved: (model.latent.is_some() && layer.rotary_interleaved) || model.family.holds_pairs(),
        scaling: reference_scaling(&layer.rope_scaling),
    }
}

/// The layers that are not as the shape says of all.
fn reference_layers(model: &ModelConfig) -> BTreeMap<usize, Layer> {
    let differs = |number: &usize| {
        let layer = model.layer(*number);
        *layer != model.layer || layer.query_scaling.is_some()
    };
    let layer = |number: usize| {
        let layer = model.layer(number);
        let rope = model.rope(number).map(|_| reference_rope(model, layer));
        let (linear, convolution) = match layer.mixer {
            Mixer::Softmax => (None, None),
            Mixer::Linear(linear) => (Some(reference_linear(linear)), None),
            Mixer::Convolution { width } => (None, Some(width)),
        };
        let growth =
            |QueryScaling { beta, original }| reference::query_scaling::QueryScaling { beta, original };
        let reference = Layer {
            num_kv_heads: layer.num_kv_heads,
            head_dim: layer.head_dim,
            key_values: layer.values == Values::OfKeys && layer.kv_source.is_none(),
            kv_source: layer.kv_source,
            intermediate_size: layer.intermediate_size,
            window: layer.sliding_window,
            rope,
            query_scaling: layer.query_scaling.map(growth),
            sinks: layer.has_sinks,
            linear,
            convolution,
        };
        (number, reference)
    };
    (0..model.num_layers).filter(differs).map(layer).collect()
}

fn reference_linear(linear: LinearAttention) -> reference::gpt::LinearHeads {
    let LinearAttention { heads, key_heads, key_dim, value_dim, conv_width } = linear;
    reference::gpt::LinearHeads { heads, key_heads, key_dim, value_dim, conv_width }
}

fn reference_gelu(kind: Gelu) -> reference::gelu::Gelu {
    match kind {
        Gelu::Exact => reference::gelu::Gelu::Exact,
        Gelu::Tanh => reference::gelu::Gelu::Tanh,
        Gelu::Fast => reference::gelu::Gelu::Fast,
        Gelu::Relu => reference::gelu::Gelu::Relu,
        Gelu::ReluSquared => reference::gelu::Gelu::ReluSquared,
    }
}

fn reference_gate(gate: Gate) -> reference::swiglu::Gate {
    match gate {
        Gate::Silu => reference::swiglu::Gate::Silu,
        Gate::Gelu(kind) => reference::swiglu::Gate::Gelu(reference_gelu(kind)),
        Gate::Clamped => reference::swiglu::Gate::Clamped,
    }
}

/// The network of the experts, with biases where it has no gate.
fn reference_network(model: &ModelConfig) -> reference::mixture::Network {
    match model.activation {
        Activation::Gated(gate) => reference::mixture::Network::Gated(reference_gate(gate)),
        Activation::Gelu(kind) => reference::mixture::Network::Gelu {
            activation: reference_gelu(kind),
            names: match model.family {
                Family::Llama => ["up_proj", "down_proj"],
                Family::Bloom => ["dense_h_to_4h", "dense_4h_to_h"],
                _ => ["c_fc", "c_proj"],
            },
            is_transposed: model.family == Family::Gpt2,
        },
        Activation::Xielu => panic!("experts have no xIELU"),
    }
}

fn reference_mixture(config: &MixtureConfig, model: &ModelConfig) -> reference::mixture::Mixture {
    let hot = |hot: HotExperts| reference::mixture::Hot {
        count: hot.count,
        cold_token_share: hot.cold_token_share,
        update_step: hot.update_step as u32,
        checkpoint_step: hot.checkpoint_step.map(|step| step as u32),
    };
    reference::mixture::Mixture {
        experts: config.experts(),
        chosen: config.chosen(),
        score: match config.route.score {
            Score::Softmax => reference::mixture::Score::Softmax,
            Score::Sigmoid => reference::mixture::Score::Sigmoid,
            Score::SparseMixer { jitter } => reference::mixture::Score::SparseMixer(jitter.into()),
        },
        groups: config.route.groups.map(|ExpertGroups { count, chosen, score }| {
            reference::mixture::ExpertGroups {
                count: count as usize,
                chosen: chosen as usize,
                best: if score == GroupScore::BestTwo { 2 } else { 1 },
            }
        }),
        norm: config.route.norm.map(|norm| match norm {
            GateNorm::Plus(epsilon) => reference::mixture::GateNorm::Plus(epsilon.into()),
            GateNorm::AtLeast(least) => reference::mixture::GateNorm::AtLeast(least.into()),
        }),
        scaling: f64::from(config.route.scaling),
        bias_update_rate: if config.has_bias { config.bias_update_rate } else { 0.0 },
        network: reference_network(model),
        has_biases: model.family == Family::GptOss,
        intermediate_size: config.intermediate_size,
        first_dense_layers: config.first_dense_layers,
        is_beside_dense: config.is_beside_dense,
        shared: config.shared.map(|shared| reference::mixture::Shared {
            intermediate_size: shared.intermediate_size,
            is_gated: shared.is_gated,
        }),
        losses: reference::mixture::Losses {
            expert: config.losses.expert,
            sequence: config.losses.sequence,
            z: config.losses.z,
        },
        capacity: match config.dispatch {
            TokenDispatch::Dropless { .. } => None,
            TokenDispatch::Capacity(capacity) => Some(reference::mixture::Capacity {
                factor: capacity.factor,
                is_token_major: capacity.order == DropOrder::Token,
                renormalises: capacity.renormalises,
                hot: capacity.hot.map(hot),
            }),
        },
    }
}

fn reference_scaling(scaling: &RopeScaling) -> Scaling {
    match *scaling {
        RopeScaling::None => Scaling::None,
        RopeScaling::Yarn(yarn) => {
            let Yarn { factor, original, beta_fast, beta_slow, mscale, mscale_all_dim, is_truncated } = yarn;
            Scaling::Yarn { factor, original, beta_fast, beta_slow, mscale, mscale_all_dim, is_truncated }
        }
        RopeScaling::Llama3(Llama3 { factor, original, low_freq_factor, high_freq_factor }) => {
            Scaling::Llama3 { factor, original, low_freq_factor, high_freq_factor }
        }
        RopeScaling::Proportional { share } => Scaling::Proportional { share },
        RopeScaling::Dynamic { factor, original, length } => {
            Scaling::Dynamic { factor, lengths: length / original }
        }
        RopeScaling::LongRope(LongRope { divisors, is_long, magnitude, .. }) => {
            Scaling::LongRope { divisors: divisors[usize::from(is_long)].list(), magnitude }
        }
        other => panic!("the reference has no scaling like {other:?}"),
    }
}

//! What a run computes, in the words of [`Facts`](super::classes::Facts).

use super::classes::{CONVOLUTION, LINEAR, SLIDING, always_here};
use super::of_class::{ALL, HALVES};
use super::theirs;
use crate::hugging_face::export::hugging_face_scaling;
use crate::model::config::{
    Activation, Family, Gate, GateNorm, Gelu, GroupScore, LayerConfig, LinearAttention, MixtureConfig,
    ModelConfig, Norm, NormPlacement, ParallelResidual, QkNorm, Score, Values,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The facts of the model of a run.
pub(in crate::hugging_face) fn facts(model: &ModelConfig) -> BTreeMap<&'static str, Value> {
    let latent = model.latent.as_ref();
    let of_layers = |is_so: &dyn Fn(&LayerConfig) -> bool| -> Vec<bool> {
        (0..model.num_layers).map(|number| is_so(model.layer(number))).collect()
    };
    let window = model.layer_kinds().find_map(|(layer, _)| model.published_window(layer));
    let slides = of_layers(&|layer| window.is_none() || model.published_window(layer).is_some());
    let is_linear = of_layers(&|layer| layer.linear().is_some());
    let is_convolved = of_layers(&|layer| layer.convolution().is_some());
    let values: Vec<Values> = model.layer_kinds().map(|(layer, _)| layer.values).collect();
    let mut facts: BTreeMap<&'static str, Value> = BTreeMap::from([
        ("type", type_of(model.family).into()),
        ("vocab_size", model.vocab_size.into()),
        ("hidden_size", model.hidden_size.into()),
        ("num_layers", model.num_layers.into()),
        ("num_heads", model.num_heads.into()),
        ("n_kv_heads", model.layer.num_kv_heads.into()),
        ("head_dim", model.layer.head_dim.into()),
        ("intermediate_size", model.layer.intermediate_size.into()),
        ("hidden_act", activation(model.activation).into()),
        ("rms_norm_eps", model.norm_eps.into()),
        ("gated_linear_unit", model.activation.gate().is_none().then_some(false).into()),
        ("normalization", (model.norm == Norm::LayerNorm).then_some("LayerNorm").into()),
        ("norm_has_bias", (model.norm == Norm::LayerNorm && !model.norm_bias).then_some(false).into()),
        ("lm_head_has_bias", model.head_bias.then_some(true).into()),
        ("norm_has_weight", (!model.norm_weight).then_some(false).into()),
        ("parallel_residual", parallel_residual(model.parallel_residual).into()),
        ("qk_norm_kind", qk_norm_kind(model.qk_norm_kind).into()),
        ("norm_placement", norm_placement(model.norm_placement).into()),
        ("layernorm_zero_centered_gamma", model.zero_centered_norms.then_some(true).into()),
        ("tie_word_embeddings", model.tie_word_embeddings.into()),
        ("qkv_has_bias", model.qkv_bias.into()),
        ("attn_proj_has_bias", model.output_bias.into()),
        ("add_mlp_fc1_bias_linear", model.gate_up_bias.into()),
        ("add_mlp_fc2_bias_linear", model.down_bias.into()),
        ("use_qk_norm", model.qk_norm.into()),
        ("max_position_embedding", model.max_positions.into()),
        ("sliding_window", window.into()),
        (
            "layer_types",
            if is_linear.contains(&true) {
                theirs::types_of(LINEAR, &is_linear)
            } else if is_convolved.contains(&true) {
                theirs::types_of(CONVOLUTION, &is_convolved)
            } else {
                theirs::layer_types(&slides)
            },
        ),
        ("attention_output_gate", model.attention_gate.then_some(true).into()),
        ("sliding_theta", sliding_theta(model).into()),
        ("use_v_norm", values.iter().any(|values| *values != Values::Plain).then_some(true).into()),
        ("attention_k_eq_v", values.contains(&Values::OfKeys).then_some(true).into()),
        ("global_head_dim", of_global(model, |layer| layer.head_dim).into()),
        ("num_global_key_value_heads", of_global(model, |layer| layer.num_kv_heads).into()),
        ("hidden_size_per_layer_input", model.per_layer_width.into()),
        ("word_embed_proj_dim", model.embedding_width.into()),
        ("num_kv_shared_layers", Some(model.kv_readers()).filter(|readers| *readers > 0).into()),
        ("use_double_wide_mlp", has_wide_readers(model).then_some(true).into()),
        ("enable_moe_block", model.has_dense_beside_experts().then_some(true).into()),
        ("layer_scalars", model.has_layer_scalars.then_some(true).into()),
        ("no_rope_layers", theirs::no_rope_layers(&of_layers(&|layer| layer.rotates))),
        ("theta", model.layer.rope_theta.into()),
        ("rope_scaling", hugging_face_scaling(&model.layer.rope_scaling, model.layer.query_scaling.as_ref())),
        ("rotary_percent", (model.layer.rotary_dim as f64 / rotating_width(model) as f64).into()),
        ("embedding_multiplier", other_than_one(model.factors.embedding)),
        ("residual_multiplier", other_than_one(model.factors.residual)),
        ("logits_scaling", other_than_one(model.factors.logits_divisor)),
        (
            "attention_multiplier",
            model.factors.scores.unwrap_or(model.softmax_scale(&model.layer).into()).into(),
        ),
        ("clip_qkv", model.clip_qkv.into()),
        ("attn_logit_softcapping", model.score_cap.into()),
        ("final_logit_softcapping", model.logit_cap.into()),
        ("q_lora_rank", latent.and_then(|sizes| sizes.q_rank).into()),
        ("kv_lora_rank", latent.map(|sizes| sizes.kv_rank).into()),
        ("qk_nope_head_dim", latent.map(|sizes| sizes.nope_dim).into()),
        ("qk_rope_head_dim", latent.map(|sizes| sizes.rope_dim).into()),
        ("v_head_dim", latent.map(|sizes| sizes.value_dim).or(model.value_head_dim).into()),
        ("attention_sinks", sinks(model).into()),
        ("attention_value_scale", other_than_one(model.factors.values)),
        ("latent_rotation", latent.filter(|_| !model.layer.rotary_interleaved).map(|_| HALVES).into()),
        ("latent_norm_eps", latent.map(|_| model.latent_norm_eps.unwrap_or(model.norm_eps)).into()),
    ]);
    facts.extend(always_here().iter().map(|(fact, value)| (fact.as_str(), value.clone())));
    facts.extend(model.mixture.iter().flat_map(mixture));
    facts.extend(model.layer_kinds().filter_map(|(layer, _)| layer.linear()).flat_map(linear));
    let widths = model.layer_kinds().filter_map(|(layer, _)| layer.convolution());
    facts.extend(widths.map(|width| ("conv_L_cache", width.into())));
    facts
}

/// The sizes of linear attention.
fn linear(sizes: LinearAttention) -> [(&'static str, Value); 5] {
    [
        ("linear_num_value_heads", sizes.heads.into()),
        ("linear_num_key_heads", sizes.key_heads.into()),
        ("linear_key_head_dim", sizes.key_dim.into()),
        ("linear_value_head_dim", sizes.value_dim.into()),
        ("linear_conv_kernel_dim", sizes.conv_width.into()),
    ]
}

/// The word for the layers that have sinks, if some have.
fn sinks(model: &ModelConfig) -> Option<&'static str> {
    let has_sinks: Vec<bool> = model.layer_kinds().map(|(layer, _)| layer.has_sinks).collect();
    match (has_sinks.contains(&true), !has_sinks.contains(&false)) {
        (false, _) => None,
        (true, false) => Some(SLIDING),
        (true, true) => Some(ALL),
    }
}

/// A number of layers without a window, if it is another than the model's.
fn of_global(model: &ModelConfig, number: impl Fn(&LayerConfig) -> usize) -> Option<usize> {
    let is_own = |layer: &&LayerConfig| layer.window().is_none() && number(layer) != number(&model.layer);
    model.layer_kinds().map(|(layer, _)| layer).find(is_own).map(number)
}

/// Whether the feed-forward network is twice as wide in layers that read the keys and values of others.
pub(in crate::hugging_face) fn has_wide_readers(model: &ModelConfig) -> bool {
    let is_wide = |layer: &LayerConfig| layer.intermediate_size == 2 * model.layer.intermediate_size;
    model.layer_kinds().any(|(layer, _)| layer.kv_source.is_some() && is_wide(layer))
}

/// The base of the rotation in layers with a window, if they rotate otherwise than others.
fn sliding_theta(model: &ModelConfig) -> Option<f64> {
    let is_own =
        |layer: &&LayerConfig| model.published_window(layer).is_some() && model.has_own_rotation(layer);
    model.layer_kinds().map(|(layer, _)| layer).find(is_own).map(|layer| layer.rope_theta)
}

/// Whether a key of ours says `fact`.
pub(super) fn is_free(fact: &str) -> bool {
    !always_here().contains_key(fact)
}

/// Whether a value of `fact` can be written: sentences and lists stand for things that no key says.
pub(super) fn has_key(fact: &str, value: &Value) -> bool {
    match value {
        Value::String(text) => !text.contains(' '),
        Value::Array(_) => matches!(fact, "layer_types" | "no_rope_layers"),
        // A scaling that is not built keeps the type that the file gives it.
        Value::Object(parameters) if fact == "rope_scaling" => {
            let kind = parameters.get("rope_type").and_then(Value::as_str);
            matches!(
                kind,
                Some("linear" | "yarn" | "llama3" | "proportional" | "dynamic_ntk" | "dynamic" | "longrope")
            )
        }
        _ => true,
    }
}

/// The word that is written as `type` for a family.
pub(in crate::hugging_face) fn type_of(family: Family) -> &'static str {
    match family {
        Family::Llama => "LlamaConfig",
        Family::Gpt2 => "GPT2Config",
        Family::Bloom => "BloomConfig",
        Family::Baichuan => "Baichuan2_7BConfig",
        Family::BigCode => "WizardCoderConfig",
        Family::Pangu => "PanguAlphaConfig",
        Family::Glm => "ChatGLM2Config",
        Family::Phi3 => "Phi3Config",
        Family::Ernie45 => "Ernie4_5Config",
        Family::Helium => "HeliumConfig",
        Family::GraniteMoe => "GraniteMoeConfig",
        Family::GptNeoX => "GPTNeoXConfig",
        Family::Opt => "OPTConfig",
        Family::Falcon => "FalconConfig",
        Family::NanoChat => "NanoChatConfig",
        Family::Mpt => "MptConfig",
        Family::GptJ => "GPTJConfig",
        Family::Phi => "PhiConfig",
        Family::Cohere => "CohereConfig",
        Family::GptOss => "GptOssConfig",
        Family::Qwen3Next => "Qwen3NextConfig",
        Family::Lfm2 => "Lfm2Config",
    }
}

/// A factor; null for 1, as if there were none.
fn other_than_one(factor: Option<f64>) -> Value {
    factor.filter(|factor| *factor != 1.0).into()
}

/// The width of which a share rotates. In latent attention all of it rotates.
fn rotating_width(model: &ModelConfig) -> usize {
    if model.latent.is_some() { model.layer.rotary_dim } else { model.layer.head_dim }
}

/// The word for how q and k are normalised, unless it is head by head before the rotation.
fn qk_norm_kind(kind: QkNorm) -> Option<&'static str> {
    match kind {
        QkNorm::Heads => None,
        QkNorm::AllHeads => Some("all_heads"),
        QkNorm::RotatedHeads => Some("rotated_heads"),
        QkNorm::LayerNorm => Some("layer_norm"),
        QkNorm::LayerNormByHead => Some("layer_norm_by_head"),
    }
}

/// The word for how attention and feed-forward network stand beside each other, if they do.
fn parallel_residual(residual: Option<ParallelResidual>) -> Option<&'static str> {
    residual.map(|residual| match residual {
        ParallelResidual::TwoNorms => "two_norms",
        ParallelResidual::OneNorm => "one_norm",
    })
}

/// The word for where norms stand, unless it is before attention and feed-forward network.
fn norm_placement(placement: NormPlacement) -> Option<&'static str> {
    match placement {
        NormPlacement::Before => None,
        NormPlacement::After => Some("after"),
        NormPlacement::Both => Some("both"),
        NormPlacement::AfterSum => Some("after_sum"),
    }
}

fn activation(activation: Activation) -> &'static str {
    match activation {
        Activation::Gated(Gate::Silu) => "silu",
        Activation::Gated(Gate::Clamped) => "swigluoai",
        Activation::Xielu => "xielu",
        Activation::Gated(Gate::Gelu(Gelu::Tanh)) | Activation::Gelu(Gelu::Tanh) => "gelu_new",
        Activation::Gated(Gate::Gelu(Gelu::Exact)) | Activation::Gelu(Gelu::Exact) => "gelu_exact",
        Activation::Gated(Gate::Gelu(Gelu::Fast)) | Activation::Gelu(Gelu::Fast) => "fast_gelu",
        Activation::Gated(Gate::Gelu(Gelu::Relu)) | Activation::Gelu(Gelu::Relu) => "relu",
        Activation::Gated(Gate::Gelu(Gelu::ReluSquared)) | Activation::Gelu(Gelu::ReluSquared) => "relu2",
    }
}

fn mixture(mixture: &MixtureConfig) -> BTreeMap<&'static str, Value> {
    let route = &mixture.route;
    let score = if route.score == Score::Sigmoid { "sigmoid" } else { "softmax" };
    let least = match route.norm {
        Some(GateNorm::AtLeast(least)) => Some(least),
        _ => None,
    };
    let jitter = match route.score {
        Score::SparseMixer { jitter } => Some(jitter),
        Score::Softmax | Score::Sigmoid => None,
    };
    let method = |score| if score == GroupScore::Best { "group_limited_greedy" } else { "noaux_tc" };
    BTreeMap::from([
        ("expert_num", mixture.experts().into()),
        ("num_experts_chosen", mixture.chosen().into()),
        ("moe_intermediate_size", mixture.intermediate_size.into()),
        ("first_k_dense_replace", mixture.first_dense_layers.into()),
        ("moe_shared_expert_intermediate_size", mixture.shared.map(|shared| shared.intermediate_size).into()),
        ("use_shared_expert_gating", mixture.shared.is_some_and(|shared| shared.is_gated).into()),
        ("scoring_func", score.into()),
        ("norm_topk_prob", route.norm.is_some().into()),
        ("moe_norm_min", least.into()),
        ("sparsemixer_jitter_eps", jitter.into()),
        ("routed_scaling_factor", json!(route.scaling)),
        ("topk_method", route.groups.map(|groups| method(groups.score)).into()),
        ("n_group", route.groups.map(|groups| groups.count).into()),
        ("topk_group", route.groups.map(|groups| groups.chosen).into()),
        ("balance_via_topk_bias", mixture.has_bias.into()),
    ])
}

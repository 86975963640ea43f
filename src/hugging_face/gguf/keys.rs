//! The keys of a model.

use super::{Architecture, Keys};
use crate::hugging_face::config_json::classes::value_of_keys;
use crate::model::config::{MixtureConfig, ModelConfig, Norm, RopeScaling, Score, Yarn};
use pmetal_gguf::MetadataValue::{Bool, Float32, String as Text, Uint32};

/// The keys of `model` in a file of `architecture`, but for the tokenizer's.
pub(crate) fn keys(architecture: &Architecture, model: &ModelConfig) -> Keys {
    let row = architecture.row;
    let mut keys = Keys::from([
        ("general.type".to_string(), Text("model".into())),
        ("general.architecture".to_string(), Text(row.architecture.clone())),
    ]);
    let layer = &model.layer;
    let mut put = |key: &str, value| drop(keys.insert(format!("{}.{key}", row.architecture), value));
    let number = |number: usize| Uint32(number as u32);
    let float = |number: f64| Float32(number as f32);
    put("vocab_size", number(model.vocab_size));
    put("context_length", number(architecture.context));
    put("embedding_length", number(model.hidden_size));
    put("block_count", number(model.num_layers));
    put("attention.head_count", number(model.num_heads));
    put("attention.head_count_kv", number(layer.num_kv_heads));
    put("attention.key_length", number(layer.head_dim));
    put("attention.value_length", number(layer.head_dim));
    let epsilon = match model.norm {
        Norm::RmsNorm => "attention.layer_norm_rms_epsilon",
        Norm::LayerNorm => "attention.layer_norm_epsilon",
    };
    put(epsilon, float(model.norm_eps));
    // All layers of some mixtures have experts alone.
    let inner = match &model.mixture {
        Some(mixture) if mixture.first_dense_layers == 0 => mixture.intermediate_size,
        _ => layer.intermediate_size,
    };
    put("feed_forward_length", number(inner));
    if let Some(window) = architecture.window {
        put("attention.sliding_window", number(window.0));
        put("attention.sliding_window_pattern", number(window.1));
    }
    // A divisor or a factor of the logits, as the class has it.
    let divisor = model.factors.logits_divisor.unwrap_or(1.0);
    let said = architecture.class.facts.get("logits_scaling");
    let logit_scale = said.and_then(|said| value_of_keys(said, divisor.into()).as_f64()).unwrap_or(divisor);
    for (fact, key, factor) in [
        ("embedding_multiplier", "embedding_scale", model.factors.embedding),
        ("residual_multiplier", "residual_scale", model.factors.residual),
        ("logits_scaling", "logit_scale", Some(logit_scale)),
        ("attention_multiplier", "attention.scale", model.factors.scores),
        ("attn_logit_softcapping", "attn_logit_softcapping", model.score_cap),
        ("final_logit_softcapping", "final_logit_softcapping", model.logit_cap),
        ("clip_qkv", "attention.clamp_kqv", model.clip_qkv),
    ] {
        if let Some(factor) = factor.filter(|_| row.has.contains(fact)) {
            put(key, float(factor));
        }
    }
    let theta = match layer.rope_scaling {
        // The same as another base.
        RopeScaling::Ntk { factor } => layer.rope_theta * factor,
        _ => layer.rope_theta,
    };
    put("rope.freq_base", float(theta));
    put("rope.dimension_count", number(layer.rotary_dim));
    if architecture.window.is_some() {
        let mut kinds = model.layer_kinds().map(|(layer, _)| layer);
        let sliding = kinds.find(|layer| model.published_window(layer).is_some()).unwrap_or(layer);
        put("rope.freq_base_swa", float(sliding.rope_theta));
    }
    let scaling = "rope.scaling.original_context_length";
    match layer.rope_scaling {
        RopeScaling::Linear { factor } => {
            put("rope.scaling.type", Text("linear".into()));
            put("rope.scaling.factor", float(factor));
        }
        RopeScaling::Yarn(yarn) => {
            put("rope.scaling.type", Text("yarn".into()));
            put("rope.scaling.factor", float(yarn.factor));
            put(scaling, number(yarn.original as usize));
            put("rope.scaling.yarn_beta_fast", float(yarn.beta_fast));
            put("rope.scaling.yarn_beta_slow", float(yarn.beta_slow));
            // llama.cpp multiplies it by m(1) itself.
            let own = layer.rope_scaling.magnitude() / Yarn::m(&yarn, 1.0);
            if (own - 1.0).abs() > 1e-9 {
                put("rope.scaling.attn_factor", float(own));
            }
        }
        RopeScaling::LongRope(long) => {
            put("rope.scaling.type", Text("longrope".into()));
            put(scaling, number(long.original as usize));
            put("rope.scaling.attn_factor", float(long.magnitude));
        }
        // Said by the tensor of its divisors.
        _ => {}
    }
    if let Some(mixture) = &model.mixture {
        for (key, value) in of_experts(mixture) {
            put(key, value);
        }
    }
    keys
}

/// The keys of a mixture of experts.
fn of_experts(mixture: &MixtureConfig) -> Vec<(&'static str, pmetal_gguf::MetadataValue)> {
    let gating = if mixture.route.score == Score::Sigmoid { 2 } else { 1 };
    let mut keys = vec![
        ("expert_count", Uint32(mixture.experts() as u32)),
        ("expert_used_count", Uint32(mixture.chosen() as u32)),
        ("expert_feed_forward_length", Uint32(mixture.intermediate_size as u32)),
        ("expert_weights_norm", Bool(mixture.route.norm.is_some())),
        ("expert_gating_func", Uint32(gating)),
        ("leading_dense_block_count", Uint32(mixture.first_dense_layers as u32)),
    ];
    if let Some(shared) = mixture.shared {
        keys.push(("expert_shared_feed_forward_length", Uint32(shared.intermediate_size as u32)));
    }
    if mixture.route.scaling != 1.0 {
        keys.push(("expert_weights_scale", Float32(mixture.route.scaling)));
    }
    keys
}

//! `config.json`: a model's shape under Hugging Face's keys.

mod architecture;
mod latent;
pub(super) mod mixture;

use architecture::Architecture;

use crate::model::config::{Activation, Family, ModelConfig};
use crate::ops::gelu::Gelu;
use crate::ops::rope_scaling::{Llama3, RopeScaling, Yarn};
use serde_json::json;

/// The content of `config.json` for `model`.
pub(crate) fn hugging_face_config(model: &ModelConfig) -> serde_json::Value {
    let architecture = Architecture::nearest(model);
    let mut config = match model.family {
        Family::Llama | Family::Glm | Family::Baichuan | Family::Phi3 | Family::Ernie45 | Family::Helium => {
            llama_config(model, architecture)
        }
        Family::Gpt2 | Family::BigCode | Family::Pangu => gpt2_config(model),
        Family::Bloom => bloom_config(model),
    };
    if let Some(sizes) = &model.latent {
        latent::change(&mut config, model, sizes);
    }
    let more = model.mixture.as_ref().map(|config| mixture::mixture_config(model, config, architecture));
    more.into_iter().flatten().for_each(|(key, value)| config[key] = value);
    if let Some(ahead) = model.multi_token {
        config["num_nextn_predict_layers"] = ahead.depth.into();
    }
    if architecture == Architecture::BigCode {
        config["multi_query"] = true.into();
    }
    let (class, model_type) = architecture.names();
    config["architectures"] = json!([class]);
    config["model_type"] = model_type.into();
    if let Some(note) = note(model) {
        config["gristmill_note"] = note.into();
    }
    config
}

/// How a note ends whose architecture computes the same, but is not in `transformers`.
const PUBLISHED: &str = "whose code is published with its weights";

/// Whether the architecture that a `config.json` with this note names computes something else than the model.
pub(super) fn lacks_something(note: &str) -> bool {
    !note.ends_with(PUBLISHED)
}

/// What the architecture that `config.json` names cannot compute of `model`; `None` if it computes the same.
pub(crate) fn note(model: &ModelConfig) -> Option<String> {
    let architecture = Architecture::nearest(model);
    let (class, lacks) = (architecture.names().0, architecture.lacks(model));
    let what = lacks.join(", no ");
    match (architecture.is_in_transformers(), lacks.is_empty()) {
        (true, true) => None,
        (true, false) => Some(format!("{class} is the nearest architecture, but it has no {what}")),
        (false, true) => Some(format!("transformers has no {class}, {PUBLISHED}")),
        (false, false) => Some(format!("transformers has no {class}, {PUBLISHED} and has no {what}")),
    }
}

/// The keys of `BloomConfig`.
fn bloom_config(model: &ModelConfig) -> serde_json::Value {
    json!({
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "n_layer": model.num_layers,
        "n_head": model.num_heads,
        "seq_length": model.seq_length,
        "layer_norm_epsilon": model.norm_eps,
        "tie_word_embeddings": model.tie_word_embeddings,
        "initializer_range": model.init_std,
        "apply_residual_connection_post_layernorm": false,
        "hidden_dropout": model.hidden_dropout,
        "attention_dropout": model.attention_dropout,
        "torch_dtype": "float32",
    })
}

/// The keys of `GPT2Config`.
fn gpt2_config(model: &ModelConfig) -> serde_json::Value {
    let activation = match model.activation {
        Activation::Gelu(Gelu::Tanh) => "gelu_new",
        Activation::Gelu(Gelu::Exact) => "gelu",
        Activation::Gelu(Gelu::Fast) => "quick_gelu",
        Activation::SwiGlu => "silu",
    };
    json!({
        "vocab_size": model.vocab_size,
        "n_embd": model.hidden_size,
        "n_layer": model.num_layers,
        "n_head": model.num_heads,
        "n_inner": model.intermediate_size,
        "n_positions": model.max_positions,
        "n_ctx": model.max_positions,
        "activation_function": activation,
        "layer_norm_epsilon": model.norm_eps,
        "tie_word_embeddings": model.tie_word_embeddings,
        "initializer_range": model.init_std,
        "scale_attn_weights": true,
        "resid_pdrop": model.hidden_dropout,
        "embd_pdrop": model.embedding_dropout,
        "attn_pdrop": model.attention_dropout,
        "torch_dtype": "float32",
    })
}

/// The keys of `LlamaConfig`, which are also those of Mistral, Qwen and GLM, and what these need beyond them.
fn llama_config(model: &ModelConfig, architecture: Architecture) -> serde_json::Value {
    // Hugging Face cannot scale the base by a constant, but that is the same as another base.
    let rope_theta = match model.rope_scaling {
        RopeScaling::Ntk { factor } => model.rope_theta * factor,
        _ => model.rope_theta,
    };
    let rope_scaling = hugging_face_scaling(&model.rope_scaling);
    let mut config = json!({
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.intermediate_size,
        "max_position_embeddings": model.max_positions,
        "rope_theta": rope_theta,
        "rope_scaling": rope_scaling,
        "partial_rotary_factor": rotary_factor(model),
        "rms_norm_eps": model.norm_eps,
        "tie_word_embeddings": model.tie_word_embeddings,
        "attention_bias": model.qkv_bias,
        "mlp_bias": model.gate_up_bias && model.down_bias,
        "attention_dropout": model.attention_dropout,
        "sliding_window": model.published_window(),
        "use_sliding_window": model.published_window().is_some(),
        "hidden_act": "silu",
        "initializer_range": model.init_std,
        "torch_dtype": "float32",
    });
    if architecture == Architecture::Glm4Moe {
        config["use_qk_norm"] = model.qk_norm.into();
        config["first_k_dense_replace"] = model.num_layers.into();
        config["num_nextn_predict_layers"] = 0.into();
    }
    if matches!(architecture, Architecture::Glm | Architecture::Phi3 | Architecture::Helium) {
        // Its default is a token that small vocabularies do not have.
        config["pad_token_id"] = serde_json::Value::Null;
    }
    if architecture == Architecture::Ernie45 {
        config["use_bias"] = model.qkv_bias.into();
    }
    if architecture == Architecture::Phi3 {
        // By default that of the first Phi-3.
        config["original_max_position_embeddings"] = model.max_positions.into();
    }
    if is_qwen(architecture) && model.published_window().is_some() {
        // Without these the window would start in a later layer.
        config["max_window_layers"] = 0.into();
        config["layer_types"] = vec!["sliding_attention"; model.num_layers].into();
    }
    config
}

fn is_qwen(architecture: Architecture) -> bool {
    matches!(architecture, Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Qwen2Moe)
}

/// The share of a head that rotates, such that its product with `head_dim`, rounded down, is `rotary_dim`.
fn rotary_factor(model: &ModelConfig) -> f64 {
    let (dim, whole) = (model.rotary_dim as f64, model.head_dim as f64);
    let share = dim / whole;
    if share * whole < dim { share.next_up() } else { share }
}

/// The entry `rope_scaling`, null if there is none.
pub(super) fn hugging_face_scaling(scaling: &RopeScaling) -> serde_json::Value {
    match *scaling {
        RopeScaling::None | RopeScaling::Ntk { .. } => serde_json::Value::Null,
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        // Hugging Face's "dynamic" is a different formula: better a name it refuses than one it computes differently.
        RopeScaling::DynamicNtk { original, .. } => {
            json!({ "rope_type": "dynamic_ntk", "original_max_position_embeddings": original as u64 })
        }
        RopeScaling::Yarn(Yarn { factor, original, beta_fast, beta_slow, mscale, mscale_all_dim }) => json!({
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original as u64,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            "mscale": mscale,
            "mscale_all_dim": mscale_all_dim,
        }),
        RopeScaling::Llama3(Llama3 { factor, original, low_freq_factor, high_freq_factor }) => json!({
            "rope_type": "llama3",
            "factor": factor,
            "original_max_position_embeddings": original as u64,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
        }),
    }
}

#[cfg(test)]
mod tests;

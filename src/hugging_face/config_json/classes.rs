//! The classes whose models this version computes, as `transformers` 5.23 has them, and some whose code was published with their
//! weights.
//!
//! A class is here because its losses were found to be ours with other values of its keys than its defaults:
//! tests/transformers/shapes.py. What a class has that no key of ours changes, such as Granite's factors, may only say what is
//! computed here.

mod dense;
mod mixtures;
mod published;
mod wrapped;

use super::class::{Class, Fact, Facts, Reading, Windows, nothing};
use crate::model::config::Family;
use serde_json::Value;

/// What decides the facts of Llama and of what is like it.
const LIKE_LLAMA: &[(&str, &str)] = &[
    ("vocab_size", "vocab_size"),
    ("hidden_size", "hidden_size"),
    ("num_layers", "num_hidden_layers"),
    ("num_heads", "num_attention_heads"),
    ("n_kv_heads", "num_key_value_heads"),
    ("head_dim", "head_dim"),
    ("intermediate_size", "intermediate_size"),
    ("hidden_act", "hidden_act"),
    ("rms_norm_eps", "rms_norm_eps"),
    ("tie_word_embeddings", "tie_word_embeddings"),
    ("qkv_has_bias", "=false"),
    ("attn_proj_has_bias", "=false"),
    ("add_mlp_fc1_bias_linear", "=false"),
    ("add_mlp_fc2_bias_linear", "=false"),
    ("use_qk_norm", "=false"),
    ("kv_lora_rank", "=null"),
    ("expert_num", "=null"),
];
const ATTENTION_BIAS: &[(&str, &str)] =
    &[("qkv_has_bias", "attention_bias"), ("attn_proj_has_bias", "attention_bias")];
const MLP_BIAS: &[(&str, &str)] =
    &[("add_mlp_fc1_bias_linear", "mlp_bias"), ("add_mlp_fc2_bias_linear", "mlp_bias")];
const QKV_BIAS: &[(&str, &str)] = &[("qkv_has_bias", "attention_bias")];
const QK_NORM: &[(&str, &str)] = &[("use_qk_norm", "=true")];
/// Experts that are chosen by a plain softmax.
const EXPERTS: &[(&str, &str)] = &[
    ("expert_num", "num_experts|num_local_experts|n_routed_experts"),
    ("num_experts_chosen", "num_experts_per_tok"),
    ("moe_intermediate_size", "moe_intermediate_size"),
    ("moe_shared_expert_intermediate_size", "=null"),
    ("use_shared_expert_gating", "=false"),
    ("scoring_func", "=\"softmax\""),
    ("norm_topk_prob", "norm_topk_prob"),
    ("routed_scaling_factor", "=1"),
    ("topk_method", "=null"),
    ("n_group", "=null"),
    ("topk_group", "=null"),
];
const SHARED: &[(&str, &str)] = &[("moe_shared_expert_intermediate_size", "n_shared_experts")];
/// The router of DeepSeek-V3.
const BIASED_ROUTER: &[(&str, &str)] = &[
    ("scoring_func", "scoring_func"),
    ("routed_scaling_factor", "routed_scaling_factor"),
    ("topk_method", "topk_method"),
    ("n_group", "n_group"),
    ("topk_group", "topk_group"),
    ("balance_via_topk_bias", "=true"),
    ("moe_layer_freq", "moe_layer_freq"),
];
const LATENT: &[(&str, &str)] = &[
    ("q_lora_rank", "q_lora_rank"),
    ("kv_lora_rank", "kv_lora_rank"),
    ("qk_nope_head_dim", "qk_nope_head_dim"),
    ("qk_rope_head_dim", "qk_rope_head_dim"),
    ("v_head_dim", "v_head_dim"),
    ("rope_interleave", "rope_interleave"),
    // The norms of latent vectors do not read `rms_norm_eps`.
    ("latent_norm_eps", "=1e-6"),
];
const FACTORS: &[(&str, &str)] = &[
    ("embedding_multiplier", "embedding_multiplier"),
    ("residual_multiplier", "residual_multiplier"),
    ("logits_scaling", "logits_scaling"),
    ("attention_multiplier", "attention_multiplier"),
];
const LIKE_GPT2: &[(&str, &str)] = &[
    ("vocab_size", "vocab_size"),
    ("hidden_size", "n_embd|hidden_size"),
    ("num_layers", "n_layer|num_hidden_layers"),
    ("num_heads", "n_head|num_attention_heads"),
    ("intermediate_size", "n_inner"),
    ("max_position_embedding", "n_positions|max_position_embeddings"),
    ("hidden_act", "activation_function"),
    ("rms_norm_eps", "layer_norm_epsilon"),
    ("tie_word_embeddings", "tie_word_embeddings"),
    ("scale_attn_weights", "scale_attn_weights"),
];
const BY_LAYER: &[(&str, &str)] = &[("scale_attn_by_inverse_layer_idx", "scale_attn_by_inverse_layer_idx")];

const ALL: &str = r#"{"hidden_act": "silu", "tie_word_embeddings": false, "rope_theta": 10000}"#;
const V3_ROUTER: &str = r#"{"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}"#;
const LLAMA_SIZES: &str = r#"{"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "attention_bias": false, "mlp_bias": false}"#;
const MISTRAL_SIZES: &str = r#"{"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6}"#;
const QWEN_SIZES: &str = r#"{"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
    "attention_bias": false, "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28}"#;
const GPT2_SIZES: &str = r#"{"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
    "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true, "scale_attn_weights": true}"#;
const GRANITE_FACTORS: &str = r#"{"embedding_multiplier": 1, "residual_multiplier": 1, "logits_scaling": 1, "attention_multiplier": 1}"#;
const LATENT_SIZES: &str = r#"{"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "qk_nope_head_dim": 128, "rope_interleave": true, "attention_bias": false, "rms_norm_eps": 1e-6}"#;

const LLAMA: Class = Class {
    name: "llama",
    family: Family::Llama,
    defaults: &[ALL, LLAMA_SIZES],
    facts: &[LIKE_LLAMA, ATTENTION_BIAS, MLP_BIAS],
    windows: Windows::Never,
    finish: nothing,
    has_further_layers: false,
};
const MISTRAL: Class = Class {
    name: "mistral",
    defaults: &[ALL, MISTRAL_SIZES, r#"{"sliding_window": 4096}"#],
    facts: &[LIKE_LLAMA],
    windows: Windows::Always,
    ..LLAMA
};
const QWEN2: Class = Class {
    name: "qwen2",
    defaults: &[ALL, QWEN_SIZES],
    facts: &[LIKE_LLAMA, &[("qkv_has_bias", "=true")]],
    windows: Windows::Last,
    ..LLAMA
};
const DEEPSEEK_V3: Class = Class {
    name: "deepseek_v3",
    defaults: &[
        ALL,
        LATENT_SIZES,
        V3_ROUTER,
        r#"{"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
            "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1,
            "n_routed_experts": 256, "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8,
            "first_k_dense_replace": 3, "norm_topk_prob": true, "max_position_embeddings": 4096}"#,
    ],
    facts: &[LIKE_LLAMA, ATTENTION_BIAS, LATENT, EXPERTS, SHARED, BIASED_ROUTER],
    has_further_layers: true,
    ..LLAMA
};
const GPT2: Class = Class {
    name: "gpt2",
    family: Family::Gpt2,
    defaults: &[
        GPT2_SIZES,
        r#"{"activation_function": "gelu_new", "scale_attn_by_inverse_layer_idx": false}"#,
    ],
    facts: &[LIKE_GPT2, BY_LAYER],
    ..LLAMA
};

/// Every class.
pub(super) fn all() -> impl Iterator<Item = &'static Class> {
    [dense::CLASSES, mixtures::CLASSES, published::CLASSES, wrapped::CLASSES].into_iter().flatten()
}

//! Classes without experts.

use super::*;

pub(super) static CLASSES: &[Class] = &[
    LLAMA,
    MISTRAL,
    Class { name: "ministral", windows: Windows::All, ..MISTRAL },
    QWEN2,
    Class {
        name: "qwen3",
        defaults: &[ALL, QWEN_SIZES, r#"{"head_dim": 128}"#],
        facts: &[LIKE_LLAMA, ATTENTION_BIAS, QK_NORM],
        ..QWEN2
    },
    Class {
        name: "glm",
        family: Family::Glm,
        defaults: &[
            ALL,
            r#"{"vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
                "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
                "rms_norm_eps": 1.5625e-7, "attention_bias": true, "partial_rotary_factor": 0.5}"#,
        ],
        facts: &[LIKE_LLAMA, QKV_BIAS],
        ..LLAMA
    },
    Class {
        name: "phi3",
        family: Family::Phi3,
        // It passes over `attention_bias`.
        defaults: &[
            ALL,
            r#"{"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
                "num_attention_heads": 32, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
                "rms_norm_eps": 1e-5, "partial_rotary_factor": 1, "short_factor": null, "attention_bias": false}"#,
        ],
        facts: &[LIKE_LLAMA],
        windows: Windows::Always,
        ..LLAMA
    },
    Class {
        name: "ernie4_5",
        family: Family::Ernie45,
        defaults: &[
            ALL,
            r#"{"vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
                "num_attention_heads": 16, "num_key_value_heads": 2, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
                "head_dim": 128, "rope_theta": 500000, "tie_word_embeddings": true, "use_bias": false}"#,
        ],
        facts: &[
            LIKE_LLAMA,
            &[
                ("qkv_has_bias", "use_bias"),
                ("attn_proj_has_bias", "use_bias"),
                ("add_mlp_fc1_bias_linear", "use_bias"),
                ("add_mlp_fc2_bias_linear", "use_bias"),
            ],
        ],
        ..LLAMA
    },
    Class {
        name: "helium",
        family: Family::Helium,
        defaults: &[
            ALL,
            r#"{"vocab_size": 48000, "hidden_size": 2560, "intermediate_size": 7040, "num_hidden_layers": 24,
                "num_attention_heads": 20, "num_key_value_heads": 20, "max_position_embeddings": 4096, "rms_norm_eps": 1e-8,
                "head_dim": 128, "rope_theta": 100000, "attention_bias": false, "mlp_bias": false}"#,
        ],
        facts: &[LIKE_LLAMA, QKV_BIAS, MLP_BIAS],
        ..LLAMA
    },
    Class {
        name: "seed_oss",
        defaults: &[
            ALL,
            r#"{"vocab_size": 155136, "hidden_size": 4096, "intermediate_size": 27648, "num_hidden_layers": 64,
                "num_attention_heads": 80, "num_key_value_heads": 8, "max_position_embeddings": 524288, "rms_norm_eps": 1e-6,
                "attention_bias": true, "attention_out_bias": false, "mlp_bias": false, "head_dim": 128}"#,
        ],
        facts: &[LIKE_LLAMA, QKV_BIAS, MLP_BIAS, &[("attn_proj_has_bias", "attention_out_bias")]],
        ..LLAMA
    },
    Class {
        name: "internlm3",
        defaults: &[
            ALL,
            r#"{"vocab_size": 128512, "hidden_size": 4096, "intermediate_size": 10240, "num_hidden_layers": 48,
                "num_attention_heads": 32, "num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
                "head_dim": 128, "qkv_bias": false, "bias": false}"#,
        ],
        // One switch in the end: the class refuses two that differ.
        facts: &[
            LIKE_LLAMA,
            &[
                ("qkv_has_bias", "attention_bias|qkv_bias"),
                ("attn_proj_has_bias", "attention_bias|qkv_bias"),
                ("add_mlp_fc1_bias_linear", "mlp_bias|bias"),
                ("add_mlp_fc2_bias_linear", "mlp_bias|bias"),
            ],
        ],
        ..LLAMA
    },
    Class {
        name: "iquestcoder",
        defaults: &[
            ALL,
            LLAMA_SIZES,
            r#"{"vocab_size": 76800, "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 80,
                "num_attention_heads": 40, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
                "head_dim": 128}"#,
        ],
        ..LLAMA
    },
    Class {
        name: "cwm",
        defaults: &[
            ALL,
            r#"{"vocab_size": 128256, "hidden_size": 6144, "intermediate_size": 21504, "num_hidden_layers": 64,
                "num_attention_heads": 48, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
                "mlp_bias": false, "head_dim": 128, "rope_theta": 1000000, "sliding_window": 8192, "rope_parameters":
                {"rope_theta": 1000000, "factor": 16, "high_freq_factor": 4, "low_freq_factor": 1,
                "original_max_position_embeddings": 8192, "rope_type": "llama3"}}"#,
        ],
        facts: &[LIKE_LLAMA, MLP_BIAS],
        windows: Windows::ThreeOfFour,
        ..LLAMA
    },
    Class {
        name: "smollm3",
        defaults: &[
            ALL,
            QWEN_SIZES,
            r#"{"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
                "num_attention_heads": 16, "num_key_value_heads": 4, "rope_theta": 2000000, "no_rope_layer_interval": 4,
                "mlp_bias": false, "tie_word_embeddings": true}"#,
        ],
        facts: &[LIKE_LLAMA, ATTENTION_BIAS, MLP_BIAS, &[("no_rope_layers", "no_rope_layers")]],
        windows: Windows::All,
        finish: layers_without_rotation,
        ..LLAMA
    },
    Class {
        name: "granite",
        defaults: &[ALL, LLAMA_SIZES, GRANITE_FACTORS],
        facts: &[LIKE_LLAMA, ATTENTION_BIAS, MLP_BIAS, FACTORS],
        ..LLAMA
    },
    Class {
        name: "hyperclovax",
        defaults: &[
            ALL,
            LLAMA_SIZES,
            GRANITE_FACTORS,
            r#"{"use_post_norm": true, "attention_multiplier": null}"#,
        ],
        facts: &[LIKE_LLAMA, ATTENTION_BIAS, MLP_BIAS, FACTORS, &[("use_post_norm", "use_post_norm")]],
        ..LLAMA
    },
    GPT2,
    Class {
        name: "gpt_bigcode",
        family: Family::BigCode,
        defaults: &[
            GPT2_SIZES,
            r#"{"activation_function": "gelu_pytorch_tanh", "multi_query": true,
                "num_key_value_heads": null}"#,
        ],
        facts: &[LIKE_GPT2, &[("n_kv_heads", "multi_query")]],
        finish: shared_keys,
        ..GPT2
    },
    Class {
        name: "bloom",
        family: Family::Bloom,
        defaults: &[
            r#"{"vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8, "layer_norm_epsilon": 1e-5,
                "tie_word_embeddings": true, "apply_residual_connection_post_layernorm": false}"#,
        ],
        facts: &[&[
            ("vocab_size", "vocab_size"),
            ("hidden_size", "n_embed|hidden_size"),
            ("num_layers", "n_layer|num_hidden_layers"),
            ("num_heads", "n_head|num_attention_heads"),
            ("intermediate_size", "=null"),
            ("hidden_act", "=\"gelu_new\""),
            ("rms_norm_eps", "layer_norm_epsilon"),
            ("tie_word_embeddings", "tie_word_embeddings"),
            ("apply_residual_connection_post_layernorm", "apply_residual_connection_post_layernorm"),
        ]],
        ..LLAMA
    },
    Class {
        name: "youtu",
        defaults: &[
            ALL,
            LATENT_SIZES,
            r#"{"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 32,
                "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 131072,
                "tie_word_embeddings": true}"#,
        ],
        facts: &[LIKE_LLAMA, ATTENTION_BIAS, LATENT],
        ..LLAMA
    },
];

/// SmolLM3: 1 stands for a layer that rotates; without a list every so many do not.
fn layers_without_rotation(reading: &Reading<'_>, facts: &mut Facts) {
    let (key, listed) = reading.decided("no_rope_layers");
    let layers = facts["num_layers"].value.as_f64().unwrap_or(0.0);
    let rotate = match &listed {
        Value::Array(layers) => layers.iter().all(|rotates| *rotates != 0 && *rotates != false),
        _ => reading.number("no_rope_layer_interval").is_some_and(|interval| interval > layers),
    };
    let value = if rotate { Value::Null } else { "in some layers".into() };
    facts.insert("no_rope_layers", Fact { key, value });
}

/// GPTBigCode: a switch instead of a number.
fn shared_keys(reading: &Reading<'_>, facts: &mut Facts) {
    let value = if reading.is_on("multi_query") { 1.into() } else { facts["num_heads"].value.clone() };
    facts.insert("n_kv_heads", Fact { key: "multi_query".to_string(), value });
}

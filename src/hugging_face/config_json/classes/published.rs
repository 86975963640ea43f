//! Classes whose code was published with their weights and is not in `transformers`.

use super::*;

pub(super) static CLASSES: &[Class] = &[
    // DeepSeek-MoE, whose router is that of V2.
    Class {
        name: "deepseek",
        defaults: &[
            ALL,
            LLAMA_SIZES,
            r#"{"vocab_size": 102400, "num_hidden_layers": 30, "num_key_value_heads": 32, "moe_intermediate_size": 1407,
                "first_k_dense_replace": 0, "moe_layer_freq": 1, "norm_topk_prob": false, "scoring_func": "softmax"}"#,
        ],
        facts: &[
            LIKE_LLAMA,
            ATTENTION_BIAS,
            EXPERTS,
            SHARED,
            &[("scoring_func", "scoring_func"), ("moe_layer_freq", "moe_layer_freq")],
        ],
        ..LLAMA
    },
    Class {
        name: "internlm2",
        defaults: &[ALL, LLAMA_SIZES, r#"{"vocab_size": 103168, "bias": true}"#],
        facts: &[LIKE_LLAMA, &[("qkv_has_bias", "bias"), ("attn_proj_has_bias", "bias")]],
        ..LLAMA
    },
    Class {
        name: "chatglm",
        family: Family::Glm,
        defaults: &[
            ALL,
            r#"{"num_layers": 28, "padded_vocab_size": 65024, "hidden_size": 4096, "ffn_hidden_size": 13696, "kv_channels": 128,
                "num_attention_heads": 32, "seq_length": 2048, "layernorm_epsilon": 1e-5, "add_bias_linear": false,
                "add_qkv_bias": false, "multi_query_attention": false, "multi_query_group_num": 1, "rope_ratio": 1,
                "partial_rotary_factor": 0.5, "apply_residual_connection_post_layernorm": false, "rmsnorm": true,
                "post_layer_norm": true, "apply_query_key_layer_scaling": true, "original_rope": true}"#,
        ],
        facts: &[
            LIKE_LLAMA,
            &[
                ("vocab_size", "padded_vocab_size"),
                ("num_layers", "num_layers"),
                ("n_kv_heads", "multi_query_group_num"),
                ("head_dim", "kv_channels"),
                ("intermediate_size", "ffn_hidden_size"),
                ("rms_norm_eps", "layernorm_epsilon"),
                ("qkv_has_bias", "add_qkv_bias"),
                ("attn_proj_has_bias", "add_bias_linear"),
                ("add_mlp_fc1_bias_linear", "add_bias_linear"),
                ("add_mlp_fc2_bias_linear", "add_bias_linear"),
                ("apply_residual_connection_post_layernorm", "apply_residual_connection_post_layernorm"),
                ("rmsnorm", "rmsnorm"),
                ("post_layer_norm", "post_layer_norm"),
            ],
        ],
        finish: grouped_keys,
        ..LLAMA
    },
    // `intermediate_size` is that of gate and up together. Its other scalings are of texts that are longer than `seq_length`.
    Class {
        name: "qwen",
        defaults: &[
            r#"{"vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                "layer_norm_epsilon": 1e-6, "scale_attn_weights": true, "kv_channels": 128, "rotary_pct": 1,
                "rotary_emb_base": 10000, "intermediate_size": 22016, "no_bias": true, "tie_word_embeddings": false,
                "use_dynamic_ntk": true, "use_logn_attn": true, "seq_length": 8192, "max_position_embeddings": 8192}"#,
        ],
        facts: &[
            LIKE_LLAMA,
            &[
                ("n_kv_heads", "num_attention_heads"),
                ("head_dim", "kv_channels"),
                ("rms_norm_eps", "layer_norm_epsilon"),
                ("hidden_act", "=\"silu\""),
                ("qkv_has_bias", "=true"),
                ("scale_attn_weights", "scale_attn_weights"),
            ],
        ],
        finish: half_the_width,
        ..LLAMA
    },
    Class {
        name: "telechat",
        defaults: &[
            ALL,
            r#"{"vocab_size": 160256, "hidden_size": 4096, "n_layer": 30, "n_head": 32, "layer_norm_epsilon": 1e-5,
                "ffn_hidden_size": 12288, "apply_residual_connection_post_layernorm": false, "embed_layernorm": false,
                "base_seqlen": 8192, "training_seqlen": 8192, "logn": true, "seq_length": 8192}"#,
        ],
        facts: &[
            LIKE_LLAMA,
            &[
                ("num_layers", "n_layer|num_hidden_layers"),
                ("num_heads", "n_head|num_attention_heads"),
                ("intermediate_size", "ffn_hidden_size"),
                ("rms_norm_eps", "layer_norm_epsilon"),
                ("hidden_act", "=\"silu\""),
                ("attn_proj_has_bias", "=true"),
                ("add_mlp_fc2_bias_linear", "=true"),
                ("apply_residual_connection_post_layernorm", "apply_residual_connection_post_layernorm"),
                ("embed_layernorm", "embed_layernorm"),
            ],
        ],
        ..LLAMA
    },
];

/// ChatGLM: a switch and a number.
fn grouped_keys(reading: &Reading<'_>, facts: &mut Facts) {
    if !reading.is_on("multi_query_attention") {
        let value = facts["num_heads"].value.clone();
        facts.insert("n_kv_heads", Fact { key: "multi_query_attention".to_string(), value });
    }
}

/// Qwen 1: each of gate and up is half as wide.
fn half_the_width(_: &Reading<'_>, facts: &mut Facts) {
    let width = facts["intermediate_size"].value.as_u64().unwrap_or(0) / 2;
    facts.entry("intermediate_size").and_modify(|fact| fact.value = width.into());
}

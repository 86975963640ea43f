//! Classes with experts.

use super::*;

pub(super) static CLASSES: &[Class] = &[
    Class {
        name: "mixtral",
        defaults: &[
            ALL,
            MISTRAL_SIZES,
            r#"{"rms_norm_eps": 1e-5, "rope_theta": 1000000, "num_experts_per_tok": 2, "num_local_experts": 8}"#,
        ],
        facts: &[
            LIKE_LLAMA,
            EXPERTS,
            &[("moe_intermediate_size", "intermediate_size"), ("norm_topk_prob", "=true")],
        ],
        ..MISTRAL
    },
    Class {
        name: "qwen2_moe",
        defaults: &[
            ALL,
            QWEN_SIZES,
            r#"{"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16,
                "num_key_value_heads": 16, "decoder_sparse_step": 1, "moe_intermediate_size": 1408, "mlp_only_layers": [],
                "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_experts": 60, "norm_topk_prob": false,
                "qkv_bias": true}"#,
        ],
        facts: &[
            LIKE_LLAMA,
            EXPERTS,
            &[
                ("qkv_has_bias", "qkv_bias"),
                ("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"),
                ("use_shared_expert_gating", "=true"),
            ],
        ],
        windows: Windows::Alternate,
        ..LLAMA
    },
    Class {
        name: "qwen3_moe",
        defaults: &[
            ALL,
            QWEN_SIZES,
            r#"{"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "num_key_value_heads": 4,
                "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128,
                "norm_topk_prob": false, "mlp_only_layers": []}"#,
        ],
        facts: &[LIKE_LLAMA, ATTENTION_BIAS, QK_NORM, EXPERTS],
        windows: Windows::Always,
        ..LLAMA
    },
    Class {
        name: "glm4_moe",
        defaults: &[
            ALL,
            V3_ROUTER,
            r#"{"vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
                "num_attention_heads": 96, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
                "attention_bias": false, "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1,
                "n_routed_experts": 128, "routed_scaling_factor": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
                "norm_topk_prob": true, "use_qk_norm": false, "partial_rotary_factor": 0.5}"#,
        ],
        facts: &[LIKE_LLAMA, QKV_BIAS, EXPERTS, SHARED, BIASED_ROUTER, &[("use_qk_norm", "use_qk_norm")]],
        has_further_layers: true,
        ..LLAMA
    },
    Class {
        name: "glm4_moe_lite",
        defaults: &[
            ALL,
            LATENT_SIZES,
            V3_ROUTER,
            r#"{"vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240, "moe_intermediate_size": 1536,
                "num_hidden_layers": 47, "num_attention_heads": 20, "num_key_value_heads": 20, "n_shared_experts": 1,
                "n_routed_experts": 64, "routed_scaling_factor": 1.8, "q_lora_rank": 768, "v_head_dim": 256,
                "qk_nope_head_dim": 192, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4, "norm_topk_prob": true,
                "max_position_embeddings": 202752, "rms_norm_eps": 1e-5, "first_k_dense_replace": 1,
                "mlp_layer_types": null}"#,
        ],
        ..DEEPSEEK_V3
    },
    Class {
        name: "deepseek_v2",
        defaults: &[
            ALL,
            LLAMA_SIZES,
            LATENT_SIZES,
            r#"{"vocab_size": 102400, "first_k_dense_replace": 0, "n_routed_experts": 64, "n_shared_experts": 2,
                "routed_scaling_factor": 1, "topk_method": "greedy", "moe_intermediate_size": 1407, "moe_layer_freq": 1,
                "scoring_func": "softmax", "norm_topk_prob": false}"#,
        ],
        facts: &[
            LIKE_LLAMA,
            ATTENTION_BIAS,
            MLP_BIAS,
            LATENT,
            EXPERTS,
            SHARED,
            BIASED_ROUTER,
            &[("balance_via_topk_bias", "=false")],
        ],
        ..LLAMA
    },
    DEEPSEEK_V3,
    Class {
        name: "dots1",
        defaults: &[
            ALL,
            V3_ROUTER,
            r#"{"vocab_size": 152064, "hidden_size": 4608, "intermediate_size": 10944, "moe_intermediate_size": 1408,
                "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 32, "n_group": 1, "topk_group": 1,
                "first_k_dense_replace": 0, "norm_topk_prob": false, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
                "attention_bias": false, "routed_scaling_factor": 1, "sliding_window": 4096, "max_window_layers": 62}"#,
        ],
        facts: &[LIKE_LLAMA, ATTENTION_BIAS, QK_NORM, EXPERTS, SHARED, BIASED_ROUTER],
        windows: Windows::Last,
        ..LLAMA
    },
    Class {
        name: "solar_open",
        defaults: &[
            ALL,
            V3_ROUTER,
            r#"{"vocab_size": 196608, "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 64,
                "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "attention_bias": false,
                "moe_intermediate_size": 1280, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128,
                "routed_scaling_factor": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "rope_theta": 1000000,
                "head_dim": 128}"#,
        ],
        facts: &[LIKE_LLAMA, QKV_BIAS, EXPERTS, SHARED, BIASED_ROUTER],
        ..LLAMA
    },
];

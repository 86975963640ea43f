//! Classes of language models that are inside others alone: see [`wrappers`](super::super::wrappers).
//!
//! Positions of Qwen's have three parts, for time and the two axes of an image, which are the same in text.

use super::*;

pub(super) static CLASSES: &[Class] = &[
    QWEN2_VL,
    Class { name: "qwen2_5_vl_text", ..QWEN2_VL },
    Class {
        name: "qwen3_vl_text",
        defaults: &[
            ALL,
            QWEN_SIZES,
            r#"{"head_dim": 128, "max_position_embeddings": 128000, "rope_theta": 500000, "mrope_section": null,
                "mrope_interleaved": null}"#,
        ],
        facts: &[LIKE_LLAMA, ATTENTION_BIAS, QK_NORM],
        ..LLAMA
    },
];

const QWEN2_VL: Class = Class {
    name: "qwen2_vl_text",
    defaults: &[
        ALL,
        QWEN_SIZES,
        r#"{"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_window_layers": 80,
            "rope_theta": 1000000, "mrope_section": null}"#,
    ],
    ..QWEN2
};

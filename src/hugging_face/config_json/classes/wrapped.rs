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
    finish: sections,
    ..QWEN2
};

/// Qwen2-VL: the parts of a position rotate shares of a head that make up half of it.
fn sections(reading: &Reading<'_>, facts: &mut Facts) {
    let (_, parameters) = reading.decided("rope_scaling|rope_parameters");
    let section = parameters.get("mrope_section").and_then(Value::as_array);
    let sum = section.map_or(64, |parts| parts.iter().filter_map(Value::as_u64).fold(0, u64::saturating_add));
    let half = facts["head_dim"].value.as_u64().unwrap_or(0) / 2;
    let value = if sum == half { Value::Null } else { format!("of {sum} pairs of {half}").into() };
    facts.insert("mrope_section", Fact { key: "mrope_section".to_string(), value });
}

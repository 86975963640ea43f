//! The keys of the model that `finetune` writes, and by which `plan` forecasts a fine-tune of the same folder.

use serde_json::{Value, json};

/// The key of the type of activations and of the weights that layers read, and the type.
pub const COMPUTE_DTYPE: (&str, &str) = ("model.model_config.compute_dtype", "bfloat16");

/// The keys of `pet_config` for adapters of `rank` on `targets`. Their product is multiplied by `alpha`, by default
/// twice the rank, and divided by the rank; `base` is the type of the frozen matrices.
pub fn pet_config(
    rank: u32,
    alpha: Option<f64>,
    dropout: f64,
    [targets, experts]: [&[String]; 2],
    base: Option<&str>,
) -> Vec<(&'static str, Value)> {
    let mut keys = vec![
        ("pet_type", json!("lora")),
        ("lora_rank", json!(rank)),
        ("lora_alpha", alpha.map_or(json!(2 * u64::from(rank)), Value::from)),
        ("lora_dropout", json!(dropout)),
        ("target_modules", json!(targets)),
    ];
    keys.extend((!experts.is_empty()).then(|| ("target_parameters", json!(experts))));
    keys.extend(base.map(|base| ("base_dtype", json!(base))));
    keys
}

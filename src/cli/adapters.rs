//! The adapters that commands train or plan if a user only gives their rank.

use serde_json::{Value, json};

/// The keys of `pet_config` for adapters of `rank` on `targets`. Their product is multiplied by `alpha`, by default
/// twice the rank, and divided by the rank; `base` is the type of the frozen matrices.
pub fn pet_config(
    rank: u32,
    alpha: Option<f64>,
    dropout: f64,
    targets: &[String],
    base: Option<&str>,
) -> Vec<(&'static str, Value)> {
    let mut keys = vec![
        ("pet_type", json!("lora")),
        ("lora_rank", json!(rank)),
        ("lora_alpha", alpha.map_or(json!(2 * u64::from(rank)), Value::from)),
        ("lora_dropout", json!(dropout)),
        ("target_modules", json!(targets)),
    ];
    keys.extend(base.map(|base| ("base_dtype", json!(base))));
    keys
}

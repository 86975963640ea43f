//! The keys of an `adapter_config.json`, as PEFT 0.21 writes them (`LoraConfig`), and what is done with each.
//!
//! An adapter that is read without one of its keys silently computes something else. So each key is used, or changes
//! nothing of what trained weights compute, or is refused by name if it asks for anything. A key that is not listed is
//! refused likewise.

use serde_json::{Map, Value};

/// What is done with a key.
enum Policy {
    /// It is read, by [`LoraConfig`](super::config::LoraConfig).
    Used,
    /// It changes nothing; a comment on its group of keys says why.
    Inert,
    /// It asks for this, which is not built.
    Refused(&'static str),
}

/// The keys, with a policy for each group, and why.
const KEYS: [(&str, Policy); 18] = [
    (
        "peft_type task_type base_model_name_or_path r lora_alpha use_rslora use_dora rank_pattern alpha_pattern",
        Policy::Used,
    ),
    // The names of tensors do not say which parameter of a module of experts they adapt.
    ("target_parameters", Policy::Used),
    ("lora_bias bias modules_to_save ensure_weight_tying init_lora_weights", Policy::Used),
    // Used where no config.json says whether the model's matrices are transposed.
    ("fan_in_fan_out", Policy::Used),
    // These concern training alone.
    ("lora_dropout inference_mode runtime_config", Policy::Inert),
    // The tensors say which modules are adapted: a module without any would start at a product of zero.
    ("target_modules exclude_modules layers_to_transform layers_pattern", Policy::Inert),
    // Options of features that another key turns on.
    ("loftq_config eva_config corda_config lora_ga_config megatron_core qalora_group_size", Policy::Inert),
    // Names and versions.
    ("revision auto_mapping peft_version", Policy::Inert),
    ("use_qalora", Policy::Refused("factors of pooled inputs (QALoRA)")),
    ("use_bdlora", Policy::Refused("factors in blocks (BD-LoRA)")),
    ("alora_invocation_tokens", Policy::Refused("an adapter that some tokens turn on (aLoRA)")),
    ("arrow_config", Policy::Refused("routing between adapters (Arrow)")),
    ("kasa_config", Policy::Refused("singular values (KaSA), and a base without its smallest ones")),
    ("monteclora_config", Policy::Refused("factors that are drawn (MonteCLoRA)")),
    ("velora_config", Policy::Refused("compressed inputs (VeLoRA)")),
    ("layer_replication", Policy::Refused("layers that are repeated")),
    ("megatron_config", Policy::Refused("linear layers of Megatron")),
    ("trainable_token_indices", Policy::Refused("rows of the embedding that trained")),
];

/// The first key of `config` that asks for something that is not built, and why it is refused.
pub(super) fn refused(config: &Map<String, Value>) -> Option<(&str, String)> {
    config.iter().filter(|(_, value)| asks_for_something(value)).find_map(|(key, value)| {
        let policy = KEYS.iter().find(|(keys, _)| keys.split(' ').any(|known| known == key));
        match policy.map(|(_, policy)| policy) {
            Some(Policy::Used | Policy::Inert) => None,
            Some(Policy::Refused(what)) => {
                Some((key.as_str(), format!("asks for {what}, which is not built")))
            }
            // A key that begins with an underscore names things, as in config.json.
            None if key.starts_with('_') => None,
            None => Some((key.as_str(), format!("is `{value}`, and no such key is known"))),
        }
    })
}

/// Whether a value asks for anything: it is not null, false or empty.
fn asks_for_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is_on) => *is_on,
        Value::Object(entries) => !entries.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Number(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What PEFT 0.21.2 writes by default: `LoraConfig(task_type="CAUSAL_LM").save_pretrained(".")`.
    const DEFAULTS: &str = r#"{"alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
        "base_model_name_or_path": null, "bias": "none", "corda_config": null, "ensure_weight_tying": false, "eva_config": null,
        "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true, "kasa_config": null,
        "layer_replication": null, "layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 8,
        "lora_bias": false, "lora_dropout": 0.0, "lora_ga_config": null, "megatron_config": null,
        "megatron_core": "megatron.core", "modules_to_save": null, "monteclora_config": null, "peft_type": "LORA",
        "peft_version": "0.21.2", "qalora_group_size": 16, "r": 8, "rank_pattern": {}, "revision": null, "target_modules": null,
        "target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_bdlora": null,
        "use_dora": false, "use_qalora": false, "use_rslora": false, "velora_config": null}"#;

    #[test]
    fn every_key_of_peft_is_known_and_one_that_asks_for_more_is_named() {
        let defaults: Map<String, Value> = serde_json::from_str(DEFAULTS).unwrap();
        assert_eq!(refused(&defaults), None);
        let known: Vec<&str> = KEYS.iter().flat_map(|(keys, _)| keys.split(' ')).collect();
        assert!(defaults.keys().all(|key| known.contains(&key.as_str())));
        // PEFT leaves `runtime_config` out of the files that it writes.
        assert!(known.iter().all(|key| defaults.contains_key(*key) || *key == "runtime_config"));
        let refused_of = |key: &str, value: Value| {
            let config = [(key.to_string(), value)].into_iter().collect();
            refused(&config).map(|(key, why)| format!("{key} {why}"))
        };
        for (key, value) in [
            ("use_qalora", json!(true)),
            ("use_bdlora", json!({"nblocks": 2})),
            ("alora_invocation_tokens", json!([1])),
            ("arrow_config", json!({"top_k": 3})),
            ("kasa_config", json!({"beta": 1e-4})),
            ("monteclora_config", json!({"num_samples": 8})),
            ("velora_config", json!({"num_groups": 4})),
            ("layer_replication", json!([[0, 2]])),
            ("megatron_config", json!({"x": 1})),
            ("trainable_token_indices", json!({"embed_tokens": [0]})),
        ] {
            assert!(
                refused_of(key, value)
                    .is_some_and(|line| line.starts_with(key) && line.ends_with("not built"))
            );
        }
        assert_eq!(
            refused_of("use_xlora", json!(3)).as_deref(),
            Some("use_xlora is `3`, and no such key is known")
        );
        assert_eq!(refused_of("use_xlora", json!(false)), None);
        assert_eq!(refused_of("_commit", json!("x")), None);
    }
}

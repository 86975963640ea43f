//! Language models inside models of images or sound: their keys are those of `text_config`.
//!
//! A wrapper is here because on text alone it computes what the class of its `text_config` does: tests/transformers/shapes.py. What it
//! says beside that is of its other towers, which are not built.

use super::KIND;
use serde_json::{Map, Value};

/// A class that holds a language model.
struct Wrapper {
    /// Its `model_type`.
    name: &'static str,
    /// The class of its `text_config`, where that names none.
    text: &'static str,
    /// Whether the class is that whatever is named, and whether older files have the keys of the text beside their own.
    is_one_class: bool,
    /// Values of keys that its `text_config` does not write, as a JSON object.
    defaults: &'static str,
}

const LLAVA: Wrapper = Wrapper { name: "llava", text: "llama", is_one_class: false, defaults: "{}" };

const WRAPPERS: [Wrapper; 9] = [
    LLAVA,
    Wrapper { name: "llava_next", ..LLAVA },
    Wrapper { name: "mistral3", text: "mistral", ..LLAVA },
    Wrapper { name: "internvl", text: "qwen2", ..LLAVA },
    Wrapper { name: "gemma3", text: "gemma3_text", is_one_class: true, ..LLAVA },
    Wrapper { name: "qwen2_vl", text: "qwen2_vl_text", is_one_class: true, ..LLAVA },
    Wrapper { name: "qwen2_5_vl", text: "qwen2_5_vl_text", is_one_class: true, ..LLAVA },
    Wrapper { name: "qwen3_vl", text: "qwen3_vl_text", is_one_class: true, ..LLAVA },
    Wrapper {
        name: "voxtral",
        defaults: r#"{"vocab_size": 131072, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 30,
            "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 100000000,
            "head_dim": 128}"#,
        ..LLAVA
    },
];
/// The key of the language model's keys.
const TEXT: &str = "text_config";
const TIED: &str = "tie_word_embeddings";
/// What is a wrapper's own where it has the keys of the text beside it.
const OWN: [&str; 7] = [
    "vision_config",
    "image_token_id",
    "video_token_id",
    "vision_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    TEXT,
];

/// The keys of the language model in `config`, which is all of it but in a wrapper. Heads are of wrappers: either place may tie them.
pub(super) fn language_model(config: Map<String, Value>) -> Map<String, Value> {
    let wrapper = WRAPPERS.iter().find(|wrapper| config.get(KIND).is_some_and(|kind| kind == wrapper.name));
    let Some(wrapper) = wrapper else { return config };
    let mut text: Map<String, Value> = serde_json::from_str(wrapper.defaults).unwrap_or_default();
    match config.get(TEXT) {
        Some(Value::Object(written)) => text.extend(written.clone()),
        None | Some(Value::Null) if wrapper.is_one_class => {
            let is_of_text = |key: &String| !OWN.contains(&key.as_str());
            text.extend(config.clone().into_iter().filter(|(key, _)| is_of_text(key)));
        }
        _ => return config,
    }
    if wrapper.is_one_class || !text.contains_key(KIND) {
        text.insert(KIND.to_string(), wrapper.text.into());
    }
    if let (false, Some(tied)) = (text.get(TIED).is_some_and(|tied| *tied == true), config.get(TIED)) {
        text.insert(TIED.to_string(), tied.clone());
    }
    text.extend(config.get("architectures").map(|classes| ("architectures".to_string(), classes.clone())));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(config: Value) -> Value {
        language_model(config.as_object().cloned().unwrap()).into()
    }

    #[test]
    fn the_keys_of_the_text_are_those_that_count() {
        let llava = json!({"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "vision_config": {"hidden_size": 9},
            "text_config": {"hidden_size": 8}});
        let text = json!({"model_type": "llama", "architectures": ["LlavaForConditionalGeneration"], "hidden_size": 8});
        assert_eq!(of(llava), text);
        let mistral = json!({"model_type": "llava", "text_config": {"model_type": "mistral"}});
        assert_eq!(of(mistral), json!({"model_type": "mistral"}));
        let of_one_class = json!({"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3"}});
        assert_eq!(of(of_one_class), json!({"model_type": "qwen3_vl_text"}));
        // As Qwen2.5-VL was published.
        let flat = json!({"model_type": "qwen2_5_vl", "hidden_size": 8, "vision_config": {"depth": 3}, "image_token_id": 5});
        assert_eq!(of(flat), json!({"model_type": "qwen2_5_vl_text", "hidden_size": 8}));
        let voxtral = of(json!({"model_type": "voxtral", "text_config": {"hidden_size": 8}}));
        assert_eq!((&voxtral["hidden_size"], &voxtral["num_hidden_layers"]), (&json!(8), &json!(30)));
    }

    #[test]
    fn either_place_may_tie_the_head() {
        for (outer, inner, tied) in [
            (json!(true), json!(false), json!(true)),
            (json!(false), json!(true), json!(true)),
            (json!(false), json!(false), json!(false)),
            (Value::Null, json!(false), Value::Null),
        ] {
            let config = json!({"model_type": "mistral3", TIED: outer, "text_config": {TIED: inner}});
            assert_eq!(of(config)[TIED], tied);
        }
    }

    #[test]
    fn what_is_no_known_wrapper_stays_as_it_is() {
        for other in [
            json!({"model_type": "llama", "text_config": {"model_type": "mistral"}}),
            json!({"model_type": "paligemma", "text_config": {"model_type": "gemma"}}),
            json!({"model_type": "llava", "text_config": 3}),
            json!({"model_type": "llava"}),
            json!({"model_type": 3}),
            json!({}),
        ] {
            assert_eq!(of(other.clone()), other);
        }
    }
}

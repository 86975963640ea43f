//! Special tokens as the files beside a `tokenizer.json` say them, in the order in which `transformers` reads them:
//!
//! 1. `tokenizer_config.json`: `bos_token` and its like, more of them under `extra_special_tokens` or `additional_special_tokens`, and
//!    `added_tokens_decoder`;
//! 2. without `added_tokens_decoder` what `special_tokens_map.json` says instead, and the tokens of `added_tokens.json`;
//! 3. what a text starts and ends with is the post-processor of `tokenizer.json`, whatever `add_bos_token` and `add_eos_token` say.

use std::path::Path;

use serde_json::{Map, Value};

use crate::durable::read_json;
use crate::error::Result;

/// The files, beside one of this name.
const FILE: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const NAMES: &str = "special_tokens_map.json";
const ADDED: &str = "added_tokens.json";

/// The names that every tokenizer knows, in the order in which they get their ids; those of one model come after.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// More tokens: a list, or one by its name each. The first has the older name's place.
const EXTRA: &str = "extra_special_tokens";
const ADDITIONAL: &str = "additional_special_tokens";
const OF_MODEL: &str = "model_specific_special_tokens";

/// The special tokens of a tokenizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpecialTokens {
    /// What templates call them, such as `bos_token`, and how they are spelt.
    pub named: Vec<(String, String)>,
    /// Tokens that the tokenizer gets where its own file lacks them, in the order of their ids, and whether each is special.
    pub added: Vec<(String, bool)>,
    /// `tokenizer_config.json`; null if there is none.
    pub config: Value,
}

impl SpecialTokens {
    /// Those beside the tokenizer in `file`; none if it has another name, beside which the files of another tokenizer may be.
    ///
    /// # Errors
    /// A file that is not JSON.
    pub fn beside(file: &Path) -> Result<Self> {
        if file.file_name().is_none_or(|name| name != FILE) {
            return Ok(Self::default());
        }
        let read = |name: &str| -> Result<Value> {
            let path = file.with_file_name(name);
            if path.is_file() { read_json(&path, "JSON", "fetch it again") } else { Ok(Value::Null) }
        };
        let config = read(CONFIG)?;
        let mut named = tokens_of(&config);
        let mut others = texts_of(&config[EXTRA]);
        if others.is_empty() {
            others = texts_of(&config[ADDITIONAL]);
        }
        let decoder = config["added_tokens_decoder"].as_object();
        let mut added = decoder.map(decoded).unwrap_or_default();
        if decoder.is_none() {
            let names = read(NAMES)?;
            for (key, text) in tokens_of(&names) {
                named.retain(|(known, _)| *known != key);
                named.push((key, text));
            }
            others.extend(texts_of(&names[EXTRA]));
            if others.is_empty() {
                others = texts_of(&names[ADDITIONAL]);
            }
            let ids = read(ADDED)?;
            let mut ids: Vec<(&String, u64)> = ids
                .as_object()
                .into_iter()
                .flatten()
                .map(|(text, id)| (text, id.as_u64().unwrap_or(0)))
                .collect();
            ids.sort_by_key(|(_, id)| *id);
            let is_named = |text: &String| {
                named.iter().map(|(_, token)| token).chain(&others).any(|token| token == text)
            };
            added = ids.into_iter().map(|(text, _)| (text.clone(), is_named(text))).collect();
        }
        named.sort_by_key(|(key, _)| NAMED.iter().position(|known| known == key).unwrap_or(NAMED.len()));
        for token in named.iter().map(|(_, token)| token).chain(&others) {
            if added.iter().all(|(text, _)| text != token) {
                added.push((token.clone(), true));
            }
        }
        Ok(Self { named, added, config })
    }

    /// The token of this name (`eos_token`).
    pub fn named(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(key, _)| key == name).map(|(_, text)| text.as_str())
    }
}

/// `bos_token` and the like, which are text or an object with `content`; those of one model have a section.
fn tokens_of(config: &Value) -> Vec<(String, String)> {
    let entries = config.as_object().into_iter().flatten().filter(|(key, _)| key.ends_with("_token"));
    let of_model = [OF_MODEL, EXTRA].map(|key| config[key].as_object());
    let entries = entries.chain(of_model.into_iter().flatten().flatten());
    let named = entries.filter_map(|(key, value)| Some((key.clone(), text_of(value)?)));
    named.collect()
}

/// The tokens of a list.
fn texts_of(tokens: &Value) -> Vec<String> {
    tokens.as_array().into_iter().flatten().filter_map(text_of).collect()
}

fn text_of(token: &Value) -> Option<String> {
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_string)
}

/// `added_tokens_decoder`: tokens by their ids.
fn decoded(tokens: &Map<String, Value>) -> Vec<(String, bool)> {
    let mut tokens: Vec<(u64, &Value)> =
        tokens.iter().filter_map(|(id, token)| Some((id.parse().ok()?, token))).collect();
    tokens.sort_by_key(|(id, _)| *id);
    let is_special = |token: &Value| token["special"].as_bool().unwrap_or(false);
    tokens.into_iter().filter_map(|(_, token)| Some((text_of(token)?, is_special(token)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `AutoTokenizer.from_pretrained` of transformers 5.23 gives for the same files.
    #[test]
    fn files_count_in_the_order_of_transformers() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let read = |name: &str| SpecialTokens::beside(&folder.path().join(name)).unwrap();
        assert_eq!(read(FILE), SpecialTokens::default());
        write(CONFIG, r#"{"eos_token": "<a>", "bos_token": {"content": "<b>"}, "add_bos_token": true}"#);
        write(ADDED, r#"{"<late>": 9, "<early>": 8, "<c>": 10}"#);
        assert_eq!(read(FILE).named("eos_token"), Some("<a>"));
        write(NAMES, r#"{"eos_token": {"content": "<c>"}, "pad_token": null}"#);
        let special = read(FILE);
        assert_eq!(special.named("eos_token"), Some("<c>"));
        assert_eq!(special.named("bos_token"), Some("<b>"));
        let added: Vec<_> =
            special.added.iter().map(|(text, is_special)| (text.as_str(), *is_special)).collect();
        assert_eq!(added, [("<early>", false), ("<late>", false), ("<c>", true), ("<b>", true)]);
        write(
            CONFIG,
            r#"{"eos_token": "<a>", "added_tokens_decoder": {"10": {"content": "<t>"}, "9": {"content": "<s>", "special": true}}}"#,
        );
        let special = read(FILE);
        assert_eq!((special.named("eos_token"), special.named("bos_token")), (Some("<a>"), None));
        assert_eq!(special.added, [("<s>".into(), true), ("<t>".into(), false), ("<a>".into(), true)]);
        assert_eq!(read("other.json"), SpecialTokens::default());
    }

    /// The ids that transformers 5.23 gives them, in order.
    #[test]
    fn more_tokens_are_a_list_or_named() {
        let added = |config: &str, names: Option<&str>| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join(CONFIG), config).unwrap();
            names.iter().for_each(|names| std::fs::write(folder.path().join(NAMES), names).unwrap());
            let special = SpecialTokens::beside(&folder.path().join(FILE)).unwrap();
            assert!(special.added.iter().all(|(_, is_special)| *is_special));
            special.added.into_iter().map(|(text, _)| text).collect::<Vec<_>>().join(" ")
        };
        for (config, names, expected) in [
            (r#"{"additional_special_tokens": ["<x>"]}"#, None, "<x>"),
            (r#"{"extra_special_tokens": ["<x>"]}"#, None, "<x>"),
            (r#"{"extra_special_tokens": {"image_token": "<x>"}}"#, None, "<x>"),
            (r#"{"model_specific_special_tokens": {"image_token": "<x>"}}"#, None, "<x>"),
            (
                r#"{"additional_special_tokens": ["<x>"], "extra_special_tokens": {"image_token": "<y>"}}"#,
                None,
                "<y> <x>",
            ),
            (r#"{"additional_special_tokens": ["<x>"], "extra_special_tokens": ["<y>"]}"#, None, "<y>"),
            (
                r#"{"additional_special_tokens": ["<x>"], "bos_token": "<b>", "eos_token": "<e>", "unk_token": "<u>",
                    "pad_token": "<p>", "mask_token": "<m>", "sep_token": "<s>", "cls_token": "<c>"}"#,
                None,
                "<b> <e> <u> <s> <p> <c> <m> <x>",
            ),
            ("{}", Some(r#"{"additional_special_tokens": ["<x>"]}"#), "<x>"),
            ("{}", Some(r#"{"extra_special_tokens": ["<x>"]}"#), "<x>"),
            (
                r#"{"additional_special_tokens": ["<y>"]}"#,
                Some(r#"{"additional_special_tokens": ["<x>"]}"#),
                "<y>",
            ),
        ] {
            assert_eq!(added(config, names), expected, "{config} {names:?}");
        }
    }
}

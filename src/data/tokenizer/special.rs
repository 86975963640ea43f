//! Special tokens from the files beside a `tokenizer.json`, in the order in which `transformers` reads these files:
//!
//! 1. `tokenizer_config.json`: `bos_token` and its like, more of them under `extra_special_tokens` or
//!    `additional_special_tokens`, and `added_tokens_decoder`;
//! 2. without `added_tokens_decoder`, `special_tokens_map.json` in its place, and the tokens of `added_tokens.json`;
//! 3. the post-processor of `tokenizer.json` alone decides what a text starts and ends with, whatever `add_bos_token`
//!    and `add_eos_token` say.

use std::path::Path;

use serde_json::{Map, Value};

use crate::durable::read_json;
use crate::error::Result;

/// The name of the tokenizer's file, and the names of the files that are read beside it.
const FILE: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const NAMES: &str = "special_tokens_map.json";
const ADDED: &str = "added_tokens.json";

/// The names that every tokenizer knows, in the order in which they get their ids; names that belong to one model come
/// after.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Keys with more tokens: a list, or an object with a name for each. The first key takes precedence over the second,
/// its older name.
const EXTRA: &str = "extra_special_tokens";
const ADDITIONAL: &str = "additional_special_tokens";
const OF_MODEL: &str = "model_specific_special_tokens";

/// A token that a tokenizer gets besides those of its own file, like `AddedToken` of the tokenizers library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddedText {
    /// The spelling of the token.
    pub text: String,
    /// Whether the token is special.
    pub is_special: bool,
    /// Whether the blanks before the token, and those after it, are a part of it.
    pub strips: [bool; 2],
    /// Whether the token is found only where no letter or digit is beside it.
    pub is_word: bool,
    /// Whether the token is found in normalised text; `None`: it is, unless it is special.
    pub is_normalized: Option<bool>,
    /// Whether the token replaces one of this spelling in the tokenizer's own file.
    pub replaces: bool,
}

impl AddedText {
    /// A token as a file writes it. A text is a special token. An object says itself whether it is special; if it does
    /// not, `is_special` decides.
    fn of(token: &Value, is_special: bool) -> Option<Self> {
        let text = text_of(token)?;
        if token.is_string() {
            return Some(Self { text, is_special: true, ..Self::default() });
        }
        let is = |key: &str| token[key].as_bool();
        Some(Self {
            text,
            is_special: is("special").unwrap_or(is_special),
            strips: ["lstrip", "rstrip"].map(|key| is(key).unwrap_or(false)),
            is_word: is("single_word").unwrap_or(false),
            is_normalized: is("normalized"),
            replaces: false,
        })
    }

    /// Whether the token is found in normalised text.
    #[cfg(feature = "tokenizers")]
    pub fn is_normalized(&self) -> bool {
        self.is_normalized.unwrap_or(!self.is_special)
    }
}

/// The special tokens of a tokenizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpecialTokens {
    /// The names that templates use for the special tokens, such as `bos_token`, with their spellings.
    pub named: Vec<(String, String)>,
    /// Tokens that the tokenizer gets, in the order of their ids.
    pub added: Vec<AddedText>,
    /// The content of `tokenizer_config.json`; null if there is none.
    pub config: Value,
}

impl SpecialTokens {
    /// The special tokens of the files beside the tokenizer in `file`. There are none if `file` has another name than
    /// `tokenizer.json`, because the files beside it may then belong to another tokenizer.
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
        let mut named = tokens_of(&config, false);
        let mut others = texts_of(&config[EXTRA], false);
        if others.is_empty() {
            others = texts_of(&config[ADDITIONAL], false);
        }
        let decoder = config["added_tokens_decoder"].as_object();
        let mut added = decoder.map(decoded).unwrap_or_default();
        if decoder.is_none() {
            let names = read(NAMES)?;
            for (key, token) in tokens_of(&names, true) {
                named.retain(|(known, _)| *known != key);
                named.push((key, token));
            }
            others.extend(texts_of(&names[EXTRA], true));
            if others.is_empty() {
                others = texts_of(&names[ADDITIONAL], true);
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
                named.iter().map(|(_, token)| token).chain(&others).any(|token| token.text == *text)
            };
            let of_id = |(text, _): (&String, u64)| AddedText {
                text: text.clone(),
                is_special: is_named(text),
                ..AddedText::default()
            };
            added = ids.into_iter().map(of_id).collect();
        }
        named.sort_by_key(|(key, _)| NAMED.iter().position(|known| known == key).unwrap_or(NAMED.len()));
        for token in &mut added {
            token.is_special |= named.iter().any(|(_, named)| named.text == token.text);
        }
        for token in named.iter().map(|(_, token)| token).chain(&others) {
            if added.iter().all(|known| known.text != token.text) {
                added.push(token.clone());
            }
        }
        let named = named.into_iter().map(|(key, token)| (key, token.text)).collect();
        Ok(Self { named, added, config })
    }

    /// The spelling of the token with this name (`eos_token`).
    pub fn named(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(key, _)| key == name).map(|(_, text)| text.as_str())
    }
}

/// `bos_token` and the like, which are special whatever their entries say; tokens of one model have a section. `in_map`
/// says whether `config` is the map of special tokens.
fn tokens_of(config: &Value, in_map: bool) -> Vec<(String, AddedText)> {
    let entries = config.as_object().into_iter().flatten().filter(|(key, _)| key.ends_with("_token"));
    let of_model = [OF_MODEL, EXTRA].map(|key| config[key].as_object());
    let entries = entries.chain(of_model.into_iter().flatten().flatten());
    let token = |value: &Value| Some(AddedText { is_special: true, ..AddedText::of(value, in_map)? });
    entries.filter_map(|(key, value)| Some((key.clone(), token(value)?))).collect()
}

/// The tokens of a list. Objects are special by default if the list is in the map of special tokens.
fn texts_of(tokens: &Value, in_map: bool) -> Vec<AddedText> {
    let tokens = tokens.as_array().into_iter().flatten();
    tokens.filter_map(|token| AddedText::of(token, in_map)).collect()
}

fn text_of(token: &Value) -> Option<String> {
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_string)
}

/// The tokens of `added_tokens_decoder`, ordered by their ids. They count in place of those in the tokenizer's own
/// file.
fn decoded(tokens: &Map<String, Value>) -> Vec<AddedText> {
    let mut tokens: Vec<(u64, &Value)> =
        tokens.iter().filter_map(|(id, token)| Some((id.parse().ok()?, token))).collect();
    tokens.sort_by_key(|(id, _)| *id);
    let token = |token: &Value| Some(AddedText { replaces: true, ..AddedText::of(token, false)? });
    tokens.into_iter().filter_map(|(_, value)| token(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens that `AutoTokenizer.from_pretrained` of transformers 5.23 gives for the same files.
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
        let added = |special: &SpecialTokens| -> Vec<(String, bool)> {
            special.added.iter().map(|token| (token.text.clone(), token.is_special)).collect()
        };
        let these = |these: &[(&str, bool)]| -> Vec<(String, bool)> {
            these.iter().map(|(text, is_special)| (text.to_string(), *is_special)).collect()
        };
        assert_eq!(
            added(&special),
            these(&[("<early>", false), ("<late>", false), ("<c>", true), ("<b>", true)])
        );
        write(
            CONFIG,
            r#"{"eos_token": "<a>", "added_tokens_decoder": {"10": {"content": "<t>"}, "9": {"content": "<s>", "special": true}}}"#,
        );
        let special = read(FILE);
        assert_eq!((special.named("eos_token"), special.named("bos_token")), (Some("<a>"), None));
        assert_eq!(added(&special), these(&[("<s>", true), ("<t>", false), ("<a>", true)]));
        assert_eq!(read("other.json"), SpecialTokens::default());
    }

    /// The ids that transformers 5.23 gives to these tokens, in order.
    #[test]
    fn more_tokens_are_a_list_or_named() {
        let added = |config: &str, names: Option<&str>| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join(CONFIG), config).unwrap();
            names.iter().for_each(|names| std::fs::write(folder.path().join(NAMES), names).unwrap());
            let special = SpecialTokens::beside(&folder.path().join(FILE)).unwrap();
            assert!(special.added.iter().all(|token| token.is_special));
            special.added.into_iter().map(|token| token.text).collect::<Vec<_>>().join(" ")
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

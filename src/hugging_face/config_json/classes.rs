//! The classes whose models this version computes, as `transformers` 5.23 has them, and some whose code was published
//! with their weights: the rows of `classes.json`, by which files are read, checked and written.
//!
//! A class is in the table because its losses were found to be ours with other values of its keys than its defaults:
//! tests/transformers/shapes.py. Of things that none of our keys changes, such as parts of positions, a file may only
//! say what is computed here (`always_here`). A row has
//!
//! - `name`, its `model_type`, and `architecture`, the class of it that our own files may name;
//! - `type`, under which its tensors are loaded, a word of our `model_config`;
//! - `like`: rows and `parts` whose `type`, `defaults`, `facts`, `windows` and `tensors` it has too, except for what it
//!   says itself;
//! - `defaults`: its keys and their defaults;
//! - `facts`: what it computes, by our key that decides the same. A text is the key of the class, or several keys
//!   between bars, of which the first that is written counts; a final `/2` halves the value, `√` before them is its root,
//!   and `1/` the reciprocal. A text after `=` is a word that the class always has, and anything else is a value that it
//!   always has;
//! - `windows`: which layers have a sliding window, and `rotates_in_windows`: whether these alone rotate. Where the
//!   default of `rope_parameters` has an entry for each kind of layers, those with a window rotate by parameters of
//!   their own;
//! - `tensors`: the names of its tensors, where they are not those of `transformers`;
//! - `gguf`: what llama.cpp computes of it. Its greedy text of a file of each such class was found to be that of
//!   `transformers`: tests/transformers/gguf.py.
//!
//! `wrappers` are the classes of models of images or sound around one of these classes.
//!
//! `without_effect` lists keys of all classes that say nothing of what a model computes in training, except for
//! dropout.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

static TABLE: LazyLock<Table> =
    LazyLock::new(|| Table::parse(include_str!("classes.json")).expect("classes.json is a table of classes"));

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    parts: BTreeMap<String, Class>,
    classes: Vec<Class>,
    wrappers: Vec<Wrapper>,
    always_here: Map<String, Value>,
    without_effect: BTreeMap<String, Vec<String>>,
    /// Keys that decide something only where they are on.
    without_effect_where_off: Vec<String>,
}

/// A class of decoders that this version can compute, at least with some values of its keys, or a part of such classes.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::hugging_face) struct Class {
    /// Its `model_type`.
    pub name: String,
    /// Its entry in `architectures`, if our own files may name it.
    pub architecture: String,
    /// The type that its tensors are loaded as.
    #[serde(rename = "type")]
    pub kind: String,
    like: Vec<String>,
    /// Its keys and their defaults.
    pub defaults: Map<String, Value>,
    /// What it computes, by our keys.
    pub facts: BTreeMap<String, Value>,
    /// Every key that its facts name, the facts of the rows that it is like included.
    #[serde(skip)]
    keys: BTreeSet<String>,
    windows: Option<Windows>,
    /// Whether only layers that may have a window rotate, unless no layer may.
    pub rotates_in_windows: bool,
    /// Names of tensors that are not those of `transformers`.
    tensors: Option<TensorNames>,
    /// Whether files may hold layers of multi-token prediction beyond the last layer, which the class leaves out.
    pub has_further_layers: bool,
    /// Whether its code is published with its weights, and not in `transformers`.
    pub is_published_code: bool,
    /// Whether its files are written and not read.
    is_written_only: bool,
    /// What llama.cpp computes of it; no other class has it, too.
    pub gguf: Option<Gguf>,
    #[serde(rename = "about")]
    _about: Option<IgnoredAny>,
}

/// What llama.cpp computes of a class.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::hugging_face) struct Gguf {
    /// Its architecture there.
    pub architecture: String,
    /// Whether dimensions (2i, 2i + 1) of a head rotate together there, instead of (i, i + rotary_dim / 2).
    #[serde(default)]
    pub rotates_pairs: bool,
    /// Facts that vary within the class, and always have these values there, or after `=` that of another fact.
    #[serde(default)]
    pub always: Map<String, Value>,
    /// Facts that vary within the class, and that its files can say; scalings of the rotation by their types.
    #[serde(default)]
    pub has: BTreeSet<String>,
    /// Those of them that it always has.
    #[serde(default)]
    pub needs: BTreeSet<String>,
    /// Every which layer does not rotate.
    pub unrotated_period: Option<usize>,
    /// The number of layers at which scores are divided by the root of a head's share of the model's width, and not of
    /// its own width.
    pub layers_scaled_by_share: Option<usize>,
    /// Whether its head is always the embedding, or never, so that files hold the embedding twice.
    pub is_tied: Option<bool>,
    /// Names of tensors that are not those of other architectures, by these.
    #[serde(default)]
    pub names: BTreeMap<String, String>,
}

/// Which layers have a sliding window, where a file does not list them in `layer_types`.
#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::hugging_face) enum Windows {
    /// No layer, whatever is written.
    #[default]
    Never,
    /// All layers, whatever `layer_types` lists.
    Always,
    /// All layers.
    All,
    /// Layers from number `max_window_layers` on.
    Last,
    /// Every second layer before number `max_window_layers`.
    Alternate,
    /// All layers but every fourth, from the first on.
    ThreeOfFour,
    /// All layers but every fourth, from the fourth on.
    FirstThreeOfFour,
    /// Every second layer, from the first on.
    OneOfTwo,
    /// Layers that do not rotate.
    Unrotated,
    /// All layers but every `sliding_window_pattern`-th.
    Pattern,
    /// All layers but every sixth, and never the last, whatever `layer_types` lists.
    FiveOfSix,
    /// All layers but the first and every sixth.
    InnerFiveOfSix,
}

/// The names of tensors under which a class was first published.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TensorNames {
    /// The end of a name that only this class has.
    pub mark: String,
    /// The part of a name that comes before the number of a layer.
    pub layers: String,
    /// Whether a tensor of several projections of attention holds them head group by head group.
    #[serde(default)]
    pub is_grouped: bool,
    /// Their names by ours, outside layers and in a layer, without `.weight` and `.bias`.
    pub names: BTreeMap<String, String>,
}

/// A class of models of images or sound that holds a language model.
///
/// It is in the table because on text alone it computes what the class of its `text_config` does. Its other keys are of
/// its other towers, which are not built.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wrapper {
    /// Its `model_type`.
    name: String,
    /// The class of its `text_config`, where that names none.
    text: String,
    /// Whether the class of the text is always `text`, whatever is named, and whether older files have the keys of the
    /// text beside their own.
    is_one_class: bool,
    /// Values of keys that its `text_config` does not write.
    defaults: Map<String, Value>,
}

impl Table {
    fn parse(text: &str) -> serde_json::Result<Self> {
        let mut table: Self = serde_json::from_str(text)?;
        table.parts = table.parts.iter().map(|(name, part)| (name.clone(), table.whole(part))).collect();
        table.classes = table.classes.iter().map(|class| table.whole(class)).collect();
        Ok(table)
    }

    /// `class` with the entries of all rows that it is like.
    fn whole(&self, class: &Class) -> Class {
        let mut whole = Class { defaults: Map::new(), facts: BTreeMap::new(), ..class.clone() };
        for name in &class.like {
            let like = self.parts.get(name).or_else(|| self.classes.iter().find(|class| class.name == *name));
            let like = self.whole(like.expect("a row of classes.json"));
            let Class { kind, defaults, facts, keys, windows, tensors, .. } = like;
            whole.kind = if class.kind.is_empty() && !kind.is_empty() { kind } else { whole.kind };
            whole.windows = class.windows.or(windows).or(whole.windows);
            whole.tensors = whole.tensors.or(tensors);
            whole.defaults.extend(defaults);
            whole.facts.extend(facts);
            whole.keys.extend(keys);
        }
        whole.keys.extend(
            class.facts.values().filter_map(keys_of).flat_map(|keys| keys.split('|')).map(str::to_string),
        );
        whole.defaults.extend(class.defaults.clone());
        whole.facts.extend(class.facts.clone());
        whole
    }
}

impl Class {
    /// Which layers have a sliding window.
    pub fn windows(&self) -> Windows {
        self.windows.unwrap_or_default()
    }

    /// Whether a part of each head may rotate.
    pub fn rotates_a_part(&self) -> bool {
        ["partial_rotary_factor", "rotary_pct", "rotary_dim"]
            .iter()
            .any(|key| self.defaults.contains_key(*key))
    }

    /// Whether `rope_parameters` has parameters for each kind of layers, those with a window and the others.
    pub fn rotates_by_kind(&self) -> bool {
        self.defaults.get("rope_parameters").is_some_and(|kinds| kinds.get(FULL).is_some())
    }
}

/// The keys that a fact names; none if it always has one value.
pub(in crate::hugging_face) fn keys_of(fact: &Value) -> Option<&str> {
    let keys = fact.as_str().filter(|keys| !keys.starts_with('='))?;
    let keys = keys.strip_suffix(HALVED).unwrap_or(keys);
    let keys = keys.strip_prefix(RECIPROCAL).unwrap_or(keys);
    Some(keys.strip_prefix(ROOT).unwrap_or(keys))
}

/// What `said` makes of the value of its keys; `None`: the value itself. [`value_of_keys`] is the way back.
fn value_of_fact(said: &str, value: f64) -> Option<f64> {
    let keys = said.strip_prefix(RECIPROCAL).unwrap_or(said);
    match keys.starts_with(ROOT) {
        _ if said.ends_with(HALVED) => Some(value / 2.0),
        false if keys == said => None,
        false => Some(1.0 / value),
        true if keys == said => Some(value.sqrt()),
        true => Some(1.0 / value.sqrt()),
    }
}

/// The value of the keys of `said` that stands for `fact`.
pub(in crate::hugging_face) fn value_of_keys(said: &Value, fact: Value) -> Value {
    let said = said.as_str().unwrap_or_default();
    let keys = said.strip_prefix(RECIPROCAL).unwrap_or(said);
    let value = fact.as_f64().and_then(|value| match keys.starts_with(ROOT) {
        _ if said.ends_with(HALVED) => Some(2.0 * value),
        false if keys == said => None,
        false => Some(1.0 / value),
        true if keys == said => Some(value * value),
        true => Some(1.0 / (value * value)),
    });
    value.map_or(fact, Value::from)
}

/// A layer with a sliding window, in `layer_types`, and one without.
pub(in crate::hugging_face) const SLIDING: &str = "sliding_attention";
pub(in crate::hugging_face) const FULL: &str = "full_attention";
/// A layer with linear attention.
pub(in crate::hugging_face) const LINEAR: &str = "linear_attention";
/// A layer with a gated convolution.
pub(in crate::hugging_face) const CONVOLUTION: &str = "conv";

/// The suffix of keys of whose value half counts.
const HALVED: &str = "/2";
/// The prefix of keys of whose value the root counts.
const ROOT: &str = "√";
/// The prefix of keys of whose value the reciprocal counts.
const RECIPROCAL: &str = "1/";

/// The classes whose files are read.
pub(in crate::hugging_face) fn all() -> impl Iterator<Item = &'static Class> {
    TABLE.classes.iter().filter(|class| !class.is_written_only)
}

/// The class or the part called `name`.
pub(in crate::hugging_face) fn named(name: &str) -> &'static Class {
    let class = TABLE.classes.iter().find(|class| class.name == name);
    class.or_else(|| TABLE.parts.get(name)).expect("a row of classes.json")
}

/// The classes that our own files may name.
#[cfg(test)]
pub(in crate::hugging_face) fn written() -> impl Iterator<Item = &'static Class> {
    TABLE.classes.iter().filter(|class| !class.architecture.is_empty())
}

/// The class that files name whose tensors are loaded as `kind`, if only one is.
pub(in crate::hugging_face) fn of_type(kind: &str) -> &'static Class {
    let class = TABLE.classes.iter().find(|class| class.kind == kind && !class.architecture.is_empty());
    class.expect("each type has a row of classes.json with an architecture")
}

/// The names of tensors of all classes whose names differ from those of `transformers`.
pub(crate) fn tensor_names() -> impl Iterator<Item = &'static TensorNames> {
    TABLE.classes.iter().filter_map(|class| class.tensors.as_ref())
}

/// The facts that none of our keys changes.
pub(in crate::hugging_face) fn always_here() -> &'static Map<String, Value> {
    &TABLE.always_here
}

/// Whether `key` with this value says nothing of what a model computes in training, except for dropout.
pub(super) fn is_without_effect(key: &str, value: &Value) -> bool {
    // Keys that begin with an underscore name things, or say how `transformers` was called.
    key.starts_with('_')
        || value.is_null()
        || is_listed_without_effect(key)
        || (*value == false && lists(&TABLE.without_effect_where_off, key))
}

/// Whether `key` is listed among the keys without effect, whatever its value.
pub(super) fn is_listed_without_effect(key: &str) -> bool {
    lists(TABLE.without_effect.values().flatten(), key)
}

fn lists<'a>(lines: impl IntoIterator<Item = &'a String>, key: &str) -> bool {
    lines.into_iter().flat_map(|line| line.split(' ')).any(|known| known == key)
}

/// What a decoder computes, by our keys that decide it.
pub(super) type Facts = BTreeMap<&'static str, Fact>;

/// One thing that a decoder computes.
#[derive(Debug, PartialEq)]
pub(crate) struct Fact {
    /// The key of the class that says it.
    pub key: String,
    /// The value; null if there is none.
    pub value: Value,
}

/// A file, read as its class reads it.
pub(super) struct Reading<'a> {
    pub class: &'static Class,
    pub written: &'a Map<String, Value>,
}

impl<'a> Reading<'a> {
    /// `written` as the class that it names reads it; `None` if there is no such class here.
    pub fn of(written: &'a Map<String, Value>) -> Option<Self> {
        let name = written.get("model_type")?.as_str()?;
        Some(Self { class: all().find(|class| class.name == name)?, written })
    }

    /// The facts that follow key by key.
    pub fn facts(&self) -> Facts {
        let facts = self.class.facts.iter().map(|(fact, said)| {
            let fixed = |value| Fact { key: fact.clone(), value };
            let said = match (keys_of(said), said) {
                (Some(keys), said) => {
                    let said = said.as_str().unwrap_or_default();
                    let made = self.fact(keys, said);
                    // A root is another thing than its square, which the file says.
                    if said.starts_with(ROOT) { fixed(made.value) } else { made }
                }
                (None, Value::String(word)) => fixed(word[1..].into()),
                (None, value) => fixed(value.clone()),
            };
            (fact.as_str(), said)
        });
        facts.collect()
    }

    fn fact(&self, keys: &str, said: &str) -> Fact {
        let (key, value) = self.decided(keys);
        // What has no root or reciprocal stays as written, and is refused as that.
        let made =
            value.as_f64().and_then(|value| value_of_fact(said, value)).filter(|made| made.is_finite());
        Fact { key, value: made.map_or(value, Value::from) }
    }

    /// The key that counts of `keys`, and its value: the first key that is written, or else one with a default.
    pub fn decided(&self, keys: &str) -> (String, Value) {
        let is_given =
            |map: &Map<String, Value>, key: &str| map.get(key).is_some_and(|value| !value.is_null());
        let find =
            |map: &Map<String, Value>| keys.split('|').find(|key| is_given(map, key)).map(str::to_string);
        // A null that is written stands for what the class makes of it, not for its default.
        let is_null = keys.split('|').any(|key| self.written.contains_key(key));
        let key = find(self.written).or_else(|| find(&self.class.defaults).filter(|_| !is_null));
        let key = key.unwrap_or_else(|| keys.split('|').next().unwrap_or(keys).to_string());
        let value = self.written.get(&key).or_else(|| self.class.defaults.get(&key));
        (key, value.cloned().unwrap_or_default())
    }

    /// The value that counts of `keys`, as a number.
    pub fn number(&self, keys: &str) -> Option<f64> {
        self.decided(keys).1.as_f64()
    }

    /// Whether `key` is on.
    pub fn is_on(&self, key: &str) -> bool {
        self.decided(key).1.as_bool() == Some(true)
    }

    /// Whether `key` is written, by itself or among the parameters of the rotation.
    pub fn writes(&self, key: &str) -> bool {
        let places =
            ["rope_parameters", "rope_scaling"].into_iter().filter_map(|place| self.written.get(place));
        let kinds = || {
            places.clone().flat_map(|place| [FULL, SLIDING].into_iter().filter_map(|kind| place.get(kind)))
        };
        self.written.contains_key(key) || places.clone().chain(kinds()).any(|inner| inner.get(key).is_some())
    }

    /// Whether the class reads `key`.
    pub fn reads(&self, key: &str) -> bool {
        self.class.defaults.contains_key(key) || self.class.keys.contains(key)
    }
}

/// The key under which a wrapper has the language model's keys.
const TEXT: &str = "text_config";
const TIED: &str = "tie_word_embeddings";
/// The keys that are a wrapper's own where its file has the keys of the text beside them.
const OWN: [&str; 7] = [
    "vision_config",
    "image_token_id",
    "video_token_id",
    "vision_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    TEXT,
];

/// The keys of the language model in `config`: all keys, except in a wrapper. The head belongs to the wrapper, and
/// either place may tie it.
pub(super) fn language_model(config: Map<String, Value>) -> Map<String, Value> {
    let wrapper = TABLE
        .wrappers
        .iter()
        .find(|wrapper| config.get("model_type").is_some_and(|kind| *kind == *wrapper.name));
    let Some(wrapper) = wrapper else { return config };
    let mut text = wrapper.defaults.clone();
    match config.get(TEXT) {
        Some(Value::Object(written)) => text.extend(written.clone()),
        None | Some(Value::Null) if wrapper.is_one_class => {
            let is_of_text = |key: &String| !OWN.contains(&key.as_str());
            text.extend(config.clone().into_iter().filter(|(key, _)| is_of_text(key)));
        }
        _ => return config,
    }
    if wrapper.is_one_class || !text.contains_key("model_type") {
        text.insert("model_type".to_string(), wrapper.text.clone().into());
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
        // The form in which Qwen2.5-VL was published.
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

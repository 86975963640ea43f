//! What there is to know of a class of `transformers`, and the values that a `config.json` gives its keys.

use super::classes;
use crate::model::config::Family;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What a decoder computes, by our keys that decide it.
pub(super) type Facts = BTreeMap<&'static str, Fact>;

/// One thing that a decoder computes.
#[derive(Debug, PartialEq)]
pub(crate) struct Fact {
    /// The key of the class that says it.
    pub key: String,
    /// Null: none.
    pub value: Value,
}

/// A class of decoders that this version can compute, at least with some values of its keys.
pub(super) struct Class {
    /// Its `model_type`.
    pub name: &'static str,
    /// The family that its tensors are loaded as.
    pub family: Family,
    /// Its keys and their defaults, as JSON objects, of which later ones count.
    pub defaults: &'static [&'static str],
    /// What it computes, by our key that decides the same: its key, or several between bars of which the first that is written
    /// counts, or `=` and a value that it always has. Of several lists later ones count.
    pub facts: &'static [&'static [(&'static str, &'static str)]],
    /// Which layers have a sliding window.
    pub windows: Windows,
    /// What does not follow key by key.
    pub finish: fn(&Reading<'_>, &mut Facts),
    /// Whether files may hold layers beyond the last one, of multi-token prediction, which it leaves out.
    pub has_further_layers: bool,
}

/// Which layers have a sliding window, where a file does not list them in `layer_types`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Windows {
    /// None, whatever is written.
    Never,
    /// All, and nothing lists them.
    Always,
    /// All.
    All,
    /// Those from number `max_window_layers` on.
    Last,
    /// Every second one of those before number `max_window_layers`.
    Alternate,
    /// All but every fourth.
    ThreeOfFour,
}

/// A file, read as its class does.
pub(super) struct Reading<'a> {
    pub class: &'static Class,
    pub written: &'a Map<String, Value>,
    defaults: Map<String, Value>,
}

impl<'a> Reading<'a> {
    /// `written` as the class that it names reads it; `None` if there is no such class here.
    pub fn of(written: &'a Map<String, Value>) -> Option<Self> {
        let name = written.get("model_type")?.as_str()?;
        let class = classes::all().find(|class| class.name == name)?;
        let parse = |text: &&str| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
        Some(Self { class, written, defaults: class.defaults.iter().flat_map(parse).collect() })
    }

    /// The value that counts of `keys`: the first that is written, or else a default.
    pub fn decided(&self, keys: &str) -> (String, Value) {
        let is_given =
            |map: &Map<String, Value>, key: &str| map.get(key).is_some_and(|value| !value.is_null());
        let find =
            |map: &Map<String, Value>| keys.split('|').find(|key| is_given(map, key)).map(str::to_string);
        // A null that is written stands for what the class makes of it, not for its default.
        let is_null = keys.split('|').any(|key| self.written.contains_key(key));
        let key = find(self.written).or_else(|| find(&self.defaults).filter(|_| !is_null));
        let key = key.unwrap_or_else(|| keys.split('|').next().unwrap_or(keys).to_string());
        let value = self.written.get(&key).or_else(|| self.defaults.get(&key));
        (key, value.cloned().unwrap_or_default())
    }

    /// The number that counts of `keys`.
    pub fn number(&self, keys: &str) -> Option<f64> {
        self.decided(keys).1.as_f64()
    }

    /// Whether `key` is on.
    pub fn is_on(&self, key: &str) -> bool {
        self.decided(key).1.as_bool() == Some(true)
    }

    /// Whether `key` is written, among the parameters of the rotation perhaps.
    pub fn writes(&self, key: &str) -> bool {
        let inner = ["rope_parameters", "rope_scaling"].map(|place| self.written.get(place));
        self.written.contains_key(key) || inner.into_iter().flatten().any(|inner| inner.get(key).is_some())
    }

    /// Whether the class reads `key`.
    pub fn reads(&self, key: &str) -> bool {
        let facts = self.class.facts.iter().flat_map(|facts| facts.iter());
        self.defaults.contains_key(key)
            || facts.flat_map(|(_, keys)| keys.split('|')).any(|known| known == key)
    }
}

/// For classes of which all follows key by key.
pub(super) fn nothing(_: &Reading<'_>, _: &mut Facts) {}

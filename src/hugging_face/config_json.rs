//! The `config.json` beside weights that a run starts from: whether its class computes what the run computes.
//!
//! Weights of one model fit many others: a forgotten base of the rotation, an activation, an epsilon or a norm changes
//! no tensor's name or shape. So the file is read as its class (`model_type`) in `transformers` reads it, with the
//! defaults of that class, and the facts that follow are compared with the model of the run, one by one. `classes.json`
//! is the table of the classes; [`theirs`] and [`ours`] derive the facts. The file is not compared with our own export
//! of the model, which names one class among several that compute the same.
//!
//! Files of our own that carry a note are of models that no class computes. These are compared with our export.
//!
//! A key that is neither a fact nor known to decide nothing is refused. Where no class computes what our export holds,
//! its `config.json` and the log say what the nearest class lacks (`export/architecture.rs`).

pub(in crate::hugging_face) mod classes;
mod of_class;
mod ours;
mod rotary;
mod shape;
mod theirs;

pub(in crate::hugging_face) use classes::Windows;
pub(crate) use classes::{Fact, TensorNames, tensor_names};
pub(in crate::hugging_face) use ours::{facts, has_wide_readers, type_of};
pub(crate) use shape::Shape;
pub(in crate::hugging_face) use theirs::ACTIVATIONS;

use super::beside_weights;
use super::export::{hugging_face_config, lacks_something};
use crate::durable::read_json_if_present;
use crate::error::{Error, Result};
use crate::model::config::ModelConfig;
use classes::Reading;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const FILE: &str = "config.json";
const KIND: &str = "model_type";
/// The key under which our own files say what their class lacks.
const NOTE: &str = "gristmill_note";
/// Something that a file and a run do not agree on.
struct Difference {
    /// The key of the file.
    key: String,
    message: String,
}

/// Checks that the class of the `config.json` beside `weights` computes what `model` does, except for the keys that are
/// `accepted`; without such a file there is nothing to check.
///
/// # Errors
/// A file that cannot be read; a class that is not known here; a line for each key that differs, or is not known.
pub(crate) fn check(weights: &Path, model: &ModelConfig, accepted: &[String]) -> Result<()> {
    let path = beside(weights);
    let is_open = |key: &str| !accepted.iter().any(|accepted| accepted == key);
    let Some(config) = read(&path)?.filter(|_| is_open(KIND)) else { return Ok(()) };
    let differences = match (is_of_nearest_class(&config), Reading::of(&config)) {
        (true, _) => differences_of_ours(&config, model),
        (false, Some(reading)) => differences(&reading, model),
        (false, None) => vec![unknown_class(&config)],
    };
    let open = differences.into_iter().filter(|difference| is_open(&difference.key));
    let errors: Vec<Error> = open.map(|difference| Error::file(&path, difference.message)).collect();
    if errors.is_empty() { Ok(()) } else { Err(Error::all(errors)) }
}

/// The class that the file beside `weights` names, if there is one.
pub(crate) fn class_beside(weights: &Path) -> Option<String> {
    let config = read(&beside(weights)).ok()??;
    Some(config.get("architectures")?.get(0)?.as_str()?.to_string())
}

/// The number of the first layer beside `weights` that may be of multi-token prediction, if their class leaves such
/// layers out.
pub(crate) fn further_layers(weights: &Path) -> Option<usize> {
    let config = read(&beside(weights)).ok()??;
    let reading = Reading::of(&config).filter(|reading| reading.class.has_further_layers)?;
    reading.number("num_hidden_layers").map(|layers| layers as usize)
}

/// The number of the first layer beside `weights` that reads the keys and values of others, if there is one.
pub(crate) fn first_kv_reader(weights: &Path) -> Option<usize> {
    let config = read(&beside(weights)).ok()??;
    let reading = Reading::of(&config).filter(|reading| reading.reads("num_kv_shared_layers"))?;
    let [layers, shared] =
        ["num_hidden_layers", "num_kv_shared_layers"].map(|key| reading.number(key).unwrap_or(0.0) as usize);
    layers.checked_sub(shared).filter(|_| shared > 0)
}

/// Whether a file is of a model that no class known here computes, and names the nearest class.
fn is_of_nearest_class(config: &Map<String, Value>) -> bool {
    let lacks = |note: &Value| lacks_something(note.as_str().unwrap_or_default());
    config.get(NOTE).is_some_and(|note| lacks(note) || Reading::of(config).is_none())
}

fn beside(weights: &Path) -> PathBuf {
    beside_weights(weights, FILE)
}

/// The keys of the language model in the file at `path`; `None` if there is no such file.
fn read(path: &Path) -> Result<Option<Map<String, Value>>> {
    let config = read_json_if_present(path, "a JSON object", "fetch it again, or remove it")?;
    Ok(config.map(classes::language_model))
}

fn unknown_class(config: &Map<String, Value>) -> Difference {
    let known: Vec<&str> = classes::all().map(|class| class.name.as_str()).collect();
    let name =
        config.get(KIND).map_or("no `model_type`".to_string(), |name| format!("`{KIND}: {}`", shown(name)));
    let message = format!(
        "{name}: not a class that is known to compute what a model here does (those are {}); {}",
        known.join(", "),
        accepting(KIND)
    );
    Difference { key: KIND.to_string(), message }
}

fn accepting(key: &str) -> String {
    format!("accept it by `ignore_config_keys: [{key}]`")
}

fn differences(reading: &Reading<'_>, model: &ModelConfig) -> Vec<Difference> {
    let mut theirs = theirs::facts(reading, model.max_positions, model.num_layers);
    theirs::take_out_equal(reading, model, &mut theirs);
    let ours = ours::facts(model);
    let facts = theirs.into_iter().filter_map(|(fact, found)| {
        let ours = ours.get(fact).cloned().unwrap_or_default();
        let differs = !is_same(&found.value, &ours);
        differs.then(|| difference(reading, fact, found.key, &found.value, &ours))
    });
    // Our own files have keys of several classes, and say by all of them what is computed.
    let exported = hugging_face_config(model);
    let is_told = |key: &str, value: &Value| exported.get(key).is_some_and(|ours| is_same(value, ours));
    let unknown = reading.written.iter().filter(|(key, value)| {
        !classes::is_without_effect(key, value) && !theirs::reads(reading, key) && !is_told(key, value)
    });
    let unknown = unknown.map(|(key, value)| {
        let (class, value) = (&reading.class.name, shown(value));
        let message =
            format!("`{key}: {value}` is not a key of `{class}` that is known here; {}", accepting(key));
        Difference { key: key.clone(), message }
    });
    facts.chain(unknown).collect()
}

fn difference(reading: &Reading<'_>, fact: &str, key: String, theirs: &Value, ours: &Value) -> Difference {
    let origin = match (reading.writes(&key), theirs::reads(reading, &key)) {
        (true, _) => "",
        (false, true) => " by default",
        (false, false) => " always",
    };
    let (class, here) = (&reading.class.name, shown(ours));
    let said = format!("`{key}` is {}{origin} in `{class}`, and this run has {here}", shown(theirs));
    let remedy = match theirs {
        Value::Null => format!("remove `{fact}` from model.model_config"),
        _ => format!("write `{fact}: {}` in model.model_config", shown(theirs)),
    };
    let message = match ours::is_free(fact) && ours::has_key(fact, theirs) {
        true => format!("{said}; {remedy}, or {}", accepting(&key)),
        false => format!("{said}, which no key changes; {}", accepting(&key)),
    };
    Difference { key, message }
}

/// The differences between a file of our own and the file that `model` would be exported as.
fn differences_of_ours(config: &Map<String, Value>, model: &ModelConfig) -> Vec<Difference> {
    let exported = hugging_face_config(model);
    let exported: BTreeMap<&String, &Value> = exported.as_object().into_iter().flatten().collect();
    let counts = |key: &&String| key.as_str() == KIND || !classes::is_listed_without_effect(key);
    let differing = exported
        .into_iter()
        .filter(|(key, ours)| counts(key) && !is_same(config.get(*key).unwrap_or(&Value::Null), ours));
    let line = |(key, ours): (&String, &Value)| {
        let theirs = shown(config.get(key).unwrap_or(&Value::Null));
        let message = format!(
            "`{key}` is {theirs}, and a checkpoint of this run would have {}; give model.model_config the model's own keys, or {}",
            shown(ours),
            accepting(key)
        );
        Difference { key: key.clone(), message }
    };
    differing.map(line).collect()
}

/// Whether two values are the same. Numbers may differ by the rounding of the type that they were stored in.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => rotary::is_same(one, other),
        _ => match (one, other) {
            (Value::Object(one), Value::Object(other)) => {
                one.len() == other.len()
                    && one
                        .iter()
                        .all(|(key, value)| other.get(key).is_some_and(|other| is_same(value, other)))
            }
            _ => one == other,
        },
    }
}

/// A value as a configuration writes it.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "none".to_string(),
        Value::Bool(is_on) => if *is_on { "True" } else { "False" }.to_string(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

#[cfg(test)]
pub(crate) mod tests;

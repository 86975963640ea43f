//! Low-rank adapters on disk, as PEFT has them: `adapter_model.safetensors` and `adapter_config.json` in one folder.
//!
//! In a checkpoint they are in their own folder, `adapter`. If they lay beside the model's files, `transformers` would
//! look for the model in the place that the adapter names.
//!
//! A model that came from files is not in the checkpoint: `base.json`, beside the adapter, says where it is (see
//! `base`).

mod adapter;
mod computed;
mod config;
mod keys;
mod start;

pub(super) use adapter::{Adapter, Factors, factor_names, scaled_to};
pub(super) use computed::ComputedTensors;
pub(super) use config::LoraConfig;

use super::OUTPUT_DIR;
use super::weight_faults::OTHER_MODEL;
use crate::durable::read_json;
use crate::error::{Error, Result};
use crate::model::config::{LowRank, Magnitudes};
use crate::model::last_part;
use crate::model::names::EXPERT_PARAMETERS;
use crate::model::parameters::{Role, Spec, module_of};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The folder of a checkpoint's adapters.
pub(super) const FOLDER: &str = "adapter";
/// The stem of the name of the adapters' file.
pub(super) const STEM: &str = "adapter_model";
pub(super) const WEIGHTS: &str = "adapter_model.safetensors";
pub(super) const CONFIG: &str = "adapter_config.json";
/// What that file is expected to be, for error messages.
const KIND: &str = "the configuration of a low-rank adapter";
/// Remedy for an adapter that computes something that is not built.
const MERGED: &str = "merge it by PEFT's `merge_and_unload`, and name the folder of what that makes";
/// Remedy for a file that is something else.
const REMEDY: &str = "fetch it again, or name another adapter";

/// The file with the adapter at `path`, which is the file itself, its folder, or a checkpoint that has an adapter.
///
/// # Errors
/// There is none.
pub(super) fn required(path: &Path) -> Result<PathBuf> {
    let mut places = [path.to_path_buf(), path.join(WEIGHTS), path.join(FOLDER).join(WEIGHTS)].into_iter();
    places.find(|place| place.is_file()).ok_or_else(|| {
        Error::file(
            path,
            format!("holds no adapter; name a folder with {WEIGHTS} and {CONFIG}, or a checkpoint"),
        )
    })
}

/// The adapter beside the weights at `path`, if there is one.
pub(crate) fn beside(path: &Path) -> Option<PathBuf> {
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    let places =
        folder.into_iter().flat_map(|folder| [folder.join(FOLDER).join(WEIGHTS), folder.join(WEIGHTS)]);
    places.into_iter().find(|place| place.is_file())
}

/// Writes `adapter_config.json` into `folder`, for the adapters of the model that has the parameters `whole` and came
/// from `base`. `modules_to_save` train beside the adapters.
///
/// # Errors
/// A disk that fails.
pub(super) fn write_config(
    folder: &Path,
    low_rank: &LowRank,
    whole: &[Spec],
    base: Option<&Path>,
    modules_to_save: &BTreeSet<String>,
) -> Result<()> {
    let modules_to_save = Some(modules_to_save).filter(|modules| !modules.is_empty());
    let (ranks, alphas) = (by_pattern(low_rank, &low_rank.ranks), by_pattern(low_rank, &low_rank.alphas));
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": low_rank.rank,
        "lora_alpha": low_rank.alpha,
        "use_rslora": low_rank.is_rank_stabilised,
        "use_dora": low_rank.magnitudes != Magnitudes::None,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "lora_dropout": low_rank.dropout,
        "target_modules": target_modules(low_rank, whole),
        "target_parameters": target_parameters(low_rank, whole),
        "fan_in_fan_out": fan_in_fan_out(whole),
        "bias": "none",
        "init_lora_weights": true,
        "modules_to_save": modules_to_save,
        "ensure_weight_tying": low_rank.ensures_tying,
        "inference_mode": true,
    });
    let bytes = serde_json::to_vec_pretty(&config).map_err(|error| Error::file(folder, error))?;
    OUTPUT_DIR.write(&folder.join(CONFIG), &bytes)
}

/// The `adapter_config.json` beside the adapter in `weights`, rewritten for the model in `folder`. There the adapted
/// modules are called `modules`, and parameters of experts `parameters`, each with its name in the file that is
/// rewritten, and `rename` returns the name of a module that trained beside the adapter.
///
/// # Errors
/// The file is missing, or is not of low-rank adapters.
pub(super) fn config_for(
    weights: &Path,
    folder: &Path,
    [modules, parameters]: [&BTreeMap<String, String>; 2],
    rename: impl Fn(&str) -> Result<String>,
) -> Result<Vec<u8>> {
    let path = weights.with_file_name(CONFIG);
    let Some(read) = LoraConfig::beside(weights)? else {
        return Err(Error::file(&path, "is missing; name a checkpoint, or the folder that PEFT saved"));
    };
    let mut config: Value = read_json(&path, KIND, REMEDY)?;
    config["base_model_name_or_path"] = folder.display().to_string().into();
    config["target_modules"] = modules.keys().map(String::as_str).collect();
    if !parameters.is_empty() {
        config["target_parameters"] = parameters.keys().map(String::as_str).collect();
    }
    let all: Vec<(&String, &String)> = modules.iter().chain(parameters).collect();
    let with_patterns = |key: &&str| config[*key].as_object().is_some_and(|patterns| !patterns.is_empty());
    for key in ["rank_pattern", "alpha_pattern"].into_iter().filter(with_patterns).collect::<Vec<_>>() {
        let value = |own: &String| match key {
            "rank_pattern" => json!(read.rank_of(own)),
            _ => json!(read.alpha_of(own)),
        };
        config[key] = all.iter().map(|(name, own)| ((*name).clone(), value(own))).collect();
    }
    if let Some(saved) = config["modules_to_save"].as_array() {
        let saved = saved.iter().filter_map(Value::as_str).map(rename).collect::<Result<Vec<_>>>()?;
        config["modules_to_save"] = saved.into();
    }
    serde_json::to_vec_pretty(&config).map_err(|error| Error::file(&path, error))
}

/// The values of some adapters under patterns that match their names: the last part of a name if all adapters of that
/// part have the same value, otherwise the whole name.
fn by_pattern<'a, T: Copy + PartialEq>(
    low_rank: &'a LowRank,
    values: &'a BTreeMap<String, T>,
) -> BTreeMap<&'a str, T> {
    let pattern = |(name, value): (&'a String, &T)| {
        let mut alike = low_rank.names().filter(|other| last_part(other) == last_part(name));
        let is_common = alike.all(|other| values.get(other) == Some(value));
        (if is_common { last_part(name) } else { name.as_str() }, *value)
    };
    values.iter().map(pattern).collect()
}

/// The names by which PEFT finds the modules that have adapters: the last part of a name if it names no other module,
/// otherwise the whole name.
fn target_modules(low_rank: &LowRank, whole: &[Spec]) -> BTreeSet<String> {
    let pieces = whole.iter().filter(|spec| !spec.role.is_factor()).flat_map(|spec| &spec.pieces);
    let others: BTreeSet<&str> = pieces
        .map(|piece| module_of(&piece.name))
        .filter(|name| !low_rank.modules.contains(*name))
        .map(last_part)
        .collect();
    let target = |name: &String| {
        if others.contains(last_part(name)) { name.clone() } else { last_part(name).to_string() }
    };
    low_rank.modules.iter().map(target).collect()
}

/// The names by which PEFT finds the parameters of experts that have adapters: their names in a layer where those of all
/// layers have one, otherwise the whole names. `None` if there are none.
fn target_parameters(low_rank: &LowRank, whole: &[Spec]) -> Option<BTreeSet<String>> {
    let in_layer = |name: &str| -> String {
        let parts = name.split('.').skip_while(|part| part.parse::<usize>().is_err());
        parts.skip(1).collect::<Vec<_>>().join(".")
    };
    let is_stack = |spec: &&Spec| matches!(spec.role, Role::ExpertStack { .. });
    let layers = whole.iter().filter(is_stack).count() / EXPERT_PARAMETERS.len();
    let target = |name: &String| {
        let own = in_layer(name);
        let adapted = low_rank.parameters.iter().filter(|name| in_layer(name) == own).count();
        if adapted == layers { own } else { name.clone() }
    };
    let targets: BTreeSet<String> = low_rank.parameters.iter().map(target).collect();
    Some(targets).filter(|targets| !targets.is_empty())
}

fn fan_in_fan_out(whole: &[Spec]) -> bool {
    let maps = whole.iter().filter(|spec| spec.role != Role::Convolution);
    maps.flat_map(|spec| &spec.pieces).any(|piece| piece.is_transposed)
}

/// The error of an adapter in `weights` whose module does not fit the model; `expected` says how.
pub(super) fn other_model(weights: &Path, module: &str, expected: &str) -> Error {
    Error::file(weights, format!("adapts `{module}`, which {expected}; {OTHER_MODEL}"))
}

//! Low-rank adapters on disk, as PEFT has them: `adapter_model.safetensors` and `adapter_config.json` in one folder.
//!
//! In a checkpoint they are in a folder of their own, `adapter`: beside the model's files, `transformers` would take the
//! model to be in the place that the adapter names.
//!
//! A model that came from files is not in the checkpoint: `base.json`, beside the adapter, says where it is (see `base`).

use super::OUTPUT_DIR;
use super::foreign::OTHER_MODEL;
use super::weight_files::WeightFiles;
use crate::durable::read_json;
use crate::error::{Error, Result};
use crate::model::config::LowRank;
use crate::model::parameters::{Role, Spec, module_of};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The folder of a checkpoint's adapters.
pub(super) const FOLDER: &str = "adapter";
/// The file of adapters is called so.
pub(super) const STEM: &str = "adapter_model";
pub(super) const WEIGHTS: &str = "adapter_model.safetensors";
pub(super) const CONFIG: &str = "adapter_config.json";
/// What is expected in that.
const KIND: &str = "the configuration of a low-rank adapter";
/// What to do where it is something else.
const REMEDY: &str = "fetch it again, or name another adapter";

/// What of `adapter_config.json` decides what an adapter computes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LoraConfig {
    peft_type: String,
    pub base_model_name_or_path: Option<String>,
    pub r: usize,
    lora_alpha: f64,
    /// Whether the model's matrices are (in, out).
    pub fan_in_fan_out: bool,
    use_rslora: bool,
    use_dora: bool,
    bias: String,
    rank_pattern: Value,
    alpha_pattern: Value,
    trainable_token_indices: Value,
    target_parameters: Value,
}

/// The file with the adapter at `path`: a file, its folder, or a checkpoint that has one.
pub(super) fn find(path: &Path) -> Option<PathBuf> {
    let places = [path.to_path_buf(), path.join(WEIGHTS), path.join(FOLDER).join(WEIGHTS)];
    places.into_iter().find(|place| place.is_file())
}

/// The file with the adapter at `path`.
///
/// # Errors
/// There is none.
pub(super) fn required(path: &Path) -> Result<PathBuf> {
    find(path).ok_or_else(|| {
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

/// Opens the adapter in the file `weights` for adapters like `low_rank`.
///
/// # Errors
/// It is damaged, or computes with another rank or factor.
pub(super) fn open(weights: &Path, low_rank: &LowRank) -> Result<WeightFiles> {
    if let Some(config) = LoraConfig::beside(weights)? {
        config.check(weights, low_rank)?;
    }
    WeightFiles::open(weights)
}

/// Writes `adapter_config.json` for the adapters of the model with the parameters `whole`, which was `base`, into `folder`.
/// `modules_to_save` train beside them.
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
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": low_rank.rank,
        "lora_alpha": low_rank.alpha,
        "lora_dropout": low_rank.dropout,
        "target_modules": target_modules(low_rank, whole),
        "fan_in_fan_out": fan_in_fan_out(whole),
        "bias": "none",
        "init_lora_weights": true,
        "modules_to_save": modules_to_save,
        "inference_mode": true,
    });
    let bytes = serde_json::to_vec_pretty(&config).map_err(|error| Error::file(folder, error))?;
    OUTPUT_DIR.write(&folder.join(CONFIG), &bytes)
}

/// The `adapter_config.json` beside the adapter in `weights`, for the model in `folder`, where its modules are called so;
/// `rename` says what a module that trained beside it is called there.
///
/// # Errors
/// It is missing, or not one of low-rank adapters.
pub(super) fn config_for(
    weights: &Path,
    folder: &Path,
    modules: &BTreeSet<String>,
    rename: impl Fn(&str) -> Result<String>,
) -> Result<Vec<u8>> {
    let path = weights.with_file_name(CONFIG);
    if LoraConfig::beside(weights)?.is_none() {
        return Err(Error::file(&path, "is missing; name a checkpoint, or the folder that PEFT saved"));
    }
    let mut config: Value = read_json(&path, KIND, REMEDY)?;
    config["base_model_name_or_path"] = folder.display().to_string().into();
    config["target_modules"] = json!(modules);
    if let Some(saved) = config["modules_to_save"].as_array() {
        let saved = saved.iter().filter_map(Value::as_str).map(rename).collect::<Result<Vec<_>>>()?;
        config["modules_to_save"] = saved.into();
    }
    serde_json::to_vec_pretty(&config).map_err(|error| Error::file(&path, error))
}

impl LoraConfig {
    /// Reads the configuration beside the adapter in the file `weights`; `None` if there is none.
    ///
    /// # Errors
    /// It is not one of low-rank adapters, or of a variant that computes something else.
    pub fn beside(weights: &Path) -> Result<Option<Self>> {
        let path = weights.with_file_name(CONFIG);
        if !path.is_file() {
            return Ok(None);
        }
        let config: Self = read_json(&path, KIND, REMEDY)?;
        let is_set = |value: &Value| match value {
            Value::Null => false,
            Value::Object(entries) => !entries.is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => true,
        };
        let variants = [
            (config.peft_type != "LORA", "peft_type"),
            (config.r == 0, "r"),
            (config.use_dora, "use_dora"),
            (!["", "none"].contains(&config.bias.as_str()), "bias"),
            (is_set(&config.rank_pattern), "rank_pattern"),
            (is_set(&config.alpha_pattern), "alpha_pattern"),
            (is_set(&config.trainable_token_indices), "trainable_token_indices"),
            (is_set(&config.target_parameters), "target_parameters"),
        ];
        match variants.iter().find(|(is_other, _)| *is_other) {
            Some((_, key)) => {
                Err(Error::file(&path, format!("not {KIND}: its `{key}` asks for what is not built")))
            }
            None => Ok(Some(config)),
        }
    }

    /// The configuration beside the adapter in the file `weights`.
    ///
    /// # Errors
    /// There is none, or it is of something else.
    pub fn required(weights: &Path) -> Result<Self> {
        Self::beside(weights)?.ok_or_else(|| {
            let message =
                "has no adapter_config.json beside it, which says what the product is multiplied by";
            Error::file(weights, message)
        })
    }

    /// What the product of A and B is multiplied by.
    pub fn scale(&self) -> f64 {
        let rank = self.r as f64;
        self.lora_alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }

    /// Checks that the adapter in `weights` computes with the scale of `low_rank`.
    ///
    /// # Errors
    /// It has another rank or another factor.
    pub fn check(&self, weights: &Path, low_rank: &LowRank) -> Result<()> {
        if self.r == low_rank.rank && (self.scale() - low_rank.scale()).abs() <= 1e-9 * low_rank.scale() {
            return Ok(());
        }
        let message = format!(
            "is of rank {} with a factor of {}, and this run's adapters are of rank {} with a factor of {}; change lora_rank and \
             lora_alpha of pet_config",
            self.r,
            self.scale(),
            low_rank.rank,
            low_rank.scale()
        );
        Err(Error::file(weights, message))
    }
}

/// The names of modules by which PEFT finds those that have adapters: their last parts where these name no other, otherwise
/// whole ones.
fn target_modules(low_rank: &LowRank, whole: &[Spec]) -> BTreeSet<String> {
    let pieces = whole.iter().filter(|spec| spec.role != Role::Lora).flat_map(|spec| &spec.pieces);
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

fn fan_in_fan_out(whole: &[Spec]) -> bool {
    whole.iter().flat_map(|spec| &spec.pieces).any(|piece| piece.is_transposed)
}

fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The error of an adapter in `weights` for a module that a model does not have as `expected`.
pub(super) fn other_model(weights: &Path, module: &str, expected: &str) -> Error {
    Error::file(weights, format!("adapts `{module}`, which {expected}; {OTHER_MODEL}"))
}

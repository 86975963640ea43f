//! Where the tensors of a model that a user names are: in the best or newest checkpoint of a run, in a checkpoint, in
//! the base that a checkpoint or an adapter names, or in the folder or file itself.

use super::base::{Base, REMEDY, holds_model};
#[cfg(feature = "cli")]
use super::checkpoint_folder::Best;
use super::checkpoint_folder::{CHECKPOINTS, CheckpointFolder};
use super::lora::{self, Adapter, LoraConfig};
use super::run_folder::CONFIG;
use super::wrapped;
use crate::error::{Error, Result};
use crate::hugging_face::{if_of_hub, name_of_hub};
use crate::model::config::ModelConfig;
use crate::model::parameters::Gpt;
use crate::model::{adaptable_modules, adaptable_parameters};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The folder of the run at `path`, or of the run that the checkpoint or the adapter at `path` belongs to; `None` if
/// there is no such run.
pub(crate) fn run_of(path: &Path) -> Option<PathBuf> {
    let is_run = |folder: &&Path| folder.join(CONFIG).is_file();
    if is_run(&path) {
        return Some(path.to_path_buf());
    }
    // The path of a checkpoint may be relative to its own folder, and the run folder is found through its parents.
    let path = path.canonicalize().ok()?;
    let checkpoint = if path.ends_with(lora::FOLDER) { path.parent()? } else { &path };
    let checkpoints = checkpoint.parent().filter(|folder| folder.ends_with(CHECKPOINTS))?;
    checkpoints.parent().filter(is_run).map(Path::to_path_buf)
}

/// The checkpoint that stands for the run in the folder `path`: its best, or else its newest. If `path` is no run,
/// `path` itself.
///
/// # Errors
/// The run has no checkpoint.
pub(crate) fn chosen(path: &Path) -> Result<PathBuf> {
    if !path.join(CONFIG).is_file() {
        return Ok(path.to_path_buf());
    }
    let chosen = CheckpointFolder::of_run(path).chosen()?.map(|(_, chosen)| chosen);
    chosen.ok_or_else(|| Error::file(path, "the run has no checkpoint yet, so there are no weights"))
}

/// A line that says which checkpoint stands for the run in the folder `path`, if its best is known.
///
/// # Errors
/// A folder that cannot be read.
#[cfg(feature = "cli")]
pub(crate) fn choice(path: &Path) -> Result<Option<String>> {
    if !path.join(CONFIG).is_file() {
        return Ok(None);
    }
    let checkpoints = CheckpointFolder::of_run(path);
    let Some((Best { step, eval_loss }, best)) = checkpoints.best()? else { return Ok(None) };
    let newer = checkpoints.latest()?.filter(|(newest, _)| *newest > step);
    let newer = newer.map_or_else(String::new, |(_, newest)| format!("; the newest is {}", newest.display()));
    Ok(Some(format!("{} is used, the best by its eval_loss of {eval_loss:.4}{newer}", best.display())))
}

/// The folder or file that describes the model at `path`: the chosen checkpoint of a run, the base that an adapter
/// names, or `path`.
///
/// # Errors
/// A run without a checkpoint; an adapter that names no base that is here.
pub(crate) fn model_at(path: &Path) -> Result<PathBuf> {
    let path = chosen(path)?;
    Ok(base_of(&path)?.unwrap_or(path))
}

/// The folder or file with the tensors of the model at `path`: those of the base, if a checkpoint or an adapter at
/// `path` names one. A base that a note names is returned too; if it is not at its path, it may be at `moved`.
///
/// # Errors
/// The base is at neither path, or other weights are there.
pub(super) fn resolve(path: &Path, moved: Option<&Path>) -> Result<(PathBuf, Option<Base>)> {
    let path = chosen(path)?;
    let moved = moved.map(chosen).transpose()?;
    match Base::noted(&path)? {
        Some(noted) => noted.found(moved.as_deref()).map(|base| (base.path().to_path_buf(), Some(base))),
        None => Ok((model_at(&path)?, None)),
    }
}

/// The model at `path` as the base of adapters: the base that a checkpoint or an adapter names, or the model's own
/// tensors, all of which are read. If there is a note of the base of `adapter`, it must be the same base.
///
/// # Errors
/// A file that is missing or damaged; an adapter that names no base, or was trained on another.
pub(crate) fn base_at(path: &Path, adapter: Option<&Path>) -> Result<Base> {
    let path = chosen(path)?;
    let base = match Base::noted(&path)? {
        Some(noted) => noted,
        None => Base::of(&model_at(&path)?)?,
    };
    let own = lora::beside(&path);
    let adapter = adapter.map(|adapter| lora::required(&chosen(adapter)?)).transpose()?.or(own);
    if let Some(expected) = adapter.map(|adapter| Base::beside(&adapter)).transpose()?.flatten() {
        expected.check_unless(base.path(), Some(&base))?;
    }
    Ok(base)
}

/// An adapter by itself: what describes a run with the adapter on its base.
pub(crate) struct StandaloneAdapter {
    /// The file of its tensors.
    pub weights: PathBuf,
    /// Rows of A.
    rank: usize,
    /// The scale of the product of A and B, times the rank.
    alpha: f64,
    /// The modules that it adapts, as a language model by itself calls them.
    modules: BTreeSet<String>,
    /// The parameters of experts that it adapts.
    parameters: BTreeSet<String>,
    /// The modules whose second factor has a bias.
    biased: BTreeSet<String>,
    /// Whether it scales outputs by magnitudes.
    has_magnitudes: bool,
    /// Whether it has its own embedding or head, even where the model ties the two.
    is_apart: bool,
}

impl StandaloneAdapter {
    /// Opens the adapter at `path`: PEFT's file, its folder, or a checkpoint or run that has an adapter.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn open(path: &Path) -> Result<Self> {
        let weights = lora::required(&chosen(path)?)?;
        let adapter = Adapter::open(&weights)?;
        adapter.config()?;
        // Where modules differ, the factors are loaded as if all had this rank and this scale.
        let rank = adapter.wrappers().map(|module| adapter.rank_of(module)).max().unwrap_or(1);
        let scales: Vec<f64> = adapter.wrappers().filter_map(|module| adapter.scale_of(module)).collect();
        let is_same = scales.iter().all(|scale| *scale == scales[0] && *scale > 0.0);
        let scale = if is_same { scales.first().copied().unwrap_or(1.0) } else { 1.0 };
        Ok(Self {
            rank,
            alpha: scale * rank as f64,
            modules: adapter.modules().map(wrapped::alone).collect(),
            parameters: adapter.parameters().map(wrapped::alone).collect(),
            biased: adapter.modules().filter(|module| adapter.has_bias(module)).map(wrapped::alone).collect(),
            has_magnitudes: adapter.has_magnitudes(),
            is_apart: adapter.is_apart(),
            weights,
        })
    }

    /// The folder with the files beside the adapter: the checkpoint's folder, if the adapter is in a checkpoint.
    pub fn folder(&self) -> &Path {
        folder_of(&self.weights)
    }

    /// Checks that each module that it adapts is a module of `model` that can have an adapter.
    ///
    /// # Errors
    /// A module that is not, such as the head, or a fused projection of another class; an adapter of no module.
    pub fn check(&self, model: &ModelConfig) -> Result<()> {
        if self.modules.is_empty() && self.parameters.is_empty() {
            let message = "has no factors of low rank, only trained copies; merge both by `gristmill merge`";
            return Err(Error::file(&self.weights, message));
        }
        let (can_adapt, of_experts) = (adaptable_modules(model), adaptable_parameters(model));
        let without = self.modules.iter().filter(|module| !can_adapt.contains(*module));
        let mut without = without.chain(self.parameters.iter().filter(|of| !of_experts.contains(*of)));
        match without.next() {
            None => Ok(()),
            Some(module) => {
                let message = format!(
                    "adapts `{module}`, beside which this model has no adapter; merge both by `gristmill merge`"
                );
                Err(Error::file(&self.weights, message))
            }
        }
    }

    /// Gives `model` the parameters that it has only with the adapter: biases, and its own head.
    ///
    /// # Errors
    /// A bias for which the model has no place.
    pub fn extend(&self, model: &mut ModelConfig) -> Result<()> {
        model.tie_word_embeddings &= !self.is_apart;
        for module in &self.biased {
            match module.rsplit('.').next().unwrap_or(module) {
                "q_proj" | "k_proj" | "v_proj" => model.qkv_bias = true,
                "o_proj" => model.output_bias = true,
                "gate_proj" | "up_proj" => model.gate_up_bias = true,
                "down_proj" => model.down_bias = true,
                _ => {}
            }
        }
        let specs = Gpt::describe(model);
        let has_bias = |module: &&String| {
            let name = format!("{module}.bias");
            specs.iter().flat_map(|spec| &spec.pieces).any(|piece| piece.name == name)
        };
        match self.biased.iter().find(|module| !has_bias(module)) {
            None => Ok(()),
            Some(module) => {
                let message =
                    format!("has a bias for `{module}` (`lora_bias`), for which this model has no place");
                Err(Error::file(&self.weights, message))
            }
        }
    }

    /// The keys of a `pet_config` that trains the adapter further.
    ///
    /// # Errors
    /// It computes more than runs train.
    #[cfg(feature = "cli")]
    pub fn training_keys(&self) -> Result<Vec<(&'static str, Value)>> {
        let adapter = Adapter::open(&self.weights)?;
        let config = adapter.config()?;
        let names: Vec<String> = adapter.keys().map(str::to_string).collect();
        let of_names = |value: &dyn Fn(&str) -> Value| -> Value {
            names.iter().map(|name| (regex::escape(&wrapped::alone(name)), value(name))).collect()
        };
        let first = names.first().map_or("", String::as_str);
        let is_alike = names.iter().all(|name| {
            (config.rank_of(name), config.alpha_of(name)) == (config.rank_of(first), config.alpha_of(first))
        });
        let mut keys = vec![
            ("lora_rank", json!(config.rank_of(first))),
            ("lora_alpha", json!(config.alpha_of(first))),
            ("use_rslora", json!(config.is_rank_stabilised())),
            ("use_dora", json!(config.use_dora)),
            ("target_modules", self.patterns(&self.modules)),
            ("target_parameters", self.patterns(&self.parameters)),
            ("modules_to_save", json!(config.modules_to_save.clone().unwrap_or_default())),
            ("ensure_weight_tying", json!(config.ensure_weight_tying)),
            ("adapter_path", json!(self.weights.display().to_string())),
        ];
        if !is_alike {
            keys.push(("rank_pattern", of_names(&|name| json!(config.rank_of(name)))));
            keys.push(("alpha_pattern", of_names(&|name| json!(config.alpha_of(name)))));
        }
        Ok(keys)
    }

    /// Patterns that match these names alone.
    fn patterns(&self, names: &BTreeSet<String>) -> Value {
        names.iter().map(|name| format!("{}$", regex::escape(name))).collect()
    }

    /// The `pet_config` of a run with the adapter on its base.
    pub fn pet_config(&self) -> Value {
        json!({
            "pet_type": "lora", "lora_rank": self.rank, "lora_alpha": self.alpha, "random_base": true, "lora_dropout": 0,
            "use_dora": self.has_magnitudes, "use_rslora": false, "rank_pattern": {}, "alpha_pattern": {}, "modules_to_save": [],
            "ensure_weight_tying": false, "loraplus_lr_ratio": 1,
            "target_modules": self.patterns(&self.modules), "target_parameters": self.patterns(&self.parameters),
            "exclude_layers": [], "freeze_include": [], "freeze_exclude": [],
        })
    }
}

/// The folder with the files beside an adapter: the checkpoint's folder, if the adapter is in a checkpoint.
pub(super) fn folder_of(weights: &Path) -> &Path {
    let folder = weights.parent().unwrap_or(Path::new(""));
    let checkpoint = folder.parent().filter(|_| folder.ends_with(lora::FOLDER));
    checkpoint.unwrap_or(folder)
}

/// Whether `path` is the folder of an adapter, and no run.
pub(crate) fn is_adapter(path: &Path) -> bool {
    adapter_in(path).is_some()
}

/// The folder of the adapter at `path`: `path` itself, or the adapter's folder in a checkpoint that was copied out of
/// its run.
fn adapter_in(path: &Path) -> Option<PathBuf> {
    let is_alone = |folder: &&Path| {
        folder.join(lora::CONFIG).is_file() && !folder.join(CONFIG).is_file() && !holds_model(folder)
    };
    let within = path.join(lora::FOLDER);
    let is_copied = path.join("config.json").is_file() && run_of(path).is_none() && !holds_model(path);
    let copied = || Some(&*within).filter(|_| is_copied);
    let found = Some(path).filter(is_alone).or_else(|| copied().filter(is_alone));
    found.map(Path::to_path_buf)
}

/// The folder of the adapter in the checkpoint or the folder `path`, if it has one.
#[cfg(feature = "hub")]
pub(crate) fn adapter_of(path: &Path) -> Option<PathBuf> {
    let folders = [path.to_path_buf(), path.join(lora::FOLDER)];
    folders.into_iter().find(|folder| folder.join(lora::CONFIG).is_file())
}

/// The error about an adapter in the folder or the checkpoint `path` whose base is not here, and what may be done about it.
pub(crate) fn missing_base(path: &Path, base: &Path, why: Option<String>) -> Error {
    let config = adapter_in(path).unwrap_or_else(|| path.to_path_buf()).join(lora::CONFIG);
    let why = why.map_or_else(String::new, |why| format!("{why}; "));
    Error::file(config, format!("its base `{}` is no folder on this disk; {why}{REMEDY}", base.display()))
}

/// The name of a model on a hub that the adapter folder `path` has for its base.
///
/// # Errors
/// A description that is damaged.
#[cfg(feature = "cli")]
pub(crate) fn hub_base_of(path: &Path) -> Result<Option<String>> {
    let Some(path) = adapter_in(path) else { return Ok(None) };
    if Base::beside(&path.join(lora::CONFIG))?.is_some() {
        return Ok(None);
    }
    let base = LoraConfig::required(&path.join(lora::WEIGHTS))?.base_model_name_or_path;
    Ok(base.filter(|base| name_of_hub(Path::new(base)).is_some()))
}

/// The base that the adapter folder `path` names; `None` if `path` is not an adapter folder, but a run, a checkpoint or
/// a model.
///
/// # Errors
/// It names no base that is here, or names itself or another adapter.
pub(crate) fn base_of(path: &Path) -> Result<Option<PathBuf>> {
    let Some(path) = adapter_in(path) else { return Ok(None) };
    let config = path.join(lora::CONFIG);
    let noted = Base::beside(&config)?.map(|base| base.path().to_path_buf());
    let named = LoraConfig::required(&path.join(lora::WEIGHTS))?.base_model_name_or_path.map(PathBuf::from);
    let Some(base) = noted.or(named) else {
        return Err(Error::file(&config, format!("names no `base_model_name_or_path`; {REMEDY}")));
    };
    if !base.exists() {
        return Err(missing_base(&path, &base, name_of_hub(&base).map(if_of_hub)));
    }
    let shown = base.display();
    if is_adapter(&base) {
        let message = format!("its base `{shown}` is an adapter itself, and they are not stacked; {REMEDY}");
        return Err(Error::file(&config, message));
    }
    Ok(Some(base))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_of_an_adapter_are_names_and_no_patterns() {
        let modules = ["layers.0.q+k".to_string(), "layers.0.it's".to_string()].into();
        let none = BTreeSet::new();
        let alone = StandaloneAdapter {
            weights: PathBuf::new(),
            rank: 2,
            alpha: 4.0,
            modules,
            parameters: ["layers.0.mlp.experts.down_proj".to_string()].into(),
            biased: none,
            has_magnitudes: false,
            is_apart: false,
        };
        let config = alone.pet_config();
        assert_eq!(config["target_modules"], json!(["layers\\.0\\.it's$", "layers\\.0\\.q\\+k$"]));
        assert_eq!(config["target_parameters"], json!(["layers\\.0\\.mlp\\.experts\\.down_proj$"]));
    }
}

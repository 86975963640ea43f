//! The parts that commands share that use a trained model: the choice of the model and of the adapter.

use super::doctor::naming_the_flag;
use super::hub;
use crate::data::Codec;
use crate::device::{Gpu, GpuOptions};
use crate::error::{Error, Result};
use crate::infer::OpenedModel;
use crate::kernels::Tier;
use crate::settings::Override;
use crate::store::model_path::{choice, hub_base_of, is_adapter, missing_base};
use crate::train::lacking_tokens::lacking_tokens;
use crate::train::open_device_with;
use serde_json::json;
use std::path::{Path, PathBuf};

/// A trained model and the adapter for it.
#[derive(clap::Args)]
pub struct ModelArguments {
    /// The folder of a run (output/tiny: its best checkpoint, or the newest), a checkpoint in one, a folder of Hugging
    /// Face's or the name of a model on the Hub, or the folder of an adapter, which names its model
    model: PathBuf,
    /// A low-rank adapter for the model: PEFT's folder, or a checkpoint or run that has one
    #[arg(long = "adapter", value_name = "FOLDER")]
    low_rank: Option<PathBuf>,
    /// The tokenizer.json of the training data, if the run does not name it
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// The weights that adapters were trained on, if they were moved
    #[arg(long = "base-model", alias = "load_checkpoint", value_name = "PATH")]
    base: Option<PathBuf>,
    #[command(flatten)]
    adapter: AdapterArguments,
}

/// Prints which checkpoint stands for the run at `path`, if it is a run whose best checkpoint is known.
///
/// # Errors
/// A folder that cannot be read.
pub fn say_choice(path: &Path) -> Result<()> {
    choice(path)?.iter().for_each(|line| eprintln!("notice: {line}"));
    Ok(())
}

/// Opens the model at `path`, or by its name on the Hub; an adapter on the base that it names.
///
/// # Errors
/// There is no model, or no base of the adapter.
pub fn open(path: &Path, overrides: &[Override]) -> Result<OpenedModel> {
    let model = hub::folder_of(path)?;
    match hub_base(&model)? {
        Some(base) => OpenedModel::open_adapted(&base, &model, overrides),
        None => OpenedModel::open(&model, overrides),
    }
}

/// The folder of the model on the Hub that is the base of the adapter in the folder `model`.
fn hub_base(model: &Path) -> Result<Option<PathBuf>> {
    let fetched = |base: String| {
        let base = PathBuf::from(base);
        hub::folder_of(&base).map_err(|error| missing_base(model, &base, Some(error.to_string())))
    };
    hub_base_of(model)?.map(fetched).transpose()
}

/// The adapter that a command uses.
#[derive(clap::Args)]
pub struct AdapterArguments {
    /// The adapter to use, by a part of its name
    #[arg(long, value_name = "NAME")]
    pub device_name: Option<String>,
    /// The kernels to use: software, portable or matrix
    #[arg(long, value_name = "TIER")]
    pub tier: Option<String>,
}

impl ModelArguments {
    /// Opens the model.
    ///
    /// # Errors
    /// There is no model; a flag that no adapter can have, or that names nothing; an adapter where a base is expected.
    pub fn open(&self) -> Result<OpenedModel> {
        self.adapter.options()?;
        let model = hub::folder_of(&self.model)?;
        let base = match &self.base {
            Some(base) => Some(hub::folder_of(base)?),
            None => hub_base(&model)?,
        };
        if let Some(base) = base.as_ref().filter(|base| !base.exists()) {
            return Err(Error::file(base, "is not there; name the base of the adapters by --base-model"));
        }
        if self.low_rank.is_some() && is_adapter(&model) {
            let message = "is an adapter, as is that of --adapter, and they are not stacked; name the base in its place";
            return Err(Error::file(&model, message));
        }
        [Some(&model), self.low_rank.as_ref()].into_iter().flatten().try_for_each(|path| say_choice(path))?;
        // An adapter on its own is opened on a base that was moved in the same way as any other adapter.
        let moved = base.as_ref().filter(|_| self.low_rank.is_none() && is_adapter(&model));
        let base = if moved.is_some() { &None } else { &base };
        let keys = [("train_dataset.tokenizer", &self.tokenizer), ("load_checkpoint", base)];
        let set = |(key, path): (&str, &Option<PathBuf>)| {
            Some(Override::of(key, &json!(path.as_ref()?.display().to_string())))
        };
        let overrides: Vec<Override> = keys.into_iter().filter_map(set).collect();
        match (&self.low_rank, moved) {
            (Some(adapter), _) => OpenedModel::open_adapted(&model, adapter, &overrides),
            (None, Some(base)) => OpenedModel::open_adapted(base, &model, &overrides),
            (None, None) => OpenedModel::open(&model, &overrides),
        }
    }

    /// Opens the adapter with what `run` stores in mind.
    ///
    /// # Errors
    /// There is no adapter, or none of this name.
    pub async fn device(&self, run: &OpenedModel) -> Result<Gpu> {
        open_device_with(&self.adapter.options()?, &run.plan).await.map_err(naming_the_flag)
    }
}

impl AdapterArguments {
    /// The options for the adapter that is asked for.
    ///
    /// # Errors
    /// There is no tier of this name.
    pub fn options(&self) -> Result<GpuOptions> {
        let tier = self.tier.as_deref().map(tier_named).transpose()?;
        Ok(GpuOptions { device_name: self.device_name.clone(), tier, ..GpuOptions::default() })
    }
}

/// Prints which tokens the template in `file` writes that the tokenizer does not have.
///
/// # Errors
/// A file that cannot be read.
pub fn note_lacking_tokens(file: Option<&Path>, codec: &Codec) -> Result<()> {
    let noted = file.map(|file| lacking_tokens(file, codec)).transpose()?.flatten();
    noted.iter().for_each(|line| eprintln!("notice: {line}"));
    Ok(())
}

fn tier_named(name: &str) -> Result<Tier> {
    let names = Tier::ALL.map(Tier::name).join(", ");
    Tier::named(name)
        .ok_or_else(|| Error::config("--tier", format!("expected one of {names}, found `{name}`")))
}

//! What commands that use a trained model share: which model it is, and where it runs.

use super::doctor::naming_the_flag;
use crate::device::{Gpu, GpuOptions};
use crate::error::{Error, Result};
use crate::kernels::Tier;
use crate::settings::Override;
use crate::store::located::is_adapter;
use crate::train::run::open_device_with;
use crate::trained::TrainedRun;
use serde_json::json;
use std::path::PathBuf;

/// A trained model and the adapter for it.
#[derive(clap::Args)]
pub struct ModelArguments {
    /// The folder of a run (output/tiny: its newest checkpoint), a checkpoint in one, a folder of Hugging Face's, or that of an
    /// adapter, which names its model
    model: PathBuf,
    /// A low-rank adapter for the model: PEFT's folder, or a checkpoint or run that has one
    #[arg(long = "adapter", value_name = "FOLDER")]
    low_rank: Option<PathBuf>,
    /// The tokenizer.json of the training data, if the run does not name it
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Where the weights are that the adapters of a run were trained on, if they were moved
    #[arg(long = "load_checkpoint", value_name = "PATH")]
    base: Option<PathBuf>,
    #[command(flatten)]
    adapter: AdapterArguments,
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
    /// There is none; a flag that no adapter can have.
    pub fn open(&self) -> Result<TrainedRun> {
        self.adapter.options()?;
        // An adapter by itself is opened on a base that was moved as on any other.
        let moved = self.base.as_ref().filter(|_| self.low_rank.is_none() && is_adapter(&self.model));
        let base = if moved.is_some() { &None } else { &self.base };
        let keys = [("train_dataset.tokenizer", &self.tokenizer), ("load_checkpoint", base)];
        let set = |(key, path): (&str, &Option<PathBuf>)| {
            Some(Override::of(key, &json!(path.as_ref()?.display().to_string())))
        };
        let overrides: Vec<Override> = keys.into_iter().filter_map(set).collect();
        match (&self.low_rank, moved) {
            (Some(adapter), _) => TrainedRun::open_adapted(&self.model, adapter, &overrides),
            (None, Some(base)) => TrainedRun::open_adapted(base, &self.model, &overrides),
            (None, None) => TrainedRun::open(&self.model, &overrides),
        }
    }

    /// Opens the adapter for what `run` stores.
    ///
    /// # Errors
    /// There is none, or none of this name.
    pub async fn device(&self, run: &TrainedRun) -> Result<Gpu> {
        open_device_with(&self.adapter.options()?, &run.plan).await.map_err(naming_the_flag)
    }
}

impl AdapterArguments {
    /// Which adapter is asked for.
    ///
    /// # Errors
    /// There is no tier of this name.
    pub fn options(&self) -> Result<GpuOptions> {
        let tier = self.tier.as_deref().map(tier_named).transpose()?;
        Ok(GpuOptions { device_name: self.device_name.clone(), tier, ..GpuOptions::default() })
    }
}

fn tier_named(name: &str) -> Result<Tier> {
    let names = Tier::ALL.map(Tier::name).join(", ");
    Tier::named(name)
        .ok_or_else(|| Error::config("--tier", format!("expected one of {names}, found `{name}`")))
}

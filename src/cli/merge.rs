//! `merge`: adds an adapter to the weights that it adapts.

use super::hub;
use super::output::say;
use super::trained::say_choice;
use crate::error::Result;
use crate::hugging_face::name_of_hub;
use crate::store::merge::merge as merge_files;
use crate::store::model_path::StandaloneAdapter;
use std::path::PathBuf;

/// The arguments of `merge`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The model: a folder with model.safetensors, such a file, or the index of several; the name of a
    /// model on the Hub; of a checkpoint, a run or an adapter the model that it names
    base: PathBuf,
    /// The adapter: a checkpoint or run that has one, a folder with PEFT's adapter_model.safetensors and
    /// adapter_config.json, or that file
    adapter: PathBuf,
    /// The folder to write the merged model to
    out: PathBuf,
}

/// Writes the merged model.
///
/// # Errors
/// Files that are missing, damaged, or do not belong together; a disk that fails.
pub fn merge(arguments: &Arguments) -> Result<()> {
    let Arguments { base, adapter, out } = arguments;
    if name_of_hub(base).is_some() {
        StandaloneAdapter::open(adapter)?; // before much is fetched
    }
    let base = &hub::folder_of(base)?;
    let named = [base, adapter].into_iter().take(if base == adapter { 1 } else { 2 });
    named.into_iter().try_for_each(|path| say_choice(path))?;
    let merged = merge_files(base, adapter, out)?;
    say!("{} of {} tensors adapted; written to {}", merged.adapted, merged.tensors, out.display());
    Ok(())
}

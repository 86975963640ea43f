//! The weights that a run starts from.

use super::resume::start_of;
use super::trainer::Trainer;
use crate::error::{Error, Result, shell_word};
use crate::hugging_face::config_json;
use crate::model::config::ModelConfig;
use crate::settings::{Pet, ReferenceType, RunPlan};
use crate::store::model_path::{base_at, chosen, model_at};
use crate::store::run_folder::Start;
use crate::store::{Base, lora};
use std::path::Path;

/// Checks that the weights that `plan` starts from, unless it resumes, are of its model, as far as the `config.json`
/// beside them shows.
///
/// # Errors
/// A line for each key of `config.json` that differs.
pub fn check_weights(plan: &RunPlan) -> Result<()> {
    let run = &plan.settings.run;
    match run.weights() {
        Some(path) if start_of(run)? != Start::Resume => {
            // Copies that train are not tied, though the base is.
            let is_untied = plan.model.low_rank.as_ref().is_some_and(|low_rank| low_rank.is_untied);
            let tie_word_embeddings = plan.model.tie_word_embeddings || is_untied;
            let published = ModelConfig { tie_word_embeddings, ..plan.model.clone() };
            config_json::check(&model_at(path)?, &published, &run.ignore_config_keys)
        }
        _ => Ok(()),
    }
}

/// Checks that text has a tokenizer if `plan` starts from a Hugging Face folder: the tokens of such a model are never
/// bytes. `flag` is the flag of the current command that names a tokenizer.
///
/// # Errors
/// There is no tokenizer.
pub fn check_tokenizer(plan: &RunPlan, flag: Option<&str>) -> Result<()> {
    let reads_bytes = plan.settings.train_dataset.keys.tokenizer.is_none()
        && plan.model.vocab_size > 256
        && plan.has_text();
    let Some(path) = plan.settings.run.weights().filter(|_| reads_bytes) else { return Ok(()) };
    let model = model_at(path)?;
    let folder = if model.is_dir() { &model } else { model.parent().unwrap_or(&model) };
    match folder.join("config.json").is_file() && !folder.join("tokenizer.json").is_file() {
        true => Err(no_tokenizer(folder, flag)),
        false => Ok(()),
    }
}

/// The error for a folder without a tokenizer, with a way to make one from files that `transformers` can read.
pub(crate) fn no_tokenizer(folder: &Path, flag: Option<&str>) -> Error {
    let others = ["vocab.json", "tokenizer.model", "vocab.txt", "spiece.model"];
    let remedy = match others.iter().find(|name| folder.join(name).is_file()) {
        Some(other) => format!(
            "convert {other}: `python3 -c \"import sys, transformers as t; t.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(\
             sys.argv[1])\" {}`, which needs transformers",
            shell_word(&folder.display().to_string())
        ),
        None => {
            flag.map_or_else(|| "fetch it".to_string(), |flag| format!("fetch it, or name one by {flag}"))
        }
    };
    Error::file(folder, format!("has no tokenizer.json, and nothing says what its tokens mean; {remedy}"))
}

/// The weights that the adapters of `plan` are trained on, if they come from files: checkpoints name them.
///
/// # Errors
/// A file that is missing or damaged; weights other than those that the adapters were trained on before.
pub(super) fn base_of(plan: &RunPlan) -> Result<Option<Base>> {
    let adapted = plan.settings.run.weights().filter(|_| plan.model.low_rank.is_some());
    let adapter = plan.settings.model.pet_config.as_ref().and_then(Pet::adapter);
    adapted.map(|path| base_at(path, adapter)).transpose()
}

/// Refuses a preference that would compare with the model without adapters that are loaded beside it, and so not with
/// the model that the run starts from.
fn check_reference(plan: &RunPlan) -> Result<()> {
    let preference = plan.settings.preference.as_ref();
    let leaves_off =
        preference.is_some_and(|preference| preference.reference == Some(ReferenceType::AdaptersOff));
    let is_named = plan.settings.model.pet_config.as_ref().and_then(Pet::adapter).is_some();
    let weights = plan.settings.run.weights().filter(|_| leaves_off && !is_named);
    match weights.map(chosen).transpose()?.and_then(|weights| lora::beside(&weights)) {
        Some(adapter) => Err(Error::file(
            adapter,
            "the run starts from this adapter, without which the model is another: write `preference.reference: precompute`",
        )),
        None => Ok(()),
    }
}

/// Loads the weights and adapters that `plan` starts from, if it names any, and returns a line about them.
pub(super) fn load_weights(trainer: &Trainer<'_>, plan: &RunPlan) -> Result<Option<String>> {
    let run = &plan.settings.run;
    check_reference(plan)?;
    let load = |path: &Path| {
        let contents = trainer.load_weights(path, run.load_partial)?;
        let class = config_json::class_beside(&model_at(path)?)
            .map_or_else(String::new, |class| format!(", {class}"));
        Ok(format!("loaded: {contents} from {}{class}", path.display()))
    };
    let loaded = run.weights().map(load).transpose()?;
    let adapter = plan.settings.model.pet_config.as_ref().and_then(Pet::adapter);
    adapter.map_or(Ok(()), |path| trainer.load_lora(path))?;
    Ok(loaded)
}

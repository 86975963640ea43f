//! The weights that a run starts from.

use super::resume::start_of;
use super::trainer::Trainer;
use crate::error::Result;
use crate::hugging_face::config_json;
use crate::settings::{Pet, RunPlan};
use crate::store::run_folder::Start;

/// Checks that the weights that `plan` starts from, unless it resumes, are of its model as far as the `config.json` beside them says.
///
/// # Errors
/// A line for each key of it that says otherwise.
pub fn check_weights(plan: &RunPlan) -> Result<()> {
    let run = &plan.settings.run;
    match run.weights() {
        Some(path) if start_of(run)? != Start::Resume => {
            config_json::check(path, &plan.model, &run.ignore_config_keys)
        }
        _ => Ok(()),
    }
}

/// Loads the weights and adapters that `plan` starts from, if it names some.
pub(super) fn load_weights(trainer: &Trainer<'_>, plan: &RunPlan) -> Result<()> {
    let run = &plan.settings.run;
    run.weights().map_or(Ok(()), |path| trainer.load_weights(path, run.load_partial))?;
    let adapter = plan.settings.model.pet_config.as_ref().and_then(Pet::adapter);
    adapter.map_or(Ok(()), |path| trainer.load_lora(path))
}

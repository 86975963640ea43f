//! Plans and data sets from the text of a configuration.

use gristmill::data::LoadedData;
use gristmill::error::Result;
use gristmill::settings::{Override, RunConfig, RunPlan};
use std::path::Path;

/// The plan of a configuration.
pub fn plan(yaml: &str, overrides: &[&str]) -> Result<RunPlan> {
    let overrides = Override::parse_all(overrides.iter().copied())?;
    Ok(RunConfig::parse(yaml, Path::new("test.yaml"), &overrides)?.plan)
}

/// The data that a configuration names, or the error's line.
pub fn load(yaml: &str) -> std::result::Result<LoadedData, String> {
    plan(yaml, &[]).and_then(|plan| plan.load_data()).map_err(|error| error.to_string())
}

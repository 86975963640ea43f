//! A configuration file, read and decided.

use super::engine::{Document, Faults, Override, Source, name_flags};
use super::plan::RunPlan;
use super::sections;
use crate::error::{Error, Result};
use std::path::Path;

/// A configuration in which nothing is wrong.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Every number of the run that does not depend on its data.
    pub plan: RunPlan,
    /// What the user should hear once.
    pub notices: Vec<String>,
}

impl RunConfig {
    /// Reads the file at `path` with `overrides` laid over it.
    ///
    /// # Errors
    /// If the file is missing or no YAML; otherwise everything that is wrong in it, a line each.
    pub fn load(path: &Path, overrides: &[Override]) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::IsADirectory => {
                Error::file(path, "no such file; name a configuration, such as configs/tiny.yaml")
            }
            _ => Error::file(path, format!("cannot be read: {error}")),
        })?;
        Self::parse(&text, path, overrides)
    }

    /// Like [`RunConfig::load`] for text that was read from `file`.
    ///
    /// # Errors
    /// If it is no YAML; otherwise everything that is wrong in it, a line each.
    pub fn parse(text: &str, file: &Path, overrides: &[Override]) -> Result<Self> {
        let read = |overrides: &[Override]| read(text, file, overrides);
        read(overrides).map_err(|errors| {
            let again = |overrides: &[Override]| read(overrides).err().unwrap_or_default();
            Error::all(name_flags(errors, file, overrides, again))
        })
    }
}

fn read(text: &str, file: &Path, overrides: &[Override]) -> std::result::Result<RunConfig, Vec<Error>> {
    let document = Document::parse(text, file, overrides, sections::names()).map_err(|error| vec![error])?;
    let source = Source::new(&document, sections::tables());
    let plan = RunPlan::read(&source);
    let mut faults: Faults = source.into_faults();
    faults.list.sort_by_key(|fault| fault.line);
    match plan {
        Some(plan) if faults.list.is_empty() => Ok(RunConfig { plan, notices: faults.notices() }),
        _ => Err(faults.list.into_iter().map(|fault| fault.error).collect()),
    }
}

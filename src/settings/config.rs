//! A configuration file, read and decided.

use super::engine::{Document, Override, Setting, Source, name_flags};
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
    /// Why the data cannot be loaded, where the configuration says so already; only [`RunConfig::outline`] allows that.
    pub obstacles: Vec<Error>,
    /// Whether `use_parallel` is on, so that `as_single` multiplies what the configuration accumulates.
    pub uses_parallel: bool,
}

impl RunConfig {
    /// Reads the file at `path` with `overrides` laid over it.
    ///
    /// # Errors
    /// If the file is missing or no YAML; otherwise everything that is wrong in it, a line each.
    pub fn load(path: &Path, overrides: &[Override]) -> Result<Self> {
        Self::parse(&text_of(path)?, path, overrides)
    }

    /// Like [`RunConfig::load`], for a run whose data is not needed yet: what keeps it from being loaded, such as a loader of
    /// the original that is not built, is no error but one of the `obstacles`.
    ///
    /// # Errors
    /// The others of [`RunConfig::load`].
    pub fn outline(path: &Path, overrides: &[Override]) -> Result<Self> {
        resolve(&text_of(path)?, path, overrides, Needs::Plan)
    }

    /// Like [`RunConfig::load`] for text that was read from `file`.
    ///
    /// # Errors
    /// If it is no YAML; otherwise everything that is wrong in it, a line each.
    pub fn parse(text: &str, file: &Path, overrides: &[Override]) -> Result<Self> {
        resolve(text, file, overrides, Needs::Data)
    }
}

/// What a configuration is read for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Plan,
    Data,
}

fn text_of(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::IsADirectory => {
            Error::file(path, "no such file; name a configuration, such as configs/tiny.yaml")
        }
        _ => Error::file(path, format!("cannot be read: {error}")),
    })
}

fn resolve(text: &str, file: &Path, overrides: &[Override], needs: Needs) -> Result<RunConfig> {
    let read = |overrides: &[Override]| read(text, file, overrides, needs);
    read(overrides).map_err(|errors| {
        let again = |overrides: &[Override]| read(overrides).err().unwrap_or_default();
        Error::all(name_flags(errors, file, overrides, again))
    })
}

fn read(
    text: &str,
    file: &Path,
    overrides: &[Override],
    needs: Needs,
) -> std::result::Result<RunConfig, Vec<Error>> {
    let document = Document::parse(text, file, overrides, sections::names(), sections::run::BASES)
        .map_err(|error| vec![error])?;
    let source = Source::new(&document, sections::tables());
    let plan = RunPlan::read(&source);
    let uses_parallel = source.node("use_parallel").and_then(bool::from_node) == Some(true);
    let mut faults = source.into_faults();
    if needs == Needs::Data {
        faults.list.append(&mut faults.obstacles);
    }
    faults.list.sort_by_key(|fault| fault.line);
    match plan {
        Some(plan) if faults.list.is_empty() => {
            let notices = faults.notices();
            let obstacles = faults.obstacles.into_iter().map(|fault| fault.error).collect();
            Ok(RunConfig { plan, notices, obstacles, uses_parallel })
        }
        _ => Err(faults.list.into_iter().map(|fault| fault.error).collect()),
    }
}

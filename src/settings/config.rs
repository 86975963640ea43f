//! A configuration file, read and decided.

use super::dialect::{self, NAMES};
use super::engine::{Document, Fault, Override, Source, Words, blame_flags};
use super::plan::RunPlan;
use super::sections;
use super::sections::dataset::LoaderType;
use super::sections::parallel::Started;
use super::sections::run::BASES;
use crate::error::{Error, Result};
use std::path::Path;

/// A configuration in which nothing is wrong.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Every number of the run that does not depend on its data.
    pub plan: RunPlan,
    /// Notices, each to be shown once.
    pub notices: Vec<String>,
    /// Reasons why the data cannot be loaded, as far as the configuration says so; only [`RunConfig::outline`] allows
    /// any.
    pub data_faults: Vec<Error>,
    /// Faults of settings that can be planned for but not trained yet; only [`RunConfig::outline`] allows any.
    pub unsupported: Vec<Error>,
    /// Whether `use_parallel` is on and the plan is for one rank, so that `as_single` multiplies the accumulation of
    /// the file.
    pub uses_parallel: bool,
}

impl RunConfig {
    /// Reads the file at `path` with `overrides` laid over it, for a run of one rank.
    ///
    /// # Errors
    /// If the file is missing or no YAML; otherwise everything that is wrong in it, a line each.
    pub fn load(path: &Path, overrides: &[Override]) -> Result<Self> {
        Self::load_on_rank(path, overrides, 0, 1)
    }

    /// Like [`RunConfig::load`], for rank number `rank` of the `size` that were started.
    ///
    /// # Errors
    /// As [`RunConfig::load`]; also if the file asks for another number of ranks.
    pub fn load_on_rank(path: &Path, overrides: &[Override], rank: usize, size: usize) -> Result<Self> {
        resolve(&text_of(path)?, path, overrides, Purpose::Run(Started::on(rank, size)))
    }

    /// Like [`RunConfig::load`], for a plan. A setting that keeps the data from being loaded, such as a loader that is
    /// not built, is no error but one of the `data_faults`. A setting that cannot be trained yet, such as Muon on parts
    /// of matrices, is one of the `unsupported`. The plan is for the first of `ranks` ranks, where a `data_parallel`
    /// that is not written is chosen so that the degrees fill them, or otherwise of as many as the file asks for.
    ///
    /// # Errors
    /// The other errors of [`RunConfig::load`]; also if the file asks for another number of ranks.
    pub fn outline(path: &Path, overrides: &[Override], ranks: Option<usize>) -> Result<Self> {
        resolve(&text_of(path)?, path, overrides, Purpose::Plan(ranks))
    }

    /// Like [`RunConfig::outline`] for `text` that was read from the `config.yaml` of a run folder. Such a file has
    /// every key itself: `base_config` would let a folder from elsewhere name any file of this machine, so it is an
    /// error. The plan is for `ranks` ranks, or otherwise for as many as the file asks for.
    ///
    /// # Errors
    /// The other errors of [`RunConfig::outline`].
    pub fn of_run_folder(
        text: &str,
        file: &Path,
        overrides: &[Override],
        ranks: Option<usize>,
    ) -> Result<Self> {
        resolve(text, file, overrides, Purpose::RunFolder(ranks))
    }

    /// Like [`RunConfig::outline`] for the model of the Hugging Face folder `folder` alone: the plan's settings of
    /// training are arbitrary.
    ///
    /// # Errors
    /// A folder whose model cannot be computed.
    pub(crate) fn of_model_folder(
        folder: &Path,
        overrides: &[Override],
        ranks: Option<usize>,
    ) -> Result<Self> {
        let folder = folder.display().to_string();
        let text = format!("load_checkpoint: {}\n{UNTRAINED}", serde_json::Value::from(folder.as_str()));
        resolve(&text, Path::new(&folder), overrides, Purpose::Plan(ranks))
    }

    /// Like [`RunConfig::load`] for text that was read from `file`.
    ///
    /// # Errors
    /// If it is no YAML; otherwise everything that is wrong in it, a line each.
    pub fn parse(text: &str, file: &Path, overrides: &[Override]) -> Result<Self> {
        Self::parse_on_rank(text, file, overrides, 0, 1)
    }

    /// Like [`RunConfig::parse`] for a program whose batches come from its own memory
    /// ([`Batches::of_sources`](crate::data::Batches)): no file is named in errors, and there need be no
    /// `train_dataset`. [`RunPlan::load_data`] of such a plan is an error.
    ///
    /// # Errors
    /// If it is no YAML; otherwise everything that is wrong in it, a line each.
    ///
    /// # Examples
    ///
    /// ```
    /// use gristmill::settings::RunConfig;
    ///
    /// # fn main() -> gristmill::error::Result<()> {
    /// let text = "
    /// model:
    ///   model_config: {vocab_size: 32, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: 8}
    /// lr_schedule: {learning_rate: 1.0e-2}
    /// ";
    /// let plan = RunConfig::in_memory(text, &[])?.plan;
    /// assert!(plan.load_data().is_err_and(|error| error.to_string().contains("names no data")));
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_memory(text: &str, overrides: &[Override]) -> Result<Self> {
        resolve(text, Path::new("configuration"), overrides, Purpose::Memory)
    }

    /// Like [`RunConfig::load_on_rank`] for text that was read from `file`.
    ///
    /// # Errors
    /// If it is no YAML; otherwise everything that is wrong in it, a line each.
    pub fn parse_on_rank(
        text: &str,
        file: &Path,
        overrides: &[Override],
        rank: usize,
        size: usize,
    ) -> Result<Self> {
        resolve(text, file, overrides, Purpose::Run(Started::on(rank, size)))
    }
}

/// The sections that a configuration needs besides a model.
const UNTRAINED: &str = "lr_schedule: {learning_rate: 1.0}\ntrain_dataset: \
                         {data_loader: {type: TextDataLoader, data_path: text}}\n";

/// The purpose for which a configuration is read.
#[derive(Clone, Copy)]
enum Purpose {
    /// A plan, which needs no data, for this many ranks or otherwise for as many as the file asks for.
    Plan(Option<usize>),
    /// A plan of the run whose folder the file is in.
    RunFolder(Option<usize>),
    /// A run on these ranks.
    Run(Started),
    /// The training inside a program that has batches of its own, on one rank.
    Memory,
}

const LOADER: &str = "train_dataset.data_loader.type";

fn text_of(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::IsADirectory => {
            Error::file(path, "no such file; name a configuration, such as configs/tiny.yaml")
        }
        _ => Error::file(path, format!("cannot be read: {error}")),
    })
}

fn resolve(text: &str, file: &Path, overrides: &[Override], purpose: Purpose) -> Result<RunConfig> {
    let read = |overrides: &[Override]| read(text, file, overrides, purpose);
    read(overrides).map_err(|faults| {
        let again = |overrides: &[Override]| read(overrides).err().unwrap_or_default();
        Error::all(blame_flags(faults, overrides, again))
    })
}

fn read(
    text: &str,
    file: &Path,
    overrides: &[Override],
    purpose: Purpose,
) -> std::result::Result<RunConfig, Vec<Fault>> {
    let bases = (!matches!(purpose, Purpose::RunFolder(_))).then_some(BASES);
    let document = Document::parse(text, file, overrides, &NAMES, bases, sections::dataset::drop_replaced)
        .map_err(|error| vec![Fault::of_document(error)])?;
    let mut source = Source::new(document, &NAMES, dialect::tables());
    if matches!(purpose, Purpose::Memory) && source.word(LOADER).is_none() {
        source.document.put(LOADER, LoaderType::Memory.word().into(), LOADER);
    }
    dialect::translate(&mut source);
    if bases.is_none() && source.node(BASES).is_some() {
        source
            .fault(BASES, "the file of a run folder has every key itself and builds on no other; remove it");
    }
    let started = match purpose {
        Purpose::Plan(size) | Purpose::RunFolder(size) => size.map(Started::planned),
        Purpose::Run(started) => Some(started),
        Purpose::Memory => Some(Started::on(0, 1)),
    };
    let plan = RunPlan::read(&source, started);
    let is_one = plan.as_ref().is_some_and(|plan| plan.layout.world() == 1);
    let uses_parallel = is_one && source.value("use_parallel") == Some(true);
    let mut faults = source.into_faults();
    if matches!(purpose, Purpose::Run(_) | Purpose::Memory) {
        faults.list.append(&mut faults.data_faults);
        faults.list.append(&mut faults.unsupported);
    }
    faults.list.sort_by_key(|fault| fault.line);
    match plan {
        Some(plan) if faults.list.is_empty() => {
            let notices = faults.notices();
            let errors = |faults: Vec<Fault>| faults.into_iter().map(|fault| fault.error).collect();
            let (data_faults, unsupported) = (errors(faults.data_faults), errors(faults.unsupported));
            Ok(RunConfig { plan, notices, data_faults, unsupported, uses_parallel })
        }
        _ => Err(faults.list),
    }
}

//! The whole configuration as written, and the keys at its top level.

use std::path::{Path, PathBuf};

use super::callbacks::{self, CallbacksSection};
use super::context::{self, ContextSection};
use super::culprit;
use super::dataset;
use super::document::Document;
use super::evaluation::{self, EvalConfig};
use super::groups;
use super::known_keys;
use super::mixture::{self, MixtureSection};
use super::model::{self, ModelSection};
use super::node::{FromNode, Node};
use super::optimizer;
use super::overrides::Override;
use super::section::{Notes, Section};
use super::training::{self, RunnerSection, WrapperSection};
use crate::data::DataConfig;
use crate::error::{Error, Result};
use crate::train::optimizer::{GroupConfig, OptimizerConfig};
use crate::train::schedule::ScheduleConfig;

/// A configuration with its types checked and its defaults filled in, but nothing computed.
#[derive(Clone, Debug)]
pub struct RunConfig {
    document: Document,
    /// `run_name`, or the name of the file.
    pub run_name: String,
    /// Where run folders are made.
    pub output_dir: PathBuf,
    /// Weights to start from.
    pub load_checkpoint: Option<PathBuf>,
    /// Whether to continue a run.
    pub resume_training: Resume,
    /// Seed of the weights, the data order and the sample.
    pub seed: u64,
    /// `model.model_config`.
    pub model: ModelSection,
    /// `moe_config` and the same keys of the model, unless the model is dense.
    pub mixture: Option<MixtureSection>,
    /// `runner_config`.
    pub runner: RunnerSection,
    /// `runner_wrapper`.
    pub wrapper: WrapperSection,
    /// `optimizer`.
    pub optimizer: OptimizerConfig,
    /// `lr_schedule`.
    pub schedule: ScheduleConfig,
    /// `grouped_lr_schedule.grouped`.
    pub groups: Vec<GroupConfig>,
    /// Patterns of matrices without weight decay.
    pub no_decay_params: Vec<String>,
    /// `train_dataset`.
    pub train_dataset: DataConfig,
    /// `eval_dataset`, where it is used.
    pub eval_dataset: Option<DataConfig>,
    /// When to evaluate, if at all.
    pub eval: Option<EvalConfig>,
    /// `callbacks`.
    pub callbacks: CallbacksSection,
    /// `sample`.
    pub sample: Option<SampleConfig>,
    /// `context`.
    pub context: ContextSection,
    /// What the user should hear once.
    pub notices: Vec<String>,
}

/// `resume_training`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// A new run.
    No,
    /// From the newest checkpoint of the run folder.
    Latest,
    /// From the checkpoint of this name.
    Named(String),
}

/// Text that the trained model writes at the end.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleConfig {
    /// What it continues.
    pub prompt: String,
    /// How many tokens it adds.
    pub tokens: usize,
    /// Logits are divided by this; 0 takes the likeliest token.
    pub temperature: f64,
    /// Seed of the draws; the run's own where absent.
    pub seed: Option<u64>,
}

impl RunConfig {
    /// Reads the file at `path` with `overrides` laid over it.
    ///
    /// # Errors
    /// If the file is missing, is no YAML, or has a key or value that cannot be used.
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
    /// If it is no YAML, or has a key or value that cannot be used.
    pub fn parse(text: &str, file: &Path, overrides: &[Override]) -> Result<Self> {
        let read = |overrides: &[Override]| Self::read(text, file, overrides);
        read(overrides).map_err(|error| {
            culprit::name_flag(error, file, overrides, |overrides| read(overrides).map(drop))
        })
    }

    fn read(text: &str, file: &Path, overrides: &[Override]) -> Result<Self> {
        let document = Document::parse(text, file, overrides)?;
        let mut notes = Notes::default();
        let top = Section::open(&document, "", &known_keys::TOP, &mut notes)?;
        check_mode(&document, &top, &mut notes)?;
        let model = model::read(&document, &mut notes)?;
        let mixture = mixture::read(&document, model.family, &mut notes)?;
        for (path, keys) in [
            ("recompute_config", &known_keys::RECOMPUTE),
            ("swap_config", &known_keys::SWAP),
            ("monitor_config", &known_keys::MONITOR),
        ] {
            Section::open(&document, path, keys, &mut notes)?;
        }
        let runner = training::read_runner(&document, &mut notes)?;
        let wrapper = training::read_wrapper(&document, &mut notes)?;
        let (optimizer, optimizer_rate) = optimizer::read(&document, &mut notes)?;
        let (schedule, groups) = groups::read(&document, optimizer_rate, &mut notes)?;
        let train_dataset = dataset::read(&document, "train_dataset", &mut notes)?;
        let do_eval = top.or("do_eval", false)?;
        let eval_dataset = evaluation::read_dataset(&document, do_eval, &mut notes)?;
        let eval = if do_eval {
            evaluation::read(&top, &train_dataset, eval_dataset.as_ref(), &mut notes)?
        } else {
            None
        };
        let callbacks = callbacks::read(&document, &mut notes)?;
        callbacks.experts.note_idle(mixture.as_ref(), &mut notes);
        let sample = read_sample(&document, &mut notes)?;
        let context = context::read_context(&document, &mut notes)?;
        context::read_parallel(&document, &mut notes)?;
        let load_checkpoint: Option<String> = top.get("load_checkpoint")?;
        Ok(Self {
            run_name: read_name(&top, file)?,
            output_dir: top.or("output_dir", "./output".to_string())?.into(),
            load_checkpoint: load_checkpoint.filter(|path| !path.is_empty()).map(PathBuf::from),
            resume_training: read_resume(&top)?,
            seed: top.or("seed", 0)?,
            notices: notes.into_notices(),
            model,
            mixture,
            runner,
            wrapper,
            optimizer,
            schedule,
            groups,
            no_decay_params: top.get("no_decay_params")?.unwrap_or_default(),
            train_dataset,
            eval_dataset,
            eval,
            callbacks,
            sample,
            context,
            document,
        })
    }

    /// An error about the value at a dotted path, which names the line or the flag it comes from.
    pub fn error(&self, path: &str, message: impl std::fmt::Display) -> Error {
        self.document.error(path, message)
    }

    /// Whether something was written at a dotted path, under any of its names.
    pub(super) fn has(&self, path: &str) -> bool {
        self.document.has(path)
    }

    /// `error`, found on what this says, under the name of the flag that caused it, if one did; `check` is what found it.
    pub(super) fn name_flag(&self, error: Error, check: impl Fn(&Self) -> Result<()>) -> Error {
        let (text, file, overrides) = self.document.parts();
        let again = |overrides: &[Override]| check(&Self::read(text, file, overrides)?);
        culprit::name_flag(error, file, overrides, again)
    }

    /// The file that was read.
    pub fn file(&self) -> &Path {
        self.document.file()
    }
}

/// `run_mode` and `trainer` must ask for language-model training.
fn check_mode(document: &Document, top: &Section, notes: &mut Notes) -> Result<()> {
    let mode: Option<String> = top.get("run_mode")?;
    if let Some(mode) = mode.filter(|mode| mode != "train" && mode != "finetune") {
        return Err(top.error("run_mode", format!("`{mode}` is not built yet; write `run_mode: train`")));
    }
    let trainer = Section::open(document, "trainer", &known_keys::TRAINER, notes)?;
    let kind: Option<String> = trainer.get("type")?;
    if let Some(kind) = kind.filter(|kind| kind != "CausalLanguageModelingTrainer") {
        let message = format!("`{kind}` is not built yet; write `type: CausalLanguageModelingTrainer`");
        return Err(trainer.error("type", message));
    }
    Ok(())
}

fn read_name(top: &Section, file: &Path) -> Result<String> {
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = top.or("run_name", stem.unwrap_or_else(|| "run".to_string()))?;
    // The name becomes one folder below output_dir, nothing else.
    if name.trim().is_empty() || name == "." || name == ".." || name.contains(['/', '\\', '\n']) {
        let message = format!("expected the name of a folder, found `{}`", name.escape_debug());
        return Err(top.error("run_name", message));
    }
    Ok(name)
}

fn read_resume(top: &Section) -> Result<Resume> {
    let Some(node) = top.node("resume_training") else { return Ok(Resume::No) };
    match (bool::from_node(node), node) {
        (Some(true), _) => Ok(Resume::Latest),
        (Some(false), _) => Ok(Resume::No),
        (None, Node::Text(name)) if name.is_empty() => Ok(Resume::No),
        (None, Node::Text(name)) => Ok(Resume::Named(name.clone())),
        _ => {
            let message = format!("expected True, False or the name of a checkpoint, found {node}");
            Err(top.error("resume_training", message))
        }
    }
}

fn read_sample(document: &Document, notes: &mut Notes) -> Result<Option<SampleConfig>> {
    if document.get("sample").is_none_or(Node::is_none) {
        return Ok(None);
    }
    let section = Section::open(document, "sample", &known_keys::SAMPLE, notes)?;
    Ok(Some(SampleConfig {
        prompt: section.or("prompt", String::new())?,
        tokens: section.or("tokens", 200)?,
        temperature: section
            .number("temperature", 0.8, "a number from 0", |temperature| temperature >= 0.0)?,
        seed: section.get("seed")?,
    }))
}

//! Every number of a run, decided and checked before anything is built.

use std::path::PathBuf;

use super::callbacks::CheckpointConfig;
use super::evaluation::EvalConfig;
use super::instruments::{self, Instruments};
use super::resolved;
use super::run::{Resume, RunConfig, SampleConfig};
use super::shape::{self, MAX_SIZE};
use crate::data::{self, BatchSpec, Codec, DataConfig, Dataset, Loader};
use crate::error::Result;
use crate::kernels::Tier;
use crate::model::config::ModelConfig;
use crate::model::groups::{Grouping, List};
use crate::model::parameters::{Gpt, UpdateRule};
use crate::train::optimizer::{GroupConfig, OptimizerConfig, OptimizerKind};
use crate::train::schedule::{Schedule, ScheduleConfig};

/// What a run does. Only its length is missing, which depends on the data: [`RunPlan::with_data`].
#[derive(Clone, Debug, PartialEq)]
pub struct RunPlan {
    /// Name of the run.
    pub name: String,
    /// The run's own folder, below `output_dir`.
    pub output_dir: PathBuf,
    /// Whether to continue a run.
    pub resume: Resume,
    /// Weights to start from.
    pub load_checkpoint: Option<PathBuf>,
    /// Seed of the weights and, where they name none, of the data order and the sample.
    pub seed: u64,
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// The model.
    pub model: ModelConfig,
    /// Windows in a micro-batch (B).
    pub batch_size: usize,
    /// Micro-batches in a step.
    pub gradient_accumulation_steps: usize,
    /// Tokens that all ranks together learn from in a step.
    pub tokens_per_step: usize,
    /// How often the data is gone through.
    pub epochs: u64,
    /// The run ends after this step; the schedule does not shrink with it.
    pub stop_step: Option<u64>,
    /// The optimizer and its settings.
    pub optimizer: OptimizerConfig,
    /// The learning rate, its length still open.
    pub schedule: ScheduleConfig,
    /// Parameters with a rate of their own, as numbered from 1.
    pub groups: Vec<GroupConfig>,
    /// Patterns of parameters that do not train.
    pub freeze: Vec<String>,
    /// Patterns of those among them that do.
    pub freeze_exclude: Vec<String>,
    /// Patterns of matrices without weight decay.
    pub no_decay_params: Vec<String>,
    /// Gradients are scaled down to this norm, if at all.
    pub clip: Option<f64>,
    /// The loss is multiplied by this before the backward pass.
    pub loss_scale: f64,
    /// Where the tokens come from.
    pub train_dataset: DataConfig,
    /// Where the tokens of evaluation come from, if not from the tail of the training data.
    pub eval_dataset: Option<DataConfig>,
    /// When to evaluate, if at all.
    pub eval: Option<EvalConfig>,
    /// When to write checkpoints, if at all.
    pub checkpoint: Option<CheckpointConfig>,
    /// What is shown of the experts.
    pub instruments: Instruments,
    /// A log line every so many steps.
    pub log_every: u64,
    /// Text to write at the end.
    pub sample: Option<SampleConfig>,
    /// Part of the name of the adapter to take.
    pub device_name: Option<String>,
    /// Which tier of kernels to take.
    pub tier: Option<Tier>,
    /// Upper limit of the device memory that the run takes, in bytes.
    pub max_device_memory: Option<u64>,
}

/// How long a run is, once its data is known.
#[derive(Clone, Debug, PartialEq)]
pub struct RunLength {
    /// Whole steps in an epoch.
    pub steps_per_epoch: u64,
    /// Steps that the run takes.
    pub total_steps: u64,
    /// The learning rate of every step.
    pub schedule: Schedule,
    /// Those of the groups of parameters that have one of their own.
    pub group_schedules: Vec<Schedule>,
}

impl RunPlan {
    /// Decides every number that does not depend on the data.
    ///
    /// # Errors
    /// If sizes do not fit together; the error names the key to change.
    pub fn resolve(config: &RunConfig) -> Result<Self> {
        Self::decide(config).map_err(|error| config.name_flag(error, |config| Self::decide(config).map(drop)))
    }

    fn decide(config: &RunConfig) -> Result<Self> {
        let model = shape::resolve(config)?;
        let runner = &config.runner;
        for (key, size) in [("epochs", runner.epochs), ("batch_size", runner.batch_size as u64)] {
            if size == 0 || size > MAX_SIZE as u64 {
                let message = format!("expected a whole number from 1 to {MAX_SIZE}, found `{size}`");
                return Err(config.error(&format!("runner_config.{key}"), message));
            }
        }
        let (batch_size, gradient_accumulation_steps, world) =
            (runner.batch_size, runner.gradient_accumulation_steps, 1);
        let tokens_per_step = [gradient_accumulation_steps, world, model.seq_length]
            .into_iter()
            .try_fold(batch_size, usize::checked_mul)
            .filter(|_| batch_size * model.seq_length <= MAX_SIZE);
        let Some(tokens_per_step) = tokens_per_step else {
            let message =
                format!("{batch_size} windows of {} tokens are too many; lower it", model.seq_length);
            return Err(config.error("runner_config.batch_size", message));
        };
        let plan = Self {
            name: config.run_name.clone(),
            output_dir: config.output_dir.join(&config.run_name),
            resume: config.resume_training.clone(),
            load_checkpoint: config.load_checkpoint.clone(),
            seed: config.seed,
            rank: 0,
            world,
            batch_size,
            gradient_accumulation_steps,
            tokens_per_step,
            epochs: runner.epochs,
            stop_step: Some(runner.stop_step).filter(|step| *step > 0),
            optimizer: config.optimizer.clone(),
            schedule: config.schedule.clone(),
            groups: config.groups.clone(),
            freeze: config.model.freeze.clone(),
            freeze_exclude: config.model.freeze_exclude.clone(),
            no_decay_params: config.no_decay_params.clone(),
            clip: config.wrapper.clip,
            loss_scale: config.wrapper.loss_scale,
            train_dataset: config.train_dataset.clone(),
            eval_dataset: config.eval_dataset.clone(),
            eval: config.eval.clone(),
            checkpoint: config.callbacks.checkpoint.clone(),
            instruments: instruments::resolve(config, &model)?,
            log_every: config.callbacks.log_every,
            sample: config.sample.clone(),
            device_name: config.context.device_name.clone(),
            tier: config.context.tier,
            max_device_memory: config.context.max_device_memory,
            model,
        };
        plan.grouping().apply(Gpt::describe(&plan.model)).map_err(|misfit| {
            let path = match misfit.list {
                List::Freeze => "model.model_config.freeze".to_string(),
                List::FreezeExclude => "model.model_config.freeze_exclude".to_string(),
                List::NoDecay => "no_decay_params".to_string(),
                List::Group(number) => format!("grouped_lr_schedule.grouped.{number}.params"),
            };
            config.error(&path, misfit.message)
        })?;
        Ok(plan)
    }

    /// How the parameters are sorted.
    pub fn grouping(&self) -> Grouping {
        Grouping {
            freeze: self.freeze.clone(),
            freeze_exclude: self.freeze_exclude.clone(),
            no_decay: self.no_decay_params.clone(),
            groups: self.groups.iter().map(|group| group.params.clone()).collect(),
            matrices: match self.optimizer.kind {
                OptimizerKind::Muon(_) => UpdateRule::Muon,
                _ => UpdateRule::AdamW,
            },
        }
    }

    /// The weight decay of a parameter group's matrices.
    pub fn weight_decay(&self, group: usize) -> f64 {
        let own = group.checked_sub(1).and_then(|number| self.groups.get(number)?.weight_decay);
        own.unwrap_or(self.optimizer.weight_decay)
    }

    /// How the data is dealt into batches.
    pub fn batch_spec(&self) -> BatchSpec {
        BatchSpec {
            seq_length: self.model.seq_length,
            batch_size: self.batch_size,
            gradient_accumulation_steps: self.gradient_accumulation_steps,
            vocab_size: self.model.vocab_size,
            ignore_id: self.model.ignore_id,
            sorts_positions: self.model.learns_positions(),
            ahead: self.model.multi_token.map_or(0, |multi_token| multi_token.depth),
            rank: self.rank,
            world: self.world,
        }
    }

    /// Whether attention must keep documents apart, in training or in evaluation.
    pub fn isolates_documents(&self) -> bool {
        let datasets = [Some(&self.train_dataset), self.eval_dataset.as_ref()];
        datasets.into_iter().flatten().any(|data| data.documents.isolates_documents)
    }

    /// Loads the data of the run.
    ///
    /// # Errors
    /// If a file is missing or broken, there is too little data for one step, or a token is outside the vocabulary.
    pub fn load_data(&self) -> Result<Dataset> {
        Dataset::load(&self.train_dataset, self.eval_dataset.as_ref(), &self.batch_spec(), self.seed)
    }

    /// Whether it is known what its tokens mean: text was encoded, a tokenizer is named, or tokens can only be bytes.
    pub fn has_text(&self) -> bool {
        let is_raw = matches!(self.train_dataset.loader, Loader::Tokens(_) | Loader::Megatron(_));
        !is_raw || self.train_dataset.tokenizer.is_some() || self.model.vocab_size <= 256
    }

    /// How its text becomes tokens, and tokens text.
    ///
    /// # Errors
    /// If the tokenizer cannot be read, or has more tokens than the model.
    pub fn codec(&self) -> Result<Codec> {
        data::codec(&self.train_dataset, self.model.vocab_size)
    }

    /// Decides the length of the run and of its schedule.
    ///
    /// The schedule spans `lr_schedule.total_steps` or, without it, all epochs: a `stop_step` ends the run early
    /// without changing the rates before it, so that a run stopped and resumed is the run that never stopped.
    pub fn with_data(&self, steps_per_epoch: u64) -> RunLength {
        let run_steps = self.epochs.saturating_mul(steps_per_epoch);
        RunLength {
            steps_per_epoch,
            total_steps: self.stop_step.map_or(run_steps, |stop| run_steps.min(stop)),
            schedule: self.schedule.resolve(run_steps, steps_per_epoch),
            group_schedules: self
                .groups
                .iter()
                .map(|group| group.schedule.resolve(run_steps, steps_per_epoch))
                .collect(),
        }
    }

    /// The plan as a configuration file: reading it gives the same plan.
    pub fn to_yaml(&self) -> String {
        resolved::to_yaml(self)
    }
}

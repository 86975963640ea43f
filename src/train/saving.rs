//! Saving a trainer into a run's folder and resuming from it. The program's own runs and an application's training loop
//! use the same functions.

use super::command::CommandLine;
use super::home::Home;
use super::resume::{Restored, fresh_state, open_folder, restore};
use super::trainer::Trainer;
use crate::data::{Batches, ChatForm};
use crate::error::{Error, Result};
use crate::ops::loss_scale::LossScaleState;
use crate::ops::step_state::StepState;
use crate::record::Tensor;
use crate::settings::{CheckpointMonitor, Dataset, RunPlan, Tokenizer};
use crate::store::Base;
use crate::store::arena_tensors::ReadRows;
use crate::store::checkpoint_folder::{CheckpointFolder, Keep};
use crate::store::model_assets::{ModelAssets, TextBy};
use crate::store::model_path::model_at;
use crate::store::run_folder::{RunFolder, Start};
use crate::store::trainer_state::TrainerState;
use crate::train::pretrained::base_of;
use std::path::{Path, PathBuf};
use std::time::Duration;

impl Trainer<'_> {
    /// Saves the training so far into `folder`, a run's folder, and returns the path of the checkpoint: weights,
    /// moments, loss scale and counters, with the configuration beside it, so that `gristmill generate`, `eval` and
    /// `export` read the folder like that of a run. `data` are the batches of training; [`resume`](Self::resume) checks
    /// by a sample that they are the same. The plan says how many checkpoints are kept and how they are named
    /// (`callbacks`). Waits for the device.
    ///
    /// Each trainer has one folder, and while the trainer lives no other process writes there.
    ///
    /// # Errors
    /// A folder with checkpoints that this trainer has not resumed from; a second folder; a disk or device that fails.
    ///
    /// # Examples
    ///
    /// Two runs of four steps equal one of eight:
    ///
    /// ```
    /// # use gristmill::data::{Batches, SampleCollector};
    /// use gristmill::error::Result;
    /// # use gristmill::prelude::*;
    /// use gristmill::settings::RunPlan;
    /// # use gristmill::train::Trainer;
    /// # use gristmill::train::length::RunLength;
    /// use std::path::Path;
    ///
    /// async fn train(gpu: &Gpu, plan: &RunPlan, data: &Batches, folder: &Path, last: u64) -> Result<f32> {
    ///     let length = RunLength::new(plan, data.steps_per_epoch());
    ///     let mut trainer = Trainer::new(gpu, plan, &length).await?;
    ///     let done = trainer.resume(folder, data).await?; // 0 in a folder without a checkpoint
    ///     let mut loss = f32::NAN;
    ///     for step in done + 1..=last {
    ///         trainer.step(step, data, step - 1).await?;
    ///         trainer.wait().await?;
    ///         loss = trainer.finished_steps()?.last().map_or(loss, |finished| finished.state.loss);
    ///     }
    ///     trainer.save(folder, data).await?;
    ///     Ok(loss)
    /// }
    /// # const CONFIG: &str = "
    /// # model:
    /// #   model_config: {type: LlamaConfig, vocab_size: 32, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: 8}
    /// # runner_config: {batch_size: 4, epochs: 2}
    /// # lr_schedule: {learning_rate: 1.0e-2}
    /// # ";
    /// # fn main() -> Result<()> {
    /// # pollster::block_on(async {
    /// # let plan = RunConfig::in_memory(CONFIG, &[])?.plan;
    /// # let mut samples = SampleCollector::default();
    /// # for first in 0..16 {
    /// #     samples.push(&Vec::from_iter(first..first + 8), &Vec::from_iter(first + 1..first + 9));
    /// # }
    /// # let data = Batches::of_sources(vec![samples.finish().into()], plan.batch_spec(), Some(1), None)?;
    /// # let gpu = Gpu::request(&GpuOptions::default()).await?;
    /// # let home = tempfile::tempdir().expect("a folder");
    /// # let [once, twice] = ["once", "twice"].map(|name| home.path().join(name));
    /// let loss = train(&gpu, &plan, &data, &once, 8).await?;
    /// train(&gpu, &plan, &data, &twice, 4).await?;
    /// assert_eq!(train(&gpu, &plan, &data, &twice, 8).await?, loss);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub async fn save(&mut self, folder: &Path, data: &Batches) -> Result<PathBuf> {
        let checkpoints = self.home(folder).await?;
        // Weights may have been read since the last step.
        self.refresh_magnitudes().await?;
        let state = self.state(data).await?;
        self.save_on_ranks(&state, &checkpoints).await?;
        Ok(checkpoints.path_of(state.step))
    }

    /// Continues from the newest checkpoint in `folder`, which [`save`](Self::save) or a run has written, and returns
    /// the number of steps done: the next step is one more. 0 if there is no checkpoint: then the trainer stays as it
    /// is, and `folder` need not exist yet.
    ///
    /// # Errors
    /// A checkpoint that is damaged, or of other data or settings, which are named; a trainer that has already saved or
    /// resumed; a folder that another process writes to; a device that fails.
    pub async fn resume(&mut self, folder: &Path, data: &Batches) -> Result<u64> {
        let ranks = self.ranks();
        if let Some(home) = &self.home {
            return Err(Error::file(
                home.folder.path(),
                "is this trainer's folder already; resume once, before the first step",
            ));
        }
        let is_begun = ranks.by_first(|| Ok(CheckpointFolder::of_run(folder).latest()?.is_some()));
        if !is_begun.await? {
            return Ok(0);
        }
        let yaml = self.plan.to_yaml();
        let folder = open_folder(&ranks, folder, &yaml, Start::Resume, &mut |_| {}).await?;
        let fresh = fresh_state(&self.plan, &self.length, data, None);
        let command = CommandLine::default();
        let Restored { state, base, .. } = restore(self, &ranks, &folder, (fresh, None), &command).await?;
        let (step, checkpoints) = (state.step, self.checkpoints(&folder, base));
        self.home = Some(Home { folder, checkpoints, restored: Some(state) });
        Ok(step)
    }

    /// The checkpoints in `folder`, which becomes this trainer's folder.
    async fn home(&mut self, folder: &Path) -> Result<CheckpointFolder> {
        if let Some(home) = &self.home {
            let own = home.folder.path();
            let message = || format!("is another folder than {}, where this trainer saves", own.display());
            return if own == folder {
                Ok(home.checkpoints.clone())
            } else {
                Err(Error::file(folder, message()))
            };
        }
        let ranks = self.ranks();
        ranks.by_first(|| {
            let found = CheckpointFolder::of_run(folder).latest()?;
            found.map_or(Ok(()), |(_, newest)| Err(Error::file(
                newest,
                "is a checkpoint that this trainer has not resumed from: call `resume` before the first step, or save into another folder",
            )))
        })
        .await?;
        // Files that a killed process has left there before its first checkpoint are replaced.
        let folder = open_folder(&ranks, folder, &self.plan.to_yaml(), Start::Again, &mut |_| {}).await?;
        let base = ranks.by_first(|| base_of(&self.plan)).await?;
        let checkpoints = self.checkpoints(&folder, base);
        self.home = Some(Home { folder, checkpoints: checkpoints.clone(), restored: None });
        Ok(checkpoints)
    }

    /// The state of the training, as a checkpoint has it.
    async fn state(&self, data: &Batches) -> Result<TrainerState> {
        let _ = self.wait().await; // a device that fails shows when it is read
        let tensors = &self.recordings.tensors;
        let state: StepState = self.read_state(tensors.state).await?;
        let step = u64::from(state.step);
        let mut saved = TrainerState {
            step,
            global_step: state.global_step.into(),
            micro_step: step * self.plan.micro_batches_per_step() as u64,
            ..fresh_state(&self.plan, &self.length, data, None)
        };
        if let Some(before) = self.home.as_ref().and_then(|home| home.restored.as_ref()) {
            (saved.best, saved.evaluations_since) = (before.best, before.evaluations_since);
            (saved.data_hash, saved.eval_data_hash) = (before.data_hash, before.eval_data_hash);
        }
        if let Some(scaler) = tensors.scaler.filter(|_| step > 0) {
            let scaler: LossScaleState = self.read_state(scaler.state).await?;
            saved.loss_scale = scaler.loss_scale.into();
            saved.scaler = Some(scaler);
        }
        Ok(saved)
    }

    async fn read_state<S: bytemuck::Pod + Send>(&self, tensor: Tensor) -> Result<S> {
        let mut state = S::zeroed();
        let mut take = |row: &[u8]| {
            state = bytemuck::pod_read_unaligned(row);
            Ok(())
        };
        self.read_rows(tensor, &mut take).await?;
        Ok(state)
    }

    /// The checkpoints of `folder`, named, kept and accompanied as the plan says; `base` is the base of its adapters.
    pub(super) fn checkpoints(&self, folder: &RunFolder, base: Option<Base>) -> CheckpointFolder {
        let kept = |keep: Keep| {
            let checkpoints = folder.checkpoints(keep).with_meta(self.length.steps_per_epoch);
            checkpoints.with_beside(model_assets(&self.plan).on(base.clone()))
        };
        let Some(config) = &self.plan.settings.callbacks.checkpoint else { return kept(Keep::All) };
        kept(keep(config)).with_prefix(config.prefix())
    }
}

fn keep(config: &CheckpointMonitor) -> Keep {
    let stretch = Duration::from_secs(config.keep_checkpoint_per_n_minutes.saturating_mul(60));
    match config.keep_checkpoint_max {
        0 if stretch > Duration::ZERO => Keep::OnePer(stretch),
        0 => Keep::All,
        count => Keep::Newest(count as usize),
    }
}

/// The files that a checkpoint of `plan` has beside its weights.
fn model_assets(plan: &RunPlan) -> ModelAssets {
    let Dataset { keys, loader, .. } = &plan.settings.train_dataset;
    let by = match &keys.tokenizer {
        Some(Tokenizer { tokenizer_file, eos_token }) => {
            TextBy::Tokenizer(Path::new(tokenizer_file), eos_token)
        }
        None if loader.has_bytes() && plan.model.vocab_size >= 256 => TextBy::Bytes(loader.end_byte()),
        None => TextBy::Nothing,
    };
    let weights =
        plan.settings.run.weights().map(|path| model_at(path).unwrap_or_else(|_| path.to_path_buf()));
    let chat = plan.conversations();
    let template = chat.as_ref().and_then(|form| form.template.as_deref());
    let stops = chat.as_ref().map_or_else(Vec::new, |form| stops(form, plan));
    ModelAssets::of(by, weights.as_deref()).with_template(template).stopping_at(stops)
}

/// The tokens at which a model that learns conversations stops: at the end of a turn, and at the end of a text.
fn stops(form: &ChatForm, plan: &RunPlan) -> Vec<u32> {
    // A broken tokenizer is reported where the data are read.
    let Ok(codec) = plan.codec() else { return Vec::new() };
    let turn = form.stops(&codec).unwrap_or_default();
    if turn.is_empty() { turn } else { turn.into_iter().chain(codec.eod().ok()).collect() }
}

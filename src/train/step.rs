//! A step, from its micro-batches to the results that the host reads; and an evaluation, which only makes forward
//! passes.
//!
//! ```text
//! for each micro-batch   upload its ids, refresh the copies of weights, replay micro_step: gradients are added up;
//!                        with several ranks they are summed while the last one is computed
//! update                 norm, clipping, loss scale, optimizer; then the copies of weights and what is watched
//! readback               the state of the step, on its way to the host while the next one begins
//! ```
//!
//! All of it is submitted without waiting for the device, and its results are collected later.

use super::monitors::SumCopy;
use super::trainer::Trainer;
use crate::data::Batches;
use crate::device::{Encoder, Exchanges, Program};
use crate::error::{Error, Result};
use crate::model::PairTensors;
use crate::perf::profile::Profile;
use crate::record::PersistentId;
use crate::train::step_results::{FinishedEvaluation, FinishedStep};
use std::sync::atomic::Ordering;

/// The errors of batches that are not those of a run with `preference`.
const NO_PAIRS: &str =
    "`preference` learns from pairs of answers, and these batches have none: make them of `Samples::paired`";
const NO_REFERENCES: &str = "the log-probabilities of these pairs under the reference are not known: call \
    `Trainer::set_references` before the first step";

/// Steps after which programs are cut into submissions once more: by then a GPU runs at its working clocks.
const MEASURED_AFTER: u64 = 20;

impl Trainer<'_> {
    /// Submits step number `step` (from 1) on the micro-batches from `first_micro_step` on, counted in those of this
    /// rank: step s of a run starts at (s - 1) · micro-batches per step. Learning rates are those of the length that
    /// the trainer was made for.
    ///
    /// Read results with [`finished_steps`](Self::finished_steps) after every step; after the last step, call
    /// [`wait`](Self::wait) first.
    ///
    /// # Errors
    /// A token outside the vocabulary; steps whose results nobody has read; a device that fails; a rank that has ended.
    pub async fn step(&mut self, step: u64, data: &Batches, first_micro_step: u64) -> Result<()> {
        self.micro_steps(data, first_micro_step).await?;
        self.update(step).await
    }

    /// [`step`](Self::step) with its launches timed into `profile`, which is returned: each launch has a pass of its
    /// own, and the host waits for their times.
    ///
    /// # Errors
    /// As [`step`](Self::step); several ranks; an adapter without timestamps.
    pub async fn profiled_step(
        &mut self,
        step: u64,
        data: &Batches,
        first_micro_step: u64,
        mut profile: Profile,
    ) -> Result<Profile> {
        profile.steps += 1;
        self.profile = Some(profile);
        let stepped = self.step(step, data, first_micro_step).await;
        let profile = self.profile.take();
        stepped.map(|()| profile.expect("nothing else takes it"))
    }

    /// The first half of a step, the gradients: afterwards the arena holds the gradients of the scaled mean loss.
    ///
    /// # Errors
    /// A token outside the vocabulary; a device that fails; a rank that has ended.
    pub async fn micro_steps(&mut self, data: &Batches, first_micro_step: u64) -> Result<()> {
        if !self.recordings.turns.is_empty() {
            return self.stage_micro_steps(data, first_micro_step).await;
        }
        let (program, batch) = (self.programs.micro_steps[0][0], self.ids.batches[0][0]);
        for micro_step in 0..self.gradient_accumulation_steps {
            let mut encoder = self.gpu.encoder();
            if micro_step == 0 {
                self.ids.step.iter().for_each(|&id| encoder.clear(&self.buffers, id));
            }
            let is_last = micro_step + 1 == self.gradient_accumulation_steps;
            let exchanges = if is_last { Exchanges::All } else { Exchanges::OfEveryMicroBatch };
            self.upload(&mut encoder, data, first_micro_step + micro_step, batch).await?;
            self.replay(&mut encoder, program, exchanges).await?;
            self.copy_losses(&mut encoder, 0, micro_step);
            encoder.submit().await?;
            self.uploads.recycle(self.gpu);
        }
        Ok(())
    }

    /// The second half of step number `step`: norm, loss scale and optimizer, on the gradients in the arena.
    ///
    /// # Errors
    /// A device that fails; a rank that has ended.
    pub async fn update(&mut self, step: u64) -> Result<()> {
        let mut encoder = self.gpu.encoder();
        self.replay(&mut encoder, self.programs.update, Exchanges::All).await?;
        self.copy_weights(&mut encoder).await?;
        for program in self.recordings.monitors.due(step, &self.programs) {
            self.replay(&mut encoder, program, Exchanges::All).await?;
        }
        self.steps.copy(&mut encoder, step, &self.buffers)?;
        encoder.submit().await?;
        self.steps.request(self.gpu);
        self.steps_done += 1;
        if self.steps_done == MEASURED_AFTER {
            self.prepared.programs.iter().for_each(Program::measure_again);
        }
        Ok(())
    }

    /// The steps that have finished since the last call, oldest first. Never blocks.
    ///
    /// # Errors
    /// A device that fails.
    pub fn finished_steps(&mut self) -> Result<Vec<FinishedStep>> {
        let arrived = self.steps.collect(self.gpu)?;
        Ok(arrived.into_iter().map(|arrival| self.step_readback.read(arrival)).collect())
    }

    /// Submits an evaluation over the first `batches` micro-batches of `data`; `tag` is returned with its loss.
    /// `between` is called after each micro-batch and can collect the steps that finish meanwhile.
    ///
    /// # Errors
    /// As [`step`](Self::step), and errors of `between`.
    pub async fn evaluate(
        &mut self,
        tag: u64,
        data: &Batches,
        batches: u64,
        mut between: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let mut encoder = self.gpu.encoder();
        self.ids.evaluation.iter().for_each(|&id| encoder.clear(&self.buffers, id));
        encoder.submit().await?;
        match self.recordings.turns.is_empty() {
            true => self.evaluate_batches(data, batches, &mut between).await?,
            false => self.evaluate_on_stage(data, batches, &mut between).await?,
        }
        let mut encoder = self.gpu.encoder();
        if let Some(sum) = self.programs.sum_evaluation {
            self.replay(&mut encoder, sum, Exchanges::All).await?;
        }
        self.evaluations.copy(&mut encoder, tag, &self.buffers)?;
        encoder.submit().await?;
        self.evaluations.request(self.gpu);
        between(self)
    }

    /// Forward and loss of the first `batches` micro-batches of `data`.
    async fn evaluate_batches(
        &mut self,
        data: &Batches,
        batches: u64,
        between: &mut impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        for micro_step in 0..batches {
            let mut encoder = self.gpu.encoder();
            self.upload(&mut encoder, data, micro_step, self.ids.batches[0][0]).await?;
            self.replay(&mut encoder, self.programs.evals[0], Exchanges::All).await?;
            encoder.submit().await?;
            self.uploads.recycle(self.gpu);
            between(self)?;
        }
        Ok(())
    }

    /// The evaluations that have finished since the last call, oldest first. Never blocks.
    ///
    /// # Errors
    /// A device that fails.
    pub fn finished_evaluations(&mut self) -> Result<Vec<FinishedEvaluation>> {
        let arrived = self.evaluations.collect(self.gpu)?;
        Ok(arrived.into_iter().map(|arrival| self.evaluation_readback.read(arrival)).collect())
    }

    /// Makes the copies of weights that layers read, and the norms that magnitudes start from, if weights have been
    /// written since the last time.
    pub(super) async fn refresh_copies(&mut self) -> Result<()> {
        let mut encoder = self.gpu.encoder();
        self.refresh_on(&mut encoder).await?;
        encoder.submit().await.map(drop)
    }

    /// Writes the norms that magnitudes start from, if weights have been written since the last time.
    pub(super) async fn refresh_magnitudes(&mut self) -> Result<()> {
        let mut encoder = self.gpu.encoder();
        self.magnitudes_on(&mut encoder).await?;
        encoder.submit().await.map(drop)
    }

    async fn magnitudes_on(&mut self, encoder: &mut Encoder<'_>) -> Result<()> {
        let is_stale = self.has_stale_magnitudes.swap(false, Ordering::Relaxed);
        match self.programs.magnitudes.filter(|_| is_stale) {
            Some(norms) => self.replay(encoder, norms, Exchanges::All).await,
            None => Ok(()),
        }
    }

    async fn refresh_on(&mut self, encoder: &mut Encoder<'_>) -> Result<()> {
        self.magnitudes_on(encoder).await?;
        match self.has_stale_copies.swap(false, Ordering::Relaxed) {
            true => self.copy_weights(encoder).await,
            false => Ok(()),
        }
    }

    /// Makes the copies of weights that layers read, if there are any.
    async fn copy_weights(&mut self, encoder: &mut Encoder<'_>) -> Result<()> {
        match self.programs.copy {
            Some(copy) => self.replay(encoder, copy, Exchanges::All).await,
            None => Ok(()),
        }
    }

    /// Copies the running losses for the monitors, after the forward pass of micro-batch number `micro_step` of a step
    /// through a chunk.
    pub(super) fn copy_losses(&self, encoder: &mut Encoder<'_>, chunk: usize, micro_step: u64) {
        let losses = self.recordings.monitors.losses.iter();
        for (SumCopy { from, to, bytes }, into) in losses.flat_map(|losses| losses.copies(chunk, micro_step))
        {
            encoder.copy_within(&self.buffers, from, (into, to), bytes);
        }
    }

    /// Uploads micro-batch number `micro_step` of `data` to one of the device's batch buffers, in their layout.
    pub(super) async fn upload(
        &mut self,
        encoder: &mut Encoder<'_>,
        data: &Batches,
        micro_step: u64,
        batch: PersistentId,
    ) -> Result<()> {
        data.fill(micro_step, &mut self.batch)?;
        if let Some(PairTensors { references, .. }) = self.recordings.tensors.batch.pairs {
            if self.batch.pairs.is_empty() {
                return Err(Error::Plan(NO_PAIRS.to_string()));
            }
            if references.is_some() && self.batch.references.is_empty() && !self.computes_references {
                return Err(Error::Plan(NO_REFERENCES.to_string()));
            }
        }
        // The buffers of micro-batches under way are laid out alike.
        self.recordings.tensors.batch.for_each(&self.batch, |offset, ids| {
            self.staged[offset as usize..][..4 * ids.len()].copy_from_slice(bytemuck::cast_slice(ids));
        });
        self.uploads.upload(self.gpu, encoder, &self.staged, &self.buffers, batch).await?;
        self.refresh_on(encoder).await
    }

    /// Replays a program with its exchanges, if it has any.
    pub(super) async fn replay(
        &mut self,
        encoder: &mut Encoder<'_>,
        program: usize,
        exchanges: Exchanges,
    ) -> Result<()> {
        let prepared = &self.prepared.programs[program];
        if let Some(profile) = &mut self.profile {
            let times = encoder.replay_timed(prepared).await?;
            profile.add(prepared.name(), &times);
            return Ok(());
        }
        encoder.replay_exchanging(prepared, &mut self.exchanger, exchanges).await
    }
}

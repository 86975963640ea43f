//! The replays of a trainer, with the exchanges among ranks that belong to them.

use super::batch_arrays::batch_stride;
use super::monitors::SumCopy;
use super::trainer::Trainer;
use crate::data::Batches;
use crate::device::{Encoder, Exchanges};
use crate::error::Result;
use std::sync::atomic::Ordering;

impl Trainer<'_> {
    /// Makes the copies of weights that layers read, if weights were written since.
    pub(super) async fn refresh_copies(&mut self) -> Result<()> {
        let mut encoder = self.gpu.encoder();
        self.refresh_on(&mut encoder).await?;
        encoder.submit().await.map(drop)
    }

    async fn refresh_on(&mut self, encoder: &mut Encoder<'_>) -> Result<()> {
        match self.has_stale_copies.swap(false, Ordering::Relaxed) {
            true => self.copy_weights(encoder).await,
            false => Ok(()),
        }
    }

    /// Makes the copies of weights that layers read, if there are any.
    pub(super) async fn copy_weights(&mut self, encoder: &mut Encoder<'_>) -> Result<()> {
        match self.recordings.index_of(self.recordings.copy.as_ref()) {
            Some(copy) => self.replay(encoder, copy, Exchanges::All).await,
            None => Ok(()),
        }
    }

    /// Keeps the losses so far for the monitors, after micro-batch number `micro_step` of a step.
    pub(super) fn copy_losses(&self, encoder: &mut Encoder<'_>, micro_step: u64) {
        let losses = self.recordings.monitors.losses.iter();
        for (SumCopy { from, to, bytes }, into) in losses.flat_map(|losses| losses.copies(micro_step)) {
            encoder.copy_within(&self.buffers, from, (into, to), bytes);
        }
    }

    /// Computes what is watched after the update of `step`, if that is due.
    pub(super) async fn replay_monitors(&mut self, encoder: &mut Encoder<'_>, step: u64) -> Result<()> {
        let due = self.recordings.monitors.due(step);
        let due: Vec<usize> = due.filter_map(|one| self.recordings.index_of(Some(one))).collect();
        for program in due {
            self.replay(encoder, program, Exchanges::All).await?;
        }
        Ok(())
    }

    /// Replays a program with its exchanges, if it has some.
    pub(super) async fn replay(
        &mut self,
        encoder: &mut Encoder<'_>,
        program: usize,
        exchanges: Exchanges,
    ) -> Result<()> {
        encoder.replay_exchanging(&self.prepared.programs[program], &mut self.exchanger, exchanges).await
    }

    /// Uploads micro-batch number `micro_step` of `data`, laid out as the device's batch buffer, and replays `program`.
    pub(super) async fn replay_on(
        &mut self,
        encoder: &mut Encoder<'_>,
        program: usize,
        exchanges: Exchanges,
        data: &Batches,
        micro_step: u64,
    ) -> Result<()> {
        data.fill(micro_step, &mut self.batch)?;
        let stride = batch_stride(self.batch.tokens.len() as u32) as usize;
        let arrays = self.recordings.batch_arrays.list(&self.batch);
        for (slot, ids) in self.staged.chunks_exact_mut(stride).zip(arrays) {
            slot[..4 * ids.len()].copy_from_slice(bytemuck::cast_slice(ids));
        }
        self.uploads.upload(self.gpu, encoder, &self.staged, &self.buffers, self.ids.batch).await?;
        self.refresh_on(encoder).await?;
        self.replay(encoder, program, exchanges).await
    }
}

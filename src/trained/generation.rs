//! The model of a run, to write text with.

use super::opened::TrainedRun;
use crate::device::Gpu;
use crate::error::Result;
use crate::train::saved::{PlannedModel, TrainedModel};

/// Tokens of the shortest window that is tried where a longer one does not fit.
const SHORTEST: usize = 256;

impl<'gpu> TrainedModel<'gpu> {
    /// Loads the weights of `run` onto `gpu`, with caches for `sequences` texts of up to `window` tokens each.
    ///
    /// # Errors
    /// A checkpoint that does not fit the model or cannot be read; a model or cache too large for the adapter.
    pub async fn load(gpu: &'gpu Gpu, run: &TrainedRun, sequences: u32, window: usize) -> Result<Self> {
        let model = &run.plan.model.with_window(window);
        PlannedModel::new(gpu, model, sequences)?.load(run.saved(model)).await
    }

    /// The same with as many of `window` tokens as the caches have room for, and their number: half, or half of that, and so on, but
    /// no fewer than 256.
    ///
    /// # Errors
    /// Those of [`load`](Self::load), where the shortest window does not fit either.
    pub async fn load_fitting(
        gpu: &'gpu Gpu,
        run: &TrainedRun,
        sequences: u32,
        window: usize,
    ) -> Result<(Self, usize)> {
        let memory = gpu.report().memory_bytes;
        let fits = |window: usize| {
            let planned = PlannedModel::new(gpu, &run.plan.model.with_window(window), sequences);
            planned.is_ok_and(|planned| memory.is_none_or(|memory| planned.bytes() <= memory - memory / 10))
        };
        let mut fitting = window;
        while fitting > SHORTEST && !fits(fitting) {
            fitting = (fitting / 2).max(SHORTEST);
        }
        Ok((Self::load(gpu, run, sequences, fitting).await?, fitting))
    }
}

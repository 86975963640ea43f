//! The model of a run, to write text with.

use super::opened::TrainedRun;
use crate::device::Gpu;
use crate::error::Result;
use crate::train::saved::{PlannedModel, TrainedModel};

impl<'gpu> TrainedModel<'gpu> {
    /// Loads the weights of `run` onto `gpu`, with caches for `sequences` texts of one window each.
    ///
    /// # Errors
    /// A checkpoint that does not fit the model or cannot be read; a model or cache too large for the adapter.
    pub async fn load(gpu: &'gpu Gpu, run: &TrainedRun, sequences: u32) -> Result<Self> {
        let model = &run.plan.model;
        PlannedModel::new(gpu, model, sequences)?.load(run.saved(model)).await
    }
}

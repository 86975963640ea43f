//! A trained model that continues prompts.

use super::opened::TrainedRun;
use crate::device::Gpu;
use crate::error::Result;
use crate::generate::Settings;
use crate::train::saved::SavedModel;
use std::ops::ControlFlow;

/// A model on a device, ready to continue a fixed number of prompts at once.
pub struct TrainedModel<'gpu>(SavedModel<'gpu>);

impl<'gpu> TrainedModel<'gpu> {
    /// Loads the weights of `run` onto `gpu`, with caches for `sequences` texts of one window each.
    ///
    /// # Errors
    /// A checkpoint that does not fit the model or cannot be read; a model or cache too large for the adapter.
    pub async fn load(gpu: &'gpu Gpu, run: &TrainedRun, sequences: u32) -> Result<Self> {
        SavedModel::load(gpu, run.saved(&run.plan.model), sequences).await.map(Self)
    }

    /// Continues the prompts, as many as the model was loaded for; see [`Generator::generate`](crate::generate::Generator::generate).
    /// What they share with those of the call before and their continuations is not computed again.
    ///
    /// # Errors
    /// A device that fails.
    pub async fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        settings: &Settings,
        on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<u32>>> {
        self.0.generate(prompts, settings, on_token).await
    }
}

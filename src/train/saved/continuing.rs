//! A trained model that continues prompts.

use super::{Loading, OnDevice, Saved};
use crate::device::Gpu;
use crate::error::{Error, Result};
use crate::generate::{GeneratePrograms, GenerateRecordings, Generator, Settings};
use crate::train::limits::check_binding;
use std::ops::ControlFlow;

const FEWER_PROMPTS: &str = "continue fewer prompts at once";

/// A model on a device, ready to continue a fixed number of prompts at once.
pub struct TrainedModel<'gpu> {
    on_device: OnDevice<'gpu>,
    recordings: GenerateRecordings,
    cached: Vec<Vec<u32>>,
}

impl<'gpu> TrainedModel<'gpu> {
    /// Loads what is `saved` onto `gpu`, with caches for `sequences` texts of one window each.
    ///
    /// # Errors
    /// A checkpoint that does not fit the model or cannot be read; a model or cache too large for the adapter.
    pub(crate) async fn of(gpu: &'gpu Gpu, saved: Saved<'_>, sequences: u32) -> Result<Self> {
        let (config, capabilities) = (saved.model, gpu.capabilities());
        let bytes = GenerateRecordings::largest_tensor(config, sequences);
        let what = format!("a tensor of {sequences} sequences takes");
        check_binding(bytes, &capabilities, what, FEWER_PROMPTS)?;
        let mut loading = Loading::new(gpu, config, sequences * config.seq_length as u32)?;
        let (gpt, buffers) = (loading.model(config), loading.model_buffers);
        let persistents = &mut loading.persistents;
        let recordings = GenerateRecordings::new(persistents, &gpt, config, buffers, sequences, capabilities)
            .map_err(|error| Error::Plan(format!("{error}; {FEWER_PROMPTS}")))?;
        let GeneratePrograms { prefill, step, draw } = &recordings.programs;
        let drawn = recordings.draws.drawn;
        let on_device = loading.finish(gpu, saved, &[prefill, step, draw], drawn).await?;
        Ok(Self { on_device, recordings, cached: Vec::new() })
    }

    /// Continues the prompts, as many as the model was loaded for; see [`Generator::generate`]. What they share with those of the
    /// call before and their continuations is not computed again.
    ///
    /// # Errors
    /// A device that fails.
    pub async fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        settings: &Settings,
        on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<u32>>> {
        let OnDevice { gpu, buffers, prepared, reader } = &self.on_device;
        let (recordings, cached) = (&self.recordings, &mut self.cached);
        let programs = GeneratePrograms { prefill: 0, step: 1, draw: 2 };
        let mut generator = Generator { gpu, buffers, prepared, programs, recordings, reader, cached };
        generator.generate(prompts, settings, on_token).await
    }
}

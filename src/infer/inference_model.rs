//! A trained model that continues prompts.

use super::on_device::{Loading, OnDevice, SavedModel};
use super::opened_model::OpenedModel;
use crate::device::Gpu;
use crate::error::Result;
use crate::infer::{GeneratePrograms, GenerateRecordings, GenerationSettings, Generator};
use crate::model::config::ModelConfig;
use crate::perf::limits::{check_binding, check_turns, misfit_of_loaded, most_tokens};
use std::ops::ControlFlow;

const FEWER_PROMPTS: &str = "continue fewer prompts at once, or shorter texts (--context)";

/// Tokens of the shortest window to try if longer ones do not fit.
const SHORTEST: usize = 256;

/// A model for a fixed number of prompts, of which nothing is on the device yet.
pub(crate) struct PlannedModel<'gpu> {
    gpu: &'gpu Gpu,
    loading: Loading,
    recordings: GenerateRecordings,
}

/// A model on a device, ready to continue a fixed number of prompts at once.
pub struct InferenceModel<'gpu> {
    on_device: OnDevice<'gpu>,
    recordings: GenerateRecordings,
    cached: Vec<Vec<u32>>,
}

impl<'gpu> PlannedModel<'gpu> {
    /// The model of `config` on `gpu`, with caches for `sequences` texts of one window each.
    ///
    /// # Errors
    /// A model or cache too large for the adapter.
    pub fn new(gpu: &'gpu Gpu, config: &ModelConfig, sequences: u32) -> Result<Self> {
        let capabilities = gpu.capabilities();
        check_turns(config.seq_length, &capabilities, "shorten the texts (--context)")?;
        let bytes = GenerateRecordings::largest_tensor(config, sequences);
        let what = format!("a tensor of {sequences} sequences takes");
        check_binding(bytes, &capabilities, what, FEWER_PROMPTS)?;
        let mut loading = Loading::new(gpu, config, sequences * config.seq_length as u32)?;
        let (gpt, buffers) = (loading.model(config), loading.model_buffers);
        let persistents = &mut loading.persistents;
        let recordings = GenerateRecordings::new(persistents, &gpt, config, buffers, sequences, capabilities)
            .map_err(|error| misfit_of_loaded(error, FEWER_PROMPTS))?;
        Ok(Self { gpu, loading, recordings })
    }

    /// Bytes of device memory that the model will take.
    pub fn bytes(&self) -> u64 {
        let GeneratePrograms { prefill, step, draw } = &self.recordings.programs;
        self.loading.bytes(&[prefill, step, draw], self.recordings.draws.drawn)
    }

    /// Loads the weights of the model from `saved`.
    ///
    /// # Errors
    /// A checkpoint that does not fit the model or cannot be read; a device that fails or has too little memory.
    pub async fn load(self, saved: SavedModel<'_>) -> Result<InferenceModel<'gpu>> {
        let Self { gpu, loading, recordings } = self;
        let GeneratePrograms { prefill, step, draw } = &recordings.programs;
        let drawn = recordings.draws.drawn;
        let on_device = loading.finish(gpu, saved, &[prefill, step, draw], drawn, FEWER_PROMPTS).await?;
        Ok(InferenceModel { on_device, recordings, cached: Vec::new() })
    }
}

impl<'gpu> InferenceModel<'gpu> {
    /// Loads the weights of `run` onto `gpu`, with caches for `sequences` texts of up to `window` tokens each.
    ///
    /// # Errors
    /// A checkpoint that does not fit the model or cannot be read; a model or cache too large for the adapter.
    pub async fn load(gpu: &'gpu Gpu, run: &OpenedModel, sequences: u32, window: usize) -> Result<Self> {
        let model = &run.plan.model.with_window(window);
        PlannedModel::new(gpu, model, sequences)?.load(run.saved(model)).await
    }

    /// Loads the model with the largest window that its caches have room for, of `window` tokens, half of that, and so
    /// on, but no fewer than 256 tokens. Also returns that window.
    ///
    /// # Errors
    /// As [`load`](Self::load), if the shortest window does not fit either.
    pub async fn load_fitting(
        gpu: &'gpu Gpu,
        run: &OpenedModel,
        sequences: u32,
        window: usize,
    ) -> Result<(Self, usize)> {
        let memory = gpu.report().memory_bytes;
        let fits = |window: usize| {
            let planned = PlannedModel::new(gpu, &run.plan.model.with_window(window), sequences);
            planned.is_ok_and(|planned| memory.is_none_or(|memory| planned.bytes() <= memory - memory / 10))
        };
        let mut fitting = window.min(most_tokens(&gpu.capabilities()));
        while fitting > SHORTEST && !fits(fitting) {
            fitting = (fitting / 2).max(SHORTEST);
        }
        Ok((Self::load(gpu, run, sequences, fitting).await?, fitting))
    }
}

impl InferenceModel<'_> {
    /// Continues the prompts, as many as the model was loaded for; see [`Generator::generate`]. Tokens that they share
    /// with the prompts and continuations of the previous call are not computed again.
    ///
    /// # Errors
    /// A device that fails.
    pub async fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        settings: &GenerationSettings,
        on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<u32>>> {
        let OnDevice { gpu, buffers, prepared, reader } = &self.on_device;
        let (recordings, cached) = (&self.recordings, &mut self.cached);
        let programs = GeneratePrograms { prefill: 0, step: 1, draw: 2 };
        let mut generator = Generator { gpu, buffers, prepared, programs, recordings, reader, cached };
        generator.generate(prompts, settings, on_token).await
    }
}

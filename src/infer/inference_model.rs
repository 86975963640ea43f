//! A trained model that continues prompts.

use super::on_device::{Loading, OnDevice, SavedModel};
use super::opened_model::OpenedModel;
use crate::device::Gpu;
use crate::error::Result;
use crate::infer::{CachedText, GeneratePrograms, GenerateRecordings, GenerationSettings, Generator};
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
    programs: GeneratePrograms<usize>,
    cached: Vec<CachedText>,
}

impl<'gpu> PlannedModel<'gpu> {
    /// The model of `config` on `gpu`, with caches for `sequences` texts of one window each, of which it reads the
    /// first tokens in one of `passes`.
    ///
    /// # Errors
    /// A model or cache too large for the adapter.
    pub fn new(gpu: &'gpu Gpu, config: &ModelConfig, sequences: u32, passes: &[u32]) -> Result<Self> {
        let capabilities = gpu.capabilities();
        check_turns(config.seq_length, &capabilities, "shorten the texts (--context)")?;
        let longest = passes.iter().copied().max().unwrap_or(0);
        let bytes = GenerateRecordings::largest_tensor(config, sequences, longest);
        let what = format!("a tensor of {sequences} sequences takes");
        check_binding(bytes, &capabilities, what, FEWER_PROMPTS)?;
        let mut loading = Loading::new(gpu, config, sequences * config.seq_length as u32)?;
        let (gpt, buffers) = (loading.model(config), loading.model_buffers);
        let persistents = &mut loading.persistents;
        let recordings =
            GenerateRecordings::new(persistents, &gpt, config, buffers, sequences, passes, capabilities)
                .map_err(|error| misfit_of_loaded(error, FEWER_PROMPTS))?;
        Ok(Self { gpu, loading, recordings })
    }

    /// Bytes of device memory that the model will take.
    pub fn bytes(&self) -> u64 {
        self.loading.bytes(&self.recordings.programs.as_ref().all(), self.recordings.draws.drawn)
    }

    /// Loads the weights of the model from `saved`.
    ///
    /// # Errors
    /// A checkpoint that does not fit the model or cannot be read; a device that fails or has too little memory.
    pub async fn load(self, saved: SavedModel<'_>) -> Result<InferenceModel<'gpu>> {
        let Self { gpu, loading, recordings } = self;
        let all = recordings.programs.as_ref().all();
        let on_device = loading.finish(gpu, saved, &all, recordings.draws.drawn, FEWER_PROMPTS).await?;
        let mut places = 0..;
        let programs = recordings.programs.as_ref().map(|_| places.next().unwrap_or(0));
        Ok(InferenceModel { on_device, recordings, programs, cached: Vec::new() })
    }
}

impl<'gpu> InferenceModel<'gpu> {
    /// Loads the weights of `run` onto `gpu`, with caches for `sequences` texts of up to `window` tokens each.
    ///
    /// # Errors
    /// A checkpoint that does not fit the model or cannot be read; a model or cache too large for the adapter.
    pub async fn load(gpu: &'gpu Gpu, run: &OpenedModel, sequences: u32, window: usize) -> Result<Self> {
        let model = &model_for(run, window);
        let passes = GenerateRecordings::halves(model.seq_length as u32);
        PlannedModel::new(gpu, model, sequences, &passes)?.load(run.saved(model)).await
    }

    /// Loads the model with the largest window that its caches have room for, of `window` tokens, half of that, and so
    /// on, but no fewer than 256 tokens. Also returns that window. If texts of `window` tokens have prompts of `longest`
    /// tokens at most, nothing is planned for longer ones.
    ///
    /// # Errors
    /// As [`load`](Self::load), if the shortest window does not fit either.
    pub async fn load_fitting(
        gpu: &'gpu Gpu,
        run: &OpenedModel,
        sequences: u32,
        window: usize,
        longest: Option<usize>,
    ) -> Result<(Self, usize)> {
        let memory = gpu.report().memory_bytes;
        let plan = |tokens: usize| {
            let model = model_for(run, tokens);
            let passes = match longest {
                Some(longest) if tokens == window => vec![longest as u32],
                _ => GenerateRecordings::halves(model.seq_length as u32),
            };
            (PlannedModel::new(gpu, &model, sequences, &passes), model)
        };
        let fits = |planned: &Result<PlannedModel<'_>>| {
            let fits = |planned: &PlannedModel<'_>| memory.is_none_or(|of| planned.bytes() <= of - of / 10);
            planned.as_ref().is_ok_and(fits)
        };
        let mut fitting = window.min(most_tokens(&gpu.capabilities()));
        let (mut planned, mut model) = plan(fitting);
        while fitting > SHORTEST && !fits(&planned) {
            fitting = (fitting / 2).max(SHORTEST);
            (planned, model) = plan(fitting);
        }
        Ok((planned?.load(run.saved(&model)).await?, fitting))
    }
}

/// The model of `run` for texts of up to `tokens` tokens, or of as many as it reads.
fn model_for(run: &OpenedModel, tokens: usize) -> ModelConfig {
    let model = &run.plan.model;
    model.for_texts_of(tokens.min(model.longest_text()))
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
        let (recordings, programs, cached) = (&self.recordings, &self.programs, &mut self.cached);
        let mut generator = Generator { gpu, buffers, prepared, programs, recordings, reader, cached };
        generator.generate(prompts, settings, on_token).await
    }
}

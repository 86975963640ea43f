//! The sample: text that the model writes at the end of a run.

use super::trainer::Trainer;
use crate::data::Codec;
use crate::error::{Error, Result};
use crate::infer::inference_model::PlannedModel;
use crate::infer::on_device::SavedModel;
use crate::infer::{GenerationSettings, Generator, Sampling, prompt_tokens};
use crate::perf::forecast::Forecast;
use crate::perf::memory_budget::Beside;
use crate::settings::{RunPlan, Sample};
use std::ops::ControlFlow;
use std::path::Path;

/// Continues the prompt by `config.tokens` tokens and returns prompt and continuation. The model is the one that this
/// rank has trained and holds whole.
///
/// # Errors
/// The tokenizer cannot encode the prompt; a device that fails.
pub async fn sample(trainer: &mut Trainer<'_>, config: &Sample, codec: &Codec, seed: u64) -> Result<String> {
    trainer.refresh_copies().await?;
    let (programs, recordings) = (trainer.programs.sample.as_ref(), trainer.recordings.sample.as_ref());
    let (Some(programs), Some(recordings)) = (programs, recordings) else {
        return Ok(String::new());
    };
    let mut generator = Generator {
        gpu: trainer.gpu,
        buffers: &trainer.buffers,
        prepared: &trainer.prepared,
        programs,
        recordings,
        reader: &trainer.reader,
        cached: &mut Vec::new(),
    };
    let mut text = prompt_tokens(codec, &config.prompt, recordings.vocab_size as usize)?;
    let settings = settings(config, seed);
    let written = generator.generate(std::slice::from_ref(&text), &settings, go_on).await?;
    text.extend(written.into_iter().flatten());
    Ok(codec.decode(&text))
}

/// Writes the sample of a model of which each rank holds a part: loads the whole model from the checkpoint `weights`
/// onto the device of one rank, beside the rank's training state.
///
/// # Errors
/// A model too large for the device, or too large beside the training; a checkpoint that cannot be read.
pub(super) async fn sample_saved(
    trainer: &Trainer<'_>,
    config: &Sample,
    plan: &RunPlan,
    codec: &Codec,
    weights: &Path,
) -> Result<String> {
    let (run, model) = (&plan.settings.run, &plan.model);
    let planned = PlannedModel::new(trainer.gpu, model, 1, &[model.seq_length as u32])?;
    let taken = Forecast::new(trainer.recordings()).bytes();
    let beside = Beside { run: taken, model: planned.bytes(), weights };
    beside.check(plan.settings.context.max_device_memory)?;
    let saved = SavedModel { model, weights, adapter: None, base: run.weights() };
    let mut loaded = planned.load(saved).await.map_err(|error| beside.explain(error))?;
    let mut text = prompt_tokens(codec, &config.prompt, model.vocab_size)?;
    let written = loaded.generate(std::slice::from_ref(&text), &settings(config, run.seed), go_on).await?;
    text.extend(written.into_iter().flatten());
    Ok(codec.decode(&text))
}

fn settings(config: &Sample, seed: u64) -> GenerationSettings {
    GenerationSettings {
        tokens: config.tokens,
        sampling: Sampling { temperature: config.temperature, ..Sampling::default() },
        seed: config.seed.unwrap_or(seed),
        stops: Vec::new(),
    }
}

fn go_on(_: usize, _: u32) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Checks at the start of a run that the sample at its end can be written. `has_text`: the data were text, or a
/// tokenizer is named.
///
/// # Errors
/// There is no tokenizer, or the prompt cannot be encoded for a vocabulary of `vocab_size`.
pub(super) fn check_sample(config: &Sample, has_text: bool, codec: &Codec, vocab_size: usize) -> Result<()> {
    if !has_text {
        return Err(Error::Plan(
            "sample: the data are token files, and no tokenizer says what the tokens mean; name it in \
             train_dataset.tokenizer or remove `sample`"
                .into(),
        ));
    }
    prompt_tokens(codec, &config.prompt, vocab_size).map(drop)
}

//! The sample: text that the model writes at the end of a run.

use super::saved::{PlannedModel, Saved};
use super::trainer::Trainer;
use crate::data::Codec;
use crate::error::{Error, Result};
use crate::generate::{Generator, Sampling, Settings};
use crate::perf::forecast::Forecast;
use crate::perf::memory_budget::Beside;
use crate::settings::{RunPlan, Sample};
use std::ops::ControlFlow;
use std::path::Path;

/// Continues the prompt by `config.tokens` tokens and returns prompt and continuation: by the model that a rank has trained and holds
/// whole.
///
/// # Errors
/// The tokenizer cannot encode the prompt; a device that fails.
pub async fn sample(trainer: &mut Trainer<'_>, config: &Sample, codec: &Codec, seed: u64) -> Result<String> {
    trainer.refresh_copies().await?;
    let (programs, recordings) = (trainer.programs.sample, trainer.recordings.sample.as_ref());
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
    let mut text = prompt(codec, &config.prompt, recordings.vocab_size as usize)?;
    let settings = settings(config, seed);
    let written = generator.generate(std::slice::from_ref(&text), &settings, go_on).await?;
    text.extend(written.into_iter().flatten());
    Ok(codec.decode(&text))
}

/// The same by a model of which each rank holds a part: all of it, from the checkpoint `weights`, on the device of one of them, beside
/// what that has trained with.
///
/// # Errors
/// A model too large for the device, or too large beside the run; a checkpoint that cannot be read.
pub(super) async fn sample_saved(
    trainer: &Trainer<'_>,
    config: &Sample,
    plan: &RunPlan,
    codec: &Codec,
    weights: &Path,
) -> Result<String> {
    let (run, model) = (&plan.settings.run, &plan.model);
    let planned = PlannedModel::new(trainer.gpu, model, 1)?;
    let taken = Forecast::new(trainer.recordings()).bytes();
    let beside = Beside { run: taken, model: planned.bytes(), weights };
    beside.check(plan.settings.context.max_device_memory)?;
    let saved = Saved { model, weights, adapter: None, base: run.weights() };
    let mut loaded = planned.load(saved).await.map_err(|error| beside.explain(error))?;
    let mut text = prompt(codec, &config.prompt, model.vocab_size)?;
    let written = loaded.generate(std::slice::from_ref(&text), &settings(config, run.seed), go_on).await?;
    text.extend(written.into_iter().flatten());
    Ok(codec.decode(&text))
}

fn settings(config: &Sample, seed: u64) -> Settings {
    Settings {
        tokens: config.tokens,
        sampling: Sampling { temperature: config.temperature, ..Sampling::default() },
        seed: config.seed.unwrap_or(seed),
        stops: Vec::new(),
    }
}

fn go_on(_: usize, _: u32) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Checks at the start of a run that the sample at its end can be written. `has_text`: the data was text, or a
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
    prompt(codec, &config.prompt, vocab_size).map(drop)
}

/// The tokens of a prompt, from those that the tokenizer adds before a text, if any. An empty prompt becomes a token that a text may start
/// after.
///
/// # Errors
/// The tokenizer cannot encode it, or a token is outside the model's vocabulary.
pub(crate) fn prompt(codec: &Codec, text: &str, vocab_size: usize) -> Result<Vec<u32>> {
    let mut tokens = codec.started(codec.encode(text)?);
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab_size) {
        return Err(Error::Plan(format!(
            "the prompt `{text}` has the token {token}, outside the model's vocab_size {vocab_size}; change the prompt, or name \
             the data's tokenizer in train_dataset.tokenizer"
        )));
    }
    if tokens.is_empty() {
        tokens.push(codec.separator().min(vocab_size as u32 - 1));
    }
    Ok(tokens)
}

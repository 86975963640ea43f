//! The sample: text that the model writes at the end of a run.

use super::trainer::Trainer;
use crate::data::Codec;
use crate::error::{Error, Result};
use crate::infer::inference_model::PlannedModel;
use crate::infer::on_device::SavedModel;
use crate::infer::{GenerationSettings, Generator, Sampling, prompt_tokens};
use crate::model::config::ModelConfig;
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
/// There is no tokenizer, or the prompt cannot be encoded for the vocabulary; texts of the run rotate otherwise than
/// those that can be generated.
pub(super) fn check_sample(
    config: &Sample,
    has_text: bool,
    codec: &Codec,
    model: &ModelConfig,
) -> Result<()> {
    if !has_text {
        return Err(Error::Plan(
            "sample: the data are token files, and no tokenizer says what the tokens mean; name it in \
             train_dataset.tokenizer or remove `sample`"
                .into(),
        ));
    }
    let (length, longest) = (model.seq_length, model.longest_text());
    if longest < length {
        let message = format!(
            "sample: only texts of up to {longest} tokens are generated, since longer ones rotate otherwise from their \
             first token on (rope_scaling), as the run's windows of {length} tokens do; remove `sample`, and write texts \
             by `gristmill generate`"
        );
        return Err(Error::Plan(message));
    }
    prompt_tokens(codec, &config.prompt, model.vocab_size).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{RopeScaling, Sizes};

    #[test]
    fn texts_that_rotate_otherwise_than_the_run_s_are_refused() {
        let scaling = RopeScaling::Dynamic { factor: 2.0, original: 16.0, length: 16.0 };
        let model = ModelConfig::llama(Sizes {
            vocab_size: 256,
            hidden_size: 16,
            num_layers: 1,
            num_heads: 2,
            intermediate_size: 16,
            seq_length: 32,
        });
        let model = model.with_layers(|layer| layer.rope_scaling = scaling);
        let config = Sample { prompt: "fn".to_string(), tokens: 4, temperature: 0.0, seed: None };
        let check =
            |length| check_sample(&config, true, &Codec::Bytes { eod: 0 }, &model.for_texts_of(length));
        assert!(check(16).is_ok());
        let message = check(17).unwrap_err().to_string();
        assert!(message.contains("sample: only texts of up to 16 tokens are generated"), "{message}");
    }
}

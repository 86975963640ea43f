//! `generate`: a trained model continues prompts, printed as it goes.

use super::output::print;
use crate::data::DecodeStream;
use crate::device::{Gpu, GpuOptions};
use crate::error::{Error, Result};
use crate::generate::{Sampling, Settings};
use crate::kernels::Tier;
use crate::train::trained::{TrainedModel, TrainedRun, prompt_tokens};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Texts that are written at once, at most: each has a cache of its own.
const MAX_SEQUENCES: usize = 4096;

/// The flags of `generate`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The folder of a run (output/tiny: its newest checkpoint), or a checkpoint in one
    run: PathBuf,
    /// What to continue; given several times, all are continued at once
    #[arg(long, value_name = "TEXT", default_value = "")]
    prompt: Vec<String>,
    /// Continuations of each prompt
    #[arg(long, value_name = "N", default_value_t = 1)]
    samples: usize,
    /// Most tokens of a continuation
    #[arg(long, value_name = "N", default_value_t = 200)]
    tokens: usize,
    /// Logits are divided by this; 0 takes the likeliest token, always
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f64,
    /// Draw from the K likeliest tokens only; 0 is all
    #[arg(long, alias = "top_k", value_name = "K", default_value_t = 0)]
    top_k: usize,
    /// Draw from the likeliest tokens that together have this probability
    #[arg(long, alias = "top_p", value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// Make tokens that occurred already less likely; 1 changes nothing
    #[arg(long, alias = "repetition_penalty", value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f64,
    /// Of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write on where a document ends
    #[arg(long, alias = "ignore_eod")]
    ignore_eod: bool,
    /// The tokenizer.json that the data went through, if the run does not name it
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// The adapter to take, by a part of its name
    #[arg(long, alias = "device_name", value_name = "NAME")]
    device_name: Option<String>,
    /// The kernels to take: software or portable
    #[arg(long, value_name = "TIER")]
    tier: Option<String>,
}

/// Writes the continuations to standard output, one text as it is drawn, several when all are done.
///
/// # Errors
/// One line: no such run, a setting out of range, an adapter that fails.
pub async fn generate(arguments: &Arguments) -> Result<()> {
    let sampling = sampling(arguments)?;
    let tier = arguments.tier.as_deref().map(tier_named).transpose()?;
    let tokenizer = arguments.tokenizer.iter();
    let overrides: Vec<String> =
        tokenizer.map(|file| format!("--train_dataset.tokenizer={}", file.display())).collect();
    let run = TrainedRun::open(&arguments.run, &overrides)?;
    if arguments.samples == 0 || arguments.samples > MAX_SEQUENCES / arguments.prompt.len() {
        let limit = MAX_SEQUENCES / arguments.prompt.len();
        let message = format!("expected a whole number from 1 to {limit}, found `{}`", arguments.samples);
        return Err(Error::config("--samples", message));
    }
    let mut prompts = Vec::new();
    for text in &arguments.prompt {
        let tokens = prompt_tokens(&run, text)?;
        prompts.extend(std::iter::repeat_n((text.as_str(), tokens), arguments.samples));
    }
    let options = GpuOptions { device_name: arguments.device_name.clone(), tier, ..GpuOptions::default() };
    let gpu = Gpu::request(&options).await?;
    let model = TrainedModel::load(&gpu, &run, prompts.len() as u32).await?;
    let settings = Settings {
        tokens: arguments.tokens,
        sampling,
        seed: arguments.seed,
        stop: if arguments.ignore_eod { None } else { run.codec.eod().ok() },
    };
    let tokens: Vec<Vec<u32>> = prompts.iter().map(|(_, tokens)| tokens.clone()).collect();
    match &prompts[..] {
        [(text, _)] => {
            let mut decoding = DecodeStream::new(&run.codec);
            if print(text).is_break() {
                return Ok(());
            }
            let show = |_, token| match decoding.push(token).as_str() {
                "" => ControlFlow::Continue(()),
                part => print(part),
            };
            model.generate(&tokens, &settings, show).await?;
            let _ = print(&(decoding.finish() + "\n"));
        }
        several => {
            let go_on = |_, _| ControlFlow::Continue(());
            let written = model.generate(&tokens, &settings, go_on).await?;
            for (number, ((text, _), tokens)) in several.iter().zip(written).enumerate() {
                let text = format!("--- {}\n{text}{}\n", number + 1, run.codec.decode(&tokens));
                if print(&text).is_break() {
                    break;
                }
            }
        }
    }
    Ok(())
}

fn sampling(arguments: &Arguments) -> Result<Sampling> {
    let Arguments { temperature, top_k, top_p, repetition_penalty, .. } = *arguments;
    let sampling = Sampling { temperature, top_k, top_p, repetition_penalty };
    match sampling.fault() {
        None => Ok(sampling),
        Some((name, expected)) => {
            Err(Error::config(format!("--{}", name.replace('_', "-")), format!("expected {expected}")))
        }
    }
}

fn tier_named(name: &str) -> Result<Tier> {
    let names = Tier::ALL.map(Tier::name).join(", ");
    Tier::named(name)
        .ok_or_else(|| Error::config("--tier", format!("expected one of {names}, found `{name}`")))
}

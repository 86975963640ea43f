//! `eval`: how well a trained model predicts a text, or chooses answers.

use super::doctor::naming_the_flag;
use super::generate::tier_named;
use super::output::say;
use crate::data::JudgedData;
use crate::device::GpuOptions;
use crate::error::{Error, Result};
use crate::train::run::open_device_with;
use crate::trained::{Judgement, Scorer, Share, TrainedRun};
use std::path::PathBuf;

/// The flags of `eval`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The folder of a run (output/tiny: its newest checkpoint), a checkpoint in one, or a folder of Hugging Face's
    model: PathBuf,
    /// A text, or records of JSON lines or Parquet: texts, conversations, prompts and answers, or questions as HellaSwag, ARC or
    /// MMLU have them
    data: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Read at most N records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// A file with the template that writes conversations, if the tokenizer has none
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// The tokenizer.json of the training data, if the run does not name it
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// The adapter to use, by a part of its name
    #[arg(long, value_name = "NAME")]
    device_name: Option<String>,
    /// The kernels to use: software or portable
    #[arg(long, value_name = "TIER")]
    tier: Option<String>,
}

/// Judges the model and prints what came out.
///
/// # Errors
/// There is no such model or file, or the adapter fails.
pub async fn eval(arguments: &Arguments) -> Result<()> {
    let tier = arguments.tier.as_deref().map(tier_named).transpose()?;
    let tokenizer = arguments.tokenizer.iter();
    let overrides: Vec<String> =
        tokenizer.map(|file| format!("--train_dataset.tokenizer={}", file.display())).collect();
    let run = TrainedRun::open(&arguments.model, &overrides)?;
    let Arguments { data, limit, chat_template, .. } = arguments;
    let window = Scorer::window(&run.plan);
    let data = JudgedData::load(data, &run.codec, window, *limit, chat_template.as_deref())?;
    if let JudgedData::Answers { cut, .. } = &data
        && *cut > 0
    {
        eprintln!(
            "notice: {cut} samples are longer than {window} tokens, and are judged by their start alone"
        );
    }
    let options = GpuOptions { device_name: arguments.device_name.clone(), tier, ..GpuOptions::default() };
    let gpu = open_device_with(&options, &run.plan).await.map_err(naming_the_flag)?;
    let scorer = Scorer::load(&gpu, &run).await?;
    let judgement = Judgement::of(&scorer, &data, |_, _| {}).await?;
    match arguments.json {
        true => {
            say!("{}", serde_json::to_string(&judgement).map_err(|error| Error::Plan(error.to_string()))?)
        }
        false => say!("{}", described(&judgement, window)),
    }
    Ok(())
}

fn described(judgement: &Judgement, window: usize) -> String {
    let more_or_less = |stderr: &Option<f64>, digits| {
        stderr.map_or_else(String::new, |stderr| format!(" ± {stderr:.digits$}"))
    };
    match judgement {
        Judgement::Loss { loss, perplexity, perplexity_stderr, bits_per_byte, tokens, sequences } => {
            let bits = bits_per_byte.map_or_else(String::new, |bits| format!("bits per byte  {bits:.4}\n"));
            let of = if bits_per_byte.is_some() { "windows" } else { "samples" };
            format!(
                "loss           {loss:.4}\nperplexity     {perplexity:.3}{}\n{bits}{tokens} tokens of {sequences} {of}, of at most {window} \
                 tokens each",
                more_or_less(perplexity_stderr, 3)
            )
        }
        Judgement::Choice { acc, acc_norm, acc_bytes, questions } => {
            let line = |name: &str, Share { share, stderr }: &Share| {
                format!("{name:<10} {share:.4}{}\n", more_or_less(stderr, 4))
            };
            let lines = [line("acc", acc), line("acc_norm", acc_norm), line("acc_bytes", acc_bytes)];
            format!("{}{questions} questions", lines.concat())
        }
    }
}

//! `eval`: how well a trained model predicts a text, or chooses answers.

use super::output::say;
use super::trained::{ModelArguments, note_lacking_tokens};
use crate::data::{EvalData, known_files};
use crate::error::{Error, Result};
use crate::infer::{Judgement, OpenedModel, Scorer, Share};
use std::path::PathBuf;

/// Windows are multiples of this, as far as the model has positions.
const SHORTEST_WINDOW: usize = 64;

/// The flags of `eval`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[arg(help = known_files(true))]
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
    /// Tokens of the longest sequence that is judged at once [default: 2048 of a text, and whole answers, at most the
    /// model's positions]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_length: Option<u32>,
    /// Write prompts and completions, and instructions, as they are, without the chat template
    #[arg(long)]
    raw: bool,
}

/// Judges the model and prints the result.
///
/// # Errors
/// There is no such model or file, or the adapter fails.
pub async fn eval(arguments: &Arguments) -> Result<()> {
    let Arguments { model, json, .. } = arguments;
    let run = model.open()?;
    note_lacking_tokens(arguments.chat_template.as_deref(), &run.codec)?;
    let (mut data, mut window) = judged(arguments, &run)?;
    if let EvalData::Answers { notes, .. } | EvalData::Texts { notes, .. } = &data {
        notes.lines().iter().for_each(|line| eprintln!("notice: {line}"));
    }
    run.notices().iter().for_each(|notice| eprintln!("notice: {notice}"));
    let gpu = model.device(&run).await?;
    // A sample that is longer than usual may take more memory than the device has: then it is cut, and a notice says
    // so.
    let scorer = loop {
        match Scorer::load(&gpu, &run, window, &data.sequences()).await {
            Err(Error::TooLarge { .. } | Error::OutOfMemory { .. })
                if arguments.max_length.is_none() && window > Scorer::window(&run.plan) =>
            {
                window = (window / 2).max(Scorer::window(&run.plan));
                data = load(arguments, &run, window)?;
            }
            loaded => break loaded?,
        }
    };
    if let EvalData::Answers { cut, .. } = &data
        && *cut > 0
    {
        let samples = if *cut == 1 { "1 sample is".to_string() } else { format!("{cut} samples are") };
        eprintln!(
            "notice: {samples} longer than {window} tokens, and judged by a part of that length (--max-length)"
        );
    }
    let judgement = Judgement::of(&scorer, &data, |_, _| {}).await?;
    match json {
        true => {
            say!("{}", serde_json::to_string(&judgement).map_err(|error| Error::Plan(error.to_string()))?)
        }
        false => say!("{}", described(&judgement, window)),
    }
    Ok(())
}

/// The data in sequences, and the tokens of the longest one. Answers are not cut if the model has enough positions.
fn judged(arguments: &Arguments, run: &OpenedModel) -> Result<(EvalData, usize)> {
    let positions = run.plan.model.longest_text();
    let load = |window| load(arguments, run, window);
    if let Some(length) = arguments.max_length.map(|length| length as usize) {
        if length > positions {
            let limit = run.plan.model.limit_of_texts();
            let message = format!("expected at most {positions}, {limit}, found `{length}`");
            return Err(Error::config("--max-length", message));
        }
        return Ok((load(length)?, length));
    }
    let window = Scorer::window(&run.plan);
    let mut data = load(window)?;
    if matches!(data, EvalData::Answers { cut, .. } if cut > 0) && window < positions {
        data = load(positions)?;
    }
    let longest = match &data {
        EvalData::Answers { samples, .. } => samples.iter().map(|sample| sample.tokens.len()).max(),
        EvalData::Texts { .. } | EvalData::Questions(_) => None,
    };
    // A pass computes whole windows, whatever they contain.
    let window = longest.map_or(window, |longest| longest.next_multiple_of(SHORTEST_WINDOW).min(positions));
    Ok((data, window))
}

/// The data in sequences of up to `window` tokens.
fn load(arguments: &Arguments, run: &OpenedModel, window: usize) -> Result<EvalData> {
    let Arguments { data, limit, chat_template, raw, .. } = arguments;
    EvalData::load(data, &run.codec, window, *limit, &run.chat_form(chat_template.as_deref(), *raw))
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

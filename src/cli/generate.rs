//! `generate`: a trained model continues prompts; the text is printed as it is generated.

use super::chat::Chat;
use super::output::print;
use super::trained::{ModelArguments, note_lacking_tokens};
use crate::data::{Codec, DecodeStream};
use crate::error::{Error, Result};
use crate::hugging_face::generation::{self, GenerationConfig};
use crate::infer::{GenerationSettings, Sampling};
use crate::infer::{InferenceModel, OpenedModel, prompt_tokens};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

/// Most texts that are generated at once: each has its own KV cache.
const MAX_SEQUENCES: usize = 4096;

/// The flags of `generate`. The defaults of those that choose tokens are those of the model's generation_config.json,
/// where it says something.
#[derive(clap::Args)]
// `--temperature -1` is a number out of range, not a flag `-1`.
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The text to continue, or - for what standard input holds; if given several times, all are continued at once
    #[arg(long, value_name = "TEXT", default_value = "")]
    prompt: Vec<String>,
    /// Hold a conversation, a line of standard input for each message
    #[arg(long, conflicts_with_all = ["prompt", "samples"])]
    chat: bool,
    /// What the conversation starts with: who the model is, and how it is to answer
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// A file with the template that writes conversations, if the tokenizer has none
    #[arg(long, value_name = "FILE", requires = "chat")]
    chat_template: Option<PathBuf>,
    /// Tokens that the model reads at most, of prompt and continuation [default: its positions, as far as their cache
    /// fits]
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Number of continuations of each prompt
    #[arg(long, value_name = "N", default_value_t = 1)]
    samples: usize,
    /// Maximum number of tokens of a continuation [default: 200]
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    /// The logits are divided by this; 0 always takes the most likely token [default: 0.8]
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Sample from the K most likely tokens only; 0: from all [default: 0]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Sample from the most likely tokens whose probabilities add up to this [default: 1]
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Above 1, tokens that have occurred become less likely; 1 changes nothing [default: 1]
    #[arg(long, value_name = "X")]
    repetition_penalty: Option<f64>,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Continue past the end of a document
    #[arg(long)]
    ignore_eod: bool,
}

/// A prompt as it was written, and its token ids.
type Prompt<'a> = (&'a str, Vec<u32>);

/// Prints the continuations: a single one as it is generated, several when all are complete.
///
/// # Errors
/// There is no such run, a setting is out of range, or the adapter fails.
pub async fn generate(arguments: &Arguments) -> Result<()> {
    if let Some((name, expected)) = sampling(arguments, &GenerationConfig::default()).fault() {
        return Err(Error::config(format!("--{}", name.replace('_', "-")), format!("expected {expected}")));
    }
    let run = arguments.model.open()?;
    let sampling = sampling(arguments, &run.generation);
    if let Some((name, expected)) = sampling.fault() {
        return Err(Error::file(
            run.weights.join(generation::FILE),
            format!("`{name}`: expected {expected}"),
        ));
    }
    let chat = arguments
        .chat
        .then(|| Chat::new(&run, arguments.system.as_deref(), arguments.chat_template.as_deref()));
    let chat = chat.transpose()?;
    note_lacking_tokens(arguments.chat_template.as_deref(), &run.codec)?;
    let texts = arguments.prompt.iter().map(text_of).collect::<Result<Vec<String>>>()?;
    let limit = context(arguments.context, &run)?;
    let prompts = if chat.is_some() { Vec::new() } else { prompts(&texts, arguments.samples, &run, limit)? };
    let gpu = arguments.model.device(&run).await?;
    let settings = GenerationSettings {
        tokens: arguments.tokens.or(run.generation.max_new_tokens).unwrap_or(200),
        sampling,
        seed: arguments.seed,
        stops: match arguments.ignore_eod {
            true => Vec::new(),
            false => run.stops().into_iter().chain(chat.as_ref().and_then(Chat::turn_end)).collect(),
        },
    };
    if let Some(chat) = chat {
        return chat.hold(&gpu, &run, limit, &settings).await;
    }
    let longest = prompts.iter().map(|(_, tokens)| tokens.len()).fold(1, usize::max);
    // The cache is as large as the texts can fill. Unless they outgrow it, only the prompts are read in a pass.
    let whole = longest.saturating_add(settings.tokens);
    let window = whole.min(limit);
    let prompt = (whole <= limit).then_some(longest);
    let (mut model, fitting) =
        InferenceModel::load_fitting(&gpu, &run, prompts.len() as u32, window, prompt).await?;
    if fitting < window {
        eprintln!(
            "notice: the adapter has room for {fitting} of {window} tokens: where a text is longer, its first ones are forgotten"
        );
    }
    match &prompts[..] {
        [prompt] => print_as_generated(&mut model, &run.codec, prompt, &settings).await,
        several => print_when_complete(&mut model, &run.codec, several, &settings).await,
    }
}

/// Most tokens that the model reads.
fn context(asked: Option<usize>, run: &OpenedModel) -> Result<usize> {
    let positions = run.plan.model.longest_text();
    match asked {
        None => Ok(positions),
        Some(tokens) if (1..=positions).contains(&tokens) => Ok(tokens),
        Some(tokens) => {
            let limit = run.plan.model.limit_of_texts();
            let message = format!("expected from 1 to {positions}, {limit}, found `{tokens}`");
            Err(Error::config("--context", message))
        }
    }
}

/// The text of `--prompt`.
fn text_of(prompt: &String) -> Result<String> {
    if prompt != "-" {
        return Ok(prompt.clone());
    }
    let text = std::io::read_to_string(std::io::stdin());
    let text = text.map_err(|error| Error::config("--prompt -", format!("standard input: {error}")))?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_string())
}

/// Each prompt, repeated as often as it is to be continued.
fn prompts<'a>(
    texts: &'a [String],
    samples: usize,
    run: &OpenedModel,
    window: usize,
) -> Result<Vec<Prompt<'a>>> {
    let most = MAX_SEQUENCES / texts.len();
    if samples == 0 || samples > most {
        let message = format!("expected a whole number from 1 to {most}, found `{samples}`");
        return Err(Error::config("--samples", message));
    }
    let mut prompts = Vec::new();
    for text in texts {
        let tokens = prompt_tokens(&run.codec, text, run.plan.model.vocab_size)?;
        if tokens.len() > window {
            eprintln!(
                "notice: the prompt has {} tokens, and the model reads {window}: it continues the last {window} alone",
                tokens.len()
            );
        }
        prompts.extend(std::iter::repeat_n((text.as_str(), tokens), samples));
    }
    Ok(prompts)
}

async fn print_as_generated(
    model: &mut InferenceModel<'_>,
    codec: &Codec,
    (text, tokens): &Prompt<'_>,
    settings: &GenerationSettings,
) -> Result<()> {
    if print(text).is_break() {
        return Ok(());
    }
    let mut stream = DecodeStream::new(codec);
    let show = |_, token| match stream.push(token).as_str() {
        "" => ControlFlow::Continue(()),
        part => print(part),
    };
    let start = Instant::now();
    let written = model.generate(std::slice::from_ref(tokens), settings, show).await?;
    if print(&(stream.finish() + "\n")).is_continue() {
        say_rate(&written, start);
    }
    Ok(())
}

async fn print_when_complete(
    model: &mut InferenceModel<'_>,
    codec: &Codec,
    prompts: &[Prompt<'_>],
    settings: &GenerationSettings,
) -> Result<()> {
    let tokens: Vec<Vec<u32>> = prompts.iter().map(|(_, tokens)| tokens.clone()).collect();
    let start = Instant::now();
    let continuations = model.generate(&tokens, settings, |_, _| ControlFlow::Continue(())).await?;
    say_rate(&continuations, start);
    for (number, ((text, _), tokens)) in (1..).zip(prompts.iter().zip(continuations)) {
        if print(&format!("--- {number}\n{text}{}\n", codec.decode(&tokens))).is_break() {
            break;
        }
    }
    Ok(())
}

/// Prints on standard error how many tokens were written since `start`, and how fast.
fn say_rate(written: &[Vec<u32>], start: Instant) {
    let tokens: usize = written.iter().map(Vec::len).sum();
    eprintln!("{tokens} tokens, {:.1} tokens/s", tokens as f64 / start.elapsed().as_secs_f64().max(1e-9));
}

/// How tokens are chosen: by the flags, otherwise by the settings of the model's publishers, otherwise by the program's
/// defaults.
fn sampling(arguments: &Arguments, published: &GenerationConfig) -> Sampling {
    let Arguments { temperature, top_k, top_p, repetition_penalty, .. } = *arguments;
    let of_publishers = match published.do_sample {
        Some(false) => Some(0.0),
        _ => published.temperature,
    };
    Sampling {
        temperature: temperature.or(of_publishers).unwrap_or(0.8),
        top_k: top_k.or(published.top_k).unwrap_or(0),
        top_p: top_p.or(published.top_p).unwrap_or(1.0),
        repetition_penalty: repetition_penalty.or(published.repetition_penalty).unwrap_or(1.0),
    }
}

//! `finetune`: a Hugging Face folder and a file of data become a configuration, which is trained.
//!
//! What it decides are defaults of this command and no keys of their own: `--print-config` shows them, and `train` takes what that prints.
//! What a step learns does not depend on the memory: the mean is over its tokens, however it is divided.

mod choices;
mod configuration;
mod division;
mod flags;
mod keys;
mod names;
mod numbers;
#[cfg(test)]
mod tests;

use super::output::print;
use super::train::{again, train};
use super::trained::AdapterArguments;
use crate::durable::ChosenBy;
use crate::error::{Error, Result};
use crate::settings::{BaseType, Bytes, Override};
use std::path::{Path, PathBuf};

/// The section of `--help` on what comes after.
pub const AFTER_HELP: &str = "\
Any key of the configuration can be set as in `train`: --lr_schedule.type=linear, --optimizer.weight_decay=0.1 (gristmill explain
lists them). --print-config shows the configuration, as a file that `gristmill train FILE` takes: go on from there where
flags end. The run evaluates samples that it does not learn from, and keeps the checkpoint that is best at them; generate,
eval, merge and export take that one.";

/// The flags of `finetune`.
#[derive(clap::Args)]
// `--seed -1` is a number out of range, not a flag `-1`.
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    /// A folder of Hugging Face's: config.json, safetensors, tokenizer.json
    model: PathBuf,
    /// A text, or records of JSON lines or Parquet: `messages`, `conversations`, `prompt` and `completion`, `instruction` and
    /// `output`, or `text`
    data: PathBuf,
    /// Keys of the configuration, for example --lr_schedule.type=linear
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "--SECTION.KEY=VALUE")]
    overrides: Vec<String>,
    /// Train low-rank adapters of this rank [default: 16]
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u16).range(1..))]
    lora: Option<u16>,
    /// The adapters' product is multiplied by this and divided by the rank [default: twice the rank]
    #[arg(long, value_name = "ALPHA", conflicts_with = "full", value_parser = numbers::above_zero)]
    lora_alpha: Option<f64>,
    /// Share of the adapters' inputs that training drops [default: 0]
    #[arg(long, value_name = "SHARE", conflicts_with = "full", value_parser = numbers::share)]
    lora_dropout: Option<f64>,
    /// The layers that get adapters, such as q_proj,v_proj [default: all linear layers]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "full")]
    targets: Vec<String>,
    /// Store the frozen matrices under the adapters in 4 or 8 bits
    #[arg(long, value_name = "TYPE", value_parser = BaseType::ALL.map(BaseType::name), conflicts_with = "full")]
    base: Option<String>,
    /// Train all weights
    #[arg(long, conflicts_with = "lora")]
    full: bool,
    /// The highest learning rate, from which a cosine goes down to a tenth [default: 2e-4, with --full 1e-5]
    #[arg(long, value_name = "RATE", value_parser = numbers::above_zero)]
    learning_rate: Option<f64>,
    /// Passes over the data [default: as many as make 100 steps, 1 to 25]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Steps, in place of epochs
    #[arg(long, value_name = "N", conflicts_with = "epochs", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Samples of a step, which is computed in parts where the memory asks for it [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    batch_size: Option<u16>,
    /// Multiply the samples of a step by this [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    accumulate: Option<u16>,
    /// Tokens of a sample at most; what is longer is cut [default: what 99 % of the samples have]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    max_length: Option<u32>,
    /// Seed of the adapters' initial weights, and of the order and the choice of samples [default: 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Evaluate on this file, and learn from all of DATA
    #[arg(long, value_name = "FILE")]
    eval: Option<PathBuf>,
    /// Share of the samples to evaluate on, which are not learned from; 0: none [default: 5 %, of 16 to 200 samples]
    #[arg(long, value_name = "SHARE", conflicts_with = "eval", value_parser = numbers::share)]
    eval_fraction: Option<f64>,
    /// Device memory to fit (8GB, 6000MiB), of which a tenth stays free; by default the adapter's
    #[arg(long, value_name = "BYTES")]
    memory: Option<Bytes>,
    /// The folder of the run [default: output/ and the name of the model with -finetuned]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Continue the run in that folder, or begin it if it has no checkpoint yet
    #[arg(long)]
    resume: bool,
    /// Serve the report meanwhile, here at 4747 or PORT, or at ADDRESS:PORT or NAME:PORT
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    watch: Option<String>,
    /// A file with the template that writes conversations, if the tokenizer has none
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Write prompts and completions, and instructions, as they are, without the chat template
    #[arg(long)]
    raw: bool,
    /// Print the configuration, for `train`, and train nothing
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    adapter: AdapterArguments,
}

/// Trains, or prints the configuration.
///
/// # Errors
/// A folder or file that cannot be used; a model that does not fit the memory; those of a run.
pub fn finetune(arguments: &Arguments) -> Result<()> {
    let written = arguments.written()?;
    run(arguments, &written).map_err(|error| flags::naming(error, &written, &beside(&arguments.output())))
}

fn run(arguments: &Arguments, written: &[Override]) -> Result<()> {
    let Arguments { resume, watch, print_config, .. } = arguments;
    arguments.adapter.options()?;
    let output = arguments.output();
    if !print_config && !resume && ["config.yaml", "checkpoint"].iter().any(|name| output.join(name).exists())
    {
        let message = "holds a run already: continue it with --resume, or name another folder by --output";
        return Err(Error::file(output, message));
    }
    let config = arguments.configuration(written)?;
    if *print_config {
        let _ = print(&config);
        return Ok(());
    }
    let (file, place) = (beside(&output), ChosenBy("--output"));
    place.create_folder(file.parent().unwrap_or(Path::new("")))?;
    place.write(&file, config.as_bytes())?;
    eprintln!("configuration: {}, which `gristmill train` takes, too", file.display());
    let resume: &[String] = if *resume { &["--resume_training=auto".to_string()] } else { &[] };
    train(&file, resume, None, watch.as_deref(), &again("--resume")).map_err(|error| match error {
        Error::OutOfMemory { what, .. } => {
            let base = arguments
                .has_plain_base()
                .then(|| "store the frozen weights in 4 bits, by --base nf4".to_string());
            Error::OutOfMemory { what, remedy: format!("give --memory less, {}", arguments.smaller(base)) }
        }
        error => error,
    })
}

/// The configuration beside the folder of a run.
fn beside(output: &Path) -> PathBuf {
    let mut name = output.file_name().unwrap_or_default().to_os_string();
    name.push(".yaml");
    output.with_file_name(name)
}

impl Arguments {
    /// The keys that the command line sets, each value of a section by itself.
    ///
    /// # Errors
    /// One that is no flag, or another program's, or what a flag of this command sets.
    fn written(&self) -> Result<Vec<Override>> {
        // Before their values are read, which other programs' may lack.
        self.overrides.iter().filter(|one| one.starts_with("--")).try_for_each(|one| names::check(one))?;
        let all = Override::parse_all(&self.overrides)?;
        let written: Vec<Override> = all.into_iter().flat_map(Override::values).collect();
        written.iter().try_for_each(|one| names::check(&format!("--{}", one.path)))?;
        flags::refuse_written(self, &written)?;
        Ok(written)
    }

    /// The folder of the run.
    fn output(&self) -> PathBuf {
        let name = self.model.canonicalize().unwrap_or_else(|_| self.model.clone());
        let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.output.clone().unwrap_or_else(|| Path::new("output").join(name + "-finetuned"))
    }

    /// Whether there is a frozen base, which is not quantised yet.
    fn has_plain_base(&self) -> bool {
        self.base.is_none() && !self.full
    }

    /// What this command can do about a lack of memory; `bases` are the smaller ways to store the frozen weights.
    fn smaller(&self, bases: impl IntoIterator<Item = String>) -> String {
        let adapters = self.full.then(|| "train adapters, by --lora 16 in place of --full".to_string());
        let ways = adapters.into_iter().chain(bases).chain(["lower --max-length".to_string()]);
        ways.collect::<Vec<_>>().join(", or ")
    }
}

//! `finetune`: a Hugging Face folder and a file of data become a configuration, which is trained.
//!
//! The decisions are defaults of this command, and have no keys of their own: `--print-config` shows them, and `train`
//! takes its output. What a step learns does not depend on the memory, because the mean is over the tokens of the step,
//! however they are divided into micro-batches.

mod choices;
mod configuration;
mod division;
mod flags;
mod keys;
mod names;
#[cfg(test)]
mod tests;

use super::hub;
use super::interrupt::Interrupt;
use super::numbers;
use super::output::print;
use super::reading::CacheArguments;
use super::train::train;
use super::trained::AdapterArguments;
use crate::data::{ChatForm, FileKind, known_files};
use crate::durable::{AtomicFile, PathOrigin, changed};
use crate::error::{Error, Result};
use crate::hugging_face::name_of_hub;
use crate::report::log::Log;
use crate::settings::{BaseType, Bytes, Override, PreferenceType, Words};
use crate::store::checkpoint_folder::{CHECKPOINTS, CheckpointFolder};
use crate::store::model_assets;
use crate::train::command::{CommandLine, GoingOn};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The section of `--help` about the next steps.
pub const AFTER_HELP: &str = "\
Any key of the configuration can be set as in `train`: --lr_schedule.type=linear, --optimizer.weight_decay=0.1 (gristmill explain
lists them). --print-config shows the configuration, as a file that `gristmill train FILE` takes: go on from there where
flags end. The run evaluates samples that it does not learn from, and keeps the checkpoint that is best at them; generate,
eval, merge and export take that one.";

/// The flags that continue a run.
const GOING_ON: GoingOn =
    GoingOn { resume: "--resume", extend: "--extend", steps: "--steps", steps_are_length: true };
/// Flags that have no influence on what is trained.
const ASIDE: [&str; 4] = ["--print-config", "--memory=", "--watch", "--no-cache"];

/// The flags of `finetune`.
#[derive(clap::Args)]
// `--seed -1` is a number out of range, not a flag `-1`.
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    /// A folder of Hugging Face's: config.json, safetensors, tokenizer.json; or the name of a model on the Hub, such as
    /// Qwen/Qwen3-0.6B
    model: PathBuf,
    #[arg(help = known_files(false))]
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
    /// The layers that get adapters, such as q_proj,v_proj, and experts.gate_up_proj,experts.down_proj for those of a
    /// mixture [default: all linear layers; of a mixture those of attention]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "full")]
    targets: Vec<String>,
    /// Divide the adapters' product by the root of the rank (rsLoRA)
    #[arg(long, conflicts_with = "full")]
    rslora: bool,
    /// Learn a magnitude of each output beside the adapters (DoRA)
    #[arg(long, conflicts_with = "full")]
    dora: bool,
    /// The learning rate of the adapters' second factors, as a multiple of the rate of the first (LoRA+) [default: 1]
    #[arg(long, value_name = "RATIO", conflicts_with = "full", value_parser = numbers::above_zero)]
    loraplus: Option<f64>,
    /// Modules that train as a whole beside the adapters, such as embed_tokens,lm_head
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "full")]
    save_modules: Vec<String>,
    /// Train the adapter in this folder further, as PEFT or a run has saved it: its rank, layers and more are taken
    /// from there
    #[arg(long = "adapter", value_name = "FOLDER",
        conflicts_with_all = ["full", "lora", "lora_alpha", "targets", "rslora", "dora", "save_modules"])]
    begun: Option<PathBuf>,
    /// Store the frozen matrices under the adapters in 4 or 8 bits
    #[arg(long, value_name = "TYPE", value_parser = BaseType::ALL.map(BaseType::name), conflicts_with = "full")]
    base: Option<String>,
    /// Train all weights
    #[arg(long, conflicts_with = "lora")]
    full: bool,
    /// Learn from pairs of answers, `chosen` and `rejected`, by this loss
    #[arg(long, value_name = "LOSS", value_parser = PreferenceType::firsts().collect::<Vec<_>>())]
    preference: Option<String>,
    /// The factor of the log-probabilities of answers in that loss [default: 0.1, of simpo 2]
    #[arg(long, value_name = "BETA", requires = "preference", value_parser = numbers::above_zero)]
    beta: Option<f64>,
    /// The highest learning rate, from which a cosine goes down to a tenth [default: 2e-4, with --full 1e-5; of pairs
    /// of answers a tenth of that]
    #[arg(long, value_name = "RATE", value_parser = numbers::above_zero)]
    learning_rate: Option<f64>,
    /// Passes over the data [default: as many as make 100 steps, 1 to 25]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Steps, in place of epochs
    #[arg(long, value_name = "N", conflicts_with = "epochs", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Samples of a step, or rows where samples share them, which is computed in parts where the memory asks for it
    /// [default: about 8 samples]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    batch_size: Option<u16>,
    /// Multiply the samples of a step by this [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    accumulate: Option<u16>,
    /// Tokens of a sample at most, or of a pair of answers with their prompts; what is longer is cut [default: what
    /// 99 % of the samples have]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    max_length: Option<u32>,
    /// Seed of the adapters' initial weights, and of the order and the choice of samples [default: 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Evaluate on this file, and learn from all of DATA
    #[arg(long, value_name = "FILE")]
    eval: Option<PathBuf>,
    /// Share of the samples to evaluate on, which are not learned from; 0: none [default: 5 %, of 16 to 200 samples,
    /// but at most a fifth]. Four evaluations without a better one end the run (`--early_stopping_patience=0`: none do)
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
    /// Continue the run in that folder, complete or not, with other --epochs, --steps or --learning-rate: its schedule
    /// is the new one from the next step on
    #[arg(long, conflicts_with = "resume")]
    extend: bool,
    /// Serve the report meanwhile, here at 4747 or PORT, or at ADDRESS:PORT or NAME:PORT
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    watch: Option<String>,
    /// A file with the template that writes conversations, if the tokenizer has none
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Write prompts and completions, and instructions, as they are, without the chat template
    #[arg(long)]
    raw: bool,
    /// Whether several samples share a row, in which none sees another [default: on where a tenth of the rows is saved,
    /// and a row has no more samples than a step takes]
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    packing: Option<Packing>,
    #[command(flatten)]
    cache: CacheArguments,
    /// Print the configuration, for `train`, and train nothing
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    adapter: AdapterArguments,
}

/// Whether samples share rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Packing {
    On,
    Off,
}

/// Runs `finetune`: trains, or prints the configuration.
///
/// # Errors
/// A folder or file that cannot be used; a model that does not fit the memory; the errors of a run.
pub fn finetune(mut arguments: Arguments) -> Result<()> {
    let written = arguments.written()?;
    let output = arguments.output();
    run(&mut arguments, &written).map_err(|error| flags::naming(error, &written, &beside(&output)))
}

fn run(arguments: &mut Arguments, written: &[Override]) -> Result<()> {
    arguments.adapter.options()?;
    let interrupt = Interrupt::listen();
    Log::start();
    arguments.cache.apply();
    let output = arguments.output();
    let holds = |names: &[&str]| names.iter().any(|name| output.join(name).exists());
    if !arguments.print_config && !arguments.goes_on() && holds(&["config.yaml", CHECKPOINTS]) {
        let message = "holds a run already: continue it with --resume, with more epochs or another rate with --extend, or name another folder by --output";
        return Err(Error::file(output, message));
    }
    if name_of_hub(&arguments.model).is_some() {
        FileKind::of(&arguments.data, &ChatForm::default(), false)?; // before much is fetched
    }
    // The folder of a model of the Hub is named after its commit, and the run after the model.
    (arguments.model, arguments.output) = (hub::folder_of(&arguments.model)?, Some(output.clone()));
    let Arguments { extend, watch, print_config, .. } = &*arguments;
    if *extend && arguments.latest()?.is_none() {
        return Err(Error::file(output, "has no checkpoint to train on from; leave --extend out"));
    }
    let command = CommandLine::of_process(GOING_ON);
    let (file, place) = (beside(&output), PathOrigin("--output"));
    let made_by = format!("# {}\n", command.begun(&ASIDE).replace('\n', " "));
    if *print_config {
        let _ = print(&(made_by + &arguments.configuration(written)?));
        return Ok(());
    }
    // The same command gives the same configuration, so the data need not be read again.
    let said = || eprintln!("configuration: {}, which `gristmill train` takes, too", file.display());
    let (mut config, mut next) = (file.clone(), None);
    if arguments.is_begun(&file, &made_by)? {
        said();
    } else {
        let text = made_by + &arguments.configuration(written)?;
        place.create_folder(file.parent().unwrap_or(Path::new("")))?;
        let mut new = place.begin(&file)?;
        new.fill(|out| out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;
        // A run that continues may still be refused. It then keeps the configuration file that exists.
        match arguments.goes_on() && file.exists() {
            true => (config, next) = (new.temporary().to_path_buf(), Some(new)),
            false => {
                new.finish()?;
                said();
            }
        }
    }
    let next = Mutex::new(next);
    let keep = || {
        let next: Option<AtomicFile> = next.lock().unwrap_or_else(PoisonError::into_inner).take();
        match next.map(AtomicFile::finish) {
            None => {}
            Some(Ok(_)) => said(),
            Some(Err(error)) => eprintln!("warning: {error}; the run goes on without it"),
        }
    };
    let naming_lines = |error| flags::naming(error, written, &config);
    let resume = match (arguments.goes_on(), extend) {
        (false, _) => vec![],
        (_, false) => vec!["--resume_training=auto".to_string()],
        (_, true) => vec!["--resume_training=extend".to_string()],
    };
    let done = train(&config, &resume, None, watch.as_deref(), &command, interrupt, &keep);
    // The run may have been complete already.
    done.map(|()| keep()).map_err(|error| match naming_lines(error) {
        Error::OutOfMemory { what, .. } => {
            let base = arguments
                .has_plain_base()
                .then(|| "store the frozen weights in 4 bits, by --base nf4".to_string());
            let ways = arguments.smaller(base, true).join(", or ");
            Error::OutOfMemory { what, remedy: format!("give --memory less, {ways}") }
        }
        error => error,
    })
}

/// The configuration file, beside the folder of the run.
fn beside(output: &Path) -> PathBuf {
    let mut name = output.file_name().unwrap_or_default().to_os_string();
    name.push(".yaml");
    output.with_file_name(name)
}

impl Arguments {
    /// The keys that the command line sets. Each value of a section is a key by itself.
    ///
    /// # Errors
    /// Words that are no flags; flags of another program; keys that a flag of this command sets.
    fn written(&self) -> Result<Vec<Override>> {
        // Flags are checked before their values are read, because other programs' flags may have none.
        let given = names::flags(&self.overrides);
        names::check(given.iter().map(|(flag, value)| (*flag, *value)))?;
        let all = Override::parse_all(&self.overrides)?;
        let written: Vec<Override> = all.into_iter().flat_map(Override::values).collect();
        let paths: Vec<String> = written.iter().map(|one| format!("--{}", one.path)).collect();
        names::check(paths.iter().zip(&written).map(|(path, one)| (&**path, Some(&*one.value))))?;
        flags::refuse_written(self, &written)?;
        Ok(written)
    }

    /// The folder of the run.
    fn output(&self) -> PathBuf {
        let name = self.model.canonicalize().unwrap_or_else(|_| self.model.clone());
        let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.output.clone().unwrap_or_else(|| Path::new("output").join(name + "-finetuned"))
    }

    /// Whether the run continues one that was begun.
    fn goes_on(&self) -> bool {
        self.resume || self.extend
    }

    /// The newest checkpoint of the run.
    fn latest(&self) -> Result<Option<(u64, PathBuf)>> {
        CheckpointFolder::of_run(self.output()).latest()
    }

    /// Whether a run that continues was begun by the same command, as its configuration in `file` says, and the files
    /// that this command read are older than that file.
    fn is_begun(&self, file: &Path, made_by: &str) -> Result<bool> {
        let Some(since) = file.metadata().and_then(|data| data.modified()).ok().filter(|_| self.goes_on())
        else {
            return Ok(false);
        };
        let config = self.model.join("config.json");
        let read = [Some(&self.data), self.eval.as_ref(), self.chat_template.as_ref(), Some(&config)];
        let is_older = |path: &PathBuf| changed(path).is_some_and(|read| read < since);
        let are_older =
            read.into_iter().flatten().all(is_older) && model_assets::are_older(&self.model, since);
        let is_same = || std::fs::read_to_string(file).is_ok_and(|text| text.starts_with(made_by));
        Ok(are_older && is_same() && self.latest()?.is_some())
    }

    /// Whether there is a frozen base that is not quantised yet.
    fn has_plain_base(&self) -> bool {
        self.base.is_none() && !self.full
    }

    /// What the user can do about a lack of memory. `bases` are the smaller ways to store the frozen weights. Shorter
    /// samples help if not all of the memory is for weights and their gradients and moments.
    fn smaller(&self, bases: impl IntoIterator<Item = String>, is_shorter_smaller: bool) -> Vec<String> {
        let adapters = self.full.then(|| "train adapters, by --lora 16 in place of --full".to_string());
        let last = match is_shorter_smaller {
            true => Some("lower --max-length".to_string()),
            false => (!self.full).then(|| "lower --lora".to_string()),
        };
        adapters.into_iter().chain(bases).chain(last).collect()
    }
}

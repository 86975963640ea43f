//! `finetune`: a Hugging Face folder and a file of data become a configuration, which is trained.
//!
//! What it decides are defaults of this command and no keys of their own: they are printed, and `train` takes what is printed.

use super::output::print;
use super::plan::recompute_keys;
use super::train::train;
use super::trained::{AdapterArguments, note_lacking_tokens};
use crate::data::{FileKind, Form};
use crate::device::Gpu;
use crate::durable::ChosenBy;
use crate::error::{Error, Result};
use crate::hugging_face::refuse_name_of_hub;
use crate::kernels::{Capabilities, Tier};
use crate::model::adaptable;
use crate::settings::{BaseType, Bytes, RunConfig, RunPlan};
use crate::train::fit::{Candidate, Fit};
use crate::train::length::RunLength;
use crate::train::recordings::assumed_capabilities;
use crate::train::starting_weights::{check_tokenizer, check_weights};
use indicatif::HumanBytes;
use serde_json::{Value, json};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Samples that a step learns from.
const SAMPLES_PER_STEP: usize = 16;
/// Of so many samples one is held out, up to [`MOST_HELD_OUT`]; of fewer none.
const SAMPLES_PER_HELD_OUT: usize = 20;
const MOST_HELD_OUT: usize = 1000;
/// Share of the samples that are not cut.
const WHOLE_SAMPLES: f64 = 0.99;
/// Tokens of a window of text, where the model reads as many.
const LONGEST_TEXT: usize = 2048;
/// What is assumed of an adapter that does not say how much memory it has.
const ASSUMED_MEMORY: u64 = 8_000_000_000;

/// The flags of `finetune`.
#[derive(clap::Args)]
pub struct Arguments {
    /// A folder of Hugging Face's: config.json, safetensors, tokenizer.json
    model: PathBuf,
    /// A text, or records of JSON lines or Parquet: `messages`, `conversations`, `prompt` and `completion`, `instruction` and
    /// `output`, or `text`
    data: PathBuf,
    /// Train low-rank adapters of this rank
    #[arg(long, value_name = "RANK", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    lora: u16,
    /// Store the frozen matrices under the adapters in 4 or 8 bits
    #[arg(long, value_name = "TYPE", value_parser = BaseType::ALL.map(BaseType::name), conflicts_with = "full")]
    base: Option<String>,
    /// Train all weights
    #[arg(long, conflicts_with = "lora")]
    full: bool,
    /// Device memory to fit (8GB, 6000MiB, or a number of bytes), of which a tenth stays free; by default the adapter's
    #[arg(long, value_name = "BYTES")]
    memory: Option<Bytes>,
    /// The folder of the run [default: output/ and the name of the model with -finetuned]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// A file with the template that writes conversations, if the tokenizer has none
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Print the configuration, and train nothing
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    adapter: AdapterArguments,
}

/// What a run of `finetune` does, but for the division of its steps.
struct Finetune<'a> {
    arguments: &'a Arguments,
    output: PathBuf,
    /// Tokens of a row.
    length: usize,
    /// Samples that are held out, or windows of a text.
    held_out: usize,
    loader: Value,
    /// Tokens of a text; `None` for records.
    text: Option<usize>,
    /// The modules that get adapters.
    targets: Vec<String>,
}

/// Trains, or prints the configuration.
///
/// # Errors
/// A folder or file that cannot be used; a model that does not fit the memory; those of a run.
pub fn finetune(arguments: &Arguments) -> Result<()> {
    let finetune = Finetune::decide(arguments)?;
    let config = finetune.fitted()?;
    if print(&config).is_break() || arguments.print_config {
        return Ok(());
    }
    let (file, place) = (finetune.file(), ChosenBy("--output"));
    place.create_folder(file.parent().unwrap_or(Path::new("")))?;
    place.write(&file, config.as_bytes())?;
    train(&file, &[], None, None)
}

impl<'a> Finetune<'a> {
    fn decide(arguments: &'a Arguments) -> Result<Self> {
        let Arguments { model: folder, data, chat_template, .. } = arguments;
        refuse_name_of_hub(folder)?;
        if !folder.join("config.json").is_file() {
            let message = "has no config.json; name a folder of Hugging Face's, with weights and a tokenizer";
            return Err(Error::file(folder, message));
        }
        let plan = model_of(folder)?;
        let model = &plan.model;
        check_weights(&plan)?;
        check_tokenizer(&plan)?;
        let codec = plan.codec()?;
        note_lacking_tokens(chat_template.as_deref(), &codec)?;
        let kind = FileKind::of(data, chat_template.as_deref())?;
        let lengths = kind.lengths(data, &codec)?;
        let loader = loader(&kind, data, chat_template.as_deref())?;
        let is_text = kind == FileKind::Text;
        let tokens: usize = lengths.iter().sum();
        let longest = if is_text { LONGEST_TEXT } else { most_lengths(lengths.clone()) };
        let length = longest.min(model.seq_length);
        let samples = if is_text { tokens / length } else { lengths.len() };
        let held_out = (samples / SAMPLES_PER_HELD_OUT).min(MOST_HELD_OUT);
        let name = folder.canonicalize().unwrap_or_else(|_| folder.clone());
        let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self {
            arguments,
            output: arguments.output.clone().unwrap_or_else(|| Path::new("output").join(name + "-finetuned")),
            length,
            held_out,
            text: is_text.then_some(tokens),
            loader,
            targets: adaptable(model).into_iter().collect(),
        })
    }

    /// The configuration, beside the folder of the run.
    fn file(&self) -> PathBuf {
        let mut name = self.output.file_name().unwrap_or_default().to_os_string();
        name.push(".yaml");
        self.output.with_file_name(name)
    }

    /// The configuration with the micro-batch and recomputation that fit the memory with the least work.
    fn fitted(&self) -> Result<String> {
        let (capabilities, memory) = self.adapter()?;
        let most = if self.held_out == 0 { SAMPLES_PER_STEP } else { self.held_out.min(SAMPLES_PER_STEP) };
        // An evaluation takes whole micro-batches, so these are no larger than what is held out.
        let rows = 1 << most.ilog2();
        let plan = RunConfig::parse(&self.yaml(rows, 1, &[]), &self.file(), &[])?.plan;
        let data = plan.divided(1, SAMPLES_PER_STEP, &[]).load_data()?;
        let steps = RunLength::new(&plan, data.train.steps_per_epoch()).total_steps;
        let budget = memory - memory / 10;
        let found = Fit::find(&plan, capabilities, steps, budget)?;
        let Some(best) = &found.best else { return Err(found.refusal(&plan, budget)) };
        let Candidate { batch_size, .. } = *best;
        Ok(self.yaml(batch_size, SAMPLES_PER_STEP / batch_size, &recompute_keys(&plan, best)))
    }

    /// What is known of the adapter, and its memory or that which is to be used.
    fn adapter(&self) -> Result<(Capabilities, u64)> {
        let Arguments { adapter, memory, .. } = self.arguments;
        let options = adapter.options()?;
        match (pollster::block_on(Gpu::request(&options)), memory) {
            (Ok(gpu), Some(Bytes(memory))) => Ok((gpu.capabilities(), *memory)),
            (Ok(gpu), None) => {
                let memory = gpu.report().memory_bytes.unwrap_or_else(|| {
                    let assumed = HumanBytes(ASSUMED_MEMORY);
                    eprintln!("notice: this adapter does not say how much memory it has; {assumed} are assumed (--memory)");
                    ASSUMED_MEMORY
                });
                Ok((gpu.capabilities(), memory))
            }
            (Err(_), Some(Bytes(memory))) if self.arguments.print_config => {
                Ok((assumed_capabilities(options.tier.unwrap_or(Tier::Portable)), *memory))
            }
            (Err(error), _) => Err(super::doctor::naming_the_flag(error)),
        }
    }

    fn yaml(&self, batch_size: usize, accumulation: usize, recompute: &[(&str, String)]) -> String {
        // An evaluation takes whole micro-batches.
        let held_out = self.held_out / batch_size * batch_size;
        let recompute: Vec<String> = recompute.iter().map(|(name, value)| key(name, value)).collect();
        let runner = [
            key("epochs", 1),
            key("batch_size", batch_size),
            key("gradient_accumulation_steps", accumulation),
        ];
        let rate = if self.arguments.full { 1.0e-5 } else { 2.0e-4 };
        let schedule = [
            key("type", "CosineWithWarmUpLR"),
            key("learning_rate", format!("{rate:e}")),
            key("lr_end", format!("{:e}", rate / 10.0)),
            key("warmup_ratio", 0.03),
        ];
        let checkpoints =
            ["- type: CheckpointMonitor", "  save_checkpoint_steps: 500", "  keep_checkpoint_max: 2"];
        let sections = [
            self.run(held_out > 0),
            self.model(),
            section("train_dataset", &self.dataset(held_out)),
            section("runner_config", &runner),
            section("recompute_config", &recompute),
            section("context", &self.context()),
            section("optimizer", &[key("type", "AdamW"), key("weight_decay", "0.0")]),
            section("lr_schedule", &schedule),
            section("callbacks", &checkpoints.map(String::from)),
        ];
        let written = sections.iter().filter(|lines| !lines.is_empty());
        written.map(|lines| lines.join("\n") + "\n").collect::<Vec<_>>().join("\n")
    }

    /// The keys outside sections.
    fn run(&self, evaluates: bool) -> Vec<String> {
        let folder = self.output.parent().filter(|parent| !parent.as_os_str().is_empty());
        let name = self.output.file_name().unwrap_or_default().to_string_lossy();
        let mut keys = vec![
            key("output_dir", quoted(folder.unwrap_or(Path::new(".")))),
            key("run_name", json!(name)),
            key("load_checkpoint", quoted(&self.arguments.model)),
        ];
        if evaluates {
            keys.extend([
                key("do_eval", "True"),
                key("eval_step_interval", -1),
                key("eval_epoch_interval", 1),
            ]);
        }
        keys
    }

    fn model(&self) -> Vec<String> {
        let mut keys = vec![key("seq_length", self.length), key("compute_dtype", "bfloat16")];
        if !self.arguments.full {
            keys.extend(section("pet_config", &self.adapters()));
        }
        section("model", &section("model_config", &keys))
    }

    fn adapters(&self) -> Vec<String> {
        let Arguments { lora, base, .. } = self.arguments;
        let mut keys = vec![
            key("pet_type", "lora"),
            key("lora_rank", lora),
            key("lora_alpha", 2 * u32::from(*lora)),
            key("lora_dropout", "0.0"),
            key("target_modules", json!(self.targets)),
        ];
        keys.extend(base.as_ref().map(|base| key("base_dtype", base)));
        keys
    }

    /// The data, of which `held_out` samples or windows are held out.
    fn dataset(&self, held_out: usize) -> Vec<String> {
        let share = match (held_out, self.text) {
            (0, _) => None,
            (samples, None) => Some(key("eval_samples", samples)),
            (windows, Some(tokens)) => {
                // The first of the tokens has nothing before it.
                let share = (windows * self.length + 1) as f64 / tokens as f64;
                Some(key("eval_fraction", format!("{:.5}", (share * 1e5).ceil() / 1e5)))
            }
        };
        share.into_iter().chain([key("data_loader", &self.loader)]).collect()
    }

    fn context(&self) -> Vec<String> {
        let AdapterArguments { device_name, tier } = &self.arguments.adapter;
        let named = [("device_name", device_name), ("tier", tier)].into_iter();
        named.filter_map(|(name, value)| Some(key(name, json!(value.as_ref()?)))).collect()
    }
}

/// A line of YAML.
fn key(name: &str, value: impl Display) -> String {
    format!("{name}: {value}")
}

/// A path as YAML, whatever characters it has.
fn quoted(path: &Path) -> Value {
    json!(path.display().to_string())
}

/// A section of YAML with these lines; nothing if there are none.
fn section(name: &str, lines: &[String]) -> Vec<String> {
    let head = (!lines.is_empty()).then(|| format!("{name}:"));
    head.into_iter().chain(lines.iter().map(|line| format!("  {line}"))).collect()
}

fn model_of(folder: &Path) -> Result<RunPlan> {
    let RunConfig { plan, data_faults, .. } = RunConfig::of_model_folder(folder, &[], None)?;
    if data_faults.is_empty() { Ok(plan) } else { Err(Error::all(data_faults)) }
}

/// The length that [`WHOLE_SAMPLES`] do not exceed, a multiple of 16.
fn most_lengths(mut lengths: Vec<usize>) -> usize {
    lengths.sort_unstable();
    let whole = (lengths.len() as f64 * WHOLE_SAMPLES).ceil() as usize;
    lengths[whole.clamp(1, lengths.len()) - 1].next_multiple_of(16)
}

/// `data_loader` of the data.
fn loader(kind: &FileKind, data: &Path, chat_template: Option<&Path>) -> Result<Value> {
    let files = json!([data.display().to_string()]);
    Ok(match kind {
        FileKind::Text => json!({"type": "TextDataLoader", "dataset_files": files}),
        FileKind::Texts | FileKind::Answers(Form::Columns) => {
            json!({"type": "HFDataLoader", "data_files": files})
        }
        FileKind::Answers(Form::Alpaca) => {
            json!({"type": "HFDataLoader", "data_files": files, "handler": [{"type": "AlpacaInstructDataHandler"}]})
        }
        FileKind::Answers(Form::Prompts(form)) => {
            json!({"type": "ADGenDataLoader", "dataset_files": files, "origin_columns": form.columns, "version": 3})
        }
        FileKind::Answers(Form::Chat(_)) => match chat_template {
            Some(template) => json!({
                "type": "SFTDataLoader", "dataset_files": files, "chat_template": template.display().to_string(),
            }),
            None => json!({"type": "SFTDataLoader", "dataset_files": files}),
        },
        FileKind::Choices(_) => {
            return Err(Error::file(data, "holds questions with answers to choose from, which `eval` takes"));
        }
    })
}

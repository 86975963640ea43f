//! `train` and `dump-wgsl`, and the example `train_gpt`, which is both.

use super::Configured;
use super::output::say;
use super::parse::parse;
use crate::error::Result;
use clap::Parser;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What `--help` says of overrides.
pub const OVERRIDES: &str = "\
Overrides set any key of the configuration by its path, behind the file: --lr_schedule.learning_rate=1e-3,
--callbacks.0.per_print_times=1. Short forms:
  --epochs N, --stop_step N                          how long
  --batch_size N, --gradient_accumulation_steps N    how much at once
  --train_dataset_dir PATH, --eval_dataset_dir PATH  the data
  --device_name NAME                                 an adapter by a part of its name
  --tier software|portable                           kernels for CPUs that play a GPU, or for any GPU
  --resume_training                                  go on from the newest checkpoint of the run folder
  --do_eval                                          take eval_loss now and then

A run leaves config.yaml, metrics.jsonl, checkpoint/ and log.txt in output_dir/run_name (./output/tiny for
configs/tiny.yaml). Ctrl-C and SIGTERM finish the step and save; a second one ends at once.";

/// What `--help` says of how it ends.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done, or interrupted and saved
  2    an error; the last line says what is wrong and what to do
  130  interrupted twice";

const EXAMPLES: &str = "\
Examples:
  train_gpt configs/tiny.yaml
  train_gpt configs/tiny.yaml --run_name=wide --model.model_config.hidden_size=256 --batch_size 4
  train_gpt configs/tiny.yaml --resume_training
  train_gpt configs/tiny.yaml --tier portable --dump-wgsl shaders_of_tiny";

/// Trains a GPT from a YAML file, on any Vulkan, Metal or DX12 adapter.
#[derive(Parser)]
#[command(
    name = "train_gpt",
    after_help = format!("{OVERRIDES}\n\n{EXIT_CODES}\n\n{EXAMPLES}"),
    override_usage = "train_gpt [OPTIONS] CONFIG [--SECTION.KEY=VALUE]..."
)]
struct Arguments {
    #[command(flatten)]
    configured: Configured,
    /// Write the run's shaders there and train nothing; with --tier no adapter is asked
    #[arg(long, value_name = "FOLDER")]
    dump_wgsl: Option<PathBuf>,
}

/// Trains as the file at `config` says. Blocks until the run is done or interrupted.
pub fn train(config: &Path, overrides: &[String]) -> Result<()> {
    pollster::block_on(crate::train::run(config, overrides, interrupt_flag())).map(drop)
}

/// Writes the shaders of a run into `folder`.
pub fn dump_wgsl(config: &Path, overrides: &[String], folder: &Path) -> Result<()> {
    let files = pollster::block_on(crate::train::dump_wgsl(config, overrides, folder))?;
    say!("{} shaders written to {}", files.len(), folder.display());
    Ok(())
}

/// The example's command line.
pub fn train_gpt(arguments: impl Iterator<Item = String>) -> Result<()> {
    let Arguments { configured, dump_wgsl: folder } = parse(options_first(arguments))?;
    let Configured { config, overrides } = configured;
    match folder {
        Some(folder) => dump_wgsl(&config, &overrides, &folder),
        None => train(&config, &overrides),
    }
}

/// The arguments with our own options in front, since whatever follows the configuration is taken for an override.
fn options_first(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let (mut options, mut rest) = (Vec::new(), Vec::new());
    let mut arguments = arguments.peekable();
    options.extend(arguments.next());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-h" | "--help" => options.push(argument),
            "--dump-wgsl" => options.extend([argument].into_iter().chain(arguments.next())),
            _ if argument.starts_with("--dump-wgsl=") => options.push(argument),
            _ => rest.push(argument),
        }
    }
    options.extend(rest);
    options
}

/// Set by the first Ctrl-C or SIGTERM, which finishes the step and saves; the second ends at once.
fn interrupt_flag() -> Arc<AtomicBool> {
    let interrupt = Arc::new(AtomicBool::new(false));
    let flag = interrupt.clone();
    let handler = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("finishing the step and saving; once more ends at once");
    });
    if let Err(error) = handler {
        eprintln!("warning: an interrupt will not save: {error}");
    }
    interrupt
}

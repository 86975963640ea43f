//! Trains a GPT from a YAML file on any Vulkan, Metal or DX12 adapter.
//!
//! `cargo run --release --example train_gpt -- configs/tiny.yaml [--section.key=value ...]`

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What `--help` says below the options.
const MORE: &str = "\
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
configs/tiny.yaml). Ctrl-C and SIGTERM finish the step and save; a second one ends at once.

Exit codes:
  0    done, or interrupted and saved
  2    an error; the last line says what is wrong and what to do
  130  interrupted twice

Examples:
  train_gpt configs/tiny.yaml
  train_gpt configs/tiny.yaml --run_name=wide --model.model_config.hidden_size=256 --batch_size 4
  train_gpt configs/tiny.yaml --resume_training
  train_gpt configs/tiny.yaml --tier portable --dump-wgsl shaders_of_tiny";

/// Trains a GPT from a YAML file, on any Vulkan, Metal or DX12 adapter.
#[derive(Parser)]
#[command(name = "train_gpt", after_help = MORE, override_usage = "train_gpt [OPTIONS] CONFIG [--SECTION.KEY=VALUE]...")]
struct Arguments {
    /// The configuration, for example configs/tiny.yaml
    // A flag in its place is not clap's affair: it is answered like any file that is not there.
    #[arg(allow_hyphen_values = true)]
    config: PathBuf,
    /// Overrides of its keys, for example --runner_config.batch_size=4
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "--SECTION.KEY=VALUE")]
    overrides: Vec<String>,
    /// Write the run's shaders there and train nothing; with --tier no adapter is asked
    #[arg(long, value_name = "FOLDER")]
    dump_wgsl: Option<PathBuf>,
}

fn main() -> ExitCode {
    silence_device_select();
    let Arguments { config, overrides, dump_wgsl } = Arguments::parse_from(options_first(std::env::args()));
    let done = match dump_wgsl {
        Some(folder) => pollster::block_on(gristmill::train::dump_wgsl(&config, &overrides, &folder))
            .map(|files| println!("{} shaders written to {}", files.len(), folder.display())),
        None => pollster::block_on(gristmill::train::run(&config, &overrides, interrupt_flag())).map(drop),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
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

/// Where no desktop session is, a Vulkan layer of Mesa's looks for one and prints `error: XDG_RUNTIME_DIR is invalid` though
/// nothing is wrong. It chooses a default GPU, which we do ourselves, so it can stay out.
fn silence_device_select() {
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: the process has one thread yet.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

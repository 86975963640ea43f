//! Trains a GPT from a YAML file on any Vulkan, Metal or DX12 adapter.
//!
//! `cargo run --release --example train_gpt -- configs/tiny.yaml [--section.key=value ...]`

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Trains a GPT from a YAML file.
#[derive(Parser)]
struct Arguments {
    /// The configuration, for example configs/tiny.yaml
    config: PathBuf,
    /// Overrides of its keys: --runner_config.batch_size=4, --gradient_accumulation_steps 2, --resume_training=True
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "--KEY=VALUE")]
    overrides: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let interrupt = Arc::new(AtomicBool::new(false));
    let flag = interrupt.clone();
    // The first Ctrl-C or SIGTERM finishes the step and saves; the second ends at once.
    let handler = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("finishing the step and saving; once more ends at once");
    });
    if let Err(error) = handler {
        eprintln!("warning: an interrupt will not save: {error}");
    }
    match gristmill::train::run(&arguments.config, &arguments.overrides, interrupt) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

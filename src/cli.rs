//! The command lines of the binary `gristmill` and of the example `train_gpt`, which is its `train` and `dump-wgsl`.
//!
//! The outermost layer, and the only one that blocks: each command runs one future to completion and turns an error
//! into one line on standard error, or a few, and exit code 2.
//!
//! Needs the feature `cli`, which is on by default.

mod adapters;
mod chat;
mod doctor;
mod eval;
mod explain;
mod export;
mod finetune;
mod generate;
#[cfg(feature = "hub")]
mod hub;
mod interrupt;
mod merge;
#[cfg(not(feature = "hub"))]
mod no_hub;
#[cfg(not(feature = "plots"))]
mod no_plots;
mod numbers;
mod output;
mod parse;
mod plan;
#[cfg(feature = "hub")]
mod push;
mod ranks;
mod reading;
mod report;
mod self_test;
#[cfg(feature = "plots")]
mod stacked_areas;
#[cfg(feature = "plots")]
mod token_distribution;
mod tokenize;
mod train;
mod trained;
mod watch;

#[cfg(not(feature = "hub"))]
use self::no_hub as hub;
#[cfg(not(feature = "plots"))]
use self::no_plots as token_distribution;
pub use self::tokenize::{TokenizeArguments, TrainTokenizerArguments};

use crate::error::{Error, Result};
use clap::{Parser, Subcommand};
use output::say;
use std::path::PathBuf;
use std::process::ExitCode;

/// Trains language models on any Vulkan, Metal or DX12 adapter.
#[derive(Parser)]
#[command(name = "gristmill", version, after_help = train::EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train as a YAML file says
    #[command(after_help = train::OVERRIDES)]
    Train(train::Arguments),
    /// Show the parameters, work, memory and steps of a training run; needs no adapter, and none of its ranks
    #[command(after_help = plan::after_help())]
    Plan(plan::Arguments),
    /// Say what a key of the configuration does, or every key of a section; without a name, list the sections
    Explain(explain::Arguments),
    /// List the adapters, and test the kernels on the one that a run would use
    Doctor(doctor::Arguments),
    /// Continue a text with a trained model
    Generate(generate::Arguments),
    /// Train a model of Hugging Face's on a file of data, with defaults for everything
    #[command(after_help = finetune::AFTER_HELP)]
    Finetune(finetune::Arguments),
    /// Say how well a model predicts a text, or chooses answers
    Eval(eval::Arguments),
    /// Add an adapter to the weights that it adapts, and write the result as a model of its own
    Merge(merge::Arguments),
    /// Write trained weights under the names, in the layout and the types of the folder that a run started from
    Export(export::Arguments),
    /// Send a model or an adapter to the Hugging Face Hub, with a card that says how it was trained
    #[cfg(feature = "hub")]
    Push(push::Arguments),
    /// Encode text files into a file of token ids
    Tokenize(TokenizeArguments),
    /// Train a tokenizer on text files
    TrainTokenizer(TrainTokenizerArguments),
    /// Plot how often each expert was chosen, and list the busiest
    TokenDistribution(token_distribution::Arguments),
    /// Draw one run, or several to compare, as a page: curves, settings, samples
    Report(report::Arguments),
    /// Write the shaders of a run to a folder
    DumpWgsl {
        /// The folder to write to
        folder: PathBuf,
        #[command(flatten)]
        configured: Configured,
    },
}

/// A configuration and overrides of its keys.
#[derive(clap::Args)]
struct Configured {
    /// The configuration, for example configs/tiny.yaml
    // A flag in its place is treated as a file that does not exist, which gives a better message than clap's.
    #[arg(allow_hyphen_values = true)]
    config: PathBuf,
    /// Overrides of its keys, for example --runner_config.batch_size=4
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "--SECTION.KEY=VALUE")]
    overrides: Vec<String>,
}

/// The binary `gristmill`: parses the command line, runs the command, and returns its exit code.
pub fn gristmill() -> ExitCode {
    silence_device_select();
    reading::show_readings();
    exit_code(arguments().and_then(|words| parse::parse(words.into_iter())).and_then(run))
}

fn run(Arguments { command }: Arguments) -> Result<()> {
    match command {
        Command::Train(arguments) => arguments.run(),
        Command::Plan(arguments) => plan::plan(&arguments),
        Command::Explain(arguments) => explain::explain(&arguments),
        Command::Doctor(arguments) => pollster::block_on(doctor::doctor(&arguments)),
        Command::Generate(arguments) => pollster::block_on(generate::generate(&arguments)),
        #[cfg(feature = "hub")]
        Command::Push(arguments) => push::push(&arguments),
        Command::Finetune(arguments) => finetune::finetune(arguments),
        Command::Eval(arguments) => pollster::block_on(eval::eval(&arguments)),
        Command::Merge(arguments) => merge::merge(&arguments),
        Command::Export(arguments) => export::export(&arguments),
        Command::Tokenize(arguments) => match arguments.shows()? {
            true => Ok(()),
            false => arguments.run().map(|summary| say!("{summary}")),
        },
        Command::TrainTokenizer(arguments) => arguments.run().map(|tokenizer| {
            say!("{} tokens written to {}", tokenizer.vocab_size(), arguments.output.display());
        }),
        Command::TokenDistribution(arguments) => token_distribution::token_distribution(&arguments),
        Command::Report(arguments) => report::report(&arguments),
        Command::DumpWgsl { folder, configured } => {
            train::dump_wgsl(&configured.config, &configured.overrides, &folder)
        }
    }
}

/// The example `train_gpt`: parses the command line, trains, and returns the exit code.
pub fn train_gpt() -> ExitCode {
    silence_device_select();
    reading::show_readings();
    exit_code(arguments().and_then(|words| train::train_gpt(words.into_iter())))
}

/// The words of the command line.
fn arguments() -> Result<Vec<String>> {
    let text = |word: std::ffi::OsString| {
        word.into_string().map_err(|word| {
            let message = "is not UTF-8, as arguments must be; rename the file, or write it otherwise";
            Error::config(word.to_string_lossy(), message)
        })
    };
    std::env::args_os().map(text).collect()
}

fn exit_code(done: Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::from(2)
        }
    }
}

fn print_error(error: &Error) {
    error.to_string().lines().for_each(|line| eprintln!("error: {line}"));
}

/// Disables a Mesa Vulkan layer that chooses a default GPU, since this program chooses the GPU itself: without a
/// desktop session the layer prints `error: XDG_RUNTIME_DIR is invalid` although nothing is wrong.
fn silence_device_select() {
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: the process has only one thread so far.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

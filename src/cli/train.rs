//! `train` and `dump-wgsl`, and the example `train_gpt`, which can do both.

use super::Configured;
use super::interrupt::Interrupt;
use super::output::say;
use super::parse::parse;
use super::ranks::on_ranks;
use super::reading::CacheArguments;
use super::watch::{WatchAddress, Watcher};
use crate::error::Result;
use crate::train::command::{CommandLine, TRAIN};
use crate::train::{Milestone, TrainingRun};
use clap::Parser;
use std::path::{Path, PathBuf};

/// The section of `--help` on overrides.
pub const OVERRIDES: &str = "\
Overrides follow the file and set any key of the configuration by its path: --lr_schedule.learning_rate=1e-3,
--callbacks.0.per_print_times=1. Short forms:
  --epochs N, --stop_step N                          length of the run
  --batch_size N, --gradient_accumulation_steps N    size of a step
  --train_dataset_dir PATH, --eval_dataset_dir PATH  the data
  --profile N                                        time every launch of N steps, and show where time goes
  --device_name NAME                                 the adapter, by a part of its name
  --tier software|portable|matrix                    for software adapters, any GPU, or one with matrices
  --resume_training[=auto]                           continue from the newest checkpoint of the run folder;
                                                     auto: or begin where there is none; extend: with other
                                                     epochs, steps or rates than before
  --do_eval                                          compute eval_loss at intervals
  --as-single                                        do on one device what the file spreads over several
The flags of MindFormers' launcher work too: --config FILE in place of CONFIG, --run_mode, --seed,
--load_checkpoint, --output_dir, and --options KEY=VALUE ... for any keys.

A run leaves config.yaml, metrics.jsonl, events.jsonl, checkpoint/, log.txt and report.html in
output_dir/run_name (./output/tiny for configs/tiny.yaml). Ctrl-C and SIGTERM finish the step and
save; a second one exits at once, as the first one does before step 1.";

/// The section of `--help` on exit codes.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    complete, or interrupted and saved
  2    an error; the last line says what is wrong and what to do
  130  interrupted before the first step, or twice";

const EXAMPLES: &str = "\
Examples:
  train_gpt configs/tiny.yaml
  train_gpt configs/tiny.yaml --run_name=wide --model.model_config.hidden_size=256 --batch_size 4
  train_gpt configs/tiny.yaml --resume_training
  train_gpt configs/tiny.yaml --tier portable --dump-wgsl shaders_of_tiny
  train_gpt configs/tiny.yaml --ranks 2
  train_gpt configs/tiny.yaml --watch
  mpirun -n 2 train_gpt configs/tiny.yaml";

/// A training run.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    configured: Configured,
    /// Train on N threads of this process, each a rank with its device
    #[arg(long, value_name = "N", value_parser = rank_threads)]
    ranks: Option<u16>,
    /// Serve the report meanwhile, here at 4747 or PORT, or at ADDRESS:PORT or NAME:PORT
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    watch: Option<String>,
    #[command(flatten)]
    cache: CacheArguments,
}

/// More threads than this are a mistake: no machine has as many devices.
const MAX_RANK_THREADS: u16 = 256;

fn rank_threads(text: &str) -> std::result::Result<u16, String> {
    let ranks = text.parse().ok().filter(|ranks| (1..=MAX_RANK_THREADS).contains(ranks));
    ranks.ok_or_else(|| {
        format!("expected a whole number from 1 to {MAX_RANK_THREADS}, each a thread with a device, found `{text}`")
    })
}

/// Trains a GPT as a YAML file says, on any Vulkan, Metal or DX12 adapter.
#[derive(Parser)]
#[command(
    name = "train_gpt",
    after_help = format!("{OVERRIDES}\n\n{EXIT_CODES}\n\n{EXAMPLES}"),
    override_usage = "train_gpt [OPTIONS] CONFIG [--SECTION.KEY=VALUE]..."
)]
struct Example {
    #[command(flatten)]
    arguments: Arguments,
    /// Write the run's shaders to this folder and exit; needs no adapter with --tier
    #[arg(long, value_name = "FOLDER")]
    dump_wgsl: Option<PathBuf>,
}

impl Arguments {
    /// Trains. Blocks until the run is complete or interrupted.
    ///
    /// # Errors
    /// The configuration, the data, a folder or the adapter cannot be used, or a rank ends.
    pub fn run(&self) -> Result<()> {
        let Configured { config, overrides } = &self.configured;
        self.cache.apply();
        let command = CommandLine::of_process(TRAIN);
        let (ranks, watch) = (self.ranks.map(usize::from), self.watch.as_deref());
        train(config, overrides, ranks, watch, &command, Interrupt::listen(), &|| ())
    }
}

/// Trains as `config` and `overrides` say, on `ranks` threads and watched at the address `watch` if these are given.
/// Blocks until the run is complete or interrupted. `command` has started it, `interrupt` listens, and `on_opened` is
/// called once its folder is open: from then on the run is what the folder holds.
///
/// # Errors
/// As [`Arguments::run`].
pub fn train(
    config: &Path,
    overrides: &[String],
    ranks: Option<usize>,
    watch: Option<&str>,
    command: &CommandLine,
    interrupt: Interrupt,
    on_opened: &(dyn Fn() + Sync),
) -> Result<()> {
    let address = watch.map(WatchAddress::parse).transpose()?;
    let done = on_ranks(ranks, |ranks| {
        let mut watcher = None; // for as long as the run takes
        let on_milestone = |milestone: Milestone<'_>| {
            interrupt.on_milestone(&milestone);
            if let Milestone::FolderOpened(folder) = milestone {
                on_opened();
                watcher = address.clone().and_then(|address| Watcher::start(address, folder));
            }
        };
        let run = TrainingRun {
            interrupt: interrupt.flag(),
            ranks,
            command: command.clone(),
            on_milestone: Box::new(on_milestone),
            ..TrainingRun::new(config, overrides)
        };
        let done = pollster::block_on(run.train()).map(drop);
        interrupt.wait_while_ending();
        done
    });
    interrupt.wait_while_ending();
    done
}

/// Writes the shaders of a run to `folder`.
///
/// # Errors
/// The configuration is wrong, there is neither an adapter nor a tier, or the folder cannot be written.
pub fn dump_wgsl(config: &Path, overrides: &[String], folder: &Path) -> Result<()> {
    let files = pollster::block_on(crate::train::dump_wgsl(config, overrides, folder))?;
    say!("{} shaders written to {}", files.len(), folder.display());
    Ok(())
}

/// The command line of the example.
///
/// # Errors
/// As [`Arguments::run`] and [`dump_wgsl`]; a wrong command line.
pub fn train_gpt(arguments: impl Iterator<Item = String>) -> Result<()> {
    let Example { arguments, dump_wgsl: folder } = parse(arguments)?;
    let Configured { config, overrides } = &arguments.configured;
    match folder {
        Some(folder) => dump_wgsl(config, overrides, &folder),
        None => arguments.run(),
    }
}

//! How the samples of a step are divided into micro-batches, and what is recomputed, so that the run fits the memory.
//! Neither changes the results, beyond rounding.

use super::keys::Keys;
use super::{Arguments, GOING_ON};
use crate::cli::doctor::naming_the_flag;
use crate::cli::plan::recompute_keys;
use crate::device::Gpu;
use crate::durable::read_error;
use crate::error::{Error, Result, new_run_from};
use crate::kernels::{Capabilities, Tier};
use crate::perf::fit::{Candidate, Fit, Recomputation};
use crate::settings::{Bytes, RunConfig, RunPlan};
use crate::store::model_path::chosen;
use crate::store::run_folder::{CONFIG, open_file};
use crate::train::command::CommandLine;
use crate::train::length::RunLength;
use crate::train::recordings::assumed_capabilities;
use crate::train::resume::is_of_schedule;
use indicatif::HumanBytes;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// The key for the rows of a micro-batch.
pub const BATCH: &str = "runner_config.batch_size";
/// The key for the micro-batches of a step.
pub const ACCUMULATION: &str = "runner_config.gradient_accumulation_steps";
/// The keys for the length of a run.
const LENGTH: [&str; 2] = ["runner_config.epochs", "runner_config.stop_step"];
/// The memory that is assumed of an adapter that does not say how much it has.
const ASSUMED_MEMORY: u64 = 8_000_000_000;

/// Adds the keys that divide a step of `step` samples to a configuration at `file`; an epoch has `steps` steps. A run
/// that continues keeps its division.
///
/// # Errors
/// Keys that are wrong; a run that does not fit the memory; a run that is to continue and was begun with other keys.
pub fn divide(arguments: &Arguments, keys: &mut Keys, file: &Path, step: usize, steps: u64) -> Result<()> {
    if keys.written(BATCH).or(keys.written(ACCUMULATION)).is_some() {
        return Ok(()); // as it is written
    }
    let mut whole = keys.clone();
    whole.add(BATCH, step);
    let plan = RunConfig::parse(&whole.yaml(), file, &[])?.plan;
    let begun = if arguments.goes_on() { begun(arguments)? } else { None };
    let division = match begun {
        Some(begun) => {
            refuse_other(arguments, &begun, &plan, steps)?;
            let runner = &begun.settings.runner;
            Candidate {
                batch_size: runner.batch_size,
                gradient_accumulation_steps: runner.gradient_accumulation_steps,
                recomputation: Recomputation { layers: begun.model.recomputed.layers.clone(), work: 0.0 },
                bytes: None,
            }
        }
        None => {
            let (capabilities, memory) = adapter(arguments)?;
            fitted(arguments, &plan, steps, capabilities, &memory)?
        }
    };
    keys.add(BATCH, division.batch_size);
    keys.add(ACCUMULATION, division.gradient_accumulation_steps);
    for (name, value) in recompute_keys(&plan, &division) {
        keys.add(&format!("recompute_config.{name}"), value);
    }
    Ok(())
}

/// The largest micro-batch among those that fit with the least work.
pub(super) fn fitted(
    arguments: &Arguments,
    plan: &RunPlan,
    steps: u64,
    capabilities: Capabilities,
    memory: &Memory,
) -> Result<Candidate> {
    let steps = RunLength::new(plan, steps.max(1)).total_steps;
    let budget = memory.bytes() - memory.bytes() / 10;
    let found = Fit::find(plan, capabilities, steps, budget)?;
    found.best.clone().ok_or_else(|| {
        let least = found.candidates.iter().filter_map(|candidate| candidate.bytes).min().unwrap_or(0);
        let fits = found.quantised.iter().filter(|(_, bytes)| *bytes <= budget);
        let bases = fits.map(|(base, bytes)| {
            format!("store the frozen weights smaller, by --base {}, which takes {}", base.name(), HumanBytes(*bytes))
        });
        let is_shorter_smaller = found.fixed <= budget;
        let fixed = match is_shorter_smaller {
            true => String::new(),
            false => format!(", {} of it for weights, gradients and moments, whatever its length", HumanBytes(found.fixed)),
        };
        let more = memory.more();
        let ways: Vec<String> = more.into_iter().chain(arguments.smaller(bases, is_shorter_smaller)).collect();
        let ways = ways.join(", or ");
        Error::Plan(format!(
            "nothing fits {}, {}: one sample of {} tokens takes {} with every layer recomputed{fixed}; {ways}",
            HumanBytes(budget),
            memory.said(),
            plan.model.seq_length,
            HumanBytes(least),
        ))
    })
}

/// The device memory, by its source: a flag, the adapter, or an assumption.
pub(super) enum Memory {
    Asked(u64),
    Reported(u64),
    Assumed,
}

impl Memory {
    fn bytes(&self) -> u64 {
        match self {
            Self::Asked(bytes) | Self::Reported(bytes) => *bytes,
            Self::Assumed => ASSUMED_MEMORY,
        }
    }

    /// The part of the memory that may be used, in words.
    fn said(&self) -> String {
        match self {
            Self::Asked(_) => "--memory without a tenth".to_string(),
            Self::Reported(bytes) => {
                format!("the {} that the adapter reports without a tenth", HumanBytes(*bytes))
            }
            Self::Assumed => format!("the {} that are assumed without a tenth", HumanBytes(ASSUMED_MEMORY)),
        }
    }

    /// The advice for a device that has more memory than is known.
    fn more(&self) -> Option<String> {
        match self {
            Self::Asked(_) => None,
            Self::Reported(_) => Some("give --memory more, if the device has more than that".to_string()),
            Self::Assumed => Some("give --memory what the device has, if that is more".to_string()),
        }
    }
}

/// The capabilities of the adapter, and its memory or the memory that may be used.
fn adapter(arguments: &Arguments) -> Result<(Capabilities, Memory)> {
    let options = arguments.adapter.options()?;
    match (pollster::block_on(Gpu::request(&options)), arguments.memory) {
        (Ok(gpu), Some(Bytes(memory))) => Ok((gpu.capabilities(), Memory::Asked(memory))),
        (Ok(gpu), None) => {
            let memory = gpu.report().memory_bytes.map_or_else(
                || {
                    let assumed = HumanBytes(ASSUMED_MEMORY);
                    eprintln!("notice: this adapter does not say how much memory it has; {assumed} are assumed (--memory)");
                    Memory::Assumed
                },
                Memory::Reported,
            );
            Ok((gpu.capabilities(), memory))
        }
        (Err(_), Some(Bytes(memory))) if arguments.print_config => {
            Ok((assumed_capabilities(options.tier.unwrap_or(Tier::Portable)), Memory::Asked(memory)))
        }
        (Err(error), _) => Err(naming_the_flag(error)),
    }
}

/// The plan of the run in the command's folder, if there is a run with a checkpoint.
fn begun(arguments: &Arguments) -> Result<Option<RunPlan>> {
    let folder = arguments.output();
    let config = folder.join(CONFIG);
    if !config.is_file() || arguments.latest()?.is_none() {
        return Ok(None);
    }
    let text = open_file(&config).and_then(std::io::read_to_string);
    let text = text.map_err(|error| read_error(&config, "read", &error))?;
    RunConfig::of_run_folder(&text, &config, &[], None).map(|config| Some(config.plan))
}

/// Refuses to continue a run that was `begun` with other numbers or another length than `plan`. The division of its
/// steps may differ, and so may its length and rates if the run is extended. An epoch has `steps` steps.
fn refuse_other(arguments: &Arguments, begun: &RunPlan, plan: &RunPlan, steps: u64) -> Result<()> {
    let of = |plan: &RunPlan| {
        let runner = &plan.settings.runner;
        let mut all = plan.decisions();
        all.remove(BATCH);
        all.insert(ACCUMULATION.into(), (runner.batch_size * runner.gradient_accumulation_steps).into());
        let [epochs, stop] = LENGTH;
        all.insert(epochs.into(), runner.epochs.into());
        all.insert(stop.into(), runner.stop_step.into());
        all.retain(|key, _| !key.starts_with("recompute_config."));
        all
    };
    let (there, here) = (of(begun), of(plan));
    let keys: BTreeSet<&String> = there.keys().chain(here.keys()).collect();
    let shown = |value: Option<&Value>| value.map_or("absent".to_string(), Value::to_string);
    let differs = |key: &&String| there.get(*key) != here.get(*key);
    let is_length = |key: &str| LENGTH.contains(&key) || is_of_schedule(key);
    let differing: Vec<&String> =
        keys.into_iter().filter(differs).filter(|key| !(arguments.extend && is_length(key))).collect();
    let said = differing.iter().take(3).map(|key| {
        let key = key.as_str();
        let name = if key == ACCUMULATION { "samples of a step" } else { key };
        format!("{name} {} there and {} here", shown(there.get(key)), shown(here.get(key)))
    });
    let said: Vec<String> = said.collect();
    if said.is_empty() {
        return Ok(());
    }
    let folder = arguments.output();
    let flag = if arguments.extend { GOING_ON.extend } else { GOING_ON.resume };
    let other = match differing.iter().all(|key| is_length(key)) {
        true => {
            let done = arguments.latest()?.map_or(0, |(step, _)| step);
            let (command, length) = (CommandLine::of_process(GOING_ON), RunLength::new(plan, steps.max(1)));
            let on = match length.total_steps > done {
                true => "train on with these".to_string(),
                false => format!("train on longer than these say, since step {done} is done,"),
            };
            format!("{on} by {}", command.beyond(done, plan, &length))
        }
        false => new_run_from(&chosen(&folder)?, &format!("--output in place of {flag}")),
    };
    let message = format!(
        "{flag} continues a run as its config.yaml says: {}; repeat those flags, or {other}",
        said.join(", ")
    );
    Err(Error::file(folder, message))
}

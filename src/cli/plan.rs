//! `plan`: the size and the work of a run, without running it.

mod fitted;
mod machine;
mod ranks;
mod report;
mod warnings;

use super::Configured;
use super::adapters::{COMPUTE_DTYPE, pet_config};
use super::hub;
use super::interrupt::Interrupt;
use super::output::{self, say};
use super::reading::CacheArguments;
use super::train::OVERRIDES;
use crate::error::{Error, Result};
use crate::hugging_face::refuse_name_of_hub;
use crate::infer;
use crate::kernels::{Capabilities, Limits, PublishedGpu, Tier, Units};
use crate::model::adaptable;
use crate::perf::fit::Fit;
use crate::report::log::Log;
use crate::settings::{BaseType, Bytes, Override, RunConfig, RunPlan};
use crate::train::length::RunLength;
use crate::train::pretrained::check_weights;
use crate::train::recordings::{Recordings, assumed_capabilities};
pub(super) use fitted::recompute as recompute_keys;
use machine::MachineArguments;
use report::Report;
use std::path::Path;

/// What to plan.
#[derive(clap::Args)]
pub struct Arguments {
    /// Find the batch size and the recomputation with the least work that fit this much device memory (8GB, 6000MiB, or
    /// a number of bytes), for the same tokens in a step, and print the keys to write. 10 % of it stay free, for the
    /// driver, the screen and other programs
    #[arg(long, value_name = "BYTES")]
    fit: Option<Bytes>,
    /// Plan for this many ranks. Their layout is the file's, whose degrees multiply to them; a data_parallel that is
    /// not written fills them. Without it there are as many as the file asks for
    #[arg(long, value_name = "N", value_parser = machine::at_least_one)]
    ranks: Option<usize>,
    /// Of a folder of Hugging Face's: plan low-rank adapters of this rank on all its linear layers, as `finetune`
    /// trains them
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u16).range(1..))]
    lora: Option<u16>,
    /// Store the frozen matrices under the adapters in 4 or 8 bits
    #[arg(long, value_name = "TYPE", value_parser = BaseType::ALL.map(BaseType::name), requires = "lora")]
    base: Option<String>,
    #[command(flatten)]
    machine: MachineArguments,
    #[command(flatten)]
    cache: CacheArguments,
    #[command(flatten)]
    configured: Configured,
}

/// The text after the options in `--help`.
pub fn after_help() -> String {
    format!("{PLANNED_MODELS}\n\n{}\n\n{OVERRIDES}", machine::MODEL)
}

const PLANNED_MODELS: &str = "A model in place of the configuration is planned as it was trained if it is a run or a checkpoint of one, \
    as trained by `finetune`, in bfloat16, if it is a folder of Hugging Face's (whole, or as --lora says) or an adapter (on its base).";

/// Steps of the schedule that memory is planned for if the data is not known, and with it the number of steps.
const STEPS_IF_UNKNOWN: u64 = 1000;

/// Bindings that a plan assumes if 1 GiB, the most that a run uses, is too little for the model; the last one is for
/// rows of experts that come from many ranks.
const LARGE_BINDINGS: [u64; 2] = [4 << 30, 32 << 30];

/// Prints parameters, work, memory and steps of a run, or with `fit` of a run that fits. Needs no adapter, and no data:
/// without data the number of steps stays open.
///
/// # Errors
/// The configuration is wrong, or nothing fits.
pub fn plan(arguments: &Arguments) -> Result<()> {
    let Configured { config, overrides } = &arguments.configured;
    let config = &hub::folder_of(config)?;
    let mut overrides = Override::parse_all(overrides)?;
    overrides.extend(adapters(arguments, config, &overrides)?);
    let config = outline(config, &overrides, arguments.ranks)?;
    let plan = &config.plan;
    check_weights(plan)?;
    without_layers(&config.notices).iter().for_each(|notice| say!("{notice}"));
    config.unsupported.iter().for_each(|reason| say!("This plan cannot be trained yet: {reason}"));
    Interrupt::listen(); // which removes unfinished token files
    Log::start();
    arguments.cache.apply();
    let data = config.data_faults.first().map_or_else(|| plan.load_data(), |fault| Err(fault.clone()));
    let length = match data {
        Ok(data) => {
            data.summary.iter().for_each(|line| say!("{line}"));
            Some(RunLength::new(plan, data.train.steps_per_epoch()))
        }
        Err(error) => {
            say!("The number of steps is not known without the data: {error}");
            None
        }
    };
    let context = &plan.settings.context;
    let gpu = context.device_name.as_deref().and_then(PublishedGpu::named);
    let adapter = match (context.tier, gpu) {
        (None, Some(gpu)) => gpu.capabilities(plan.tries_matrices()),
        (tier, gpu) => assumed_capabilities(tier.unwrap_or(Tier::Portable))
            .with_units(gpu.map_or(Units::ASSUMED, |gpu| gpu.units)),
    }
    .with_split_f32(plan.splits_f32());
    let machine = &arguments.machine;
    match arguments.fit {
        None => report(plan, length.as_ref(), adapter, machine),
        Some(Bytes(memory)) => fit(&config, length.as_ref(), adapter, machine, memory),
    }
}

/// The configuration in the file `path`, or of the model in the folder `path`.
fn outline(path: &Path, overrides: &[Override], ranks: Option<usize>) -> Result<RunConfig> {
    refuse_name_of_hub(path)?;
    if !path.is_dir() {
        return RunConfig::outline(path, overrides, ranks);
    }
    let (key, dtype) = COMPUTE_DTYPE;
    infer::outline(path, &Override::of(key, &dtype.into()), overrides, ranks)
}

/// The adapters that `--lora` asks for, of the model in the folder `path`.
fn adapters(arguments: &Arguments, path: &Path, overrides: &[Override]) -> Result<Option<Override>> {
    let Arguments { lora: Some(rank), base, ranks, .. } = arguments else { return Ok(None) };
    let model = outline(path, overrides, *ranks)?.plan.model;
    if !path.join("config.json").is_file() || model.low_rank.is_some() {
        let message = "is of a folder of Hugging Face's; elsewhere `model.model_config.pet_config` says which adapters there are";
        return Err(Error::config("--lora", message));
    }
    let targets: Vec<String> = adaptable(&model).into_iter().collect();
    let keys = pet_config((*rank).into(), None, 0.0, [&targets, &[]], base.as_deref());
    Ok(Some(Override::of("model.model_config.pet_config", &keys.into_iter().collect())))
}

/// A notice, or several equal notices about consecutive layers.
struct GroupedNotice<'a> {
    what: &'a str,
    /// The first layer and the last.
    layers: Option<(usize, usize)>,
    rest: &'a str,
}

impl<'a> GroupedNotice<'a> {
    fn of(notice: &'a str) -> Self {
        let of_layer = || {
            let (what, rest) = notice.split_once(" at layer ")?;
            let (number, rest) =
                rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
            let layer = number.parse().ok()?;
            Some(Self { what, layers: Some((layer, layer)), rest })
        };
        of_layer().unwrap_or(Self { what: notice, layers: None, rest: "" })
    }

    /// Whether `next` is the same notice about the next layer.
    fn goes_on(&self, next: &Self) -> bool {
        let are_consecutive =
            self.layers.zip(next.layers).is_some_and(|((_, last), (next, _))| last + 1 == next);
        are_consecutive && (self.what, self.rest) == (next.what, next.rest)
    }

    fn text(&self) -> String {
        let Self { what, layers, rest } = self;
        match layers {
            Some((first, last)) if first < last => format!("{what} at layers {first} to {last}{rest}"),
            Some((only, _)) => format!("{what} at layer {only}{rest}"),
            None => (*what).to_string(),
        }
    }
}

/// `notices`, with those about consecutive layers combined: a run logs one for each layer, as MindFormers does.
fn without_layers(notices: &[String]) -> Vec<String> {
    let mut grouped: Vec<GroupedNotice<'_>> = Vec::new();
    for next in notices.iter().map(|notice| GroupedNotice::of(notice)) {
        match grouped.iter_mut().find(|before| before.goes_on(&next)) {
            Some(before) => {
                before.layers = before.layers.zip(next.layers).map(|((first, _), (_, last))| (first, last))
            }
            None => grouped.push(next),
        }
    }
    grouped.iter().map(GroupedNotice::text).collect()
}

/// Prints the report of the run of `plan`.
fn report(
    plan: &RunPlan,
    length: Option<&RunLength>,
    adapter: Capabilities,
    machine: &MachineArguments,
) -> Result<()> {
    let new = |adapter| Report::new(plan, length, adapter, steps(length), machine);
    let report = new(adapter).or_else(|misfit| {
        // A model that is too large to train can still be planned.
        let large = LARGE_BINDINGS.into_iter().filter(|_| adapter.tier != Tier::Software).find_map(|bytes| {
            let limits = Limits { binding_bytes: bytes, buffer_bytes: bytes };
            new(Capabilities { limits, ..adapter }).ok()
        });
        large.map(|report| Report { misfit: Some(misfit.clone()), ..report }).ok_or(misfit)
    })?;
    let _ = output::print(&report.to_string());
    Ok(())
}

/// Finds a division that fits `memory` bytes, and prints its report and the keys to write.
fn fit(
    config: &RunConfig,
    length: Option<&RunLength>,
    adapter: Capabilities,
    machine: &MachineArguments,
    memory: u64,
) -> Result<()> {
    let mut plan = config.plan.clone();
    if plan.layout.pipeline > 1 {
        return Err(Error::Plan(
            "--fit: divides the step of ranks that hold all layers; leave out --fit, or write `pipeline_stage: 1`"
                .to_string(),
        ));
    }
    // For one rank: a division that fits the fullest rank fits all.
    plan.layout.rank = Recordings::fullest_rank(&plan, adapter)?;
    let plan = &plan;
    // A run over its own cap would not start. That cap is the user's, and already includes headroom.
    let free = memory / 10;
    let cap = plan.settings.context.max_device_memory.map_or(u64::MAX, |Bytes(cap)| cap).min(memory - free);
    let of = if cap == memory - free { Some(memory) } else { None };
    let found = Fit::find(plan, adapter, steps(length), cap)?;
    let Some(best) = &found.best else {
        let _ = output::print(&fitted::table(&found, cap, of));
        return Err(found.refusal(plan, cap));
    };
    let fitting = best.applied_to(plan);
    report(&fitting, length, adapter, machine)?;
    let _ = output::print(&(fitted::table(&found, cap, of) + &fitted::keys(config, best)));
    // The evaluation data may be too short for a larger micro-batch.
    if let Some(error) = length.and_then(|_| fitting.load_data().err()) {
        say!("note: with this batch_size {error}");
    }
    Ok(())
}

fn steps(length: Option<&RunLength>) -> u64 {
    length.map_or(STEPS_IF_UNKNOWN, |length| length.total_steps)
}

#[cfg(test)]
mod tests {
    use super::without_layers;

    #[test]
    fn notices_of_layers_are_told_together() {
        let notices = [
            "first",
            "Set full recompute at layer 0",
            "Set select recompute on at layer 1: add",
            "Set full recompute at layer 1",
            "Set full recompute at layer 2",
            "Set select recompute on at layer 2: add",
            "Set full recompute at layer 9",
            "last at layer x",
        ];
        let grouped = without_layers(&notices.map(str::to_string));
        let expected = [
            "first",
            "Set full recompute at layers 0 to 2",
            "Set select recompute on at layers 1 to 2: add",
            "Set full recompute at layer 9",
            "last at layer x",
        ];
        assert_eq!(grouped, expected);
    }
}

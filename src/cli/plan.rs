//! `plan`: the size and the work of a run, without running it.

mod fitted;
mod report;

use super::Configured;
use super::output::{self, say};
use crate::error::Result;
use crate::kernels::{Capabilities, Tier};
use crate::settings::{Bytes, Override, RunConfig, RunPlan};
use crate::train::fit::Fit;
use crate::train::forecast::Forecast;
use crate::train::length::RunLength;
use crate::train::recordings::{Recordings, assumed_capabilities};
use report::{Otherwise, Report};

/// What to plan.
#[derive(clap::Args)]
pub struct Arguments {
    /// Find the batch size and the recomputation with the least work that fit this much device memory (8GB, 6000MiB, or a
    /// number of bytes), for the same tokens in a step, and print the keys to write
    #[arg(long, value_name = "BYTES")]
    fit: Option<Bytes>,
    #[command(flatten)]
    configured: Configured,
}

/// Steps of the schedule that memory is planned for if the data, and so the number of steps, is not known.
const STEPS_IF_UNKNOWN: u64 = 1000;

/// Prints parameters, work, memory and steps of a run; with `fit`, of one that fits. Needs no adapter.
///
/// # Errors
/// If the configuration is wrong, or nothing fits.
pub fn plan(arguments: &Arguments) -> Result<()> {
    let Configured { config, overrides } = &arguments.configured;
    let config = RunConfig::load(config, &Override::parse_all(overrides)?)?;
    let plan = &config.plan;
    config.notices.iter().for_each(|notice| say!("{notice}"));
    let length = match plan.load_data() {
        Ok(data) => {
            data.summary.iter().for_each(|line| say!("{line}"));
            Some(RunLength::new(plan, data.train.steps_per_epoch()))
        }
        Err(error) => {
            say!("The number of steps is not known without the data: {error}");
            None
        }
    };
    let adapter = assumed_capabilities(plan.settings.context.tier.unwrap_or(Tier::Portable));
    match arguments.fit {
        None => report(plan, length.as_ref(), adapter),
        Some(Bytes(memory)) => fit(plan, length.as_ref(), adapter, memory),
    }
}

/// Prints what the run of `plan` takes.
fn report(plan: &RunPlan, length: Option<&RunLength>, adapter: Capabilities) -> Result<()> {
    let steps = steps(length);
    let forecast = Forecast::new(&Recordings::new(plan, adapter, steps)?);
    let layers: Vec<usize> =
        (0..plan.model.num_layers + plan.model.multi_token.map_or(0, |ahead| ahead.depth)).collect();
    let mut otherwise = Vec::new();
    for recomputed in [Vec::new(), layers] {
        if recomputed != plan.model.recomputed_layers || !plan.model.recomputed_operators.is_empty() {
            let mut plan = plan.clone();
            plan.model.recomputed_layers = recomputed;
            plan.model.recomputed_operators = Vec::new();
            plan.settings.context.max_device_memory = None;
            let pool_bytes = Forecast::new(&Recordings::new(&plan, adapter, steps)?).pool_bytes;
            otherwise.push(Otherwise { recomputed: plan.model.recomputed_layers, pool_bytes });
        }
    }
    let _ = output::print(&Report { plan, length, adapter, forecast, otherwise }.to_string());
    Ok(())
}

/// Finds what fits `memory` bytes, and prints what it takes and how to write it.
fn fit(plan: &RunPlan, length: Option<&RunLength>, adapter: Capabilities, memory: u64) -> Result<()> {
    // A run over its own cap would not start.
    let cap = plan.settings.context.max_device_memory.map_or(memory, |Bytes(cap)| cap.min(memory));
    let found = Fit::find(plan, adapter, steps(length), cap)?;
    let Some(best) = &found.best else {
        let _ = output::print(&fitted::table(&found, cap));
        return Err(found.refusal(plan, cap));
    };
    report(&best.applied_to(plan), length, adapter)?;
    let _ = output::print(&(fitted::table(&found, cap) + &fitted::keys(plan, best)));
    Ok(())
}

fn steps(length: Option<&RunLength>) -> u64 {
    length.map_or(STEPS_IF_UNKNOWN, |length| length.total_steps)
}

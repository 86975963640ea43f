//! `doctor`: lists the adapters. For the one that a run would use, it tests the kernels, measures its speed and says
//! how large a model it can train.

use super::output::say;
use super::self_test::{ALLOWED, Outcome, Tested, self_test};
use crate::device::{Gpu, GpuOptions, list_adapters};
use crate::error::{Error, Result};
use crate::kernels::{Capabilities, Tier};
use crate::perf::forecast::Forecast;
use crate::perf::peak::{CostOfChecks, Peak, probe_matmul_rate, probe_memory_rate};
use crate::settings::{Bytes, RunConfig};
use crate::train::recordings::Recordings;
use indicatif::{HumanBytes, HumanCount};
use std::path::Path;

/// The flags of `doctor`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The adapter to test, by a part of its name
    #[arg(long, value_name = "NAME")]
    device_name: Option<String>,
    /// Its memory (8GB, 6000MiB, or a number of bytes), if it is not known, or only a part of it is to be used
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
}

/// Name, layers, width and heads, smallest first. The other sizes that [`forecast`] needs are the same for all, so
/// these are not the complete shapes of the models that they name.
const LADDER: [(&str, u32, u32, u32); 8] = [
    ("8 layers of 256", 8, 256, 4),
    ("8 layers of 512", 8, 512, 8),
    ("12 layers of 768 (depth and width of GPT-2)", 12, 768, 12),
    ("24 layers of 1024 (depth and width of GPT-2 medium)", 24, 1024, 16),
    ("36 layers of 1280 (depth and width of GPT-2 large)", 36, 1280, 20),
    ("48 layers of 1600 (depth and width of GPT-2 XL)", 48, 1600, 25),
    ("28 layers of 3072 (depth and width of Llama 3.2 3B)", 28, 3072, 24),
    ("32 layers of 4096 (depth and width of Llama 2 7B)", 32, 4096, 32),
];

/// Prints the report.
///
/// # Errors
/// There is no adapter, the device fails, or a kernel computes wrong results.
pub async fn doctor(arguments: &Arguments) -> Result<()> {
    let device_name = arguments.device_name.clone();
    let options = GpuOptions { device_name, tries_matrices: true, ..GpuOptions::default() };
    let mut gpu = Gpu::request(&options).await.map_err(naming_the_flag)?;
    let native_f16 = gpu.try_native_f16().await;
    let widening = gpu.check_widening().await;
    let tested = self_test(&gpu).await?;
    let wrong = wrong_kernels(&tested);
    say!("{}", verdict(&gpu.report().name, &tested, &wrong));
    say!("adapters");
    let adapters = list_adapters().await;
    let chosen = adapters.iter().position(|adapter| adapter == gpu.report());
    for (device_id, adapter) in adapters.iter().enumerate() {
        let mark = if chosen == Some(device_id) { "  <- this one" } else { "" };
        say!("  {device_id}: {adapter}{mark}");
    }
    let limits = gpu.capabilities().limits;
    say!(
        "limits     {} in a tensor, {} in a buffer",
        HumanBytes(limits.binding_bytes),
        HumanBytes(limits.buffer_bytes)
    );
    say!("f16        {native_f16}; {widening}; {}", gpu.report().matrix_shapes());
    let (products, memory) = (probe_matmul_rate(&gpu).await?, probe_memory_rate(&gpu).await?);
    let share = |peak: Peak| format!(" ({:.0} % of {peak})", 100.0 * products / peak.flops());
    say!(
        "roofs      matrix products {:.1} GFLOP/s{}, memory {:.1} GB/s ({})",
        products / 1e9,
        Peak::published(gpu.report()).map(share).unwrap_or_default(),
        memory / 1e9,
        gpu.capabilities()
    );
    let of_checks = GpuOptions { tries_matrices: false, ..options };
    match CostOfChecks::measure(&of_checks).await {
        Ok(None) => {}
        Ok(Some(cost)) => say!("checks     {cost}"),
        Err(error) => say!("checks     their cost could not be measured: {error}"),
    }
    say!("{}", largest_model(&gpu, arguments.memory)?);
    tested.iter().for_each(|tested| print_tested(gpu.report().preferred_tier(), tested));
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Error::Device(format!(
            "{} computes wrong results in {}: update its driver, choose another tier with \
             context.tier or another adapter with context.device_name, and please report this",
            gpu.report().name,
            wrong.join(", ")
        ))),
    }
}

/// The error for an adapter that a flag asked for.
pub(super) fn naming_the_flag(error: Error) -> Error {
    match error {
        Error::NoAdapter(text) => {
            Error::NoAdapter(text.replace("set context.device_name", "set --device-name"))
        }
        error => error,
    }
}

/// The most important line.
fn verdict(name: &str, tested: &[Tested], wrong: &[String]) -> String {
    let count: usize = tested.iter().map(|tested| tested.outcomes.len()).sum();
    match wrong.len() {
        0 => format!("verdict    {name} passes: all {count} results of its kernels are right"),
        bad => format!(
            "verdict    {name} FAILS: {bad} of {count} results of its kernels are wrong: {}",
            wrong.join(", ")
        ),
    }
}

/// The kernels that compute wrong results. If the right result is not known, the wrong tier is not known either.
fn wrong_kernels(tested: &[Tested]) -> Vec<String> {
    let bad = |tested: &Tested| {
        let bad = tested.outcomes.iter().filter(|outcome| outcome.error > ALLOWED);
        let name = |outcome: &Outcome| match tested.tier {
            Some(tier) => format!("{} of tier {}", outcome.kernel, tier.name()),
            None => format!("{} (the tiers disagree)", outcome.kernel),
        };
        bad.map(name).collect::<Vec<_>>()
    };
    tested.iter().flat_map(bad).collect()
}

fn print_tested(preferred: Tier, tested: &Tested) {
    let compared = match tested.tier {
        Some(tier) if tier == preferred => format!("tier {}, preferred, against known results", tier.name()),
        Some(tier) => format!("tier {} against known results", tier.name()),
        None => "the tiers against each other".to_string(),
    };
    say!("self-test  {compared}; errors up to {ALLOWED:.0e} pass, the largest first:");
    table(&tested.outcomes).iter().for_each(|row| say!("  {row}"));
}

/// A row for each outcome, the largest error first.
fn table(outcomes: &[Outcome]) -> Vec<String> {
    let width = outcomes.iter().map(|outcome| outcome.kernel.chars().count()).max().unwrap_or(0);
    let mut sorted: Vec<&Outcome> = outcomes.iter().collect();
    sorted.sort_by(|one, other| other.error.total_cmp(&one.error));
    let row = |outcome: &&Outcome| {
        let mark = if outcome.error > ALLOWED { "  wrong" } else { "" };
        format!("{:width$}  {:.1e}{mark}", outcome.kernel, outcome.error)
    };
    sorted.iter().map(row).collect()
}

/// A line about the largest model of [`LADDER`] that fits the memory.
fn largest_model(gpu: &Gpu, given: Option<Bytes>) -> Result<String> {
    let given = given.map(|Bytes(bytes)| bytes);
    let report = gpu.report();
    let Some(memory) = given.or(report.memory_bytes) else {
        return Ok(format!(
            "memory     not known, as wgpu reports it for Vulkan alone and this is {}: give it with --memory to see which model \
             fits",
            report.backend
        ));
    };
    let kind = match (given, report.shares_memory) {
        (Some(_), _) => "as given",
        (None, true) => "its largest heap, a share of the machine's memory",
        (None, false) => "its largest heap, of which other programs may use some",
    };
    let mut best = None;
    for (name, layers, width, heads) in LADDER {
        // A model whose tensors exceed the largest binding is an error, which means that it does not fit either.
        if let Ok(forecast) = forecast(layers, width, heads, gpu.capabilities())
            && forecast.peak_bytes() <= memory
        {
            best = Some((name, forecast));
        }
    }
    let fits = match best {
        None => "not even 8 layers of 256 fit".to_string(),
        Some((name, forecast)) => format!(
            "{name} fits: {} parameters, {} with a micro-batch of one window of 1024 tokens",
            HumanCount(forecast.parameters as u64),
            HumanBytes(forecast.peak_bytes())
        ),
    };
    Ok(format!("memory     {} ({kind}); {fits}", HumanBytes(memory)))
}

/// The forecast of a Llama-shaped model with a vocabulary of 32,000 and windows of 1024 tokens.
fn forecast(layers: u32, width: u32, heads: u32, capabilities: Capabilities) -> Result<Forecast> {
    let yaml = format!(
        "model: {{ model_config: {{ vocab_size: 32000, hidden_size: {width}, num_layers: {layers}, num_heads: {heads}, \
         seq_length: 1024 }} }}\n\
         train_dataset: {{ data_loader: {{ type: CargoRegistryDataLoader }} }}\n\
         runner_config: {{ batch_size: 1 }}\n\
         lr_schedule: {{ learning_rate: 1.0e-3 }}\n"
    );
    let plan = RunConfig::parse(&yaml, Path::new("doctor"), &[])?.plan;
    Ok(Forecast::new(&Recordings::new(&plan, capabilities, 1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_names_what_is_wrong() {
        let outcome = |kernel, error| Outcome { kernel, error };
        let tested = |tier, outcomes| Tested { tier, outcomes };
        let mut tested = vec![
            tested(Some(Tier::Software), vec![outcome("matmul", 0.0)]),
            tested(Some(Tier::Portable), vec![outcome("matmul", 0.0)]),
            tested(None, vec![outcome("rope", 1e-6), outcome("gelu", 1e-5)]),
        ];
        let line = |tested: &[Tested]| verdict("Arc", tested, &wrong_kernels(tested));
        assert_eq!(line(&tested), "verdict    Arc passes: all 4 results of its kernels are right");
        tested[1].outcomes[0].error = f64::INFINITY;
        tested[2].outcomes[1].error = 2e-4;
        assert_eq!(
            line(&tested),
            "verdict    Arc FAILS: 2 of 4 results of its kernels are wrong: matmul of tier portable, gelu (the tiers disagree)"
        );
    }

    #[test]
    fn the_table_starts_with_the_worst() {
        let outcome = |kernel, error| Outcome { kernel, error };
        let outcomes = [outcome("gelu", 2e-7), outcome("matmul x Wᵀ", f64::INFINITY), outcome("rope", 3e-6)];
        assert_eq!(
            table(&outcomes),
            ["matmul x Wᵀ  inf  wrong", "rope         3.0e-6", "gelu         2.0e-7"]
        );
    }

    #[test]
    fn the_ladder_is_sorted_and_every_model_can_be_planned() {
        let bytes = |(_, layers, width, heads): (&str, u32, u32, u32)| {
            // As on a GPU: llvmpipe's bindings of 128 MiB cannot hold the matrices of Llama 2 7B.
            forecast(layers, width, heads, Capabilities::portable()).unwrap_or_else(|e| panic!("{e}")).bytes()
        };
        assert!(LADDER.map(bytes).is_sorted());
    }
}

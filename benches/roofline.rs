//! The time of a training step on published GPUs, by a model (`src/perf/roofline.rs`); no adapter is needed.
//!
//! `cargo bench --bench roofline -- configs/gpt_124m.yaml [--gpu NAME]... [--section.key=value]...` records the step
//! for each GPU as a run on it does, and prints its launches, those of one kernel and shape in a line: operations,
//! bytes, bytes of workgroup memory and barriers of a workgroup, workgroups over the slots there are and the share of
//! these in use, milliseconds, and what most of them go to.
//!
//! `--timed FILE` sets the times of a real run beside the model's: FILE is the profile.jsonl that `train --profile N`
//! leaves with the same configuration. The step is that of the file's adapter, and the model is of that GPU, or of the
//! one that --gpu names.

use gristmill::kernels::PublishedGpu;
use gristmill::perf::profile::Profile;
use gristmill::perf::roofline::{Line, Shaders, Table, lines, seconds};
use gristmill::record::Recording;
use gristmill::settings::{Override, RunConfig, RunPlan};
use gristmill::train::recordings::Recordings;
use std::path::Path;

/// Desktop cards of three vendors, a server's, a laptop's and a handheld's.
const GPUS: [&str; 6] =
    ["RX 7900 XTX", "RTX 4090", "H100 80GB HBM3", "Apple M3 Max", "Arc A770", "Custom GPU 0405"];

/// Launches that take less of a step say little about it.
const SHOWN: f64 = 0.01;

/// Seconds of work below which a launch is a small one.
const SMALL: f64 = 10e-6;

struct Arguments {
    config: String,
    gpus: Vec<String>,
    timed: Option<String>,
    overrides: Vec<Override>,
}

fn main() {
    let arguments = Arguments::read(std::env::args().skip(1).filter(|word| word != "--bench"));
    let config = RunConfig::outline(Path::new(&arguments.config), &arguments.overrides, None)
        .unwrap_or_else(|e| panic!("{e}"));
    let gpus = arguments.gpus.iter().map(|name| {
        PublishedGpu::named(name).unwrap_or_else(|| panic!("no GPU called `{name}` is in the table"))
    });
    match &arguments.timed {
        Some(file) => print_timed(&config.plan, file, gpus.collect()),
        None => {
            let mut shaders = Shaders::default();
            gpus.for_each(|gpu| print_modelled(&config.plan, &gpu, &mut shaders));
        }
    }
}

impl Arguments {
    fn read(mut words: impl Iterator<Item = String>) -> Self {
        let (mut config, mut gpus, mut timed, mut overrides) = (None, Vec::new(), None, Vec::new());
        let value = |word: Option<String>| word.expect("a value after --gpu or --timed");
        while let Some(word) = words.next() {
            match word.as_str() {
                "--gpu" => gpus.push(value(words.next())),
                "--timed" => timed = Some(value(words.next())),
                _ if word.starts_with("--") => overrides.push(word),
                _ => config = Some(word),
            }
        }
        if gpus.is_empty() && timed.is_none() {
            gpus = GPUS.map(str::to_string).to_vec();
        }
        let overrides = Override::parse_all(overrides).unwrap_or_else(|e| panic!("{e}"));
        Self { config: config.unwrap_or("configs/gpt_124m.yaml".to_string()), gpus, timed, overrides }
    }
}

fn print_modelled(plan: &RunPlan, gpu: &PublishedGpu, shaders: &mut Shaders) {
    let chosen = gpu.capabilities(plan.tries_matrices()).with_split_f32(plan.splits_f32());
    let capabilities = plan.settings.context.tier.map_or(chosen, |tier| chosen.with_tier(tier));
    let recordings = Recordings::new(plan, capabilities, 1000).unwrap_or_else(|e| panic!("{e}"));
    let mut lines = |recording: &Recording| lines(&recordings, recording, shaders, Some(gpu), None);
    let micro_step = lines(recordings.micro_step());
    let rest = [Some(&recordings.update), recordings.copy.as_ref()];
    let rest: f64 = rest.into_iter().flatten().map(|recording| seconds(&lines(recording))).sum();
    let (micro, accumulation) = (seconds(&micro_step), plan.settings.runner.gradient_accumulation_steps);
    println!(
        "\n{}, tier {}: a micro-step takes {:.1} ms, an update {:.1} ms, a step of {accumulation} micro-batches {:.3} s",
        gpu.model,
        capabilities.tier.name(),
        1e3 * micro,
        1e3 * rest,
        accumulation as f64 * micro + rest
    );
    println!("{}", Table { lines: &micro_step, is_detailed: true });
    print_shares(&micro_step, gpu);
}

fn print_timed(plan: &RunPlan, file: &str, gpus: Vec<PublishedGpu>) {
    let profile = Profile::read(Path::new(file)).unwrap_or_else(|e| panic!("{e}"));
    let recordings = Recordings::new(plan, profile.capabilities, 1000).unwrap_or_else(|e| panic!("{e}"));
    let gpus: Vec<PublishedGpu> =
        if gpus.is_empty() { PublishedGpu::named(&profile.adapter).into_iter().collect() } else { gpus };
    let mut shaders = Shaders::default();
    let models = gpus.iter().map(Some).chain(gpus.is_empty().then_some(None));
    for gpu in models {
        let text =
            profile.tables(&recordings, &mut shaders, gpu, true).unwrap_or_else(|e| panic!("{file}: {e}"));
        println!("\n{text}");
    }
}

/// How well the slots are used, and what small launches cost.
fn print_shares(lines: &[Line], gpu: &PublishedGpu) {
    let step = seconds(lines);
    let computing = lines.iter().filter(|line| line.flops > 0.0 && line.seconds() >= SHOWN * step);
    let least = computing.filter_map(|line| line.modelled).map(|of| of.time.share).fold(1.0, f64::min);
    let flops: f64 = lines.iter().map(|line| f64::from(line.launches) * line.flops).sum();
    let is_small = |line: &&Line| {
        line.modelled.is_some_and(|modelled| modelled.time.compute.max(modelled.time.memory) < SMALL)
    };
    let (count, sum) = lines
        .iter()
        .filter(is_small)
        .fold((0, 0.0), |(count, sum), line| (count + line.launches, sum + line.seconds()));
    println!(
        "    {:.1} TFLOP/s{}; slots in use in launches over 1 %: {least:.2} at least; {count} launches under {:.0} us of work: {:.1} %",
        flops / step / 1e12,
        gpu.flops.map_or(String::new(), |peak| format!(", {:.2} of the peak", flops / step / peak)),
        1e6 * SMALL,
        100.0 * sum / step
    );
}

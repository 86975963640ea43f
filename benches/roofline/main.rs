//! The time of a training step on published GPUs, by a model; no adapter is needed.
//!
//! `cargo bench --bench roofline -- configs/gpt_124m.yaml [--gpu NAME]... [--timed FILE] [--section.key=value]...` records the step for
//! each GPU as a run on it does, and prints its launches, those of one kernel and shape in a line: operations, bytes, workgroups over the
//! slots there are, milliseconds, and what most of them go to. FILE has a line for each launch of a micro-step,
//! as `DispatchTime` displays itself, and its times are set beside the model's; the FILE is of one GPU, so name that with --gpu.
//!
//! The model. A launch takes 5 us, and beside that the longest of: its multiply-adds, at the rate at which a unit issues their
//! loop's instructions or reads its workgroup memory, divided by the share of slots in use; its bytes, each element once, at the
//! memory's rate, or at that of the loads under way where lanes are few. Slots are the workgroups that fit the registers, the workgroup
//! memory and the lanes of all units, and workgroups come in rounds of them (`Units::rounds`).
//!
//! What it leaves out: caches, so that a tensor which the launch before has left there costs as much as any, and one that several
//! workgroups read costs once; waits within a workgroup that no other workgroup hides; the start and the end of a launch, in which not
//! all units are busy; bank conflicts, and lanes that read the same bytes of workgroup memory; masks of attention within a tile;
//! arithmetic outside of products and attention; clocks below the published ones. Instructions and registers are those that Mesa's
//! compilers need, or estimates (`kernel.rs`). A real GPU is slower by what that makes together; what the model is for is what to do next,
//! and before and after.

mod kernel;
mod model;

use gristmill::kernels::{Capabilities, Kernel, PublishedGpu};
use gristmill::record::{Dispatch, Recording};
use gristmill::settings::{Override, RunConfig, RunPlan};
use gristmill::train::forecast::launch_flops;
use gristmill::train::recordings::Recordings;
use kernel::Shader;
use model::{Time, Work};
use std::collections::HashMap;
use std::path::Path;

/// Desktop cards of three vendors, a server's, a laptop's and a handheld's.
const GPUS: [&str; 6] =
    ["RX 7900 XTX", "RTX 4090", "H100 80GB HBM3", "Apple M3 Max", "Arc A770", "Custom GPU 0405"];

/// Launches that take less of a step are summed up in a line.
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
    let config = RunConfig::outline(Path::new(&arguments.config), &arguments.overrides)
        .unwrap_or_else(|e| panic!("{e}"));
    let timed = arguments.timed.as_deref().map(read_times);
    let mut shaders = HashMap::new();
    for name in &arguments.gpus {
        let gpu =
            PublishedGpu::named(name).unwrap_or_else(|| panic!("no GPU called `{name}` is in the table"));
        print_step(&config.plan, &gpu, timed.as_deref(), &mut shaders);
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
        if gpus.is_empty() {
            gpus = GPUS.map(str::to_string).to_vec();
        }
        let overrides = Override::parse_all(overrides).unwrap_or_else(|e| panic!("{e}"));
        Self { config: config.unwrap_or("configs/gpt_124m.yaml".to_string()), gpus, timed, overrides }
    }
}

/// The seconds of each launch of a micro-step.
fn read_times(file: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{file}: {e}"));
    let microseconds = text.lines().map(|line| line.rsplit('\t').next().unwrap_or(line));
    microseconds
        .map(|time| 1e-6 * time.parse::<f64>().unwrap_or_else(|e| panic!("{file}: {time}: {e}")))
        .collect()
}

/// Launches of one kernel and shape.
struct Line<'a> {
    name: String,
    launches: u32,
    work: Work<'a>,
    time: Time,
    timed: f64,
}

fn print_step(
    plan: &RunPlan,
    gpu: &PublishedGpu,
    timed: Option<&[f64]>,
    shaders: &mut HashMap<Kernel, Shader>,
) {
    let capabilities = Capabilities::portable().with_units(gpu.units);
    let recordings = Recordings::new(plan, capabilities, 1000).unwrap_or_else(|e| panic!("{e}"));
    for kernel in recordings.kernels() {
        shaders.entry(kernel.clone()).or_insert_with(|| Shader::new(kernel));
    }
    let lines = |recording: &Recording, timed| lines(&recordings, recording, gpu, timed, shaders);
    let micro_step = lines(&recordings.micro_step, timed);
    let rest = [Some(&recordings.update), recordings.copy.as_ref()];
    let rest: f64 = rest.into_iter().flatten().map(|recording| seconds(&lines(recording, None))).sum();
    let (micro, accumulation) = (seconds(&micro_step), plan.settings.runner.gradient_accumulation_steps);
    println!(
        "\n{}: a micro-step takes {:.1} ms, an update {:.1} ms, a step of {accumulation} micro-batches {:.3} s",
        gpu.model,
        1e3 * micro,
        1e3 * rest,
        accumulation as f64 * micro + rest
    );
    print_lines(&micro_step, micro, gpu, timed.is_some());
    print_shares(&micro_step, micro, gpu);
}

/// The launches of a recording, the slowest first.
fn lines<'a>(
    recordings: &Recordings,
    recording: &Recording,
    gpu: &PublishedGpu,
    timed: Option<&[f64]>,
    shaders: &'a HashMap<Kernel, Shader>,
) -> Vec<Line<'a>> {
    let flops = launch_flops(recordings, recording);
    if let Some(timed) = timed {
        assert_eq!(timed.len(), flops.len(), "the file has the times of another recording");
    }
    let mut lines: Vec<Line<'a>> = Vec::new();
    for (index, (launch, flops)) in recording.dispatches.iter().zip(flops).enumerate() {
        let shader = &shaders[&launch.kernel];
        let workgroups = launch.grid.iter().map(|side| u64::from(*side)).product();
        let work = Work { shader, flops, bytes: shader.bytes(launch) as f64, workgroups };
        let (name, time) = (name_of(launch), Time::of(&work, gpu));
        let timed = timed.map_or(0.0, |timed| timed[index]);
        match lines.iter_mut().find(|line| line.name == name && line.work.bytes == work.bytes) {
            Some(line) => (line.launches, line.timed) = (line.launches + 1, line.timed + timed),
            None => lines.push(Line { name, launches: 1, work, time, timed }),
        }
    }
    lines.sort_by(|a, b| b.seconds().total_cmp(&a.seconds()));
    lines
}

impl Line<'_> {
    fn seconds(&self) -> f64 {
        f64::from(self.launches) * self.time.seconds()
    }
}

fn seconds(lines: &[Line<'_>]) -> f64 {
    lines.iter().map(Line::seconds).sum()
}

/// Entry point, conditions and size.
fn name_of(launch: &Dispatch) -> String {
    let kernel = launch.kernel.to_string();
    let words = kernel.split(' ').filter(|word| word.starts_with('+'));
    let mut name = launch.kernel.entry.to_string();
    words.for_each(|word| name += &format!(" {word}"));
    let size = |name| launch.param(name);
    match (size("m"), size("n"), size("k")) {
        (Some(m), Some(n), Some(k)) => format!("{name} {m}x{n}x{k} in {:?}", launch.grid),
        _ => format!("{name} in {:?}", launch.grid),
    }
}

fn print_lines(lines: &[Line<'_>], step: f64, gpu: &PublishedGpu, is_timed: bool) {
    let timed = if is_timed { "   timed" } else { "" };
    println!("    ms{timed}   step launches   GFLOP      MB workgroups/slots share  bound    launch");
    let shown = lines.iter().filter(|line| line.seconds() >= SHOWN * step);
    for line in shown.clone() {
        let Line { name, launches, work, time, .. } = line;
        let timed = if is_timed { format!("{:8.2}", 1e3 * line.timed) } else { String::new() };
        println!(
            "{:6.2}{timed} {:5.1}% {launches:8} {:7.1} {:7.1} {:>10}/{:<5} {:.2}   {:8} {name}",
            1e3 * line.seconds(),
            100.0 * line.seconds() / step,
            f64::from(*launches) * work.flops / 1e9,
            f64::from(*launches) * work.bytes / 1e6,
            work.workgroups,
            gpu.units.slots(work.shader.workgroup),
            time.share,
            time.bound(),
        );
    }
    let others = lines.len() - shown.count();
    let (count, sum) = lines[lines.len() - others..]
        .iter()
        .fold((0, 0.0), |(count, sum), line| (count + line.launches, sum + line.seconds()));
    println!("{:6.2} {:5.1}% {count:8} others", 1e3 * sum, 100.0 * sum / step);
}

/// How well the slots are used, and what small launches cost.
fn print_shares(lines: &[Line<'_>], step: f64, gpu: &PublishedGpu) {
    let computing = lines.iter().filter(|line| line.work.flops > 0.0 && line.seconds() >= SHOWN * step);
    let least = computing.map(|line| line.time.share).fold(1.0, f64::min);
    let flops: f64 = lines.iter().map(|line| f64::from(line.launches) * line.work.flops).sum();
    let small = |line: &&Line<'_>| line.time.compute.max(line.time.memory) < SMALL;
    let (count, sum) = lines
        .iter()
        .filter(small)
        .fold((0, 0.0), |(count, sum), line| (count + line.launches, sum + line.seconds()));
    println!(
        "    {:.1} TFLOP/s{}; slots in use in launches over 1 %: {least:.2} at least; {count} launches under {:.0} us of work: {:.1} %",
        flops / step / 1e12,
        gpu.flops.map_or(String::new(), |peak| format!(", {:.2} of the peak", flops / step / peak)),
        1e6 * SMALL,
        100.0 * sum / step
    );
}

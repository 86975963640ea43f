//! What `monitor_config` adds to a step: `cargo bench --bench monitors -- [CONFIG]`, by default `configs/tiny.yaml`.
//!
//! A trainer for each monitor stands beside one without, and their steps take turns, every one of them a due step. Wall
//! time is the median over the turns of the ratio of step times, less one; processor time, where Linux tells it, that
//! of all turns together, which other programs disturb less and which is what a software adapter computes with.
//! `ROUNDS` changes how many turns there are, `TIER=portable` runs the kernels for GPUs, `HISTORY=1` appends rows to
//! `benches/history.csv`.

mod common;

use gristmill::data::LoadedData;
use gristmill::device::{Gpu, GpuOptions};
use gristmill::kernels::Tier;
use gristmill::settings::{Override, RunConfig};
use gristmill::train::Trainer;
use gristmill::train::length::RunLength;
use pollster::block_on;
use std::path::Path;
use std::time::Instant;

/// What is watched, and the keys that say so.
const CASES: [(&str, &str); 6] = [
    ("nothing", ""),
    ("norms of gradients", "local_norm_format: log"),
    ("norms of moments", "optimizer_state_format: log"),
    ("norm of weights", "weight_state_format: log"),
    ("losses of micro-batches", "local_loss_format: log"),
    ("largest attention scores", "max_attention_logit_format: log"),
];

/// Turns that warm caches up and are not counted.
const WARM_UP: usize = 2;

struct Case<'gpu> {
    trainer: Trainer<'gpu>,
    data: LoadedData,
    micro_batches: u64,
    steps: u64,
    milliseconds: Vec<f64>,
    /// Of the processor, for all counted steps.
    nanoseconds: u64,
}

impl<'gpu> Case<'gpu> {
    fn new(gpu: &'gpu Gpu, config: &Path, monitor: &str) -> Self {
        let keys = format!("--monitor_config={{monitor_on: True, {monitor}}}");
        let overrides = Override::parse_all(["--do_eval=False", "--sample=None", &keys]).expect("overrides");
        let plan = RunConfig::load(config, &overrides).unwrap_or_else(|e| panic!("{e}")).plan;
        let data = plan.load_data().unwrap_or_else(|e| panic!("{e}"));
        let length = RunLength::new(&plan, data.train.steps_per_epoch());
        let trainer = block_on(Trainer::new(gpu, &plan, &length)).unwrap_or_else(|e| panic!("{e}"));
        let micro_batches = plan.settings.runner.gradient_accumulation_steps as u64;
        Self { trainer, data, micro_batches, steps: 0, milliseconds: Vec::new(), nanoseconds: 0 }
    }

    fn step(&mut self, is_counted: bool) {
        let (begin, processor) = (Instant::now(), processor_nanoseconds());
        let first = self.steps * self.micro_batches;
        self.steps += 1;
        block_on(self.trainer.step(self.steps, &self.data.train, first)).expect("a step");
        block_on(self.trainer.wait()).expect("the device works");
        if is_counted {
            self.milliseconds.push(1e3 * begin.elapsed().as_secs_f64());
            self.nanoseconds += processor_nanoseconds() - processor;
        }
        self.trainer.finished_steps().expect("states");
    }
}

fn main() {
    let config = std::env::args().skip(1).find(|argument| argument.ends_with(".yaml"));
    let config = config.unwrap_or_else(|| "configs/tiny.yaml".into());
    let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(20);
    let tier = std::env::var("TIER").ok().map(|name| Tier::named(&name).expect("TIER names a tier"));
    let options = GpuOptions { tier, ..GpuOptions::default() };
    let gpu = block_on(Gpu::request(&options)).unwrap_or_else(|e| panic!("{e}"));
    let setting = common::Setting::of(&gpu);
    println!("{config} on {}, tier {}", gpu.report().name, gpu.capabilities().tier.name());
    let mut cases = CASES.map(|(_, monitor)| Case::new(&gpu, Path::new(&config), monitor));
    for round in 0..rounds + WARM_UP {
        // Each case comes first in turn, so that its place among the others does not count.
        for case in 0..CASES.len() {
            cases[(round + case) % CASES.len()].step(round >= WARM_UP);
        }
    }
    println!("{:<26} {:>11} {:>10} {:>16}", "", "median", "wall time", "processor time");
    let stem = Path::new(&config).file_stem().unwrap_or_default().to_string_lossy();
    let [plain, ..] = &cases;
    for ((name, _), case) in CASES.iter().zip(&cases) {
        let ratios =
            case.milliseconds.iter().zip(&plain.milliseconds).map(|(watched, plain)| watched / plain);
        let wall = 100.0 * (median(ratios.collect()) - 1.0);
        let processor = 100.0 * (case.nanoseconds as f64 / plain.nanoseconds as f64 - 1.0);
        println!(
            "{name:<26} {:>8.1} ms {wall:>+8.1} % {processor:>+14.1} %",
            median(case.milliseconds.clone())
        );
        if *name != CASES[0].0 {
            let bench = format!("monitors {stem} {name}");
            common::append_history(&setting, &bench, "% of a step", wall);
            if plain.nanoseconds > 0 {
                common::append_history(&setting, &bench, "% of processor time", processor);
            }
        }
    }
}

/// Processor time of all threads of this process; 0, from which no share follows, where the system does not tell.
fn processor_nanoseconds() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of_thread = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    threads.filter_map(|thread| of_thread(thread.path())).sum()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

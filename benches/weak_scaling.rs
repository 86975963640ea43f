//! Two ranks with a core each against one rank with one core, with the same work for each rank: `cargo bench --bench weak_scaling`.
//!
//! Runs of both kinds take turns, each in a process of its own that is bound to its cores (`taskset`) and whose software adapter
//! computes on one thread per rank (`LP_NUM_THREADS`); so it measures on software adapters only. The scaling is the median over the
//! turns of the ratio of step times: 1.0 would be exchanges that cost nothing. `HISTORY=1` appends rows to `benches/history.csv`.
//! `ROUNDS` and `STEPS` change how much is measured.

mod common;

use gristmill::device::{Gpu, GpuOptions};
use gristmill::ranks::{Ranks, Transport, in_process};
use gristmill::settings::{Override, RunConfig};
use gristmill::train::Trainer;
use gristmill::train::length::RunLength;
use pollster::block_on;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// What two ranks share, the configuration, the keys that say so, and the scaling that is wanted at least.
const CASES: [(&str, &str, &[&str], f64); 3] = [
    ("data", "configs/tiny.yaml", &[], 0.85),
    ("optimizer", "configs/tiny.yaml", &["--parallel.enable_parallel_optimizer=True"], 0.8),
    ("experts", "configs/tiny_moe.yaml", &["--parallel_config.expert_parallel=2"], 0.7),
];

fn main() {
    match std::env::var("RANKS").ok().and_then(|ranks| ranks.parse().ok()) {
        Some(ranks) => println!("{}", step_seconds(ranks)),
        None => compare_all(),
    }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn compare_all() {
    let gpu = block_on(Gpu::request(&GpuOptions::default())).unwrap_or_else(|e| panic!("{e}"));
    if !gpu.report().is_software {
        println!("{}: no software adapter, whose cores could be divided among ranks", gpu.report().name);
        return;
    }
    let setting = common::Setting::of(&gpu);
    drop(gpu);
    for (index, (name, .., wanted)) in CASES.iter().enumerate() {
        let mut ratios = Vec::new();
        for _ in 0..number("ROUNDS", 5) {
            let [one, two] = [1, 2].map(|ranks| child(index, ranks));
            println!("{name}: {:.1} ms on one rank, {:.1} ms on two", 1e3 * one, 1e3 * two);
            ratios.push(one / two);
        }
        let scaling = median(ratios);
        println!("{name}: weak scaling {scaling:.3} on 2 ranks (wanted: {wanted})");
        common::append_history(&setting, &format!("weak_scaling {name} 2 ranks"), "ratio", scaling);
    }
}

/// The step time of case `index` on so many ranks, in a process with as many cores.
fn child(index: usize, ranks: usize) -> f64 {
    let program = std::env::current_exe().expect("this program");
    let cores = if ranks == 1 { "0" } else { "0,1" };
    let output = Command::new("taskset")
        .args(["-c", cores])
        .arg(program)
        .envs([("RANKS", ranks.to_string()), ("CASE", index.to_string())])
        .env("LP_NUM_THREADS", "1")
        .output()
        .expect("taskset, of util-linux");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// The median time of a step, in seconds, of the case that the parent names.
fn step_seconds(ranks: usize) -> f64 {
    let ends = in_process::connect(ranks);
    std::thread::scope(|scope| {
        let threads: Vec<_> = ends
            .into_iter()
            .map(|end| {
                scope.spawn(move || {
                    let ranks = Ranks::start(move || Ok(Box::new(end) as Box<dyn Transport>));
                    steps_of(ranks.expect("a connection"))
                })
            })
            .collect();
        let medians = threads.into_iter().map(|thread| thread.join().expect("a rank"));
        medians.fold(0.0, f64::max)
    })
}

fn steps_of(ranks: Ranks) -> f64 {
    let (_, path, keys, _) = CASES[number("CASE", 0)];
    let degree = format!("--parallel_config.data_parallel={}", ranks.size());
    let mut flags = vec!["--use_parallel=True", &degree, "--do_eval=False", "--sample=None"];
    if ranks.size() > 1 {
        flags.extend(keys);
    }
    let overrides = Override::parse_all(flags).expect("overrides");
    let config = RunConfig::load_on_rank(Path::new(path), &overrides, ranks.rank(), ranks.size());
    let plan = config.unwrap_or_else(|e| panic!("{e}")).plan;
    let data = plan.load_data().unwrap_or_else(|e| panic!("{e}"));
    let length = RunLength::new(&plan, data.train.steps_per_epoch());
    let gpu = block_on(Gpu::request(&GpuOptions::default())).unwrap_or_else(|e| panic!("{e}"));
    let trainer = block_on(Trainer::on_rank(&gpu, &plan, &length, ranks));
    let mut trainer = trainer.unwrap_or_else(|e| panic!("{e}"));
    let mut seconds = Vec::new();
    let steps = number("STEPS", 16) as u64;
    for step in 0..steps {
        let begin = Instant::now();
        block_on(trainer.step(step + 1, &data.train, step)).expect("a step");
        block_on(trainer.wait()).expect("the device works");
        if step >= steps / 4 {
            seconds.push(begin.elapsed().as_secs_f64());
        }
        trainer.finished_steps().expect("states");
    }
    median(seconds)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

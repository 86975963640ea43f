//! Two ranks with a core each against one rank with one core: `cargo bench --bench scaling`.
//!
//! In weak scaling two ranks have twice the micro-batches of the one, in strong scaling as many. Both figures are the
//! share of two cores' speed that is left: 1.0 would be exchanges and stages that cost nothing. Beside them stands what
//! `gristmill plan` predicts for the step, from the speed of the one rank and of messages between two, and the bytes
//! that it forecasts.
//!
//! Runs take turns, each in a process of its own that is bound to its cores (`taskset`) and whose software adapter
//! computes on one thread per rank (`LP_NUM_THREADS`); so it measures on software adapters only. `HISTORY=1` appends
//! rows to `benches/history.csv`. `ROUNDS` and `STEPS` change how much is measured; an argument selects cases by name.

mod common;
#[path = "../tests/runs/counting.rs"]
mod counting;

use counting::Counting;
use gristmill::device::{Gpu, GpuOptions};
use gristmill::kernels::Capabilities;
use gristmill::model::count;
use gristmill::perf::forecast::{Machine, RankForecast, traffic};
use gristmill::ranks::{Ranks, Transport, in_process};
use gristmill::settings::{Override, RunConfig, RunPlan};
use gristmill::train::Trainer;
use gristmill::train::length::RunLength;
use pollster::block_on;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// How two ranks share a run.
struct Case {
    name: &'static str,
    config: &'static str,
    keys: &'static [&'static str],
}

const DENSE: &str = "configs/tiny.yaml";
const DATA: &str = "--parallel_config.data_parallel=2";
const MATRICES: &str = "--parallel_config.model_parallel=2";

const CASES: [Case; 6] = [
    Case { name: "data", config: DENSE, keys: &[DATA] },
    Case { name: "optimizer", config: DENSE, keys: &[DATA, "--parallel.enable_parallel_optimizer=True"] },
    Case {
        name: "experts",
        config: "configs/tiny_moe.yaml",
        keys: &[DATA, "--parallel_config.expert_parallel=2"],
    },
    Case { name: "matrices", config: DENSE, keys: &[MATRICES] },
    Case {
        name: "matrices and tokens",
        config: DENSE,
        keys: &[MATRICES, "--parallel_config.use_seq_parallel=True"],
    },
    Case { name: "stages", config: DENSE, keys: &["--parallel_config.pipeline_stage=2"] },
];

/// Micro-batches of two windows in a step of one rank.
const MICRO_BATCHES: usize = 4;

/// Bytes of a message by which links are measured.
const MESSAGE: usize = 16 << 20;

/// What a process measures: the slowest rank's median seconds of a step, and the bytes that rank 0 sends in one,
/// counted and forecast.
struct Measured {
    seconds: f64,
    sent: [u64; 2],
}

fn main() {
    match std::env::var_os("CASE") {
        Some(_) => {
            let Measured { seconds, sent: [counted, forecast] } =
                measure(&CASES[number("CASE", 0)], number("RANKS", 1), number("MICRO_BATCHES", 1));
            println!("{seconds} {counted} {forecast}");
        }
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
    let (link_bytes, latency) = link();
    let machine = Machine { flops: 0.0, link_bytes, staging_bytes: copies(), latency };
    println!("link {:.2} GB/s, {:.0} us", link_bytes / 1e9, 1e6 * latency);
    let selected = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
    for (index, case) in CASES.iter().enumerate() {
        if selected.as_ref().is_none_or(|name| case.name.contains(name.as_str())) {
            compare(index, case, &setting, &gpu.capabilities(), &machine);
        }
    }
}

/// Weak and strong scaling of a case, each a median over the rounds.
fn compare(
    index: usize,
    case: &Case,
    setting: &common::Setting,
    capabilities: &Capabilities,
    machine: &Machine,
) {
    let kinds = [("weak", 2 * MICRO_BATCHES), ("strong", MICRO_BATCHES)];
    let mut ones = Vec::new();
    let mut of_kinds = kinds.map(|_| (Vec::new(), Vec::new()));
    for _ in 0..number("ROUNDS", 3) {
        let one = child(index, 1, MICRO_BATCHES).seconds;
        ones.push(one);
        for ((kind, micro_batches), (seconds, shares)) in kinds.into_iter().zip(&mut of_kinds) {
            let Measured { seconds: two, sent: [counted, forecast] } = child(index, 2, micro_batches);
            if counted != forecast {
                println!(
                    "{}, {kind}: rank 0 sent {counted} bytes in a step, {forecast} were forecast",
                    case.name
                );
            }
            let work = micro_batches as f64 / MICRO_BATCHES as f64;
            seconds.push(two);
            shares.push(work * one / (2.0 * two));
        }
    }
    let one = median(ones);
    let plan = plan(case, 0, 1, MICRO_BATCHES);
    let flops = count::training_flops_per_token(&plan.model) * plan.tokens_per_step as f64 / one;
    for ((kind, micro_batches), (seconds, shares)) in kinds.into_iter().zip(of_kinds) {
        let (two, share) = (median(seconds), median(shares));
        let plan = self::plan(case, 0, 2, micro_batches);
        let forecast = RankForecast::new(&plan, *capabilities, 10, Some(&Machine { flops, ..*machine }));
        let time = forecast.unwrap_or_else(|e| panic!("{e}")).time.expect("the machine is known");
        let of_forecast = two / time.seconds();
        println!(
            "{}, {kind}: {:.1} ms on one rank, {:.1} ms on two, scaling {share:.3}; {:.1} ms forecast, {of_forecast:.2} of it measured",
            case.name,
            1e3 * one,
            1e3 * two,
            1e3 * time.seconds()
        );
        let bench = format!("scaling {} 2 ranks", case.name);
        common::append_history(setting, &bench, &format!("{kind} ratio"), share);
        common::append_history(setting, &bench, &format!("{kind} of forecast"), of_forecast);
    }
}

/// Case `index` on so many ranks, in a process with as many cores.
fn child(index: usize, ranks: usize, micro_batches: usize) -> Measured {
    let program = std::env::current_exe().expect("this program");
    let cores = if ranks == 1 { "0" } else { "0,1" };
    let numbers = [("CASE", index), ("RANKS", ranks), ("MICRO_BATCHES", micro_batches)];
    let output = Command::new("taskset")
        .args(["-c", cores])
        .arg(program)
        .envs(numbers.map(|(name, number)| (name, number.to_string())))
        .env("LP_NUM_THREADS", "1")
        .output()
        .expect("taskset, of util-linux");
    let text = String::from_utf8_lossy(&output.stdout);
    let fields: Vec<f64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    let [seconds, counted, forecast] = fields[..] else {
        panic!("{text}{}", String::from_utf8_lossy(&output.stderr))
    };
    Measured { seconds, sent: [counted as u64, forecast as u64] }
}

/// The run of rank number `rank` of `ranks`, which has so many micro-batches in a step of all of them together.
fn plan(case: &Case, rank: usize, ranks: usize, micro_batches: usize) -> RunPlan {
    let keys = if ranks > 1 { case.keys } else { &[] };
    let is_staged = keys.iter().any(|key| key.contains("pipeline_stage"));
    let each = if keys.contains(&DATA) { micro_batches / ranks } else { micro_batches };
    let accumulated = match is_staged {
        true => format!("--parallel_config.micro_batch_num={each}"),
        false => format!("--runner_config.gradient_accumulation_steps={each}"),
    };
    let mut flags =
        vec!["--do_eval=False", "--sample=None", "--use_parallel=True", "--batch_size=2", &accumulated];
    flags.extend(keys);
    let overrides = Override::parse_all(flags).expect("overrides");
    let config = RunConfig::load_on_rank(Path::new(case.config), &overrides, rank, ranks);
    config.unwrap_or_else(|e| panic!("{e}")).plan
}

/// Trains on so many ranks, in threads.
fn measure(case: &'static Case, ranks: usize, micro_batches: usize) -> Measured {
    std::thread::scope(|scope| {
        let train = |(rank, end)| scope.spawn(move || train(&plan(case, rank, ranks, micro_batches), end));
        let threads: Vec<_> = in_process::connect(ranks).into_iter().enumerate().map(train).collect();
        let mut each = threads.into_iter().map(|thread| thread.join().expect("a rank"));
        let first = each.next().expect("a rank");
        each.fold(first, |first, next| Measured { seconds: first.seconds.max(next.seconds), ..first })
    })
}

fn train(plan: &RunPlan, end: impl Transport + Send + 'static) -> Measured {
    let sent = Arc::new(AtomicU64::new(0));
    let counting = Counting::new(end, sent.clone());
    let ranks = Ranks::start(move || Ok(Box::new(counting) as Box<dyn Transport>)).expect("a connection");
    let data = plan.load_data().unwrap_or_else(|e| panic!("{e}"));
    let length = RunLength::new(plan, data.train.steps_per_epoch());
    let gpu = block_on(Gpu::request(&GpuOptions::default())).unwrap_or_else(|e| panic!("{e}"));
    let trainer = block_on(Trainer::on_rank(&gpu, plan, &length, ranks));
    let mut trainer = trainer.unwrap_or_else(|e| panic!("{e}"));
    let (mut seconds, mut bytes) = (Vec::new(), 0);
    let steps = number("STEPS", 8) as u64;
    let accumulation = plan.settings.runner.gradient_accumulation_steps as u64;
    for step in 0..steps {
        let (begin, before) = (Instant::now(), sent.load(Ordering::SeqCst));
        block_on(trainer.step(step + 1, &data.train, accumulation * step)).expect("a step");
        block_on(trainer.wait()).expect("the device works");
        if step >= steps / 4 {
            seconds.push(begin.elapsed().as_secs_f64());
        }
        trainer.finished_steps().expect("states");
        bytes = sent.load(Ordering::SeqCst) - before;
    }
    let forecast = traffic(trainer.recordings(), accumulation).iter().map(|kind| kind.bytes).sum();
    Measured { seconds: median(seconds), sent: [bytes, forecast] }
}

/// Bytes per second that two ranks send each other at once, and seconds of an exchange of 4 bytes.
fn link() -> (f64, f64) {
    (MESSAGE as f64 / exchange_seconds(MESSAGE, 21), exchange_seconds(4, 2001))
}

/// The median seconds of `count` exchanges of so many bytes.
fn exchange_seconds(bytes: usize, count: usize) -> f64 {
    std::thread::scope(|scope| {
        let exchange_all = |mut end: in_process::InProcess| {
            let (sent, mut received, peer) = (vec![1; bytes], vec![0; bytes], 1 - end.rank());
            let times = (0..count).map(|_| {
                let begin = Instant::now();
                end.exchange(&[(peer, &sent)], &mut [(peer, &mut received)]).expect("an exchange");
                begin.elapsed().as_secs_f64()
            });
            median(times.collect())
        };
        let ends = in_process::connect(2).into_iter();
        let threads: Vec<_> = ends.map(|end| scope.spawn(move || exchange_all(end))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).fold(0.0, f64::max)
    })
}

/// Bytes per second of copies from memory to memory.
fn copies() -> f64 {
    let (from, mut to) = (vec![1u8; MESSAGE], vec![0u8; MESSAGE]);
    let times = (0..21).map(|_| {
        let begin = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        begin.elapsed().as_secs_f64()
    });
    MESSAGE as f64 / median(times.collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

//! The plan of a run on ranks against the run: bytes sent and time of a step on 1, 2 and 4 ranks in threads of this process.
//!
//! `LP_NUM_THREADS=1 cargo bench --bench plan_on_ranks`: each rank of llvmpipe then has one core, if there are as many. What a
//! device computes is measured by the steps of one rank alone, beside which as many runs of one rank share the cores, before
//! and after the ranks that exchange; what a link carries by messages of 16 MiB through the transport, and what goes between device
//! and host by copies of memory of that size. Steps are timed from the second half of ten. The shape is that of the bench
//! `train_step`, with two accumulated micro-batches of two windows.

#[path = "../tests/runs/counting.rs"]
mod counting;

use counting::Counting;
use gristmill::data::{Batches, TokenStream};
use gristmill::device::{Gpu, GpuOptions};
use gristmill::model::count;
use gristmill::random::Philox;
use gristmill::ranks::{RankLayout, Ranks, Transport, in_process};
use gristmill::settings::{Override, RunConfig, RunPlan, Sharded, Sharding};
use gristmill::train::Trainer;
use gristmill::train::forecast::{Machine, RankForecast, traffic};
use gristmill::train::length::RunLength;
use pollster::block_on;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const STEPS: u64 = 10;

/// Bytes of a message by which links are measured.
const MESSAGE: usize = 16 << 20;

/// What a rank measures.
struct Measured {
    /// Median seconds of a step.
    seconds: f64,
    /// Bytes that it sends in a step, counted and planned.
    sent: [u64; 2],
}

fn main() {
    let plan = plan(0, 1, Sharding::NONE);
    let work = count::training_flops_per_token(&plan.model) * plan.tokens_per_step as f64;
    let (link_bytes, latency) = link();
    let staging_bytes = copies();
    println!(
        "link {:.2} GB/s, {:.0} us; staging {:.2} GB/s",
        link_bytes / 1e9,
        1e6 * latency,
        staging_bytes / 1e9
    );
    for (name, what) in
        [("data", Sharded::None), ("ZeRO-1", Sharded::Optimizer), ("ZeRO-2", Sharded::Gradients)]
    {
        for size in [2, 4] {
            let sharding = match what {
                Sharded::None => Sharding::NONE,
                what => Sharding { what, ranks: size, gathers_again: false },
            };
            // In turns, since a machine's speed varies.
            let before = alone(size);
            let measured = measure(size, sharding);
            let one = f64::midpoint(before, alone(size));
            let flops = work / one;
            let machine = Machine { flops, link_bytes, staging_bytes, latency };
            let slowest = measured.iter().map(|rank| rank.seconds).fold(0.0, f64::max);
            let gpu = block_on(Gpu::request(&GpuOptions::default())).unwrap_or_else(|e| panic!("{e}"));
            let plan = self::plan(0, size, sharding);
            let forecast = RankForecast::new(&plan, gpu.capabilities(), STEPS, Some(&machine));
            let predicted =
                forecast.ok().and_then(|forecast| forecast.time).map_or(0.0, |time| time.seconds());
            let sent: Vec<[u64; 2]> = measured.iter().map(|rank| rank.sent).collect();
            println!(
                "{name} on {size}: alone {:.1} ms, predicted {:.1} ms, measured {:.1} ms, ratio {:.2}; [sent, planned] bytes {sent:?}",
                1e3 * one,
                1e3 * predicted,
                1e3 * slowest,
                slowest / predicted
            );
        }
    }
}

/// The plan of rank number `rank` of `size`.
fn plan(rank: usize, size: usize, sharding: Sharding) -> RunPlan {
    let yaml = "
model:
  model_config: { vocab_size: 256, hidden_size: 128, num_layers: 4, num_heads: 4, intermediate_size: 384, seq_length: 128 }
runner_config: { batch_size: 2, gradient_accumulation_steps: 2 }
lr_schedule: { type: ConstantWarmUpLR, learning_rate: 1.0e-3 }
train_dataset: { data_loader: { type: CargoRegistryDataLoader } }
";
    let overrides = Override::parse_all([""; 0]).expect("no overrides");
    let config =
        RunConfig::parse(yaml, Path::new("bench.yaml"), &overrides).unwrap_or_else(|e| panic!("{e}"));
    let mut plan = config.plan;
    plan.layout = RankLayout { rank, data: size, ..RankLayout::one() };
    plan.sharding = sharding;
    plan
}

/// Median seconds of a step of one rank, beside which as many others as make `size` run on their own.
fn alone(size: usize) -> f64 {
    std::thread::scope(|scope| {
        let run = || measure(1, Sharding::NONE)[0].seconds;
        let threads: Vec<_> = (0..size).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a run that ends well")).fold(0.0, f64::max)
    })
}

/// Runs [`STEPS`] steps on `size` ranks.
fn measure(size: usize, sharding: Sharding) -> Vec<Measured> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = in_process::connect(size)
            .into_iter()
            .enumerate()
            .map(|(rank, inner)| scope.spawn(move || measure_on(inner, plan(rank, size, sharding))))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank that ends well")).collect()
    })
}

fn measure_on(inner: impl Transport + Send + 'static, plan: RunPlan) -> Measured {
    let sent = Arc::new(AtomicU64::new(0));
    let counting = Counting::new(inner, sent.clone());
    let ranks = Ranks::start(move || Ok(Box::new(counting) as Box<dyn Transport>)).expect("ranks");
    let spec = plan.batch_spec();
    let tokens = (STEPS + 2) * (plan.layout.data * 2 * spec.batch_size * spec.seq_length) as u64 + 1;
    let random = Philox::new(1, 1);
    let bytes: Vec<u8> = (0..tokens).map(|i| (random.uniform(i) * 256.0) as u8).collect();
    let data = Batches::new(Arc::new(TokenStream::from_bytes(bytes)), 0..tokens, spec, None).expect("data");
    let length = RunLength::new(&plan, data.steps_per_epoch());
    let gpu = block_on(Gpu::request(&GpuOptions::default())).unwrap_or_else(|e| panic!("{e}"));
    let mut trainer =
        block_on(Trainer::on_rank(&gpu, &plan, &length, ranks)).unwrap_or_else(|e| panic!("{e}"));
    let (mut seconds, mut bytes) = (Vec::new(), 0);
    for step in 1..=STEPS {
        let (begin, before) = (Instant::now(), sent.load(Ordering::SeqCst));
        block_on(trainer.step(step, &data, 2 * (step - 1))).expect("a step");
        block_on(trainer.wait()).expect("the device works");
        trainer.finished_steps().expect("states");
        seconds.push(begin.elapsed().as_secs_f64());
        bytes = sent.load(Ordering::SeqCst) - before;
    }
    let planned = traffic(trainer.recordings(), 2).iter().map(|kind| kind.bytes).sum();
    Measured { seconds: median(seconds.split_off(STEPS as usize / 2)), sent: [bytes, planned] }
}

/// Bytes per second that two ranks send each other at once, and seconds of an exchange of 4 bytes.
fn link() -> (f64, f64) {
    let time = |bytes: usize, count: usize| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = in_process::connect(2)
                .into_iter()
                .map(|mut end| {
                    scope.spawn(move || {
                        let (sent, mut received, peer) = (vec![1; bytes], vec![0; bytes], 1 - end.rank());
                        let times = (0..count).map(|_| {
                            let begin = Instant::now();
                            end.exchange(&[(peer, &sent)], &mut [(peer, &mut received)])
                                .expect("an exchange");
                            begin.elapsed().as_secs_f64()
                        });
                        median(times.collect())
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank")).fold(0.0, f64::max)
        })
    };
    (MESSAGE as f64 / time(MESSAGE, 21), time(4, 2001))
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

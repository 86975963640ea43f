//! A row of the kernel benchmarks: a recording with REPEATS copies of a kernel, replayed and timed.

use super::common::{Setting, append_history};
use criterion::{Criterion, Throughput};
use gristmill::device::{Gpu, GpuOptions, Guard, Job, PreparedJob};
use gristmill::kernels::Tier;
use pollster::block_on;
use std::time::{Duration, Instant};

/// Copies of the kernel in a recording.
pub const REPEATS: u32 = 8;

/// Tokens (N), width (D) and feed-forward width (F) of the reference model `256 128 4 4 384 128 8`.
pub const N: u32 = 1024;
pub const D: u32 = 128;
pub const F: u32 = 384;

/// The work of one dispatch.
pub enum Work {
    /// Floating-point operations.
    Flops(f64),
    /// Bytes read and written, each counted once.
    Bytes(f64),
}

/// The tier that TIER names.
pub fn tier() -> Option<Tier> {
    std::env::var("TIER").ok().map(|name| Tier::named(&name).expect("TIER names a tier"))
}

pub fn gpu() -> Gpu {
    let options = GpuOptions { tier: tier(), ..GpuOptions::default() };
    block_on(Gpu::request(&options)).unwrap_or_else(|error| panic!("{error}"))
}

/// Whether the command line's filter, if it is plain text, selects this row. Kernels of other rows are not compiled.
pub fn is_wanted(gpu: &Gpu, name: &str) -> bool {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let name = format!("{name}/{}", gpu.capabilities().tier.name());
    filter.is_none_or(|filter| filter.contains(['^', '$', '*', '[', '(', '|']) || name.contains(&filter))
}

/// Records `build` REPEATS times and prepares it.
pub fn prepare<'gpu>(gpu: &'gpu Gpu, build: impl Fn(&mut Job) -> Work) -> (PreparedJob<'gpu>, Work) {
    let mut job = Job::new("bench", gpu.capabilities());
    let mut work = Work::Bytes(0.0);
    for _ in 0..REPEATS {
        work = build(&mut job);
    }
    (block_on(gpu.prepare_job(job, Guard::Off)).expect("a recording"), work)
}

pub fn replay(ready: &PreparedJob<'_>) {
    block_on(ready.replay()).expect("the device works");
}

pub fn row(c: &mut Criterion, gpu: &Gpu, name: &str, build: impl Fn(&mut Job) -> Work) {
    if !is_wanted(gpu, name) {
        return;
    }
    let (ready, work) = prepare(gpu, build);
    let mut best = Duration::MAX;
    let mut group = c.benchmark_group(name);
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    group.throughput(match work {
        Work::Flops(flops) => Throughput::Elements(flops as u64),
        Work::Bytes(bytes) => Throughput::Bytes(bytes as u64),
    });
    group.bench_function(gpu.capabilities().tier.name(), |bencher| {
        bencher.iter_custom(|iterations| {
            let rounds = iterations.div_ceil(REPEATS as u64);
            let start = Instant::now();
            for _ in 0..rounds {
                replay(&ready);
            }
            block_on(gpu.wait()).expect("the device works");
            let one = start.elapsed().div_f64((rounds * REPEATS as u64) as f64);
            best = best.min(one);
            one.mul_f64(iterations as f64)
        });
    });
    group.finish();
    if best < Duration::MAX {
        let (rate, unit) = match work {
            Work::Flops(flops) => (flops / best.as_secs_f64() / 1e9, "GFLOP/s"),
            Work::Bytes(bytes) => (bytes / best.as_secs_f64() / 1e9, "GB/s"),
        };
        println!("{name}: best {:.3} ms, {rate:.2} {unit}", best.as_secs_f64() * 1e3);
        append_history(&Setting::of(gpu), name, unit, rate);
    }
}

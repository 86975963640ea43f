//! What the GPU reaches by itself: multiply-adds, reads of workgroup memory, copies, launches. Results are checked.

use super::Context;
use gristmill::device::Job;
use gristmill::element::Element::F32;
use gristmill::kernels::{Kernel, Sources};
use gristmill::record::{Tensor, fold_grid};
use std::time::Instant;

gristmill::params! {
    struct Params {
        length: u32,
    }
}

/// Invocations of a workgroup.
const LANES: u32 = 256;

/// The library's shader files, and the probes.
pub fn sources() -> Sources {
    Sources::default().with("gpu_minutes/probes", include_str!("probes.wgsl")).expect("a path of its own")
}

pub fn probes(context: &Context) {
    let (groups, steps, megabytes, launches) =
        if context.is_small { (4, 64, 1, 50) } else { (16384, 4096, 256, 2000) };
    multiply_adds(context, groups, steps);
    shared_reads(context, groups, steps);
    copies(context, megabytes);
    counts(context, launches);
}

/// Records an entry point of the probes that computes `length` vec4s of y.
fn record(job: &mut Job, entry: &'static str, x: Tensor, y: Tensor, length: u32, steps: u32) {
    let kernel =
        Kernel::new("gpu_minutes/probes", entry, F32).constant("LANES", LANES).constant("STEPS", steps);
    let bindings = [x.bind("x", F32), y.bind("y", F32)];
    let grid = if entry == "count" { [1; 3] } else { fold_grid(length.div_ceil(LANES).into()) };
    job.rec.dispatch(kernel, &bindings, &Params { length }, grid);
}

fn multiply_adds(context: &Context, groups: u32, steps: u32) {
    let mut job = context.job();
    let x = job.input(&[1.0; 8], 1, 8);
    let y = job.output(groups, 4 * LANES);
    record(&mut job, "multiply_add", x, y, groups * LANES, steps);
    let (seconds, values) = context.time(job, &[y]);
    let want = (8 * steps + 28) as f32;
    assert!(values[0].iter().all(|value| *value == want), "multiply_add: not all are {want}");
    let flops = 2.0 * 32.0 * f64::from(groups * LANES) * f64::from(steps);
    println!(
        "multiply-adds: {:.2} TFLOP/s in f32{}",
        flops / seconds / 1e12,
        context.of_peak(flops / seconds)
    );
}

fn shared_reads(context: &Context, groups: u32, steps: u32) {
    let slots = 4 * LANES;
    let mut job = context.job();
    let numbers: Vec<f32> = (0..4 * slots).map(|i| (i % 64) as f32).collect();
    let x = job.input(&numbers, 1, 4 * slots);
    let y = job.output(groups, 4 * LANES);
    record(&mut job, "shared_reads", x, y, groups * LANES, steps);
    let (seconds, values) = context.time(job, &[y]);
    let sum = |lane: u32, part: u32| {
        (0..steps).map(|step| numbers[(4 * ((lane + step) % slots) + part) as usize]).sum::<f32>()
    };
    let want: Vec<f32> = (0..4 * LANES).map(|i| sum(i / 4, i % 4)).collect();
    assert!(values[0].chunks(want.len()).all(|row| row == want), "shared_reads: other sums");
    let bytes = 16.0 * f64::from(groups * LANES) * f64::from(steps);
    println!("workgroup memory: {:.0} GB/s read", bytes / seconds / 1e9);
}

fn copies(context: &Context, megabytes: u32) {
    let most = context.gpu.capabilities().limits.binding_bytes >> 20;
    let rows = (u64::from(megabytes).min(most) << 8) as u32; // of 4 KiB
    let mut job = context.job();
    let x = job.input(&(0..rows * 1024).map(|i| (i % 8191) as f32).collect::<Vec<_>>(), rows, 1024);
    let y = job.output(rows, 1024);
    record(&mut job, "copied", x, y, rows * 256, 0);
    let (seconds, values) = context.time(job, &[y]);
    assert!(values[0].iter().zip(0..).all(|(value, i)| *value == (i % 8191) as f32), "copied: other values");
    let bytes = 2.0 * y.bytes() as f64;
    let of_peak = context
        .published
        .map(|gpu| format!(", {:.2} of the published rate", bytes / seconds / gpu.memory_bytes));
    println!(
        "copy of {} MiB: {:.0} GB/s, read and written{}",
        y.bytes() >> 20,
        bytes / seconds / 1e9,
        of_peak.unwrap_or_default()
    );
}

fn counts(context: &Context, launches: u32) {
    let mut job = context.job();
    let x = job.input(&[1.0; 4], 1, 4);
    let y = job.output(1, 4);
    (0..launches).for_each(|_| record(&mut job, "count", x, y, 1, 0));
    let prepared = context.prepare(job);
    let wait = || context.wait(pollster::block_on(prepared.replay()));
    wait();
    let begin = Instant::now();
    wait();
    let each = begin.elapsed().as_secs_f64() / f64::from(launches);
    let counted = pollster::block_on(prepared.values(&y)).expect("its values")[0];
    assert!(counted == (2 * launches) as f32, "count: {counted} of {} launches", 2 * launches);
    println!("launches: {:.2} us each, {launches} that wait for each other", 1e6 * each);
}

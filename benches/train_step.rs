//! Whole training steps of the reference model on random tokens: the same work as the benchmarks of other projects.
//!
//! `cargo bench --bench train_step -- [V D L H F T B STEPS]`, by default `256 128 4 4 384 128 8 20`: vocabulary, width,
//! layers, heads, feed-forward width, context, batch, steps. `COMPUTE=bfloat16` or `float16` stores activations in 16
//! bits, `TIER=portable` runs the kernels for GPUs, `NATIVE_F16=0` converts f16 without the adapter's own instructions.
//! Prints one JSON line. The time of the first step is measured from process start and includes opening the adapter,
//! recording and compiling pipelines.

mod common;
mod random_run;

use gristmill::device::{Gpu, GpuOptions};
use gristmill::kernels::Tier;
use gristmill::model::count;
use gristmill::train::Trainer;
use pollster::block_on;
use random_run::RandomRun;
use std::time::Instant;

fn main() {
    let start = Instant::now();
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let [v, d, l, h, f, t, b, steps] = numbers[..] else {
        return bench(start, [256, 128, 4, 4, 384, 128, 8, 20]);
    };
    bench(start, [v, d, l, h, f, t, b, steps]);
}

fn bench(start: Instant, numbers: [usize; 8]) {
    let [v, d, l, h, f, t, b, steps] = numbers;
    let compute = std::env::var("COMPUTE").unwrap_or_else(|_| "float32".into());
    let RandomRun { plan, data, length } = RandomRun::of_shape([v, d, l, h, f, t, b], &compute, steps);

    let tier = std::env::var("TIER").ok().map(|name| Tier::named(&name).expect("TIER names a tier"));
    let options = GpuOptions { tier, ..GpuOptions::default() };
    let mut gpu = block_on(Gpu::request(&options)).unwrap_or_else(|e| panic!("{e}"));
    if plan.tries_native_f16() && std::env::var("NATIVE_F16").as_deref() != Ok("0") {
        block_on(gpu.try_native_f16());
    }
    let mut trainer = block_on(Trainer::new(&gpu, &plan, &length)).unwrap_or_else(|e| panic!("{e}"));
    let mut seconds = Vec::new();
    let mut first_step = 0.0;
    let mut loss = 0.0;
    for step in 0..steps as u64 {
        let begin = Instant::now();
        block_on(trainer.step(step + 1, &data, step)).expect("a step");
        block_on(trainer.wait()).expect("the device works");
        seconds.push(begin.elapsed().as_secs_f64());
        if step == 0 {
            first_step = start.elapsed().as_secs_f64();
        }
        loss = trainer.finished_steps().expect("states").last().map_or(loss, |finished| finished.state.loss);
    }
    let mut late = seconds[steps / 2..].to_vec();
    late.sort_by(f64::total_cmp);
    let median = late[late.len() / 2];
    let rate = (b * t) as f64 / median;
    let flops = count::training_flops_per_token(&plan.model) * rate;
    println!(
        r#"{{"peer":"gristmill","version":"{}","adapter":"{}","tier":"{}","compute":"{compute}","native_f16":{},"shape":{numbers:?},"params":{},"first_step_s":{first_step:.4},"step_s":{median:.4},"tok_s":{rate:.1},"gflop_s":{:.2},"loss":{loss:.4},"pool_mib":{:.1}}}"#,
        env!("CARGO_PKG_VERSION"),
        gpu.report().name,
        gpu.capabilities().tier.name(),
        gpu.capabilities().native_f16,
        count::parameters(&plan.model),
        flops / 1e9,
        trainer.pool_bytes() as f64 / 1048576.0,
    );
    let stored = if compute == "float32" { String::new() } else { format!(" {compute}") };
    let shape = format!("train_step {v} {d} {l} {h} {f} {t} {b}{stored}");
    let setting = common::Setting::of(&gpu);
    common::append_history(&setting, &shape, "tok/s", rate);
    common::append_history(&setting, &shape, "first_step_s", first_step);
}

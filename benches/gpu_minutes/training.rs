//! Steps of training: their first losses beside a CPU's, where their time goes, and other programs on the same shape.

use super::Context;
use crate::random_run::RandomRun;
use gristmill::perf::profile::Profile;
use gristmill::perf::roofline::Shaders;
use gristmill::settings::{Override, RunConfig};
use gristmill::train::Trainer;
use pollster::block_on;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// A Llama that llvmpipe trains in seconds: `[V, D, L, H, F, T, B]`.
const SHAPE: [usize; 7] = [256, 64, 2, 2, 128, 64, 2];

/// Its first losses on llvmpipe, by the kernels of tier `software` (`--tier software --only losses` prints them anew).
/// Without a GPU this bench compares those of `portable` with them.
const LOSSES: [f32; 4] = [5.550344, 5.546206, 5.557955, 5.550233];

/// Those of gpt_124m, of one window of 1,024 tokens a step.
const GPT_LOSSES: [f32; 3] = [10.979506, 10.982806, 10.98542];

/// How far apart losses may be: sums in other orders are at most 1e-6 of them apart, and weights follow.
const ALLOWED: f32 = 2e-5;

pub fn losses(context: &Context) {
    compare(context, &RandomRun::of_shape(SHAPE, "float32", LOSSES.len()), &LOSSES);
    if !context.is_small {
        println!("gpt_124m");
        compare(context, &gpt_124m(1, GPT_LOSSES.len()), &GPT_LOSSES);
    }
}

fn compare(context: &Context, run: &RandomRun, on_cpu: &[f32]) {
    let mut trainer = context.wait(block_on(Trainer::new(&context.gpu, &run.plan, &run.length)));
    let losses = train(context, &mut trainer, run, 0..on_cpu.len());
    for (loss, want) in losses.iter().zip(on_cpu) {
        println!("loss {loss:.6}, on a CPU {want:.6}");
    }
    let is_near = |(loss, want): (&f32, &f32)| (loss - want).abs() <= ALLOWED * want;
    assert!(losses.iter().zip(on_cpu).all(is_near), "losses are further apart than {ALLOWED} of them");
}

/// Trains the steps of `range`, and returns their losses.
fn train(context: &Context, trainer: &mut Trainer<'_>, run: &RandomRun, range: Range<usize>) -> Vec<f32> {
    for step in range.map(|step| step as u64) {
        context.wait(block_on(trainer.step(step + 1, &run.data, step)));
    }
    context.wait(block_on(trainer.wait()));
    context.wait(trainer.finished_steps()).iter().map(|finished| finished.state.loss).collect()
}

/// Steps that are not timed, and those that are.
const STEPS: [usize; 2] = [3, 10];

/// gpt_124m in micro-batches of 4,096 tokens, or a small shape.
pub fn steps(context: &Context) {
    let [warm_up, timed] = if context.is_small { [1, 1] } else { STEPS };
    let count = warm_up + timed + 2;
    let run =
        if context.is_small { RandomRun::of_shape(SHAPE, "float32", count) } else { gpt_124m(4, count) };
    let mut trainer = context.wait(block_on(Trainer::new(&context.gpu, &run.plan, &run.length)));
    println!("first losses {:?}", train(context, &mut trainer, &run, 0..warm_up));
    let begin = Instant::now();
    train(context, &mut trainer, &run, warm_up..warm_up + timed);
    let seconds = begin.elapsed().as_secs_f64() / timed as f64;
    println!(
        "a step takes {:.1} ms: {:.0} tokens/s",
        1e3 * seconds,
        run.plan.tokens_per_step as f64 / seconds
    );
    if !context.gpu.has_timestamps() {
        println!("no timestamps here: launches are not timed");
        return;
    }
    let mut profile = Profile::new(&context.gpu, trainer.recordings());
    for step in (warm_up + timed..count).map(|step| step as u64) {
        profile = context.wait(block_on(trainer.profiled_step(step + 1, &run.data, step, profile)));
    }
    let tables =
        profile.tables(trainer.recordings(), &mut Shaders::default(), context.published.as_ref(), true);
    println!("{}", context.wait(tables));
}

/// `steps` steps of the configuration of that name, each of one micro-batch of `windows`.
fn gpt_124m(windows: usize, steps: usize) -> RandomRun {
    const CONFIG: &str = "configs/gpt_124m.yaml";
    let size = ["--gradient_accumulation_steps=1".to_string(), format!("--batch_size={windows}")];
    let overrides = Override::parse_all(size).expect("overrides");
    let beside_sources = Path::new(env!("CARGO_MANIFEST_DIR")).join(CONFIG);
    let path = if beside_sources.exists() { beside_sources } else { CONFIG.into() };
    let config = RunConfig::outline(&path, &overrides, None).unwrap_or_else(|e| panic!("{e}"));
    RandomRun::new(config.plan, steps)
}

/// Other programs that train a Llama of the shape that follows their command: V D L H F T B and steps.
pub fn peers(context: &Context) {
    const GPT: [usize; 8] = [50304, 768, 12, 12, 2048, 1024, 4, 20];
    let shape = if context.is_small { [256, 64, 2, 2, 128, 64, 2, 4] } else { GPT };
    let words: Vec<String> = shape.iter().map(usize::to_string).collect();
    println!("shape {}", words.join(" "));
    if context.peers.is_empty() {
        println!("no other program was named (--peer COMMAND)");
    }
    for peer in &context.peers {
        let mut parts = peer.split_whitespace();
        let program = parts.next().expect("a command after --peer");
        // Options may follow the shape: `python3 torch_train.py {} --device cuda`.
        let arguments =
            parts.flat_map(|part| if part == "{}" { words.clone() } else { vec![part.to_string()] });
        let status = Command::new(program).args(arguments).status();
        println!("{peer}: {}", status.map_or_else(|error| error.to_string(), |status| status.to_string()));
    }
    let run = RandomRun::of_shape(shape[..7].try_into().expect("7 sizes"), "float32", shape[7]);
    let mut trainer = context.wait(block_on(Trainer::new(&context.gpu, &run.plan, &run.length)));
    train(context, &mut trainer, &run, 0..shape[7] / 2);
    let begin = Instant::now();
    train(context, &mut trainer, &run, shape[7] / 2..shape[7]);
    let seconds = begin.elapsed().as_secs_f64() / (shape[7] - shape[7] / 2) as f64;
    println!("Gristmill: {:.0} tokens/s", run.plan.tokens_per_step as f64 / seconds);
}

//! The memory that a plan forecasts is the memory that training takes.
//!
//! Within 5 %, at the peak and in training, also of ranks with the staging of their exchanges.

use crate::ranks::spread::{MICRO_BATCHES, OPTIMIZER, Spread};
use crate::runs::{Setup, every_third, new_trainer, on_ranks, save_checkpoint};
use gristmill::perf::forecast::Forecast;
use gristmill::ranks::Ranks;
use gristmill::settings::RunPlan;
use gristmill::train::Trainer;
use gristmill::train::length::RunLength;
use pollster::block_on;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Relative error allowed to the forecast, before the first step and after a few.
const ALLOWED: f64 = 0.05;

const STEPS: u64 = 2;

/// Heads of the usual 12 dimensions, whose kernels other tests compile, too.
const WIDE: [&str; 2] = ["--model.model_config.hidden_size=144", "--model.model_config.num_heads=12"];

/// Compares the forecast with wgpu's count of bytes in buffers: the most while a trainer is made ready for its first
/// step, and what is there after [`STEPS`] steps and an evaluation.
fn assert_forecast(name: &str, setup: &Setup) {
    assert_forecast_on(name, setup, &setup.plan(), Ranks::alone());
}

/// The same on one of several ranks, each with a device of its own.
fn assert_forecast_on(name: &str, setup: &Setup, plan: &RunPlan, ranks: Ranks) {
    let data = plan.load_data().unwrap_or_else(|e| panic!("{e}"));
    let length = RunLength::new(plan, data.train.steps_per_epoch());
    let gpu = setup.gpu_for(plan);
    let before = gpu.counters().buffer_bytes;
    let taken = || (gpu.counters().buffer_bytes - before) as u64;
    let (mut trainer, at_start) = with_most(&taken, || {
        block_on(Trainer::on_rank(&gpu, plan, &length, ranks)).unwrap_or_else(|e| panic!("{e}"))
    });
    let micro_steps = plan.settings.runner.gradient_accumulation_steps as u64;
    for step in 1..=STEPS {
        block_on(trainer.step(step, &data.train, (step - 1) * micro_steps)).expect("a step");
        trainer.finished_steps().expect("states");
    }
    block_on(trainer.evaluate(STEPS, &data.train, 1, |_| Ok(()))).expect("an evaluation");
    block_on(trainer.wait()).expect("the device");
    let forecast = Forecast::new(trainer.recordings());
    assert_close(&format!("{name}, at its peak"), forecast.peak_bytes(), at_start);
    assert_close(&format!("{name}, training"), forecast.bytes(), taken());
    // Blocks that small buffers share would dominate a small run.
    if let Some(reserved) = gpu.reserved_bytes().filter(|_| forecast.bytes() > 100 << 20) {
        assert_close(&format!("{name}, blocks of memory"), forecast.bytes(), reserved);
    }
}

/// The result of `work`, and the most that `taken` returns meanwhile and at its end.
fn with_most<T>(taken: &(impl Fn() -> u64 + Sync), work: impl FnOnce() -> T) -> (T, u64) {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut most = 0;
            while !is_done.load(Ordering::Relaxed) {
                most = most.max(taken());
                std::thread::sleep(Duration::from_micros(20)); // a portion is copied for milliseconds
            }
            most
        });
        let result = work();
        let at_end = taken();
        is_done.store(true, Ordering::Relaxed);
        (result, at_end.max(watching.join().expect("the watching thread")))
    })
}

fn assert_close(name: &str, forecast: u64, taken: u64) {
    let error = (forecast as f64 - taken as f64) / taken as f64;
    println!("{name}: forecast {forecast}, taken {taken}, {:+.2} %", 100.0 * error);
    assert!(error.abs() <= ALLOWED, "{name}: forecast {forecast}, taken {taken}");
}

/// Of every third shape, and all with `GRISTMILL_LONG`; further tests have wide, deep and long ones.
#[test]
fn the_forecast_is_the_memory_taken() {
    let shapes: [(&str, &[&str]); 10] = [
        ("default", &[]),
        ("dropout and Muon", &["--optimizer={type: Muon}", "--model.model_config.hidden_dropout=0.1"]),
        ("wide", &[WIDE[0], WIDE[1], "--model.model_config.intermediate_size=700"]),
        (
            "many words",
            &["--model.model_config.vocab_size=5000", "--model.model_config.tie_word_embeddings=True"],
        ),
        ("deep", &["--model.model_config.num_layers=7", "--batch_size=5"]),
        (
            "adapters in bfloat16",
            &[
                "--model.model_config.pet_config={pet_type: lora, random_base: True, target_modules: .*wq|.*wv}",
                WIDE[0],
                WIDE[1],
                "--model.model_config.compute_dtype=bfloat16",
            ],
        ),
        (
            "long window",
            &[
                "--model.model_config.seq_length=512",
                "--batch_size=1",
                "--model.model_config.n_kv_heads=2",
                "--model.model_config.sliding_window=64",
                "--sample={prompt: a, tokens: 3}",
            ],
        ),
        (
            "GPT-2 with a sample",
            &[
                "--model.model_config={type: GPT2Config, vocab_size: 256, n_embd: 48, n_layer: 2, n_head: 4, seq_length: 24}",
                "--sample={prompt: a, tokens: 3}",
            ],
        ),
        (
            "adapters of all linear layers",
            &[
                "--model.model_config.pet_config={pet_type: lora, random_base: True, lora_dropout: 0.1, target_modules: .*}",
                WIDE[0],
                WIDE[1],
            ],
        ),
        (
            "kernels of a GPU and a loss scale that adapts",
            &[
                "--context.tier=portable",
                "--runner_wrapper.scale_sense={type: DynamicLossScaleUpdateCell, loss_scale_value: 1024}",
            ],
        ),
    ];
    for (name, overrides) in every_third(&shapes) {
        assert_forecast(name, &Setup::new("memory", "").with(overrides));
    }
}

/// Copies of the weights, and activations of which some layers keep only their input; all with `GRISTMILL_LONG`, else
/// each type, with some of the layers and with all.
#[test]
#[ignore = "long; `the_forecast_is_the_memory_taken` has other shapes"]
fn the_forecast_in_16_bits_with_recomputation_is_the_memory_taken() {
    let deep = ["--model.model_config.num_layers=6", WIDE[0], WIDE[1], "--batch_size=4"];
    let [f16, bf16] = ["float16", "bfloat16"];
    let forms = [(f16, "False"), (bf16, "False"), (bf16, "[2]"), (f16, "[2]"), (bf16, "True"), (f16, "True")];
    for (compute, recompute) in every_third(&forms) {
        let name = format!("{compute}, recompute {recompute}");
        let keys = [
            format!("--model.model_config.compute_dtype={compute}"),
            format!("--recompute_config.recompute={recompute}"),
        ];
        assert_forecast(&name, &Setup::new("half", "").with(&deep).with(&[&keys[0], &keys[1]]));
    }
}

/// Weights of more than a portion are on their way only in part.
#[test]
#[ignore = "long; `the_forecast_is_the_memory_taken` has other shapes"]
fn the_forecast_of_a_large_model_is_the_memory_taken() {
    let large = [
        "--model.model_config.vocab_size=30000",
        WIDE[0],
        WIDE[1],
        "--batch_size=1",
        "--gradient_accumulation_steps=1",
    ];
    assert_forecast("large", &Setup::new("large", "").with(&large));
    assert_forecast("large LFM2", &Setup::of_convolutions("large LFM2", "").with(&large));
    let linear = "large linear attention";
    assert_forecast(linear, &Setup::of_linear_attention(linear, "").with(&large));
    let beside = "large experts beside dense networks";
    assert_forecast(beside, &Setup::beside_dense(beside, "").with(&large));
}

/// Most of it is activations, with and without recomputation.
#[test]
#[ignore = "long; `the_forecast_is_the_memory_taken` has other shapes"]
fn the_forecast_of_long_windows_and_many_layers_is_the_memory_taken() {
    let long = [
        "--model.model_config.num_layers=12",
        "--model.model_config.seq_length=512",
        "--batch_size=1",
        "--gradient_accumulation_steps=1",
    ];
    for recompute in ["False", "True"] {
        let key = format!("--recompute_config.recompute={recompute}");
        assert_forecast(
            &format!("long, recompute {recompute}"),
            &Setup::new("long", "").with(&long).with(&[&key]),
        );
    }
}

#[test]
fn the_forecast_of_a_mixture_is_the_memory_taken() {
    let grouped = Setup::experts(
        "grouped",
        "expert_num: 6, num_experts_chosen: 2, use_gmm: True, balance_via_topk_bias: True, \
         topk_bias_update_rate: 0.01, aux_loss_types: [expert], aux_loss_factors: [0.01], shared_expert_num: 1",
        "mtp_depth: 1, mtp_loss_factor: 0.3",
    );
    let hot = Setup::experts(
        "hot",
        "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.2, enable_cold_hot_expert: True, \
         hot_expert_num: 2, cold_token_percent: 0.5, update_step: 100, routing_policy: TopkRouterV1",
        "",
    );
    let wide = [WIDE[0], WIDE[1], "--batch_size=5"];
    let gpt2 = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.2";
    let gpt2 = Setup::experts_of("GPT2Config", "experts of gpt2", gpt2, "");
    for setup in [grouped, hot.with(&wide), gpt2.with(&wide)] {
        assert_forecast(setup.name, &setup);
    }
}

/// On ranks, with the buffers through which they exchange; `ranks/layouts.rs` compares more layouts, but not the peak
/// before the first step.
#[test]
#[ignore = "long; trials of ranks compare it, but for the peak before the first step"]
fn the_forecast_of_ranks_is_the_memory_taken() {
    let wide = [WIDE[0], WIDE[1], "--model.model_config.intermediate_size=352"];
    let half = "--model.model_config.compute_dtype=bfloat16";
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True";
    let sharded = Spread { data: 2, keys: &[OPTIMIZER], ..Spread::ONE };
    let chunks = Spread { interleaves: 2, keys: &["--model.model_config.num_layers=4"], ..Spread::stages(2) };
    let muon = &[half, "--optimizer={type: Muon, stochastic_rounding: True}"];
    let cases = [
        (Setup::new("ZeRO-1 in bfloat16", "").with(&[half]), sharded),
        (Setup::experts("experts", routing, ""), Spread { data: 4, expert: 2, ..sharded }),
        (Setup::new("chunks of stages", "tie_word_embeddings: True"), chunks),
        (Setup::new("divided", "").with(muon), Spread { model: 2, ..Spread::ONE }),
    ];
    for (setup, spread) in cases {
        let setup = spread.setup(setup.with(&wide), MICRO_BATCHES);
        on_ranks(spread.ranks(), |ranks| {
            let plan = setup.plan_on_rank(ranks.rank(), spread.ranks());
            assert_forecast_on(&format!("{}, rank {}", setup.name, ranks.rank()), &setup, &plan, ranks);
        });
    }
}

/// The bytes of tensors in the files of `folder` and of those in it.
fn tensor_bytes(folder: &Path) -> u64 {
    let of = |path: PathBuf| match path.is_dir() {
        true => tensor_bytes(&path),
        false if path.extension().is_some_and(|ending| ending == "safetensors") => {
            let file = std::fs::read(&path).expect("a file");
            let header = u64::from_le_bytes(file[..8].try_into().expect("the length of the header"));
            file.len() as u64 - 8 - header
        }
        false => 0,
    };
    std::fs::read_dir(folder).expect("a folder").map(|entry| of(entry.expect("an entry").path())).sum()
}

#[test]
fn a_checkpoint_is_as_large_as_planned() {
    let adapters = "compute_dtype: bfloat16, pet_config: {pet_type: lora, random_base: True, use_dora: True, target_modules: .*wq}";
    for setup in [
        Setup::new("float32", ""),
        Setup::new("bfloat16", "compute_dtype: bfloat16"),
        Setup::new("bfloat16 alone", "compute_dtype: bfloat16")
            .with(&["--optimizer.stochastic_rounding=True"]),
        Setup::new("adapters", adapters),
        Setup::new("momentum", "").with(&["--optimizer={type: SGD, learning_rate: 0.1}"]),
        Setup::new("muon", "").with(&["--optimizer={type: Muon}"]),
        Setup::gpt2("gpt2", ""),
    ] {
        let (plan, _, length) = setup.data();
        let (gpu, folder) = (setup.gpu_for(&plan), tempfile::tempdir().expect("a folder"));
        let checkpoint = save_checkpoint(&new_trainer(&gpu, &plan, &length), 1, folder.path());
        assert_eq!(tensor_bytes(&checkpoint), plan.checkpoint_bytes(), "{}", setup.name);
    }
}

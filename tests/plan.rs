//! The binary's `plan` and `doctor`: what they say is what then happens.

mod launch;
mod runs;

use gristmill::train::Trainer;
use gristmill::train::forecast::Forecast;
use launch::{at_home, run};
use pollster::block_on;
use runs::Setup;
use std::ffi::OsStr;
use std::process::Command;

/// What memory is foretold may be off by this much.
const ALLOWED: f64 = 0.05;

fn gristmill(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    command.args(arguments);
    at_home(&mut command);
    command
}

fn without_adapter(mut command: Command) -> Command {
    command.env("VK_ICD_FILENAMES", "/dev/null").env("VK_DRIVER_FILES", "/dev/null");
    command
}

/// As it comes, wide, deep, with a long window, with a large vocabulary and a tied head, dropping under Muon, and a GPT-2
/// that writes a sample.
#[test]
fn the_memory_foretold_is_the_memory_taken() {
    let shapes: [(&str, &[&str]); 7] = [
        ("as it comes", &[]),
        ("wide", &["--model.model_config.hidden_size=256", "--model.model_config.intermediate_size=700"]),
        ("deep", &["--model.model_config.num_layers=7", "--batch_size=5"]),
        (
            "long",
            &["--model.model_config.seq_length=512", "--batch_size=1", "--model.model_config.n_kv_heads=2"],
        ),
        (
            "many words",
            &["--model.model_config.vocab_size=5000", "--model.model_config.tie_word_embeddings=True"],
        ),
        ("dropping", &["--optimizer={type: Muon}", "--model.model_config.hidden_dropout=0.1"]),
        (
            "gpt2",
            &[
                "--model.model_config={type: GPT2Config, vocab_size: 256, n_embd: 48, n_layer: 2, n_head: 4, seq_length: 24}",
                "--sample={prompt: a, tokens: 3}",
            ],
        ),
    ];
    for (name, overrides) in shapes {
        let setup = Setup::new("memory", "").with(overrides);
        let (plan, data, length) = setup.data();
        let gpu = setup.gpu();
        let before = gpu.counters().buffer_bytes;
        let mut trainer = block_on(Trainer::new(&gpu, &plan, &length)).unwrap_or_else(|e| panic!("{e}"));
        // The first weights pass through buffers of wgpu's own, which it drops once they have run.
        block_on(trainer.step(1, &data.train, 0)).expect("a step");
        block_on(trainer.wait()).expect("the device");
        let taken = (gpu.counters().buffer_bytes - before) as f64;
        let forecast = Forecast::new(trainer.recordings());
        let error = (forecast.bytes() as f64 - taken).abs() / taken;
        println!("{name}: {} foretold, {taken} taken, {:.2} % off", forecast.bytes(), 100.0 * error);
        assert!(error <= ALLOWED, "{name}: {} foretold, {taken} taken", forecast.bytes());
    }
}

#[test]
fn plan_needs_no_adapter() {
    let planned =
        run(&mut without_adapter(gristmill(["plan", "configs/tiny.yaml", "--batch_size", "4"]))).succeeded();
    println!("{}", planned.stdout);
    for text in [
        "918,656 parameters",
        "1 x 4 windows of 128 tokens: 512 tokens",
        "200 steps",
        "weights 0",
        "micro_step",
    ] {
        assert!(planned.stdout.contains(text), "`{text}` is missing:\n{}", planned.stdout);
    }
}

/// Data that is not there leaves the steps open, and a cap that is too small is an error before anything runs.
#[test]
fn plan_says_what_is_missing_and_what_is_too_large() {
    let text = "--train_dataset.data_loader.type=TextDataLoader";
    let missing = run(&mut gristmill(["plan", "configs/tiny.yaml", text, "--train_dataset_dir=/nowhere"]));
    let missing = missing.succeeded().stdout;
    assert!(missing.contains("not known without the data: /nowhere"), "{missing}");
    assert!(missing.contains("918,656 parameters"), "{missing}");

    let refused = run(&mut gristmill(["plan", "configs/tiny.yaml", "--context.max_device_memory=2MB"]));
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.starts_with("error: the run takes "), "{}", refused.stderr);
    assert_eq!(refused.stderr.matches(" MiB,").count(), 5, "{}", refused.stderr);
}

#[test]
fn doctor_tests_the_kernels() {
    let report = run(&mut gristmill(["doctor", "--memory=8"])).succeeded().stdout;
    println!("{report}");
    for text in ["adapters", "<- this one", "self-test  tier portable", "GFLOP/s", "fits: "] {
        assert!(report.contains(text), "`{text}` is missing:\n{report}");
    }
    // Half of a training step is the backward pass.
    let tested: Vec<&str> = report.lines().filter(|line| line.starts_with("self-test")).collect();
    assert_eq!(tested.len(), 2, "{report}");
    for text in [
        "rms_norm dw",
        "layer_norm dx",
        "gelu dx",
        "swiglu dx",
        "attention dqkv",
        "cross_entropy dh",
        "route dlogits",
        " permute dx",
        "fused permute dx",
        " combine dgates",
        "fused combine dgates",
        "grouped_matmul dw",
    ] {
        assert!(tested.iter().all(|line| line.contains(text)), "`{text}` was not tested:\n{report}");
    }
    let none = run(&mut without_adapter(gristmill(["doctor"])));
    assert_eq!(none.code, Some(2));
    assert!(none.stderr.starts_with("error: no usable GPU adapter: "), "{}", none.stderr);
}

#[test]
fn every_command_has_help() {
    for command in [
        "train",
        "plan",
        "doctor",
        "generate",
        "tokenize",
        "train-tokenizer",
        "token-distribution",
        "dump-wgsl",
    ] {
        let help = run(&mut gristmill([command, "--help"])).succeeded().stdout;
        assert!(help.contains(&format!("Usage: gristmill {command}")), "{help}");
    }
    let behind = run(&mut gristmill(["train", "configs/tiny.yaml", "--batch_size=4", "--help"])).succeeded();
    assert!(behind.stdout.contains("--SECTION.KEY=VALUE"), "{}", behind.stdout);
    assert_eq!(run(&mut gristmill([""; 0])).code, Some(2));
}

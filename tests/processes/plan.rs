//! `gristmill plan`, `gristmill doctor` and the help of every command.

use crate::launch::{gristmill, run, without_adapter};

#[test]
fn plan_needs_no_adapter() {
    let planned =
        run(without_adapter(&mut gristmill(["plan", "configs/tiny.yaml", "--batch_size", "4"]))).succeeded();
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

/// Both ways, so that the difference can be weighed.
#[test]
fn plan_says_what_recomputation_saves() {
    let planned = |recompute: &[&str]| {
        let report =
            run(without_adapter(gristmill(["plan", "configs/tiny.yaml"]).args(recompute))).succeeded();
        let lines = report.stdout.lines().filter(|line| line.contains(" of activations"));
        let bytes = |line: &str| {
            let (before, _) = line.split_once(" of activations").expect("an amount");
            before.rsplit(", ").next().expect("an amount").trim().to_string()
        };
        assert!(report.stdout.contains("recompute"), "{}", report.stdout);
        lines.map(bytes).collect::<Vec<_>>()
    };
    let (none, all) = (planned(&[]), planned(&["--recompute_config.recompute=True"]));
    assert_eq!(none.len(), 2, "{none:?}");
    assert_eq!((&none[0], &none[1]), (&all[1], &all[0]), "{none:?} and {all:?}");
    assert_ne!(none[0], none[1]);
}

/// Without the data the number of steps stays open; a memory cap that is too small is an error before anything runs.
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

/// In the form of the original's launcher, on a file of the original's for several devices.
#[test]
fn plan_needs_neither_the_devices_nor_the_data_of_the_original() {
    let file = "tests/without_adapter/settings/dialect/pretrain_llama.yaml";
    for arguments in
        [&["plan", "--as-single", file][..], &["plan", "--seed", "1", "--config", file, "--as-single"]]
    {
        let planned = run(without_adapter(&mut gristmill(arguments))).succeeded().stdout;
        for text in
            ["32 x 3 windows of 64 tokens", "not known without the data: ", "`MindDataset` is not built"]
        {
            assert!(planned.contains(text), "`{text}` is missing:\n{planned}");
        }
    }
    let refused = |arguments: &[&str]| {
        let ended = run(without_adapter(&mut gristmill(arguments)));
        assert_eq!((ended.code, ended.stderr.lines().count()), (Some(2), 1), "{}", ended.stderr);
        ended.stderr
    };
    let answer = refused(&["train", "--config", file, "--as-single"]);
    assert!(answer.contains("train_dataset.data_loader.type: `MindDataset` is not built"), "{answer}");
    let answer = refused(&["plan", "--config", file]);
    assert!(answer.contains("parallel_config: asks for 16 devices"), "{answer}");
    let answer = refused(&["plan", file, "--config", file]);
    assert!(answer.contains("--config: the configuration is named twice; name it once"), "{answer}");
}

/// A matrix of 1792 MiB, more than any run may bind: it can be planned for, and not trained.
#[test]
fn plan_shows_what_is_too_large_to_train() {
    let sizes = ["hidden_size=8192", "num_heads=64", "intermediate_size=28672", "num_layers=1"];
    let sizes = sizes.map(|size| format!("--model.model_config.{size}"));
    let planned =
        run(without_adapter(gristmill(["plan", "configs/tiny.yaml"]).args(&sizes))).succeeded().stdout;
    for text in [
        "tensors of at most 4096 MiB, more than a run may have",
        "refused  by `train` as it stands: ",
        "1792 MiB",
    ] {
        assert!(planned.contains(text), "`{text}` is missing:\n{planned}");
    }
}

/// A feed-forward matrix of 312 MiB exceeds llvmpipe's bindings and not those of a GPU, which plans are made for by default.
#[test]
fn plan_and_shaders_assume_the_limits_of_the_tier() {
    let wide = ["hidden_size=2048", "num_heads=16", "intermediate_size=20000"]
        .map(|size| format!("--model.model_config.{size}"));
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().to_str().expect("a plain path");
    let planned =
        |tier: &[&str]| run(without_adapter(gristmill(["plan", "configs/tiny.yaml"]).args(&wide).args(tier)));
    let dumped = |tier: &str| {
        run(without_adapter(gristmill(["dump-wgsl", folder, "configs/tiny.yaml", tier]).args(&wide)))
    };
    for report in [planned(&[]).succeeded(), planned(&["--context.tier=portable"]).succeeded()] {
        assert!(report.stdout.contains("tensors of at most 1024 MiB"), "{}", report.stdout);
    }
    dumped("--context.tier=portable").succeeded();
    let software = "--context.tier=software";
    for refused in [planned(&[software]), dumped(software)] {
        assert_eq!(refused.code, Some(2));
        assert!(refused.stderr.contains("largest binding of 128 MiB"), "{}", refused.stderr);
    }
}

#[test]
fn doctor_tests_the_kernels() {
    let report = run(&mut gristmill(["doctor", "--memory=8"])).succeeded().stdout;
    println!("{report}");
    for text in ["adapters", "<- this one", "self-test  tier portable", "GFLOP/s", "fits: "] {
        assert!(report.contains(text), "`{text}` is missing:\n{report}");
    }
    // The self-test covers the backward kernels too.
    let tested: Vec<&str> = report.split("self-test").skip(1).collect();
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
        assert!(tested.iter().all(|table| table.contains(text)), "`{text}` was not tested:\n{report}");
    }
    for table in tested {
        let rows = table.lines().skip(1).take_while(|line| line.starts_with("  "));
        let errors: Vec<f64> = rows
            .map(|row| row.split_whitespace().last().and_then(|error| error.parse().ok()).expect("an error"))
            .collect();
        assert!(errors.len() > 10 && errors.is_sorted_by(|one, next| one >= next), "{report}");
    }
    let none = run(without_adapter(&mut gristmill(["doctor"])));
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
    let after_overrides =
        run(&mut gristmill(["train", "configs/tiny.yaml", "--batch_size=4", "--help"])).succeeded();
    assert!(after_overrides.stdout.contains("--SECTION.KEY=VALUE"), "{}", after_overrides.stdout);
    assert_eq!(run(&mut gristmill([""; 0])).code, Some(2));
}

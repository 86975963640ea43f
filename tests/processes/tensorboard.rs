//! Event files, read back by TensorBoard itself: a Python package, which `setup.sh --tensorboard` installs into `target/python`.

use crate::launch::{run, train_gpt};
use crate::runs::{Setup, metrics};
use gristmill::report::metrics::StepMetrics;
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// What TensorBoard reads below `folder`; nothing without TensorBoard, which CI must have.
fn read(folder: &Path) -> Option<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = root.join("target/python/bin/python");
    let python = if own.exists() { own } else { "python3".into() };
    let output = Command::new(&python).arg(root.join("tests/tensorboard/read.py")).arg(folder).output();
    let is_absent = output.as_ref().map_or(true, |output| output.status.code() == Some(3));
    if is_absent {
        let is_ci = std::env::var_os("CI").is_some();
        assert!(!is_ci, "{} has no TensorBoard; run `./setup.sh --tensorboard`", python.display());
        println!("SKIPPED: no TensorBoard reads the event files back, since {} has none.", python.display());
        println!("SKIPPED: run `./setup.sh --tensorboard`");
        return None;
    }
    let output = output.expect("Python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// Trains a small mixture up to step `stop`.
fn train(home: &Path, stop: u64, resume: &str) {
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, aux_loss_types: [expert], aux_loss_factors: [0.01], \
                   z_loss_factor: 0.001";
    let setup = Setup::experts("board", routing, "mtp_depth: 1, mtp_loss_factor: 0.3");
    let setup = setup.with(&[
        "--train_dataset.eval_fraction=0.3",
        "--do_eval=True",
        "--eval_step_interval=3",
        "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 2, keep_checkpoint_max: 9}]",
        "--tensorboard={log_timers_to_tensorboard: True, log_loss_scale_to_tensorboard: True, log_expert_load_to_tensorboard: True}",
    ]);
    let arguments = [
        setup.write(home).display().to_string(),
        format!("--output_dir={}", home.display()),
        format!("--stop_step={stop}"),
        resume.to_string(),
    ];
    run(&mut train_gpt(arguments.iter().chain(&setup.overrides))).succeeded();
}

#[test]
fn tensorboard_reads_every_number_once() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path().join("board");
    train(home.path(), 8, "--resume_training=False");
    // As if it had been killed after the checkpoint of step 6, within a record.
    for step in [7, 8] {
        let _ = std::fs::remove_dir_all(folder.join(format!("checkpoint/step_{step:07}")));
    }
    let events = std::fs::read_dir(folder.join("tensorboard/rank_0")).expect("a folder");
    let file = events.map(|entry| entry.expect("an entry").path()).next().expect("an event file");
    OpenOptions::new().append(true).open(file).expect("the file").write_all(&[9; 11]).expect("room");
    train(home.path(), 10, "--resume_training=True");

    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).expect("metrics");
    let lines: Vec<StepMetrics> =
        text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    assert_eq!(metrics(&folder).len(), 10);
    let Some(read) = read(&folder.join("tensorboard/rank_0")) else { return };
    let samples = read["scalars"]["batch-size"][0][1].as_f64().expect("a number");
    let check = |tag: &str, number: &dyn Fn(&StepMetrics) -> Option<f64>| {
        let want: Vec<(f64, f32)> = lines
            .iter()
            .filter_map(|line| {
                let scale = if tag.ends_with("vs samples") { samples } else { 1.0 };
                Some((line.step as f64 * scale, number(line)? as f32))
            })
            .collect();
        let got: Vec<(f64, f32)> = read["scalars"][tag]
            .as_array()
            .unwrap_or_else(|| panic!("{tag} in {}", read["scalars"]))
            .iter()
            .map(|pair| (pair[0].as_f64().expect("a step"), pair[1].as_f64().expect("a value") as f32))
            .collect();
        assert!(!want.is_empty() && got.len() == want.len(), "{tag}: {got:?} and {want:?}");
        for ((got_step, got), (want_step, want)) in got.into_iter().zip(want) {
            // Lines round times and speeds to thousandths.
            let allowed = if tag.contains("time") || tag.contains("second") { 1e-3 } else { 0.0 };
            assert!(
                got_step == want_step && (got - want).abs() <= allowed,
                "{tag}, step {want_step}: {got}, {want}"
            );
        }
    };
    type Number = fn(&StepMetrics) -> Option<f64>;
    let both: [(&str, Number); 5] = [
        ("loss", |line| Some(line.loss.into())),
        ("learning-rate", |line| Some(line.lr.into())),
        ("grad-norm", |line| Some(line.global_norm.into())),
        ("loss-scale", |line| Some(line.loss_scale)),
        ("iteration-time", |line| Some(line.step_ms)),
    ];
    for (tag, number) in both {
        check(tag, &number);
        check(&format!("{tag} vs samples"), &number);
    }
    let by_step: [(&str, Number); 9] = [
        ("tokens-per-second", |line| Some(line.tokens_per_second)),
        ("load-balancing-loss", |line| line.load_balancing_loss.map(f64::from)),
        ("z-loss", |line| line.z_loss.map(f64::from)),
        ("mtp-loss", |line| line.mtp_loss.map(f64::from)),
        ("eval-loss", |line| line.eval_loss.map(f64::from)),
        ("device-memory-mib", |line| line.device_memory_mib.map(f64::from)),
        ("host-memory-mib", |line| line.host_memory_mib.map(f64::from)),
        ("drop-rate/0", |line| Some(line.drop_rate.as_ref()?[0].into())),
        ("expert-load-entropy/1", |line| Some(line.expert_load_entropy.as_ref()?[1].into())),
    ];
    by_step.iter().for_each(|(tag, number)| check(tag, number));
    let loads = read["histograms"]["expert_load/1"].as_array().expect("a layer's load");
    let steps: Vec<u64> = loads.iter().map(|load| load[0].as_u64().expect("a step")).collect();
    assert_eq!(steps, (1..=10).collect::<Vec<_>>());
    let settings =
        read["texts"]["runner_config/text_summary"].as_str().or(read["texts"]["runner_config"].as_str());
    assert!(settings.is_some_and(|text| text.contains("batch_size")), "{}", read["texts"]);
}

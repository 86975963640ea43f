//! A run whose loss or gradients stop being finite ends with one line, and its last sound checkpoint stays.

use crate::runs::{FolderRun, Setup, metrics, read_tensors};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Nothing is learned in the first step, whose rate is 0; the second one makes the weights so large that no later step
/// has a finite loss.
const DIVERGES: [&str; 2] = [
    "--lr_schedule={type: ConstantWarmUpLR, learning_rate: 1.e+16, warmup_steps: 2}",
    "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 1, keep_checkpoint_max: 1}]",
];

fn fails(run: &FolderRun, stop_step: u64) -> String {
    let config = run.setup.write(run.home.path());
    let arguments = run.arguments(stop_step);
    let ended = gristmill::train::run(&config, &arguments, Arc::default());
    let line = pollster::block_on(ended).expect_err("the run diverges").to_string();
    println!("{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

/// Weights so large that every step overflows.
const SKIPS: [&str; 1] = ["--model.model_config.init_method_std=1.e+16"];

#[test]
fn a_run_that_diverges_stops_and_keeps_its_last_sound_checkpoint() {
    let run = FolderRun::new(Setup::new("diverges", "").with(&DIVERGES));
    let line = fails(&run, 60);
    assert!(
        line.starts_with("training stopped because the loss was not finite in steps 3 to 22; "),
        "{line}"
    );
    assert!(line.contains("start again from the checkpoint of step 2 with load_checkpoint"), "{line}");
    let steps = metrics(&run.folder());
    assert_eq!(steps.len(), 22, "the failed steps are reported");
    assert!(steps[..2].iter().all(|step| step.loss.is_finite()), "{steps:?}");
    assert_eq!(run.newest(), Some(2));
    let weights = read_tensors(&run.folder().join("checkpoint/step_0000002/model.safetensors"));
    assert!(weights.values().flat_map(|tensor| tensor.floats()).all(f64::is_finite));
}

#[test]
fn a_run_that_ends_without_a_loss_has_failed() {
    let run = FolderRun::new(Setup::new("ends badly", "").with(&DIVERGES));
    let line = fails(&run, 5);
    assert!(line.starts_with("training stopped because the loss was not finite in steps 3 to 5; "), "{line}");
    assert_eq!(run.newest(), Some(2));
}

#[test]
fn a_run_that_skips_every_step_has_failed() {
    let run = FolderRun::new(Setup::new("skips", "").with(&SKIPS));
    let line = fails(&run, 3);
    assert!(line.contains(" not finite in steps 1 to 3; "), "{line}");
    assert!(line.ends_with("start again; no checkpoint was written before"), "{line}");
    assert_eq!(run.newest(), None);
}

/// An interrupt saves the work so far, unless that is a failed step's.
#[test]
fn an_interrupted_run_that_fails_saves_nothing() {
    let run = FolderRun::new(Setup::new("interrupted", "").with(&SKIPS));
    let config = run.setup.write(run.home.path());
    let arguments = run.arguments(3);
    let ended = gristmill::train::run(&config, &arguments, Arc::new(AtomicBool::new(true)));
    let summary = pollster::block_on(ended).expect("an interrupt is no error");
    assert!(summary.is_interrupted);
    assert_eq!(run.newest(), None);
}

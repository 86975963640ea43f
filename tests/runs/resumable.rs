//! A run to interrupt: 40 steps through eight epochs of shuffled data, with evaluations.

use super::{FolderRun, Left, Setup};

pub const STEPS: u64 = 40;

/// A run that writes a checkpoint every `checkpoint_every` steps.
pub fn resumable(checkpoint_every: u64, overrides: &[&str]) -> FolderRun {
    // Wide enough that writing a checkpoint takes some milliseconds: that is when a kill has to hit. The kernels are
    // those of other small runs, which have other heads only where hidden_size is another.
    let wide = ["--model.model_config.intermediate_size=512"];
    let setup = Setup::new("resumed", "").with(&wide);
    evaluated(setup, checkpoint_every, overrides)
}

/// The same for another model than the wide one.
pub fn evaluated(setup: Setup, checkpoint_every: u64, overrides: &[&str]) -> FolderRun {
    let callbacks = format!(
        "--callbacks=[{{type: CheckpointMonitor, save_checkpoint_steps: {checkpoint_every}, \
         keep_checkpoint_max: 2}}, {{type: MFLossMonitor, per_print_times: 1000}}]"
    );
    let evaluations =
        ["--train_dataset.eval_fraction=0.3", "--do_eval=True", "--eval_step_interval=5", &callbacks];
    FolderRun::new(setup.with(&evaluations).with(overrides))
}

/// What all 40 steps leave without an interruption.
pub fn uninterrupted() -> Left {
    let left = resumable(STEPS, &[]).train(STEPS).left();
    let steps: Vec<u64> = left.metrics.iter().map(|metrics| metrics.step).collect();
    assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>());
    let evaluations = left.metrics.iter().filter(|metrics| metrics.eval_loss.is_some()).count();
    assert_eq!(evaluations, 8, "one after every fifth step");
    assert!(left.metrics[39].loss < left.metrics[0].loss, "the loss does not fall");
    left
}

//! Programs that would block a display are cut into several submissions and compute the same. On a software driver no
//! submission is in flight when a step returns.
//!
//! After 20 steps they are cut once more.

use crate::runs::{Setup, Weights, new_trainer, tensors};
use gristmill::ops::step_state::StepState;
use pollster::block_on;
use std::time::Duration;

const STEPS: u64 = 3;

struct Run {
    /// The state after each step.
    states: Vec<StepState>,
    /// The final weights.
    weights: Weights,
    /// The number of submissions in the last step.
    submissions: u64,
    /// The number of launches in a step.
    launches: u64,
}

fn run(submission_time: Duration) -> Run {
    let mut setup = Setup::new("submissions", "");
    setup.gpu_options.submission_time = Some(submission_time);
    let (plan, data, length) = setup.data();
    let gpu = setup.gpu();
    let mut trainer = new_trainer(&gpu, &plan, &length);
    let micro_steps = plan.settings.runner.gradient_accumulation_steps as u64;
    let (mut states, mut before) = (Vec::new(), 0);
    for step in 0..STEPS {
        before = gpu.submissions();
        block_on(trainer.step(step + 1, &data.train, step * micro_steps)).expect("a step");
        states.extend(trainer.finished_steps().expect("states").into_iter().map(|finished| finished.state));
    }
    let submissions = gpu.submissions() - before;
    block_on(trainer.wait()).expect("the device");
    states.extend(trainer.finished_steps().expect("states").into_iter().map(|finished| finished.state));
    let (micro_step, update) = trainer.launches();
    Run {
        states,
        weights: tensors(&trainer, |arenas| &arenas.weights),
        submissions,
        launches: micro_steps * micro_step as u64 + update as u64,
    }
}

/// Under a budget of zero each launch is a submission of its own.
#[test]
fn cut_steps_compute_the_same() {
    let (whole, cut) = (run(Duration::from_secs(3600)), run(Duration::ZERO));
    assert_eq!(whole.submissions, 3, "two micro-steps and an update");
    assert_eq!(cut.submissions, cut.launches, "one submission a launch");
    assert_eq!(whole.states.len() as u64, STEPS);
    assert!(
        whole.states.iter().zip(&cut.states).all(|(a, b)| bytemuck::bytes_of(a) == bytemuck::bytes_of(b)),
        "{:?}\n{:?}",
        whole.states,
        cut.states
    );
    assert!(whole.weights == cut.weights, "the weights differ");
}

/// The first replay measures an idle device, so programs are cut once more when it has worked for 20 steps. Nothing is
/// waited for, so the new cuts hold a step or two later.
#[test]
fn submissions_are_measured_again_after_twenty_steps() {
    let trained = |submission_time: Option<Duration>| {
        let mut setup = Setup::new("measured", "");
        setup.gpu_options.submission_time = submission_time;
        let (plan, data, length) = setup.data();
        let gpu = setup.gpu();
        let mut trainer = new_trainer(&gpu, &plan, &length);
        let micro_steps = plan.settings.runner.gradient_accumulation_steps as u64;
        let (mut cuts, mut submissions) = (Vec::new(), vec![gpu.submissions()]);
        for step in 0..24 {
            block_on(trainer.step(step + 1, &data.train, step * micro_steps)).expect("a step");
            trainer.finished_steps().expect("states");
            submissions.push(gpu.submissions());
            cuts.push(trainer.cuts());
        }
        block_on(trainer.wait()).expect("the device");
        cuts.push(trainer.cuts());
        let submissions: Vec<u64> = submissions.windows(2).map(|pair| pair[1] - pair[0]).collect();
        println!("{submission_time:?}: {submissions:?} submissions a step");
        (cuts, tensors(&trainer, |arenas| &arenas.weights))
    };
    let (never, whole) = trained(None);
    assert!(never.iter().all(|cuts| *cuts == (0, 0)), "a software adapter has no limit: {never:?}");
    let (cuts, split) = trained(Some(Duration::from_millis(3)));
    assert_eq!((cuts[0], cuts[19], cuts[24]), ((1, 1), (1, 1), (2, 2)), "{cuts:?}");
    assert!(whole == split, "the weights differ");
}

/// A software driver executes a step while it is submitted, so the step's result is ready when the call returns.
#[test]
fn a_software_driver_returns_the_result_with_the_step() {
    let setup = Setup::new("at once", "");
    let (plan, data, length) = setup.data();
    let gpu = setup.gpu();
    if !gpu.report().is_software {
        println!("{} is no software adapter: nothing to test", gpu.report().name);
        return;
    }
    let mut trainer = new_trainer(&gpu, &plan, &length);
    for step in 1..=10 {
        let first = (step - 1) * plan.settings.runner.gradient_accumulation_steps as u64;
        block_on(trainer.step(step, &data.train, first)).expect("a step");
        let finished = trainer.finished_steps().expect("states");
        assert_eq!(finished.iter().map(|finished| finished.step).collect::<Vec<_>>(), [step]);
    }
}

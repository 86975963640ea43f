//! Programs that would keep a display waiting are cut into several submissions, and compute the same. A software driver has
//! none in flight when a step returns.

mod runs;

use gristmill::train::Trainer;
use gristmill::train::state::StepState;
use pollster::block_on;
use runs::{Setup, Weights, tensors};
use std::time::Duration;

const STEPS: u64 = 3;

/// What a run did: the state after each step, the weights, the submissions of its last step, and the launches of one.
struct Run {
    states: Vec<StepState>,
    weights: Weights,
    submissions: u64,
    launches: u64,
}

fn run(submission_time: Duration) -> Run {
    let mut setup = Setup::new("submissions", "");
    setup.gpu_options.submission_time = Some(submission_time);
    let (plan, data, length) = setup.data();
    let gpu = setup.gpu();
    let mut trainer = block_on(Trainer::new(&gpu, &plan, &length)).unwrap_or_else(|e| panic!("{e}"));
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

/// No budget is too small: then each launch is a submission of its own.
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

/// Its driver executes a step while it is submitted: the result is there at once, and so is the time it took.
#[test]
fn a_software_driver_s_result_comes_with_its_step() {
    let setup = Setup::new("at once", "");
    let (plan, data, length) = setup.data();
    let gpu = setup.gpu();
    if !gpu.report().is_software {
        println!("{} is no software adapter: nothing to see here", gpu.report().name);
        return;
    }
    let mut trainer = block_on(Trainer::new(&gpu, &plan, &length)).unwrap_or_else(|e| panic!("{e}"));
    for step in 1..=10 {
        let first = (step - 1) * plan.settings.runner.gradient_accumulation_steps as u64;
        block_on(trainer.step(step, &data.train, first)).expect("a step");
        let finished = trainer.finished_steps().expect("states");
        assert_eq!(finished.iter().map(|finished| finished.step).collect::<Vec<_>>(), [step]);
    }
}

//! A step on several micro-batches equals the step on one large batch.
//!
//! Also per token where targets are masked unevenly.

use crate::runs::{Setup, Weights, new_trainer, relative_distance, tensors};
use gristmill::ops::step_state::StepState;

/// Relative difference allowed to gradients, loss and weights; only the order of summation differs.
const ALLOWED: f64 = 1e-5;

/// One step: its gradients, the weights around it, its state.
struct Step {
    gradients: Weights,
    before: Weights,
    after: Weights,
    state: StepState,
}

/// The first step of a run. The run must have no warm-up, whose first step has a learning rate of 0.
fn first_step(setup: &Setup) -> Step {
    let (plan, data, length) = setup.data();
    let gpu = setup.gpu();
    let mut trainer = new_trainer(&gpu, &plan, &length);
    let before = tensors(&trainer, |arenas| &arenas.weights);
    pollster::block_on(trainer.micro_steps(&data.train, 0)).expect("gradients");
    let gradients = tensors(&trainer, |arenas| &arenas.gradients);
    pollster::block_on(trainer.step(1, &data.train, 0)).expect("a step");
    pollster::block_on(trainer.wait()).expect("the device");
    let states = trainer.finished_steps().expect("states");
    let after = tensors(&trainer, |arenas| &arenas.weights);
    Step { gradients, before, after, state: states[0].state }
}

fn assert_close(what: &str, error: f64) {
    println!("{what}: {:.1} % of the allowed difference", 100.0 * error / ALLOWED);
    assert!(error <= ALLOWED, "{what} differ by {error:.2e}, allowed are {ALLOWED:.0e}");
}

fn assert_same_gradients(name: &str, one: &Step, other: &Step) {
    let loss = |step: &Step| step.state.loss as f64;
    assert_close(&format!("{name}, losses"), (loss(one) - loss(other)).abs() / loss(other));
    assert_close(&format!("{name}, gradient arenas"), relative_distance(&one.gradients, &other.gradients));
}

fn assert_same_weights(name: &str, one: &Step, other: &Step) {
    let moved = relative_distance(&one.after, &one.before);
    assert!(
        moved > 100.0 * ALLOWED,
        "{name}: the step moved the weights by {moved:.2e}, too little to compare"
    );
    assert_close(&format!("{name}, weights after the step"), relative_distance(&one.after, &other.after));
}

/// Shuffling stays on: `Batches` gives a step the same windows in one micro-batch and in four, as its own test
/// `accumulation_splits_the_same_step` shows.
#[test]
fn four_micro_batches_of_two_are_one_batch_of_eight() {
    let shapes = [
        ("llama", ""),
        ("qwen", "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, tie_word_embeddings: True"),
    ];
    for (name, model) in shapes {
        let setup = |batch: &str, accumulation: &str| {
            let accumulation = format!("--gradient_accumulation_steps={accumulation}");
            Setup::new(name, model).with(&[
                &format!("--batch_size={batch}"),
                &accumulation,
                "--lr_schedule.warmup_steps=0",
            ])
        };
        let (micro, whole) = (first_step(&setup("2", "4")), first_step(&setup("8", "1")));
        assert_same_gradients(name, &micro, &whole);
        assert_same_weights(name, &micro, &whole);
    }
}

/// Targets masked at the ends of documents, which micro-batches have different numbers of.
#[test]
fn tokens_weigh_the_same_in_micro_batches_of_different_lengths() {
    let text = "--train_dataset={data_loader: {type: TextDataLoader, dataset_files: tests/data/mill.txt}, eod_token_id: 32, \
                eod_mask_loss: True}";
    let setup = |batch: &str, accumulation: &str, is_per_token: &str| {
        Setup::new("per token", "").wide().with(&[
            text,
            &format!("--batch_size={batch}"),
            &format!("--gradient_accumulation_steps={accumulation}"),
            &format!("--runner_wrapper.calculate_per_token_loss={is_per_token}"),
            "--lr_schedule.warmup_steps=0",
        ])
    };
    let whole = first_step(&setup("8", "1", "False"));
    for (batch, accumulation) in [("2", "4"), ("1", "8"), ("8", "1")] {
        let step = first_step(&setup(batch, accumulation, "True"));
        let name = format!("{accumulation} x {batch}, per token");
        let off = |a: f32, b: f32| f64::from((a - b).abs() / b);
        assert_close(&format!("{name}, losses"), off(step.state.loss, whole.state.loss));
        assert_close(&format!("{name}, norms"), off(step.state.grad_norm, whole.state.grad_norm));
        assert_same_weights(&name, &step, &whole);
    }
    let plain = first_step(&setup("1", "8", "False"));
    let difference = (plain.state.loss - whole.state.loss).abs() / whole.state.loss;
    assert!(
        f64::from(difference) > 10.0 * ALLOWED,
        "the micro-batches have as many targets: {difference:.1e}"
    );
}

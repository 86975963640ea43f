//! What an evaluation reports beside its loss.
//!
//! Accuracy counts the targets that have the first of the largest f64 logits.

use crate::runs::{Setup, new_trainer, reference_shape, tensors};
use pollster::block_on;
use reference::gpt::logits;
use reference::linear_cross_entropy::correct;

/// Logits closer to the target's than this may be the larger ones in f32.
const ALLOWED: f64 = 1e-4;

/// Evaluates after ten steps, with `overrides`, and holds the accuracy against f64 logits of the weights that the steps
/// leave.
fn is_that_of_the_reference(setup: Setup) {
    let evaluates = [
        "--do_eval",
        "--train_dataset.eval_fraction=0.3",
        "--eval_step_interval=10",
        "--metric={type: Accuracy}",
    ];
    let setup = setup.with(&evaluates);
    let (plan, data, length) = setup.data();
    let eval = data.eval.as_ref().expect("evaluation data");
    let (gpu, steps) = (setup.gpu(), 10);
    let mut trainer = new_trainer(&gpu, &plan, &length);
    for step in 1..=steps {
        block_on(trainer.step(step, &data.train, 2 * (step - 1))).expect("a step");
        // The sum must not be that of all evaluations.
        if step + 1 >= steps {
            block_on(trainer.evaluate(step, eval, eval.micro_steps_per_epoch(), |_| Ok(())))
                .expect("an evaluation");
        }
        block_on(trainer.wait()).expect("the device");
        trainer.finished_steps().expect("states");
    }
    let last = trainer.finished_evaluations().expect("evaluations").pop().expect("an evaluation");
    let got = f64::from(last.accuracy.expect("an accuracy"));

    let (shape, weights) = (reference_shape(&plan.model), tensors(&trainer, |arenas| &arenas.weights));
    let (width, ignore) = (plan.model.vocab_size, plan.model.ignore_id);
    let (mut hits, mut close, mut count) = (0, 0, 0);
    for micro_step in 0..eval.micro_steps_per_epoch() {
        let batch = eval.batch(micro_step).expect("a batch");
        let length = plan.model.seq_length;
        let positions: Vec<u32> = (0..batch.tokens.len()).map(|token| (token % length) as u32).collect();
        let logits = logits(&shape, &weights, &shape.memories(), &batch.tokens, &positions, length);
        hits += correct(&logits, &batch.targets, width, ignore);
        for (row, &target) in
            logits.chunks_exact(width).zip(&batch.targets).filter(|&(_, &target)| target != ignore)
        {
            let others =
                row.iter().enumerate().filter(|(id, _)| *id != target as usize).map(|(_, logit)| *logit);
            close += usize::from((others.fold(f64::MIN, f64::max) - row[target as usize]).abs() < ALLOWED);
            count += 1;
        }
    }
    let name = setup.name;
    println!("{name}: {got} of {count} tokens, {hits} in the reference, {close} too close to say");
    assert!(hits > count / 20 && hits < count, "{name}: {hits} of {count} say nothing");
    assert!(close <= count / 500, "{name}: {close} of {count} tokens have two logits that are nearly equal");
    let apart = (got * count as f64 - hits as f64).abs();
    assert!(apart <= close as f64 + 1e-3, "{name}: {} tokens instead of {hits}", got * count as f64);
}

#[test]
fn accuracy_is_that_of_the_reference() {
    is_that_of_the_reference(Setup::new("dense", ""));
    is_that_of_the_reference(Setup::gpt2("GPT-2", ""));
    let routing = "expert_num: 5, num_experts_chosen: 2, use_gmm: True";
    is_that_of_the_reference(Setup::experts("mixture", routing, "mtp_depth: 1, mtp_loss_factor: 0.3"));
}

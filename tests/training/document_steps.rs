//! Training steps and evaluations on windows that hold several documents, against the f64 reference.

use crate::runs::{Setup, Weights, add_to, new_trainer, reference_shape, relative_distance};
use gristmill::data::{Batch, Batches};
use gristmill::settings::RunPlan;
use pollster::block_on;
use reference::gpt::loss_and_gradients;

/// Relative error allowed to losses and gradients.
const ALLOWED: f64 = 1e-5;

/// Every space of the text ends a document, so each window holds several.
const TEXT: &str =
    "data_loader: {type: TextDataLoader, dataset_files: tests/data/mill.txt}, eod_token_id: 32";

/// Restarted positions and masked targets reach the kernels: the first step's loss and gradient are the reference's for
/// the positions and targets of the batch, and differ from those for positions that do not restart.
#[test]
fn the_ends_of_documents_reach_the_kernels() {
    let data = format!("--train_dataset={{{TEXT}, reset_position_ids: True, eod_mask_loss: True}}");
    let setup = Setup::new("ends", "").with(&[&data]);
    let trained = setup.train(1);
    let (plan, data, _) = setup.data();
    let shape = reference_shape(&plan.model);
    let (weights, micro_steps) =
        (setup.initial_weights(), plan.settings.runner.gradient_accumulation_steps as u64);
    let mean = |is_plain: bool| -> (f64, f64) {
        let (mut loss, mut gradients) = (0.0, Weights::new());
        for micro_step in 0..micro_steps {
            let batch = data.train.batch(micro_step).expect("a batch");
            let length = plan.model.seq_length as u32;
            let positions: Vec<u32> = match is_plain {
                true => (0..batch.tokens.len() as u32).map(|i| i % length).collect(),
                false => batch.positions,
            };
            let counted = batch.targets.iter().filter(|target| **target != u32::MAX).count();
            assert!(counted < batch.targets.len(), "no document ends in this batch");
            let seed = 1.0 / (counted as f64 * micro_steps as f64);
            let (sum, _, own) = loss_and_gradients(
                &shape,
                &weights,
                &batch.tokens,
                &batch.targets,
                &positions,
                length as usize,
                u32::MAX,
                seed,
            );
            loss += seed * sum;
            add_to(&mut gradients, own);
        }
        (loss, gradients.values().flatten().map(|g| g * g).sum::<f64>().sqrt())
    };
    let got = &trained.states[0];
    let off = |(loss, norm): (f64, f64)| {
        ((f64::from(got.loss) - loss).abs() / loss).max((f64::from(got.grad_norm) - norm).abs() / norm)
    };
    println!("the first step: {:.1} % of the allowed error", 100.0 * off(mean(false)) / ALLOWED);
    assert!(off(mean(false)) <= ALLOWED, "loss {}, norm {}, and {:?}", got.loss, got.grad_norm, mean(false));
    assert!(off(mean(true)) > 10.0 * ALLOWED, "restarted positions make no difference here");
}

/// The reference's sum of losses over `batch`, `seed` times its gradients, and the number of sequences: each document
/// on its own with positions from 0 if `isolated`, otherwise each window as one document.
fn by_reference(setup: &Setup, batch: &Batch, seed: f64, isolated: bool) -> (f64, Weights, usize) {
    let (plan, weights) = (setup.plan(), setup.initial_weights());
    let (shape, window) = (reference_shape(&plan.model), plan.model.seq_length);
    let (mut loss, mut gradients, mut count) = (0.0, Weights::new(), 0);
    for row in 0..plan.settings.runner.batch_size {
        let first = row * window;
        let mut start = first;
        while start < first + window {
            let length = match isolated {
                true => first + batch.ends[start] as usize - start,
                false => window,
            };
            let (tokens, targets) =
                (&batch.tokens[start..start + length], &batch.targets[start..start + length]);
            let positions: Vec<u32> = (0..length as u32).collect();
            let (sum, _, own) =
                loss_and_gradients(&shape, &weights, tokens, targets, &positions, length, u32::MAX, seed);
            loss += sum;
            add_to(&mut gradients, own);
            (start, count) = (start + length, count + 1);
        }
    }
    (loss, gradients, count)
}

/// Isolated documents in one window have the losses and gradients they have alone: the sum of the reference's over
/// documents.
#[test]
fn packed_documents_learn_as_if_alone() {
    let data = format!("--train_dataset={{{TEXT}, eod_reset: True}}");
    let linear = Setup::of_linear_attention("linear attention", "");
    let convolutions = Setup::of_convolutions("convolutions", "");
    for setup in
        [Setup::new("rotated", "sliding_window: 5"), Setup::gpt2("learned", ""), linear, convolutions]
    {
        let setup = setup.with(&[&data]);
        let trained = setup.train(1);
        let (plan, data, _) = setup.data();
        assert!(plan.isolates_documents());
        let micro_steps = plan.settings.runner.gradient_accumulation_steps as u64;
        let (mut loss, mut gradients, mut documents) = (0.0, Weights::new(), 0);
        for micro_step in 0..micro_steps {
            let batch = data.train.batch(micro_step).expect("a batch");
            let seed = 1.0 / (batch.targets.len() as f64 * micro_steps as f64);
            let (sum, own, count) = by_reference(&setup, &batch, seed, true);
            (loss, documents) = (loss + seed * sum, documents + count);
            add_to(&mut gradients, own);
        }
        assert!(documents > 3 * plan.settings.runner.batch_size, "{documents} documents are too few to tell");
        let loss_error = (f64::from(trained.states[0].loss) - loss).abs() / loss;
        let scale = f64::from(plan.settings.wrapper.scale_sense.loss_scale_value as f32);
        let unscaled: Weights = trained
            .gradients
            .into_iter()
            .map(|(name, g)| (name, g.into_iter().map(|g| g / scale).collect()))
            .collect();
        let gradient_error = relative_distance(&unscaled, &gradients);
        println!(
            "{}, {documents} documents: the loss is at {:.1} %, the gradients at {:.1} % of the allowed error",
            setup.name,
            100.0 * loss_error / ALLOWED,
            100.0 * gradient_error / ALLOWED
        );
        assert!(
            loss_error <= ALLOWED && gradient_error <= ALLOWED,
            "{}: loss {loss_error:.1e}, gradients {gradient_error:.1e}",
            setup.name
        );
    }
}

/// Training and evaluation share the batch on the device, which holds document bounds if either isolates documents;
/// each must still follow its own rule.
#[test]
fn evaluation_may_isolate_documents_though_training_does_not() {
    for (trains_isolated, evaluates_isolated) in [(false, true), (true, false)] {
        let rule = |isolated: bool| if isolated { ", eod_reset: True" } else { "" };
        let data = [
            format!("--train_dataset={{{TEXT}{}}}", rule(trains_isolated)),
            format!("--eval_dataset={{{TEXT}{}}}", rule(evaluates_isolated)),
            "--do_eval=True".to_string(),
        ];
        let data: Vec<&str> = data.iter().map(String::as_str).collect();
        for setup in [Setup::new("rotated", "").with(&data), Setup::gpt2("learned", "").with(&data)] {
            let (trained, evaluated) = first_losses(&setup);
            let (plan, data, _) = setup.data();
            let eval = data.eval.expect("evaluation data");
            let mean = |batches: &Batches, count: u64, isolated: bool| {
                mean_loss(&setup, &plan, batches, count, isolated)
            };
            let micro_steps = plan.settings.runner.gradient_accumulation_steps as u64;
            let cases = [
                ("the training loss", trained, &data.train, micro_steps, trains_isolated),
                ("the evaluation's loss", evaluated, &eval, EVAL_BATCHES, evaluates_isolated),
            ];
            for (what, got, batches, count, isolated) in cases {
                let off = |isolated: bool| {
                    let want = mean(batches, count, isolated);
                    (f64::from(got) - want).abs() / want
                };
                let what = format!("{}, {what}, isolated: {isolated}", setup.name);
                println!("{what}: {:.1} % of the allowed error", 100.0 * off(isolated) / ALLOWED);
                assert!(off(isolated) <= ALLOWED, "{what}: off by {:.1e}", off(isolated));
                assert!(off(!isolated) > 10.0 * ALLOWED, "{what}: isolation makes no difference here");
            }
        }
    }
}

/// Micro-batches of an evaluation.
const EVAL_BATCHES: u64 = 2;

/// The loss of the first step, and of an evaluation before it; both use the initial weights.
fn first_losses(setup: &Setup) -> (f32, f32) {
    let (plan, data, length) = setup.data();
    let gpu = setup.gpu();
    let mut trainer = new_trainer(&gpu, &plan, &length);
    let eval = data.eval.as_ref().expect("evaluation data");
    block_on(trainer.evaluate(0, eval, EVAL_BATCHES, |_| Ok(()))).unwrap_or_else(|e| panic!("{e}"));
    block_on(trainer.step(1, &data.train, 0)).unwrap_or_else(|e| panic!("{e}"));
    block_on(trainer.wait()).expect("the device");
    let (steps, evaluations) =
        (trainer.finished_steps().expect("states"), trainer.finished_evaluations().expect("losses"));
    (steps[0].state.loss, evaluations[0].loss)
}

fn mean_loss(setup: &Setup, plan: &RunPlan, batches: &Batches, count: u64, isolated: bool) -> f64 {
    let losses = (0..count).map(|micro_step| {
        let mut batch = batches.batch(micro_step).expect("a batch");
        // `batches` may give no document bounds, but the comparison needs them.
        for (at, end) in batch.ends.iter_mut().enumerate() {
            let (row, column) = (at / plan.model.seq_length, at % plan.model.seq_length);
            let window = &batch.tokens[row * plan.model.seq_length..][..plan.model.seq_length];
            let rest = window[column..].iter().position(|token| *token == 32);
            *end = rest.map_or(plan.model.seq_length, |rest| column + rest + 1) as u32;
        }
        by_reference(setup, &batch, 1.0, isolated).0
    });
    losses.sum::<f64>() / (count as usize * plan.settings.runner.batch_size * plan.model.seq_length) as f64
}

//! Training on samples: prompts and padding do not enter the loss, and packed samples learn as if alone.

use crate::against_reference::{ALLOWED, follows_the_reference_on};
use crate::runs::{Setup, Weights, add_to, reference_shape};
use gristmill::settings::RunPlan;
use reference::gpt::loss_and_gradients;
use std::path::Path;

/// JSON lines made of the text: each of its lines answers the one before it.
fn write_lines(path: &Path) {
    let text = std::fs::read_to_string("tests/data/mill.txt").expect("the text");
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let pairs = lines.windows(2).map(|pair| {
        serde_json::json!({"content": &pair[0][..pair[0].len().min(9)], "summary": pair[1]}).to_string()
    });
    std::fs::write(path, pairs.collect::<Vec<_>>().join("\n")).expect("a file");
}

/// The reference's trainer on the same batches: equal losses, norms and weights.
#[test]
fn a_run_on_prompts_and_answers_is_the_reference_s() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lines.jsonl");
    write_lines(&path);
    let data = format!(
        "--train_dataset={{data_loader: {{type: ADGenDataLoader, dataset_dir: {}, version: 3}}, max_target_length: 20}}",
        path.display()
    );
    let setup = Setup::new("answers", "").with(&[&data]);
    follows_the_reference_on(&setup, 4, |plan: &RunPlan, micro_step| {
        let batch = plan.load_data().expect("data").train.batch(micro_step).expect("a batch");
        let ignored = batch.targets.iter().filter(|target| **target == u32::MAX).count();
        assert!(
            ignored > batch.targets.len() / 5,
            "prompts and padding are {ignored} of {}",
            batch.targets.len()
        );
        (batch.tokens, batch.targets)
    });
}

/// Each document of a packed row has the loss that it has alone, with positions from 0.
#[test]
fn packed_samples_learn_as_if_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ready.jsonl");
    let line = |start: u32| {
        let ids: Vec<u32> = (0..5 + start % 7).map(|i| (start * 31 + i * i) % 250).collect();
        serde_json::json!({"input_ids": ids}).to_string()
    };
    std::fs::write(&path, (0..200).map(line).collect::<Vec<_>>().join("\n")).expect("a file");
    let data = format!(
        "--train_dataset={{data_loader: {{type: HFDataLoader, path: json, data_files: {}, handler: [{{type: PackingHandler}}]}}}}",
        path.display()
    );
    let setup = Setup::new("packed", "").with(&[&data]);
    let trained = setup.train(1);
    let (plan, data, _) = setup.data();
    assert!(plan.isolates_documents());
    let (shape, window) = (reference_shape(&plan.model), plan.model.seq_length);
    let (weights, micro_steps) =
        (setup.initial_weights(), plan.settings.runner.gradient_accumulation_steps as u64);
    let (mut loss, mut gradients, mut documents) = (0.0, Weights::new(), 0);
    for micro_step in 0..micro_steps {
        let batch = data.train.batch(micro_step).expect("a batch");
        let counted = batch.targets.iter().filter(|target| **target != u32::MAX).count();
        let seed = 1.0 / (counted as f64 * micro_steps as f64);
        let mut start = 0;
        while start < batch.tokens.len() {
            let end = start - start % window + batch.ends[start] as usize;
            let positions: Vec<u32> = (0..(end - start) as u32).collect();
            let (tokens, targets) = (&batch.tokens[start..end], &batch.targets[start..end]);
            let length = end - start;
            let (sum, _, own) =
                loss_and_gradients(&shape, &weights, tokens, targets, &positions, length, u32::MAX, seed);
            loss += seed * sum;
            add_to(&mut gradients, own);
            (start, documents) = (end, documents + 1);
        }
    }
    assert!(documents > 3 * plan.settings.runner.batch_size, "{documents} documents are too few to tell");
    let norm = gradients.values().flatten().map(|g| g * g).sum::<f64>().sqrt();
    let error = |got: f32, want: f64| (f64::from(got) - want).abs() / want;
    let got = &trained.states[0];
    let off = [error(got.loss, loss), error(got.grad_norm, norm)];
    println!("{documents} documents: {off:?} of {ALLOWED}");
    assert!(
        off[0] <= ALLOWED && off[1] <= ALLOWED,
        "loss {} and {loss}, norm {} and {norm}",
        got.loss,
        got.grad_norm
    );
}

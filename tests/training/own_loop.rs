//! A training loop of one's own: what it saves and goes on from, with the lines of what it cannot go on from.

use crate::runs::{Setup, new_trainer, open_gpu};
use gristmill::data::{Batches, SampleCollector};
use gristmill::device::Gpu;
use gristmill::settings::RunConfig;
use gristmill::train::Trainer;
use gristmill::train::length::RunLength;
use pollster::block_on;
use std::path::Path;

/// What a loop leaves: the loss of each step that it made, and its weights and moments.
type Left = (Vec<f32>, Vec<(String, Vec<f32>)>);

/// Trains to step `last` from where `folder` is, and saves there.
fn train(setup: &Setup, gpu: &Gpu, folder: &Path, last: u64) -> Left {
    let (plan, data, length) = setup.data();
    let mut trainer = new_trainer(gpu, &plan, &length);
    let micro_batches = plan.settings.runner.gradient_accumulation_steps as u64;
    let mut losses = Vec::new();
    let trained = block_on(async {
        for step in trainer.resume(folder, &data.train).await? + 1..=last {
            trainer.step(step, &data.train, (step - 1) * micro_batches).await?;
            trainer.wait().await?;
            losses.extend(trainer.finished_steps()?.iter().map(|finished| finished.state.loss));
        }
        let checkpoint = trainer.save(folder, &data.train).await?;
        assert_eq!(checkpoint, folder.join(format!("checkpoint/step_{last:07}")));
        let mut tensors = trainer.tensors(|arenas| &arenas.weights).await?;
        tensors.extend(trainer.tensors(|arenas| &arenas.second_moments).await?);
        gristmill::error::Result::Ok(tensors)
    });
    (losses, trained.unwrap_or_else(|e| panic!("{}: {e}", setup.name)))
}

/// With what a checkpoint has besides weights: moments, a loss scale on its way, masks by the step's number, 16-bit
/// copies.
#[test]
fn four_steps_and_four_more_are_eight() {
    let cases: [(&'static str, &[&str]); 3] = [
        ("plain", &[]),
        (
            "adaptive loss scale",
            &[
                "--runner_wrapper.scale_sense={type: DynamicLossScaleUpdateCell, loss_scale_value: 1024, scale_factor: 2, scale_window: 3}",
            ],
        ),
        (
            "16 bits and dropout",
            &["--model.model_config.compute_dtype=bfloat16", "--model.model_config.hidden_dropout=0.1"],
        ),
    ];
    for (name, flags) in cases {
        let setup = Setup::new(name, "").with(flags);
        let (gpu, home) = (setup.gpu(), tempfile::tempdir().expect("a folder"));
        let (losses, tensors) = train(&setup, &gpu, &home.path().join("once"), 8);
        let first = train(&setup, &gpu, &home.path().join("twice"), 4);
        let second = train(&setup, &gpu, &home.path().join("twice"), 8);
        assert_eq!([first.0, second.0].concat(), losses, "{name}");
        assert!(second.1 == tensors, "{name}: weights or moments differ");
    }
}

/// What is in a folder is another run's unless the trainer has gone on from it.
#[test]
fn what_it_cannot_save_over_or_go_on_from_is_a_line() {
    let (gpu, home) = (open_gpu(), tempfile::tempdir().expect("a folder"));
    let folder = home.path().join("run");
    let plan = |rate: &str| {
        let text = format!(
            "
model: {{model_config: {{vocab_size: 32, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: 8}}}}
runner_config: {{batch_size: 4}}
lr_schedule: {{learning_rate: {rate}}}
"
        );
        RunConfig::in_memory(&text, &[]).unwrap_or_else(|e| panic!("{e}")).plan
    };
    let data = |offset: u32| {
        let mut samples = SampleCollector::default();
        for first in 0..16 {
            let [tokens, targets] = [0, offset].map(|more| Vec::from_iter(first + more..first + more + 8));
            samples.push(&tokens, &targets);
        }
        let spec = plan("1e-2").batch_spec();
        Batches::of_sources(vec![samples.finish().into()], spec, Some(1), None).expect("batches")
    };
    let (ours, others) = (data(1), data(2));
    let new = |rate: &str| -> Trainer<'_> {
        let plan = plan(rate);
        new_trainer(&gpu, &plan, &RunLength::new(&plan, ours.steps_per_epoch()))
    };
    let line = |result: gristmill::error::Result<()>| {
        let line = result.expect_err("a fault").to_string();
        assert_eq!(line.lines().count(), 1, "{line}");
        line
    };
    let mut first = new("1e-2");
    assert_eq!(block_on(first.resume(&folder, &ours)).expect("nothing there"), 0);
    assert!(!folder.exists(), "looking makes nothing");
    block_on(first.step(1, &ours, 0)).expect("a step");
    block_on(first.save(&folder, &ours)).expect("saved");
    let said = line(block_on(first.save(&home.path().join("other"), &ours)).map(drop));
    assert!(said.contains("is another folder than"), "{said}");
    let said = line(block_on(first.resume(&folder, &ours)).map(drop));
    assert!(said.contains("is this trainer's folder already"), "{said}");
    let said = line(block_on(new("1e-2").resume(&folder, &ours)).map(drop));
    assert!(said.contains("is training into this folder: wait for it"), "{said}");
    drop(first);
    let said = line(block_on(new("1e-2").save(&folder, &ours)).map(drop));
    assert!(said.contains("step_0000001: is a checkpoint that this trainer has not resumed from"), "{said}");
    let said = line(block_on(new("1e-2").resume(&folder, &others)).map(drop));
    assert!(said.contains("data fingerprint"), "{said}");
    let said = line(block_on(new("2e-2").resume(&folder, &ours)).map(drop));
    assert!(said.contains("lr_schedule.learning_rate is 0.01 there, 0.02 here"), "{said}");
    let mut second = new("1e-2");
    assert_eq!(block_on(second.resume(&folder, &ours)).expect("the same run"), 1);
    block_on(second.save(&folder, &ours)).expect("saved again");
}

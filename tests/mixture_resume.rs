//! A mixture that was stopped and resumed is, bit for bit, the one that never stopped: with what its routers remember.

mod mixtures;
mod runs;

use gristmill::model::selection_bias;
use gristmill::report::metrics::StepMetrics;
use gristmill::store::checkpoint_folder::CheckpointFolder;
use gristmill::train::Trainer;
use mixtures::{Tensor, experts, read, save};
use pollster::block_on;
use runs::{Setup, tensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A bias that moves, two hot experts that are chosen anew at powers of two, a block that predicts further ahead.
fn setup() -> Setup {
    let routing = "expert_num: 5, num_experts_chosen: 2, capacity_factor: 1.2, routing_policy: TopkRouterV1, \
                   balance_via_topk_bias: True, topk_bias_update_rate: 0.01, enable_cold_hot_expert: True, \
                   hot_expert_num: 2, cold_token_percent: 0.5, update_step: 100";
    experts("resumed", routing, "mtp_depth: 1, mtp_loss_factor: 0.3")
}

/// Trains to each of `stops` in turn, in a folder below `home`; returns the run's folder.
fn train(home: &Path, stops: &[u64]) -> PathBuf {
    let setup = setup().with(&[
        &format!("--output_dir={}", home.display()),
        "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 1000}]",
    ]);
    let config = setup.write(home);
    for (at, stop) in stops.iter().enumerate() {
        let mut overrides = setup.overrides.clone();
        overrides.push(format!("--stop_step={stop}"));
        overrides.extend((at > 0).then(|| "--resume_training=True".to_string()));
        let done = block_on(gristmill::train::run(&config, &overrides, Arc::default()));
        assert_eq!(done.unwrap_or_else(|e| panic!("{e}")).steps, *stop);
    }
    home.join(setup.name)
}

fn newest(run: &Path) -> PathBuf {
    CheckpointFolder::new(run.join("checkpoint"), 0).latest().expect("a folder").expect("a checkpoint").1
}

fn metrics(run: &Path) -> Vec<StepMetrics> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).expect("metrics");
    let lines = text.lines().map(|line| serde_json::from_str(line).expect("a line of metrics"));
    lines.map(|line| StepMetrics { tokens_per_second: 0.0, step_ms: 0.0, ..line }).collect()
}

#[test]
fn four_steps_and_four_more_are_eight() {
    let homes = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let (whole, halves) = (train(homes[0].path(), &[8]), train(homes[1].path(), &[4, 8]));
    for file in ["model.safetensors", "optimizer.safetensors", "config.json", "trainer_state.json"] {
        let bytes = |run: &Path| std::fs::read(newest(run).join(file)).expect("a file");
        assert!(bytes(&whole) == bytes(&halves), "{file} differs after a stop");
    }
    let (want, got) = (metrics(&whole), metrics(&halves));
    assert_eq!(got, want);
    assert_eq!(want.len(), 8);
    assert!(want.iter().all(|step| step.drop_rate.as_ref().is_some_and(|rates| rates.len() == 3)));

    // What was compared was there, and had moved.
    let (model, optimizer) = (
        read(&newest(&whole).join("model.safetensors")),
        read(&newest(&whole).join("optimizer.safetensors")),
    );
    let first = |experts: usize| (0..5).map(|expert| expert < experts).collect::<Vec<_>>();
    let mut moved = 0;
    for layer in 0..3 {
        let bias = model[&selection_bias(layer)].floats();
        // Eight steps of 0.01 each, up or down.
        assert!(bias.len() == 5 && bias.iter().any(|bias| *bias != 0.0), "layer {layer}: {bias:?}");
        assert!(bias.iter().all(|bias| bias.abs() < 0.081), "layer {layer}: {bias:?}");
        let capacities = &optimizer[&format!("expert_capacities.{layer}")].words;
        let most = capacities.iter().max().expect("experts");
        let hot: Vec<bool> = capacities.iter().map(|slots| slots == most).collect();
        assert_eq!(hot.iter().filter(|is_hot| **is_hot).count(), 2, "layer {layer}: {capacities:?}");
        moved += usize::from(hot != first(2));
    }
    assert!(moved > 0, "the hot experts are those of the start everywhere");
    assert!(optimizer.keys().any(|name| name.starts_with("exp_avg_sq.model.layers.1.mlp.experts.4.")));
}

/// A checkpoint has the weights of its step, and other models' files, without biases, are good for fine-tuning.
#[test]
fn checkpoints_hold_current_weights_and_load_without_biases() {
    let home = tempfile::tempdir().expect("a folder");
    let setup = setup().with(&["--lr_schedule.warmup_steps=0"]);
    let (plan, data, length) = setup.data();
    let gpu = setup.gpu();
    let new = || block_on(Trainer::new(&gpu, &plan, &length)).unwrap_or_else(|e| panic!("{e}"));
    let model =
        |trainer: &Trainer<'_>, step| read(&save(trainer, step, home.path()).join("model.safetensors"));
    let mut trainer = new();
    let mut seen: Vec<BTreeMap<String, Tensor>> = vec![model(&trainer, 1)];
    for step in 1..=3 {
        block_on(trainer.step(step, &data.train, 2 * (step - 1))).expect("a step");
        let file = model(&trainer, step + 1);
        for (name, values) in tensors(&trainer, |arenas| &arenas.weights) {
            assert_eq!(file[&name].floats(), values, "step {step}: {name}");
            let before = &seen.last().expect("the file before")[&name];
            let has_moved = file[&name] != *before;
            // What no token reaches decays at least.
            assert!(has_moved, "step {step}: {name} is what it was before");
        }
        seen.push(file);
    }
    let trained = seen.pop().expect("the last");
    let is_bias = |name: &str| name.ends_with("e_score_correction_bias");
    assert_eq!(trained.keys().filter(|name| is_bias(name)).count(), 3);

    let path = home.path().join("weights.safetensors");
    mixtures::write(&path, &trained);
    let other = new();
    other.load_weights(&path).unwrap_or_else(|e| panic!("{e}"));
    assert!(model(&other, 10) == trained, "biases are read where they are there");

    let mut bare = trained.clone();
    bare.retain(|name, _| !is_bias(name));
    mixtures::write(&path, &bare);
    let other = new();
    other.load_weights(&path).unwrap_or_else(|e| panic!("{e}"));
    for (name, tensor) in model(&other, 11) {
        match is_bias(&name) {
            true => assert_eq!(tensor.words, [0; 5], "{name}"),
            false => assert_eq!(tensor, trained[&name], "{name}"),
        }
    }
    // Steps can follow.
    let mut other = other;
    block_on(other.step(1, &data.train, 0)).expect("a step");
    block_on(other.wait()).expect("the device");
    assert!(other.finished_steps().expect("states")[0].state.loss.is_finite());
}

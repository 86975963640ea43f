//! A mixture that was stopped and resumed equals, bit for bit, the run that was never stopped, including the state of
//! its routers.

use crate::runs::{
    FolderRun, Setup, TensorFile, new_trainer, newest_checkpoint, read_tensors, save_checkpoint, tensors,
    write_tensors,
};
use gristmill::model::selection_bias;
use gristmill::train::Trainer;
use pollster::block_on;

/// A selection bias that moves, two hot experts that are chosen again at powers of two, and a multi-token prediction
/// block.
fn setup() -> Setup {
    let routing = "expert_num: 5, num_experts_chosen: 2, capacity_factor: 1.2, routing_policy: TopkRouterV1, \
                   balance_via_topk_bias: True, topk_bias_update_rate: 0.01, enable_cold_hot_expert: True, \
                   hot_expert_num: 2, cold_token_percent: 0.5, update_step: 100";
    Setup::experts("resumed", routing, "mtp_depth: 1, mtp_loss_factor: 0.3")
}

/// Trains to each of `stops` in turn.
fn train(setup: Setup, stops: &[u64]) -> FolderRun {
    let checkpoints = "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 1000}]";
    let run = FolderRun::new(setup.with(&[checkpoints]));
    stops.iter().for_each(|stop| {
        run.train(*stop);
    });
    run
}

#[test]
fn four_steps_and_four_more_are_eight() {
    let (whole, halves) = (train(setup(), &[8]), train(setup(), &[4, 8]));
    let want = whole.left();
    halves.left().assert_equals("4 and 4", &want);
    let files = [
        "config.json",
        "model.safetensors",
        "optimizer.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "trainer_state.json",
    ];
    assert!(want.checkpoint.keys().eq(files), "{:?}", want.checkpoint.keys());
    assert_eq!(want.metrics.len(), 8);
    assert!(want.metrics.iter().all(|step| step.drop_rate.as_ref().is_some_and(|rates| rates.len() == 3)));

    // The compared state exists and differs from the initial one.
    let (_, newest) = newest_checkpoint(&whole.folder()).expect("a checkpoint");
    let [model, optimizer] =
        ["model.safetensors", "optimizer.safetensors"].map(|file| read_tensors(&newest.join(file)));
    let first = |experts: usize| (0..5).map(|expert| expert < experts).collect::<Vec<_>>();
    let mut moved = 0;
    let plan = whole.setup.plan();
    for layer in 0..3 {
        let bias = model[&selection_bias(&plan.model, layer)].floats();
        // Eight updates of ±0.01.
        assert!(bias.len() == 5 && bias.iter().any(|bias| *bias != 0.0), "layer {layer}: {bias:?}");
        assert!(bias.iter().all(|bias| bias.abs() < 0.081), "layer {layer}: {bias:?}");
        let capacities = &optimizer[&format!("expert_capacities.{layer}")].words;
        let most = capacities.iter().max().expect("experts");
        let hot: Vec<bool> = capacities.iter().map(|slots| slots == most).collect();
        assert_eq!(hot.iter().filter(|is_hot| **is_hot).count(), 2, "layer {layer}: {capacities:?}");
        moved += usize::from(hot != first(2));
    }
    assert!(moved > 0, "no layer chose other hot experts than the initial ones");
    assert!(optimizer.keys().any(|name| name.starts_with("exp_avg_sq.model.layers.1.mlp.experts.4.")));
}

/// Experts of GPT-2, whose matrices lie transposed in files, with biases, and of Bloom.
#[test]
fn experts_with_biases_resume_bit_equal() {
    let routing = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.0, balance_via_topk_bias: True, \
                   topk_bias_update_rate: 0.01, enable_cold_hot_expert: True, hot_expert_num: 1, \
                   cold_token_percent: 0.5, update_step: 100";
    for kind in ["GPT2Config", "BloomConfig"] {
        let setup = || Setup::experts_of(kind, "resumed", routing, "hidden_dropout: 0.1");
        let (whole, halves) = (train(setup(), &[6]), train(setup(), &[3, 6]));
        halves.left().assert_equals("3 and 3", &whole.left());
        let (_, newest) = newest_checkpoint(&whole.folder()).expect("a checkpoint");
        let model = read_tensors(&newest.join("model.safetensors"));
        assert!(model.keys().any(|name| name.ends_with("mlp.gate.e_score_correction_bias")), "{kind}");
        let biases = model.iter().filter(|(name, _)| name.contains(".experts.") && name.ends_with(".bias"));
        let mut count = 0;
        for (name, bias) in biases {
            assert!(bias.floats().iter().any(|value| *value != 0.0), "{kind}: {name}");
            count += 1;
        }
        assert_eq!(count, 2 * 4 * 2, "{kind}: a mapping and a projection of each expert");
    }
}

/// A checkpoint holds the weights of its step; files of other models, which have no selection biases, load for
/// fine-tuning.
#[test]
fn checkpoints_hold_current_weights_and_load_without_biases() {
    let home = tempfile::tempdir().expect("a folder");
    let setup = setup().with(&["--lr_schedule.warmup_steps=0"]);
    let (plan, data, length) = setup.data();
    let gpu = setup.gpu();
    let new = || new_trainer(&gpu, &plan, &length);
    let model = |trainer: &Trainer<'_>, step| {
        read_tensors(&save_checkpoint(trainer, step, home.path()).join("model.safetensors"))
    };
    let mut trainer = new();
    let mut seen: Vec<TensorFile> = vec![model(&trainer, 1)];
    for step in 1..=3 {
        block_on(trainer.step(step, &data.train, 2 * (step - 1))).expect("a step");
        let file = model(&trainer, step + 1);
        for (name, values) in tensors(&trainer, |arenas| &arenas.weights) {
            assert_eq!(file[&name].floats(), values, "step {step}: {name}");
            let before = &seen.last().expect("the file before")[&name];
            let has_moved = file[&name] != *before;
            // A row that no token reaches still decays.
            assert!(has_moved, "step {step}: {name} did not change");
        }
        seen.push(file);
    }
    let trained = seen.pop().expect("the last");
    let is_bias = |name: &str| name.ends_with("e_score_correction_bias");
    assert_eq!(trained.keys().filter(|name| is_bias(name)).count(), 3);

    let path = home.path().join("weights.safetensors");
    write_tensors(&path, &trained);
    let other = new();
    other.load_weights(&path, false).unwrap_or_else(|e| panic!("{e}"));
    assert!(model(&other, 10) == trained, "loading a file with biases does not restore them");

    let mut bare = trained.clone();
    bare.retain(|name, _| !is_bias(name));
    write_tensors(&path, &bare);
    let other = new();
    other.load_weights(&path, false).unwrap_or_else(|e| panic!("{e}"));
    for (name, tensor) in model(&other, 11) {
        match is_bias(&name) {
            true => assert_eq!(tensor.words, [0; 5], "{name}"),
            false => assert_eq!(tensor, trained[&name], "{name}"),
        }
    }
    // Training can go on from there.
    let mut other = other;
    block_on(other.step(1, &data.train, 0)).expect("a step");
    block_on(other.wait()).expect("the device");
    assert!(other.finished_steps().expect("states")[0].state.loss.is_finite());
}

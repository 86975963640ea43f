//! An evaluation of a mixture gives the reference's loss and leaves no trace in the state of its routers.
//!
//! It changes no weight, moment, bias, capacity or tally.

use crate::runs::{
    Setup, TensorFile, Weights, new_trainer, read_tensors, reference_shape, save_checkpoint, tensors,
};
use gristmill::model::config::{ModelConfig, TokenDispatch};
use gristmill::model::selection_bias;
use gristmill::record::{BufferId, Recording};
use gristmill::report::expert_load::LayerLoad;
use gristmill::train::FinishedStep;
use pollster::block_on;
use reference::objective::{Batch, Memories, outcome_and_gradients};

/// Relative error allowed to the evaluation's loss, the same as to training losses.
const ALLOWED: f64 = 1e-5;

const STEPS: u64 = 5;

fn shapes() -> [Setup; 2] {
    let grouped = "expert_num: 5, num_experts_chosen: 2, use_gmm: True, balance_via_topk_bias: True, \
                   topk_bias_update_rate: 0.05, aux_loss_types: [expert], aux_loss_factors: [0.1], z_loss_factor: 0.01";
    let hot = "expert_num: 5, num_experts_chosen: 2, capacity_factor: 1.0, routing_policy: TopkRouterV1, \
               balance_via_topk_bias: True, topk_bias_update_rate: 0.05, enable_cold_hot_expert: True, \
               hot_expert_num: 2, cold_token_percent: 0.5, update_step: 100";
    [Setup::experts("grouped", grouped, "mtp_depth: 1, mtp_loss_factor: 0.3"), Setup::experts("hot", hot, "")]
        .map(|setup| setup.with(&["--train_dataset.eval_fraction=0.3", "--lr_schedule.warmup_steps=0"]))
}

/// What a run leaves.
#[derive(PartialEq)]
struct Left {
    reports: Vec<Vec<LayerLoad>>,
    weights: Weights,
    /// Weights and biases; moments and capacities.
    files: [TensorFile; 2],
}

/// Trains five steps, each followed by an evaluation if `evaluates`; returns the evaluations' losses too.
fn train(setup: &Setup, evaluates: bool) -> (Left, Vec<f32>) {
    let (plan, data, length) = setup.data();
    let eval = data.eval.as_ref().expect("evaluation data");
    let gpu = setup.gpu();
    let home = tempfile::tempdir().expect("a folder");
    let mut trainer = new_trainer(&gpu, &plan, &length);
    let mut finished: Vec<FinishedStep> = Vec::new();
    let mut losses = Vec::new();
    for step in 1..=STEPS {
        block_on(trainer.step(step, &data.train, 2 * (step - 1))).expect("a step");
        if evaluates {
            let evaluation = trainer.evaluate(step, eval, eval.micro_steps_per_epoch(), |_| Ok(()));
            block_on(evaluation).expect("an evaluation");
        }
        block_on(trainer.wait()).expect("the device");
        finished.extend(trainer.finished_steps().expect("states"));
        losses.extend(trainer.finished_evaluations().expect("evaluations").iter().map(|done| done.loss));
    }
    // Tallies are cleared before each step, so reports cannot show what an evaluation added: look at the bindings
    // instead.
    let recordings = trainer.recordings();
    let (tallies, _) = recordings.tensors.model.experts.expect("experts").tallies();
    assert!(binds(recordings.micro_step(), tallies), "a step does not bind its tallies");
    assert!(!binds(&recordings.evals[0], tallies), "an evaluation binds the tallies of the training step");
    let saved = save_checkpoint(&trainer, STEPS, home.path());
    let file = |name: &str| read_tensors(&saved.join(name));
    let left = Left {
        reports: finished.into_iter().filter_map(|step| step.loads).collect(),
        weights: tensors(&trainer, |arenas| &arenas.weights),
        files: [file("model.safetensors"), file("optimizer.safetensors")],
    };
    (left, losses)
}

fn binds(recording: &Recording, buffer: BufferId) -> bool {
    let mut bindings = recording.dispatches.iter().flat_map(|dispatch| &dispatch.bindings);
    bindings.any(|binding| binding.buffer == buffer)
}

/// The state of the routers at the end: selection biases, and the hot experts, which have the most slots.
fn memories(model: &ModelConfig, left: &Left) -> Memories {
    let mut memories = reference_shape(model).memories();
    let mixture = model.mixture.as_ref().expect("a mixture");
    let has_hot = matches!(mixture.dispatch, TokenDispatch::Capacity(capacity) if capacity.hot.is_some());
    for (layer, memory) in &mut memories {
        memory.bias = left.files[0][&selection_bias(model, *layer)].floats();
        if has_hot {
            let capacities = &left.files[1][&format!("expert_capacities.{layer}")].words;
            let most = capacities.iter().max().expect("experts");
            memory.hot = (0..capacities.len()).filter(|expert| capacities[*expert] == *most).collect();
        }
    }
    memories
}

#[test]
fn an_evaluation_leaves_no_trace_and_is_the_references_loss() {
    for setup in shapes() {
        let name = setup.name;
        let ((without, none), (with, losses)) = (train(&setup, false), train(&setup, true));
        assert_eq!((none.len(), losses.len() as u64), (0, STEPS));
        assert_eq!(with.reports.len() as u64, STEPS);
        assert_eq!(with.reports, without.reports, "{name}: an evaluation was added to a tally");
        assert!(with == without, "{name}: an evaluation changed weights, biases, moments or capacities");

        let (plan, data, _) = setup.data();
        let eval = data.eval.as_ref().expect("evaluation data");
        let (shape, memories) = (reference_shape(&plan.model), memories(&plan.model, &with));
        assert!(memories.values().any(|memory| memory.bias.iter().any(|bias| *bias != 0.0)));
        let (mut loss_sum, mut count, mut dropped) = (0.0, 0, 0);
        for micro_step in 0..eval.micro_steps_per_epoch() {
            let batch = eval.batch(micro_step).expect("a batch");
            let positions: Vec<u32> =
                (0..plan.settings.runner.batch_size).flat_map(|_| 0..plan.model.seq_length as u32).collect();
            let batch = Batch {
                tokens: &batch.tokens,
                targets: &batch.targets,
                positions: &positions,
                sequence_length: plan.model.seq_length,
                ignore: plan.model.ignore_id,
            };
            let (outcome, _) = outcome_and_gradients(&shape, &with.weights, &memories, &batch, 1.0);
            loss_sum += outcome.loss_sum;
            count += outcome.count;
            dropped += outcome.mixtures.values().map(|mixture| mixture.dropped).sum::<usize>();
        }
        assert_eq!(dropped > 0, name == "hot", "{name}: {dropped} choices dropped");
        let (got, want) = (f64::from(losses[STEPS as usize - 1]), loss_sum / count as f64);
        let error = (got - want).abs() / want;
        println!("{name}: loss {got:.6}, {:.1} % of the allowed error", 100.0 * error / ALLOWED);
        assert!(error <= ALLOWED, "{name}: loss {got} and {want}");
        assert!(losses[0] != losses[STEPS as usize - 1], "{name}: the loss does not change over the run");
    }
}

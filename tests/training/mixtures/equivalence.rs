//! Different ways to compute the same mixture give the same training run.
//!
//! One expert equals the dense layer, enough capacity equals dropless dispatch; safe tokens and a second run change
//! no bit.

use crate::runs::{Setup, TensorFile, Trained, Words, relative_distance, write_tensors};
use gristmill::model::config::{BalanceLosses, MixtureConfig, TokenDispatch};
use gristmill::model::parameters::Gpt;
use gristmill::ops::route::{RouterConfig, Score};

/// Relative difference allowed to losses and final weights where only the order of summation differs.
const ALLOWED: f64 = 1e-6;

/// What a few steps must change relative to the weights; below that the test would compare initial weights.
const MOVED: f64 = 1e-3;

const STEPS: u64 = 4;

/// Each token chooses two of four experts.
const FOUR: &str = "expert_num: 4, num_experts_chosen: 2";

fn run(name: &'static str, routing: &str) -> Trained {
    let setup = Setup::experts(name, routing, "").with(&["--lr_schedule.warmup_steps=0"]);
    let trained = setup.train(STEPS);
    let moved = relative_distance(&trained.weights, &setup.initial_weights());
    assert!(moved > MOVED, "{name}: {STEPS} steps moved the weights by {moved:.1e}, too little to compare");
    trained
}

fn losses(trained: &Trained) -> Vec<f32> {
    trained.states.iter().map(|state| state.loss).collect()
}

/// The largest relative difference of two series.
fn largest_difference(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(a, b)| f64::from((a - b) / b).abs()).fold(0.0, f64::max)
}

fn assert_close(name: &str, got: &Trained, want: &Trained) {
    let loss = largest_difference(&losses(got), &losses(want));
    let weights = relative_distance(&got.weights, &want.weights);
    println!(
        "{name}: losses differ by {loss:.1e}, final weights by {weights:.1e}; allowed are {ALLOWED:.0e}"
    );
    assert!(loss <= ALLOWED, "{name}: losses {:?} and {:?}", losses(got), losses(want));
    assert!(weights <= ALLOWED, "{name}: the final weights differ by {weights:.2e} in norm");
}

/// A single expert as wide as the dense layer has a gate of 1 for every token. The test builds the plan itself, because
/// `expert_num: 1` configures a dense model.
#[test]
fn one_expert_is_the_dense_layer() {
    let setup = Setup::new("dense", "").with(&["--lr_schedule.warmup_steps=0"]);
    let dense = setup.train(STEPS);
    let mut plan = setup.plan();
    plan.model.mixture = Some(MixtureConfig {
        route: RouterConfig {
            experts: 1,
            chosen: 1,
            score: Score::Softmax,
            groups: None,
            norm: None,
            scaling: 1.0,
        },
        has_bias: false,
        bias_update_rate: 0.0,
        intermediate_size: plan.model.layer.intermediate_size,
        first_dense_layers: 0,
        shared: None,
        losses: BalanceLosses::default(),
        is_beside_dense: false,
        dispatch: TokenDispatch::Dropless { safe_tokens: false },
        router_init_std: 0.01,
    });
    // The same weights under the names of a mixture; the router's weights must not matter.
    let initial = setup.initial_weights();
    let gpt = Gpt::describe(&plan.model);
    let pieces = gpt.iter().flat_map(|spec| spec.pieces.iter().map(move |piece| (spec, piece)));
    let tensors: TensorFile = pieces
        .map(|(spec, piece)| {
            let shape = spec.piece_shape(piece);
            let values = match initial.get(&piece.name.replace("experts.0.", "")) {
                Some(values) => values.clone(),
                None => vec![0.3; shape.iter().product()],
            };
            let words = values.iter().map(|value| (*value as f32).to_bits()).collect();
            (piece.name.clone(), Words { shape, words })
        })
        .collect();
    let routers = tensors.keys().filter(|name| name.ends_with("mlp.gate.weight")).count();
    assert_eq!((tensors.len() - initial.len(), routers), (2, 2), "a mixture adds only the routers");
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().join("one_expert.safetensors");
    write_tensors(&path, &tensors);

    let mut one = setup.train_plan(&plan, Some(&path), STEPS);
    let choices = one.reports[0][0].choices;
    assert_eq!(
        choices as usize,
        plan.settings.runner.gradient_accumulation_steps
            * plan.settings.runner.batch_size
            * plan.model.seq_length
    );
    one.weights = std::mem::take(&mut one.weights)
        .into_iter()
        .filter(|(name, _)| !name.ends_with("mlp.gate.weight"))
        .map(|(name, values)| (name.replace("experts.0.", ""), values))
        .collect();
    assert_close("one expert", &one, &dense);
    let [got, want] =
        [&one, &dense].map(|run| run.states.iter().map(|state| state.grad_norm).collect::<Vec<_>>());
    let norm = largest_difference(&got, &want);
    assert!(norm <= ALLOWED, "gradient norms {got:?} and {want:?}: the router has a gradient");
}

/// A capacity of 2·72·2/4 = 72 slots, one for every token of the micro-batch, drops nothing. Such experts get ragged
/// rows as well, unless some are hot: those keep their slots, and unclaimed slots hold zeros.
#[test]
fn enough_capacity_is_dropless() {
    let dropless = run("dropless", &format!("{FOUR}, use_gmm: True"));
    let none = run("capacity 0", &format!("{FOUR}, capacity_factor: 0"));
    assert_eq!(none, dropless, "a capacity factor of 0 means ragged rows");
    for policy in ["TopkRouterV1", "TopkRouterV2"] {
        let slots = "enable_cold_hot_expert: True, hot_expert_num: 2, cold_token_percent: 1.0";
        let enough =
            run("enough", &format!("{FOUR}, capacity_factor: 2.0, routing_policy: {policy}, {slots}"));
        assert_eq!(enough.dropped(), 0);
        assert_close(policy, &enough, &dropless);
        let few = run("few", &format!("{FOUR}, capacity_factor: 0.8, routing_policy: {policy}"));
        assert!(few.dropped() > 0 && losses(&few) != losses(&dropless), "{policy}: capacity has no effect");
    }
}

/// Also where an expert is chosen by no token.
#[test]
fn rows_of_zeros_change_no_bit() {
    for routing in [FOUR, "expert_num: 24, num_experts_chosen: 1"] {
        let run = |safe| run("safe", &format!("{routing}, use_gmm: True, enable_gmm_safe_tokens: {safe}"));
        let (without, with) = (run("False"), run("True"));
        assert!(with == without, "{routing}: rows of zeros change something");
        let mut layers = without.reports.iter().flatten();
        let is_idle = layers.any(|layer| layer.last.contains(&0));
        assert_eq!(is_idle, routing != FOUR, "{routing}: an expert without tokens");
    }
}

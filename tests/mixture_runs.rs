//! Ways to compute the same mixture give the same training run.

mod mixtures;
mod runs;

use gristmill::model::config::{BalanceLosses, MixtureConfig, TokenDispatch};
use gristmill::model::parameters::Gpt;
use gristmill::ops::route::{RouterConfig, Score};
use mixtures::{Left, Tensor, experts, train};
use runs::{Setup, relative_distance};
use std::collections::BTreeMap;

/// Losses and final weights of two runs must agree this closely where only the order of sums may differ.
const ALLOWED: f64 = 1e-6;

/// Weight updates of a few steps are that large at least, relative to the weights: less would compare initial weights.
const MOVED: f64 = 1e-3;

const STEPS: u64 = 4;

/// Two experts of four for each token.
const FOUR: &str = "expert_num: 4, num_experts_chosen: 2";

fn run(name: &'static str, routing: &str) -> Left {
    let setup = experts(name, routing, "").with(&["--lr_schedule.warmup_steps=0"]);
    let left = train(&setup, &setup.plan(), None, STEPS);
    let moved = relative_distance(&left.weights, &setup.initial_weights());
    assert!(moved > MOVED, "{name}: {STEPS} steps moved the weights by {moved:.1e}, too little to compare");
    left
}

fn close(name: &str, got: &Left, want: &Left) {
    let losses = got.losses.iter().zip(&want.losses);
    let loss = losses.map(|(a, b)| f64::from((a - b) / b).abs()).fold(0.0, f64::max);
    let weights = relative_distance(&got.weights, &want.weights);
    println!("{name}: losses off by {loss:.1e}, final weights by {weights:.1e} of {ALLOWED:.0e} allowed");
    assert!(loss <= ALLOWED, "{name}: losses {:?} and {:?}", got.losses, want.losses);
    assert!(weights <= ALLOWED, "{name}: the final weights differ by {weights:.2e} in norm");
}

/// One expert of the dense width that every token visits, whose gate is then 1, is a dense layer. No configuration asks for
/// it, since `expert_num: 1` is a dense model.
#[test]
fn one_expert_is_the_dense_layer() {
    let setup = Setup::new("dense", "").with(&["--lr_schedule.warmup_steps=0"]);
    let dense = train(&setup, &setup.plan(), None, STEPS);
    let mut plan = setup.plan();
    plan.model.mixture = Some(MixtureConfig {
        route: RouterConfig {
            experts: 1,
            chosen: 1,
            score: Score::Softmax,
            groups: None,
            norm_top_k: false,
            scaling: 1.0,
        },
        has_bias: false,
        bias_update_rate: 0.0,
        intermediate_size: plan.model.intermediate_size,
        first_dense_layers: 0,
        shared: None,
        losses: BalanceLosses::default(),
        dispatch: TokenDispatch::Dropless { safe_tokens: false },
        fuses_permutation: false,
        router_init_std: 0.01,
    });
    // The same weights under the names of a mixture; whatever the router's are, they must not matter.
    let initial = setup.initial_weights();
    let specs = Gpt::describe(&plan.model);
    let pieces = specs.iter().flat_map(|spec| spec.pieces.iter().map(move |piece| (spec, piece)));
    let tensors: BTreeMap<String, Tensor> = pieces
        .map(|(spec, piece)| {
            let shape = spec.piece_shape(piece);
            let values = match initial.get(&piece.name.replace("experts.0.", "")) {
                Some(values) => values.clone(),
                None => vec![0.3; shape.iter().product()],
            };
            let words = values.iter().map(|value| (*value as f32).to_bits()).collect();
            (piece.name.clone(), Tensor { shape, words })
        })
        .collect();
    let routers = tensors.keys().filter(|name| name.ends_with("mlp.gate.weight")).count();
    assert_eq!((tensors.len() - initial.len(), routers), (2, 2), "routers are all that a mixture adds");
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().join("one_expert.safetensors");
    mixtures::write(&path, &tensors);

    let mut one = train(&setup, &plan, Some(&path), STEPS);
    let choices = one.reports[0].layers[0].choices;
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
    close("one expert", &one, &dense);
    let norms = one.norms.iter().zip(&dense.norms);
    let norm = norms.map(|(a, b)| f64::from((a - b) / b).abs()).fold(0.0, f64::max);
    assert!(
        norm <= ALLOWED,
        "gradient norms {:?} and {:?}: the router has a gradient",
        one.norms,
        dense.norms
    );
}

/// With as many slots as a micro-batch has tokens, capacity 2·72·2/4 = 72, nothing can be dropped. Such experts get ragged rows
/// too, unless some are hot: then they keep their slots, and zeros in those that nobody claims.
#[test]
fn enough_capacity_is_dropless() {
    let dropless = run("dropless", &format!("{FOUR}, use_gmm: True"));
    let none = run("capacity 0", &format!("{FOUR}, capacity_factor: 0"));
    assert_eq!(none, dropless, "a factor of 0 is computed on the ragged layout");
    for policy in ["TopkRouterV1", "TopkRouterV2"] {
        let slots = "enable_cold_hot_expert: True, hot_expert_num: 2, cold_token_percent: 1.0";
        let enough =
            run("enough", &format!("{FOUR}, capacity_factor: 2.0, routing_policy: {policy}, {slots}"));
        assert_eq!(enough.dropped(), 0);
        close(policy, &enough, &dropless);
        let few = run("few", &format!("{FOUR}, capacity_factor: 0.8, routing_policy: {policy}"));
        assert!(few.dropped() > 0 && few.losses != dropless.losses, "{policy}: capacity has no effect");
    }
}

/// What both kinds of permutation claim: the same bits.
#[test]
fn fused_and_composed_permutations_are_bit_equal() {
    for dispatch in
        ["use_gmm: True", "capacity_factor: 0.8", "capacity_factor: 0.8, routing_policy: TopkRouterV1"]
    {
        let run = |fused| run(fused, &format!("{FOUR}, {dispatch}, use_fused_ops_permute: {fused}"));
        assert!(run("True") == run("False"), "{dispatch}: fused and composed permutations differ");
    }
}

/// With an expert that no token chose, and without.
#[test]
fn rows_of_zeros_and_second_runs_change_no_bit() {
    for routing in [FOUR, "expert_num: 24, num_experts_chosen: 1"] {
        let run = |safe| run("safe", &format!("{routing}, use_gmm: True, enable_gmm_safe_tokens: {safe}"));
        let (without, with) = (run("False"), run("True"));
        assert!(run("False") == without, "{routing}: a second run differs");
        assert!(with == without, "{routing}: rows of zeros change something");
        let mut layers = without.reports.iter().flat_map(|report| &report.layers);
        let is_idle = layers.any(|layer| layer.last.contains(&0));
        assert_eq!(is_idle, routing != FOUR, "{routing}: an expert without tokens");
    }
}

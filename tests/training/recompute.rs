//! Recomputation changes the memory of a run, and no bit of what it computes.

use crate::runs::{Setup, Trained};
use gristmill::kernels::Tier;
use gristmill::record::{MemoryPlan, Recording};
use gristmill::train::recordings::{Recordings, assumed_capabilities};

/// Share of the activation peak that the recomputation of every layer must save, in a model of 12 layers at T = 1024.
const SAVED: f64 = 0.70;

const STEPS: u64 = 3;

const DROPOUT: &str = "attention_dropout: 0.1, hidden_dropout: 0.2, emb_dropout_prob: 0.1";

/// Capacities that drop choices, of which some experts have more; balance losses; a bias that moves; a shared expert.
const CAPACITIES: &str = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 0.8, routing_policy: TopkRouterV1, \
                          aux_loss_types: [expert], aux_loss_factors: [0.1], z_loss_factor: 0.01, shared_expert_num: 1, \
                          use_shared_expert_gating: True, enable_cold_hot_expert: True, hot_expert_num: 1, \
                          cold_token_percent: 0.5, update_step: 1";
const DROPLESS: &str = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, use_gating_sigmoid: True, \
                        balance_via_topk_bias: True, topk_bias_update_rate: 0.01";

/// Every layer, and the first of them.
const RECOMPUTED: [&str; 2] = ["--recompute_config.recompute=True", "--recompute_config.recompute=[1]"];

/// Trains the model of `setup` with every form of recomputation and compares states, reports, weights and gradients.
fn changes_no_bit(setup: impl Fn() -> Setup) {
    let kept = setup().train(STEPS);
    for recompute in RECOMPUTED {
        let setup = setup().with(&[recompute]);
        assert!(!setup.plan().model.recomputed_layers.is_empty());
        assert_same(setup.name, recompute, &setup.train(STEPS), &kept);
    }
}

fn assert_same(name: &str, recompute: &str, recomputed: &Trained, kept: &Trained) {
    assert_eq!(recomputed.states, kept.states, "{name}: {recompute} changes the state of a step");
    assert_eq!(recomputed.reports, kept.reports, "{name}: {recompute} changes what the experts did");
    let differ = |one: &Trained, other: &Trained| {
        let gradients =
            one.gradients.iter().find(|(name, values)| other.gradients.get(*name) != Some(values));
        let weights = one.weights.iter().find(|(name, values)| other.weights.get(*name) != Some(values));
        gradients.or(weights).map(|(name, _)| name.clone())
    };
    assert_eq!(differ(recomputed, kept), None, "{name}: {recompute} changes a gradient or a weight");
    assert!(recomputed == kept, "{name}: {recompute} changes something");
}

#[test]
fn dense_models_compute_the_same() {
    let llama = "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, tie_word_embeddings: True";
    changes_no_bit(|| Setup::new("llama", llama));
    changes_no_bit(|| Setup::new("portable", llama).with(&["--context.tier=portable"]));
    changes_no_bit(|| Setup::new("llama with dropout", DROPOUT));
    changes_no_bit(|| Setup::gpt2("gpt2", DROPOUT));
}

#[test]
fn activations_in_16_bits_are_rounded_the_same() {
    changes_no_bit(|| Setup::new("bfloat16", "compute_dtype: bfloat16"));
}

#[test]
fn mixtures_choose_count_and_drop_the_same() {
    let model = format!("{DROPOUT}, mtp_depth: 1, mtp_loss_factor: 0.3");
    changes_no_bit(|| Setup::experts("capacities", CAPACITIES, &model));
    assert!(Setup::experts("capacities", CAPACITIES, &model).train(1).dropped() > 0, "nothing was dropped");
    changes_no_bit(|| Setup::experts("dropless", DROPLESS, ""));
}

#[test]
fn multi_token_prediction_computes_the_same() {
    changes_no_bit(|| Setup::new("ahead", "mtp_depth: 2, mtp_loss_factor: 0.3"));
}

/// Frozen layers below the recomputed ones, and recomputed layers that are frozen.
#[test]
fn frozen_layers_compute_the_same() {
    changes_no_bit(|| Setup::new("frozen", "freeze: ['embed', 'layers\\.0\\.']"));
    let frozen = ["--model.model_config.freeze=['embed', 'layers\\.0\\.']"];
    let micro_step =
        |recompute: &str| recordings(&Setup::new("frozen", "").with(&frozen).with(&[recompute])).micro_step;
    // Nothing in layer 0 has a gradient, so it is not run again.
    let [every, first] = RECOMPUTED.map(micro_step);
    assert!(launched_again(&every).iter().any(|path| path.starts_with("layers.1.attention")));
    assert_eq!(launched_again(&first), [""; 0]);
}

/// The paths of what is launched a second time.
fn launched_again(recording: &Recording) -> Vec<&str> {
    let paths = recording.dispatches.iter().map(|dispatch| dispatch.path.as_str());
    paths.filter_map(|path| path.strip_suffix(".recomputed")).collect()
}

fn recordings(setup: &Setup) -> Recordings {
    recordings_of(setup, Tier::Software)
}

fn recordings_of(setup: &Setup, tier: Tier) -> Recordings {
    Recordings::new(&setup.plan(), assumed_capabilities(tier), 10).unwrap_or_else(|error| panic!("{error}"))
}

/// A block that is run again in the backward pass neither advances a counter nor tallies; no other recording changes.
#[test]
fn only_the_micro_step_changes_and_counts_once() {
    let setup = || {
        let model = format!("{DROPOUT}, mtp_depth: 1");
        Setup::experts("counted", CAPACITIES, &model).with(&["--sample.prompt=a", "--sample.tokens=1"])
    };
    let (kept, recomputed) = (recordings(&setup()), recordings(&setup().with(&[RECOMPUTED[0]])));
    let count = |recording: &Recording, holds: &dyn Fn(&str) -> bool| {
        recording.dispatches.iter().filter(|dispatch| holds(&dispatch.path)).count()
    };
    let is_tally = |path: &str| path.contains(".tally");
    let is_counter = |path: &str| path.starts_with("dropout");
    let is_attention = |path: &str| path.contains(".flash_attention") && !path.ends_with(".backward");
    let decides = |path: &str| path.split('.').any(|step| ["route", "place", "work_list"].contains(&step));
    let counts = |recordings: &Recordings, holds: &dyn Fn(&str) -> bool| count(&recordings.micro_step, holds);
    assert_eq!(counts(&kept, &is_tally), 3);
    assert_eq!(counts(&recomputed, &is_tally), 3, "a recomputed layer tallies again");
    assert_eq!([&kept, &recomputed].map(|one| counts(one, &is_counter)), [1, 1]);
    assert!(counts(&kept, &decides) > 0);
    assert_eq!(counts(&recomputed, &decides), counts(&kept, &decides), "a router decides again");
    assert_eq!(
        counts(&recomputed, &is_attention),
        2 * counts(&kept, &is_attention),
        "every layer is run again"
    );
    // The last product of a layer makes its result, which is kept.
    let again = launched_again(&recomputed.micro_step);
    assert!(
        again.iter().all(|path| !path.contains(".shared.gated") && !path.contains(".combine")),
        "{again:?}"
    );
    for (kept, recomputed) in kept.all().into_iter().zip(recomputed.all()).skip(1) {
        assert_eq!(kept.listing(), recomputed.listing(), "{} depends on recomputation", kept.name);
    }
}

/// 12 layers at T = 1024 keep at least 70 % less.
#[test]
fn the_activation_peak_falls() {
    let sizes = [
        "--model.model_config.num_layers=12",
        "--model.model_config.hidden_size=512",
        "--model.model_config.num_heads=8",
        "--model.model_config.intermediate_size=1536",
        "--model.model_config.seq_length=1024",
        "--batch_size=2",
    ];
    for tier in Tier::ALL {
        for setup in [|| Setup::new("llama", ""), || Setup::gpt2("gpt2", "")] {
            let pool = |recompute: &[&str]| {
                let recordings = recordings_of(&setup().with(&sizes).with(recompute), tier);
                MemoryPlan::new(&recordings.all()).bytes()
            };
            let (none, half, all) = (
                pool(&[]),
                pool(&["--recompute_config.recompute=[6]"]),
                pool(&["--recompute_config.recompute=True"]),
            );
            let saved = 1.0 - all as f64 / none as f64;
            println!("{} {}: {none}, {half}, {all} bytes, saved {saved:.3}", tier.name(), setup().name);
            assert!(saved >= SAVED, "{} {}: only {saved:.3} of the pool is saved", tier.name(), setup().name);
            assert!(all < half && half < none, "six of twelve layers save something");
        }
    }
}

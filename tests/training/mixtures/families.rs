//! Experts in the layers of GPT-2, PanGu-α and Bloom, with GELU and biases, against an f64 run of the whole trainer,
//! and as runs that learn.

use crate::against_reference::follows_the_reference;
use crate::runs::{Setup, in_turn, is_long};
use gristmill::kernels::Tier;

/// Each type with the routing of its file: what its class has in MindFormers (one expert a token, capacities, gates of
/// 1); hot and cold experts with choices that are dropped; every choice a row, and a balance loss. PanGu-α's last layer
/// is dense.
const MODELS: [(&str, &str); 3] = [
    ("GPT2Config", "expert_num: 4, capacity_factor: 0.9"),
    (
        "PanguAlphaConfig",
        "expert_num: 5, num_experts_chosen: 2, capacity_factor: 1.2, enable_cold_hot_expert: True, hot_expert_num: 2, \
         cold_token_percent: 0.5, update_step: 100",
    ),
    (
        "BloomConfig",
        "expert_num: 4, num_experts_chosen: 2, use_gmm: True, aux_loss_types: [expert], aux_loss_factors: [0.1]",
    ),
];

fn model((kind, routing): (&'static str, &str), compute: &str) -> Setup {
    let setup = Setup::experts_of(kind, kind, routing, &format!("compute_dtype: {compute}"));
    setup.with(&["--model.model_config.num_layers=3"])
}

#[test]
fn experts_of_each_type_follow_the_reference() {
    for of in MODELS {
        let setup = model(of, "float32");
        let mixture = setup.plan().model.mixture.expect("experts");
        assert!(mixture.route.norm.is_some(), "{}", of.0);
        follows_the_reference(&setup, 6);
    }
    // The choices of a full expert are dropped.
    assert!(
        model(MODELS[0], "float32").train(1).dropped() > 0
            && model(MODELS[1], "float32").train(1).dropped() > 0
    );
}

/// The kernels that a GPU runs, of the other types with `GRISTMILL_LONG`.
#[test]
fn experts_of_each_type_follow_on_the_portable_tier() {
    for of in in_turn(1, &MODELS) {
        let setup = model(*of, "float32").with(&["--context.tier=portable"]);
        assert_eq!(setup.gpu().capabilities().tier, Tier::Portable);
        follows_the_reference(&setup, 6);
    }
}

/// Each number format of one type, on the kernels of software adapters; of all on each tier with `GRISTMILL_LONG`.
#[test]
#[ignore = "long; `every_option_of_a_mixture_follows_in_16_bits`"]
fn experts_of_each_type_follow_in_16_bits() {
    for (number, of) in MODELS.into_iter().enumerate() {
        for (turn, compute) in ["bfloat16", "float16"].into_iter().enumerate() {
            // One with which no two scores of a router are so close that a rounding decides which expert a token
            // visits.
            let seed =
                if (of.0, compute) == ("PanguAlphaConfig", "bfloat16") { "--seed=1" } else { "--seed=7" };
            if is_long() || number == [2, 0][turn] {
                for tier in in_turn(0, &["--context.tier=software", "--context.tier=portable"]) {
                    follows_the_reference(&model(of, compute).wide().with(&[seed, tier]), 6);
                }
            }
        }
    }
}

//! Runs that store activations in 16 bits, against an f64 run that rounds where they do.

use crate::against_reference::follows_the_reference;
use crate::runs::Setup;

/// Steps of mixtures: sooner or later two scores are so close that a rounding decides which expert a token visits.
const OF_EXPERTS: u64 = 3;

/// Trains the model of `setup` in each type for `steps` steps, in float16 with and without the adapter's own conversions.
fn follow(steps: u64, setup: impl Fn() -> Setup) {
    for (element, native) in [("float16", "True"), ("float16", "False"), ("bfloat16", "True")] {
        let compute = format!("--model.model_config.compute_dtype={element}");
        let native = format!("--context.native_f16={native}");
        // float16 has no gradients below 6e-8: without a scale those of single tokens would vanish.
        follows_the_reference(
            &setup().with(&[&compute, &native, "--runner_wrapper.scale_sense=1024"]),
            steps,
        );
    }
}

#[test]
fn llama_follows_in_16_bits() {
    follow(6, || Setup::new("llama", "sliding_window: 7"));
}

#[test]
fn every_option_of_llama_follows_in_16_bits() {
    let model = "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, tie_word_embeddings: True, \
                 rotary_interleaved: True, partial_rotary_factor: 0.5, intermediate_size: 37";
    follow(6, || Setup::new("qwen", model));
}

#[test]
fn gpt2_follows_in_16_bits() {
    follow(6, || Setup::gpt2("gpt2", ""));
}

#[test]
fn the_portable_tier_follows_in_16_bits() {
    follow(6, || {
        Setup::new("portable", "n_kv_heads: 2, use_qk_norm: True").with(&["--context.tier=portable"])
    });
}

#[test]
fn dropless_experts_follow_in_16_bits() {
    follow(OF_EXPERTS, || {
        Setup::experts("dropless", "expert_num: 4, num_experts_chosen: 2, use_gmm: True", "")
    });
}

/// Capacities, a gated shared expert, balance losses and multi-token prediction, on the kernels that a GPU runs.
#[test]
fn every_option_of_a_mixture_follows_in_16_bits() {
    let routing = "expert_num: 4, num_experts_chosen: 2, routing_policy: TopkRouterV2, capacity_factor: 1.1, \
                   shared_expert_num: 1, use_shared_expert_gating: True, aux_loss_types: [expert], aux_loss_factors: [0.1]";
    let model = "mtp_depth: 1, mtp_loss_factor: 0.3";
    follow(OF_EXPERTS, || Setup::experts("mixture", routing, model).with(&["--context.tier=portable"]));
}

//! Runs that store activations in 16 bits, against an f64 run that rounds where they do.

use crate::against_reference::follows_the_reference;
use crate::runs::{Setup, in_turn};
use gristmill::device::list_adapters;
use gristmill::train::recordings::Recordings;

/// Steps of mixtures: sooner or later two scores are so close that a rounding decides which expert a token visits.
const OF_EXPERTS: u64 = 3;

/// float16 with and without the adapter's own conversions, and bfloat16.
const TYPES: [(&str, &str); 3] = [("float16", "True"), ("float16", "False"), ("bfloat16", "True")];

/// Trains the model of `setup` for `steps` steps in one of the types, in each with `GRISTMILL_LONG`.
fn follow(number: usize, steps: u64, setup: impl Fn() -> Setup) {
    for (element, native) in in_turn(number, &TYPES) {
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
    let scaling = "rope_scaling: {rope_type: dynamic, factor: 8, original_max_position_embeddings: 2}";
    follow(0, 6, || Setup::new("llama", &format!("sliding_window: 7, {scaling}")));
}

#[test]
fn layers_that_differ_follow_in_16_bits() {
    follow(1, 6, || Setup::of_layers("layers", ""));
    follow(0, 6, || Setup::of_growing_queries("growing queries", ""));
}

#[test]
fn soft_caps_follow_in_16_bits() {
    follow(0, 6, || Setup::of_soft_caps("soft caps", "sliding_window: 7"));
}

#[test]
fn every_option_of_llama_follows_in_16_bits() {
    let model = "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, tie_word_embeddings: True, \
                 rotary_interleaved: True, partial_rotary_factor: 0.5, intermediate_size: 37, \
                 rope_scaling: {rope_type: longrope, original_max_position_embeddings: 16, short_factor: [1, 1], \
                 long_factor: [2, 4], attention_factor: 1.25}";
    follow(1, 6, || Setup::new("qwen", model));
}

#[test]
fn gpt2_follows_in_16_bits() {
    follow(0, 6, || Setup::gpt2("gpt2", ""));
}

#[test]
#[ignore = "long; `each_part_follows_on_other_tiers_and_in_16_bits`"]
fn the_portable_tier_follows_in_16_bits() {
    follow(0, 6, || {
        Setup::new("portable", "n_kv_heads: 2, use_qk_norm: True").with(&["--context.tier=portable"])
    });
}

#[test]
fn dropless_experts_follow_in_16_bits() {
    follow(0, OF_EXPERTS, || {
        Setup::experts("dropless", "expert_num: 4, num_experts_chosen: 2, use_gmm: True", "")
    });
}

/// Capacities, a gated shared expert, balance losses and multi-token prediction, on the kernels that a GPU runs.
#[test]
fn every_option_of_a_mixture_follows_in_16_bits() {
    let routing = "expert_num: 4, num_experts_chosen: 2, routing_policy: TopkRouterV2, capacity_factor: 1.1, \
                   shared_expert_num: 1, use_shared_expert_gating: True, aux_loss_types: [expert], aux_loss_factors: [0.1]";
    let model = "mtp_depth: 1, mtp_loss_factor: 0.3";
    follow(2, OF_EXPERTS, || Setup::experts("mixture", routing, model).with(&["--context.tier=portable"]));
}

/// Products and attention by cooperative matrices, on an adapter that has some.
#[test]
fn the_matrix_tier_follows_in_float16() {
    let adapters = pollster::block_on(list_adapters());
    if !adapters[0].matrices.iter().any(|shape| [[8; 3], [16; 3]].contains(shape)) {
        return println!("not run: {} has {}", adapters[0].name, adapters[0].matrix_shapes());
    }
    let dense = Setup::new("matrix", "n_kv_heads: 2, use_qk_norm: True, qkv_has_bias: True");
    let experts = Setup::experts("experts", "expert_num: 4, num_experts_chosen: 2, use_gmm: True", "");
    for (setup, steps) in [(dense, 6), (experts, OF_EXPERTS)] {
        let setup = setup.with(&[
            "--context.tier=matrix",
            "--model.model_config.compute_dtype=float16",
            "--runner_wrapper.scale_sense=1024",
        ]);
        let capabilities = setup.gpu().capabilities();
        let recordings = Recordings::new(&setup.plan(), capabilities, 1).expect("recordings");
        let dispatches = recordings.all().into_iter().flat_map(|recording| &recording.dispatches);
        let files: Vec<_> = dispatches.map(|dispatch| dispatch.kernel.file).collect();
        for (file, least) in [
            ("matmul/matrix", 20),
            ("attention/matrix/forward", 2),
            ("attention/matrix/backward_q", 1),
            ("attention/matrix/backward_kv", 1),
        ] {
            let count = files.iter().filter(|of| **of == file).count();
            assert!(count >= least, "{count} launches of {file} on {capabilities}");
        }
        follows_the_reference(&setup, steps);
    }
}

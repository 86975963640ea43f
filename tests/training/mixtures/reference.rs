//! The trainer on mixtures of experts against an f64 run of it.

use crate::against_reference::follows_the_reference;
use crate::runs::{Setup, reference_shape};
use gristmill::kernels::Tier;
use gristmill::model::config::{
    BalanceLosses, MixtureConfig, ModelConfig, MultiToken, SharedExpert, Sizes, TokenDispatch,
};
use gristmill::model::parameters::Gpt;
use gristmill::ops::route::{GateNorm, RouterConfig, Score};
use reference::trainer::decays;
use std::collections::BTreeMap;

/// Each token chooses two of four experts, and experts take all of them.
const GROUPED: &str = "expert_num: 4, num_experts_chosen: 2, use_gmm: True";

/// Six steps with accumulation, clipping, weight decay and warm-up.
fn follows(setup: &Setup) {
    assert!(setup.plan().model.mixture.is_some(), "{} is no mixture", setup.name);
    follows_the_reference(setup, 6);
}

#[test]
fn dropless_experts_follow_the_reference() {
    follows(&Setup::experts("dropless", GROUPED, ""));
}

/// Phi-3.5-MoE's router, LayerNorm and biases, with balance losses beside the gradient of gates that are not scores.
fn phi_moe(name: &'static str) -> Setup {
    let routing = "expert_num: 5, num_experts_chosen: 2, use_gmm: True, sparsemixer_jitter_eps: 0.3, \
                   aux_loss_types: [expert], aux_loss_factors: [0.1], z_loss_factor: 0.01";
    let model = "n_kv_heads: 2, normalization: LayerNorm, qkv_has_bias: True, attn_proj_has_bias: True, \
                 lm_head_has_bias: True";
    Setup::experts(name, routing, model)
}

#[test]
fn experts_of_phi_moe_follow_the_reference() {
    follows_the_reference(&phi_moe("phimoe"), 4);
}

/// The kernels that a GPU runs.
#[test]
fn experts_of_the_portable_tier_follow_the_reference() {
    let setup = phi_moe("portable experts").with(&["--context.tier=portable"]);
    assert_eq!(setup.gpu().capabilities().tier, Tier::Portable);
    follows_the_reference(&setup, 4);
}

/// Balance losses change the gradients and are not part of the reported loss.
#[test]
fn balance_losses_follow_the_reference() {
    let losses = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, aux_loss_types: [expert], aux_loss_factors: [0.1], z_loss_factor: 0.01";
    follows(&Setup::experts("balanced", losses, ""));
}

/// Sigmoid scores, a selection bias that moves, groups, a dense layer and a gated shared expert: DeepSeek-V3 and Qwen2
/// in one.
#[test]
fn biased_groups_with_a_shared_expert_follow_the_reference() {
    let routing = "expert_num: 6, num_experts_chosen: 3, n_group: 3, topk_group: 2, topk_method: noaux_tc, \
                   use_gmm: True, use_gating_sigmoid: True, routed_scaling_factor: 2.5, balance_via_topk_bias: True, \
                   topk_bias_update_rate: 0.05, shared_expert_num: 1, use_shared_expert_gating: True, \
                   first_k_dense_replace: 1";
    follows(&Setup::experts("deepseek", routing, "use_qk_norm: True, n_kv_heads: 2"));
}

/// A dense network beside the experts: in some layers alone, on GPUs' kernels, and in 16 bits.
#[test]
fn experts_beside_dense_networks_follow_the_reference() {
    let first = ["--moe_config.first_k_dense_replace=1"];
    follows(&Setup::beside_dense("beside", "").with(&first));
    let portable = Setup::beside_dense("beside on portable", "").with(&["--context.tier=portable"]);
    follows_the_reference(&portable, 4);
    for compute in ["float16", "bfloat16"] {
        let compute = format!("--model.model_config.compute_dtype={compute}");
        let halves = ["--runner_wrapper.scale_sense=1024", &compute];
        follows_the_reference(&Setup::beside_dense("beside in 16 bits", "").with(&halves), 4);
    }
}

/// ERNIE 4.5's: softmax scores with a bias, and gates divided by a sum that some tokens do not reach.
#[test]
fn experts_of_ernie_follow_the_reference() {
    let routing = "expert_num: 6, num_experts_chosen: 3, use_gmm: True, moe_norm_min: 0.52, \
                   balance_via_topk_bias: True, topk_bias_update_rate: 0.05, shared_expert_num: 2, \
                   first_k_dense_replace: 1";
    follows_the_reference(&Setup::experts_of("Ernie4_5Config", "ernie", routing, "n_kv_heads: 2"), 4);
}

/// LFM2's experts: the same router without groups, behind a gated convolution and behind attention.
#[test]
fn experts_of_lfm2_follow_the_reference() {
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, use_gating_sigmoid: True, \
                   balance_via_topk_bias: True, topk_bias_update_rate: 0.05";
    let layers = "n_kv_heads: 2, layer_types: [conv, full_attention]";
    follows_the_reference(&Setup::experts_of("Lfm2Config", "lfm2", routing, layers), 4);
}

/// Capacities that drop choices, in either order.
#[test]
fn dropped_choices_follow_the_reference() {
    for (name, order) in [("by choice", "False"), ("by token", "True")] {
        let routing = format!(
            "expert_num: 4, num_experts_chosen: 2, routing_policy: TopkRouterV2, capacity_factor: 0.8, enable_sdrop: {order}"
        );
        follows(&Setup::experts(name, &routing, ""));
    }
}

/// The gates of kept choices make up for dropped ones; two experts are hot.
#[test]
fn hot_experts_follow_the_reference() {
    let routing = "expert_num: 4, num_experts_chosen: 2, routing_policy: TopkRouterV1, capacity_factor: 1.2, enable_cold_hot_expert: True, \
                   hot_expert_num: 2, cold_token_percent: 0.5, update_step: 100";
    follows(&Setup::experts("hot", routing, ""));
}

#[test]
fn multi_token_prediction_follows_the_reference() {
    let model = "mtp_depth: 2, mtp_loss_factor: 0.3, tie_word_embeddings: True";
    follows(&Setup::experts("ahead", GROUPED, model));
}

/// Muon orthogonalises each expert's matrices separately and leaves routers to AdamW.
#[test]
fn experts_under_muon_follow_the_reference() {
    let model = "mtp_depth: 1, mtp_loss_factor: 0.3";
    let routing = "expert_num: 3, num_experts_chosen: 2, use_gmm: True, shared_expert_num: 1, use_shared_expert_gating: True";
    let setup = Setup::experts("muon", routing, model).with(&["--optimizer={type: Muon, weight_decay: 0.1}"]);
    follows(&setup);
}

/// The model and the reference have the same tensors, and the same ones decay.
#[test]
fn the_reference_has_the_same_tensors() {
    let sizes = Sizes {
        vocab_size: 16,
        hidden_size: 8,
        num_layers: 3,
        num_heads: 2,
        intermediate_size: 12,
        seq_length: 4,
    };
    let route = RouterConfig {
        experts: 5,
        chosen: 2,
        score: Score::Sigmoid,
        groups: None,
        norm: Some(GateNorm::SUM),
        scaling: 1.0,
    };
    let mixture = |is_gated| MixtureConfig {
        route,
        has_bias: true,
        bias_update_rate: 0.1,
        intermediate_size: 7,
        first_dense_layers: 1,
        shared: Some(SharedExpert { intermediate_size: 9, is_gated }),
        losses: BalanceLosses::default(),
        is_beside_dense: false,
        dispatch: TokenDispatch::Dropless { safe_tokens: false },
        router_init_std: 0.01,
    };
    for is_gated in [false, true] {
        let multi_token = Some(MultiToken { depth: 2, loss_factor: 0.3 });
        let config =
            ModelConfig { mixture: Some(mixture(is_gated)), multi_token, ..ModelConfig::llama(sizes) };
        let gpt = Gpt::describe(&config);
        let pieces = gpt.iter().flat_map(|spec| spec.pieces.iter().map(move |piece| (spec, piece)));
        let ours: BTreeMap<String, (usize, bool)> = pieces
            .map(|(spec, piece)| {
                (piece.name.clone(), (spec.piece_shape(piece).iter().product(), spec.decays))
            })
            .collect();
        let theirs = reference_shape(&config).parameters().into_iter();
        let theirs: BTreeMap<String, (usize, bool)> =
            theirs.map(|(name, count)| (name.clone(), (count, decays(&name)))).collect();
        assert_eq!(ours, theirs);
    }
}

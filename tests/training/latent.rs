//! Multi-head latent attention: the types of DeepSeek against an f64 run of the trainer.
//!
//! Ten steps and the final weights.

use crate::against_reference::follows_the_reference;
use crate::runs::{Setup, compared_steps, in_turn};
use gristmill::kernels::Tier;

/// Widths that all differ, and values wider than the part of a head that does not rotate.
pub const RANKS: &str =
    "q_lora_rank: 20, kv_lora_rank: 12, qk_nope_head_dim: 8, qk_rope_head_dim: 4, v_head_dim: 16";
/// The same without a latent vector of the queries, as in DeepSeek-V2-Lite.
pub const DIRECT: &str = "kv_lora_rank: 12, qk_nope_head_dim: 8, qk_rope_head_dim: 4, v_head_dim: 16";

/// Heads that rotate in halves and latent norms with an epsilon of their own, beside factors, as in MiniCPM 3.
pub const HALVES: &str = "q_lora_rank: 20, kv_lora_rank: 12, qk_nope_head_dim: 8, qk_rope_head_dim: 8, v_head_dim: 16, \
                      latent_rotation: halves, latent_norm_eps: 0.02, embedding_multiplier: 3.0, residual_multiplier: 0.7, \
                      logits_scaling: 2.0";

/// The router of DeepSeek-V3 under Hugging Face's names, with a dense layer, a shared expert and a block that predicts
/// ahead.
pub const V3: &str = "n_routed_experts: 6, num_experts_per_tok: 3, n_group: 3, topk_group: 2, topk_method: noaux_tc, \
                  scoring_func: sigmoid, norm_topk_prob: True, routed_scaling_factor: 2.5, n_shared_experts: 1, \
                  moe_intermediate_size: 36, first_k_dense_replace: 1, moe_router_bias_update_rate: 0.05, \
                  moe_router_load_balancing_type: seq_aux_loss, moe_aux_loss_coeff: 0.01, moe_grouped_gemm: True, \
                  num_nextn_predict_layers: 1, mtp_loss_factor: 0.3";
/// That of DeepSeek-V2.
const V2: &str = "n_routed_experts: 6, num_experts_per_tok: 2, n_group: 3, topk_group: 2, topk_method: group_limited_greedy, \
                  scoring_func: softmax, norm_topk_prob: False, routed_scaling_factor: 1.5, n_shared_experts: 2, \
                  moe_intermediate_size: 20, first_k_dense_replace: 1, moe_grouped_gemm: True";

/// A model of the type `kind`.
pub fn deepseek(name: &'static str, kind: &str, model: &str) -> Setup {
    let kind = format!("--model.model_config.type={kind}");
    Setup::new(name, &format!("{model}, rms_norm_eps: 1.e-6")).with(&[&kind])
}

/// A dense one.
pub fn dense(name: &'static str, model: &str) -> Setup {
    deepseek(name, "DeepseekV3Config", model)
}

fn follows(setup: &Setup) {
    assert!(setup.plan().model.latent.is_some(), "{} has other attention", setup.name);
    follows_the_reference(setup, compared_steps());
}

#[test]
fn deepseek_v3_follows_the_reference() {
    let setup = deepseek("deepseek v3", "DeepseekV3Config", &format!("{RANKS}, {V3}"));
    let model = setup.plan().model;
    let mixture = model.mixture.clone().expect("experts");
    assert!(mixture.has_bias && mixture.route.groups.is_some() && model.multi_token.is_some());
    follows(&setup);
}

/// A file in MindFormers' dialect, shrunk by flags alone.
#[test]
fn a_file_of_deepseek_follows_the_reference() {
    let keys = ["model.model_config.vocab_size=256", "model.model_config.initializer_range=0.1"];
    follows(&Setup::shrunk("deepseek v3 by file", "dialect/deepseek3.yaml", &keys));
    let v2 = [
        "model.model_config.type=DeepseekV2Config",
        "model.model_config.scoring_func=softmax",
        "model.model_config.norm_topk_prob=False",
        "model.model_config.topk_method=group_limited_greedy",
        "model.model_config.moe_router_enable_expert_bias=False",
        "model.model_config.num_nextn_predict_layers=0",
        "model.arch.type=None",
    ];
    follows(&Setup::shrunk("deepseek v2 by file", "dialect/deepseek3.yaml", &[&keys[..], &v2].concat()));
}

#[test]
fn deepseek_v2_follows_the_reference() {
    follows(&deepseek("deepseek v2", "DeepseekV2Config", &format!("{DIRECT}, {V2}")));
}

/// The scores are scaled by m(mscale_all_dim)², here 1.07² of what they are without.
#[test]
fn the_scale_of_yarn_follows_the_reference() {
    let yarn = "rope_scaling: {type: yarn, factor: 4, original_max_position_embeddings: 8, beta_fast: 1, beta_slow: 0.01, \
                mscale: 1.0, mscale_all_dim: 0.5}";
    let setup = dense("yarn", &format!("{RANKS}, {yarn}"));
    let model = setup.plan().model;
    let scale = model.softmax_scale(&model.layer) * 12f32.sqrt();
    assert!((scale - (0.05 * 4f32.ln() + 1.0).powi(2)).abs() < 1e-6, "{scale}");
    follows(&setup);
}

/// In texts longer than those of the first training, whose pairs have other divisors.
#[test]
fn halves_follow_the_reference() {
    let scaling = "rope_scaling: {rope_type: longrope, short_factor: [1, 1, 1, 1], long_factor: [1, 2, 3, 4], \
                   original_max_position_embeddings: 8}";
    let setup = dense("halves", &format!("{HALVES}, {scaling}"));
    let model = setup.plan().model;
    assert!(!model.layer.rotary_interleaved && model.latent_norm_eps == Some(0.02));
    follows(&setup);
}

/// The kernels that a GPU runs, a window, and halves that are no whole groups of 4 elements.
#[test]
fn the_portable_tier_follows_the_reference() {
    let model = format!("{RANKS}, sliding_window: 7, latent_rotation: halves");
    let setup = dense("portable", &model).with(&["--context.tier=portable"]);
    assert_eq!(setup.gpu().capabilities().tier, Tier::Portable);
    follows_the_reference(&setup, 4);
}

/// Muon orthogonalises the projections to the latent vectors, and from them, one by one.
#[test]
fn muon_follows_the_reference() {
    follows(&dense("muon", RANKS).with(&["--optimizer={type: Muon, weight_decay: 0.1}"]));
}

/// bfloat16 with `GRISTMILL_LONG`.
#[test]
fn sixteen_bits_follow_the_reference() {
    for element in in_turn(0, &["float16", "bfloat16"]) {
        let compute = format!("--model.model_config.compute_dtype={element}");
        let scale = "--runner_wrapper.scale_sense=1024";
        follows_the_reference(&dense("half", HALVES).with(&[&compute, scale]), 6);
    }
}

/// Only the projections from latent vectors train: what is before them needs no gradient, in the first layer.
#[test]
fn frozen_projections_follow_the_reference() {
    let freeze = "--model.model_config.freeze=['embed_tokens', 'q_a_proj', 'kv_a_proj', 'input_layernorm']";
    follows(&dense("frozen", RANKS).with(&[freeze]));
}

//! The defaults of a mixture that follow from other keys, and what must fit together.

use super::rows::{Moe, RoutingPolicy};
use super::{balance, routing};
use crate::model::config::{Family, ModelConfig, Norm, NormPlacement};
use crate::settings::engine::*;
use crate::settings::sections::model::{self, GPT_OSS, GPT2, Model};

/// `capacity_factor` where none is written.
const CAPACITY_FACTOR: f64 = 1.1;
/// `update_step` where none is written.
const UPDATE_STEP: u64 = 10_000;

/// Fills in what `moe`, a mixture in the layers of `model`, leaves open, and checks it.
pub(super) fn fill(moe: &mut Moe, reader: &Reader<'_>, model: &Model) {
    if model.kind.is(GPT2) && !reader.has("routing_policy") {
        moe.routing_policy = RoutingPolicy::V1;
    }
    routing::fill(moe, reader, model);
    fill_bias(moe, reader);
    balance::fill(moe, reader);
    fill_capacity(moe, reader, model);
    fill_hot(moe, reader);
    fill_widths(moe, reader, model);
    check_beside_dense(moe, reader, model);
    // The layer whose queries are learned has no experts.
    let layers = model.config.num_layers.saturating_sub(usize::from(model.config.learns_queries()));
    let dense = moe.first_k_dense_replace;
    let last = if model.config.learns_queries() { " beside the last one" } else { "" };
    let all = model.config.num_layers;
    let message = format!("{dense} dense layers{last} of {all} leave none for the experts; lower it");
    let is_known = reader.source.is_sound(&format!("{}.num_layers", model::PATH));
    reader.require(&["first_k_dense_replace"], !is_known || dense < layers, message);
}

/// Checks experts beside dense networks.
fn check_beside_dense(moe: &Moe, reader: &Reader<'_>, model: &Model) {
    const KEY: &str = "enable_moe_block";
    if !moe.enable_moe_block {
        return;
    }
    let ModelConfig { family, norm, norm_placement, activation, latent, .. } = &model.config;
    let is_llama = *family == Family::Llama && latent.is_none();
    reader.require(&[KEY], is_llama, "not built yet for this type; remove it");
    let has_norms = *norm == Norm::RmsNorm && *norm_placement == NormPlacement::Both;
    let message = "needs RMSNorm before and after; write `norm_placement: both` in model.model_config";
    reader.require(&[KEY], has_norms, message);
    let message = "not built yet with an activation without a gate; remove it";
    reader.require(&[KEY], activation.gate().is_some(), message);
    let message = "not built yet with multi-token prediction; remove it, or `mtp_depth`";
    reader.require(&[KEY], model.mtp_depth.is_none_or(|depth| depth == 0), message);
    let message = "not built yet with shared experts; remove it, or these";
    reader.require(&[KEY], moe.moe_shared_expert_intermediate_size.is_none(), message);
}

fn fill_bias(moe: &mut Moe, reader: &Reader<'_>) {
    if !moe.balance_via_topk_bias {
        reader.ignore(&["topk_bias_update_rate"]);
        moe.topk_bias_update_rate = None;
    } else if *moe.topk_bias_update_rate.get_or_insert(0.0) == 0.0 {
        let text = "`topk_bias_update_rate` is not above 0, so the bias stays as it is";
        reader.note("balance_via_topk_bias", text);
    }
}

/// Reduces the keys to `use_gmm: True` or a factor above 0: a mixture that drops nothing is computed by grouped
/// products.
fn fill_capacity(moe: &mut Moe, reader: &Reader<'_>, model: &Model) {
    let is_written = moe.capacity_factor.is_some();
    let factor = *moe.capacity_factor.get_or_insert(CAPACITY_FACTOR);
    if moe.use_gmm && is_written {
        reader.note("capacity_factor", "ignored, as `use_gmm: True` drops no token");
    } else if factor <= 0.0 {
        reader.note("capacity_factor", "not above 0, so no token is dropped");
    }
    let is_dropless = moe.use_gmm || factor <= 0.0;
    // In GPT-2's layers the first router (V1) is what sets the gate of a single choice to 1.
    let normalises_one =
        model.kind.is(GPT2) && moe.num_experts_chosen == 1 && moe.norm_topk_prob == Some(true);
    if !normalises_one {
        note_idle_policy(moe, reader, is_dropless);
        if moe.routing_policy == RoutingPolicy::V1 && (is_dropless || moe.norm_topk_prob == Some(false)) {
            moe.routing_policy = RoutingPolicy::V2;
        }
    }
    if !is_dropless {
        reader.ignore(&["enable_gmm_safe_tokens"]);
        moe.enable_gmm_safe_tokens = false;
        if reader.node("enable_sdrop").and_then(Node::word) == Some("probs") {
            reader.note("enable_sdrop", "later choices are dropped first, whatever their probability");
        }
        return;
    }
    if moe.enable_cold_hot_expert {
        let message = "needs slots to share out; write `use_gmm: False` and a `capacity_factor` above 0";
        reader.fault("enable_cold_hot_expert", message);
    }
    if moe.enable_sdrop {
        reader.note("enable_sdrop", "ignored, as no token is dropped");
    }
    if moe.callback_moe_droprate {
        reader.note("callback_moe_droprate", "shows rates of 0, as no token is dropped");
    }
    (moe.use_gmm, moe.capacity_factor, moe.enable_sdrop) = (true, None, false);
}

/// Notes if `TopkRouterV1` has no gates to renormalise.
fn note_idle_policy(moe: &Moe, reader: &Reader<'_>, is_dropless: bool) {
    let text = match moe.routing_policy {
        RoutingPolicy::V2 => return,
        _ if !reader.has("routing_policy") => return, // GPT-2's own
        _ if is_dropless => "`TopkRouterV1` renormalises where tokens are dropped, and none is",
        _ if moe.norm_topk_prob == Some(true) => return,
        _ if moe.num_experts_chosen == 1 => {
            "`TopkRouterV1` does not renormalise the gate of one chosen expert"
        }
        _ => "`TopkRouterV1` does not renormalise with `norm_topk_prob: False`",
    };
    reader.note("routing_policy", text);
}

fn fill_hot(moe: &mut Moe, reader: &Reader<'_>) {
    let (experts, count) = (moe.expert_num, moe.hot_expert_num.unwrap_or(0));
    let message = format!("{count} of {experts} experts (`expert_num`) cannot be hot; lower it");
    reader.require(&["hot_expert_num", "expert_num"], count <= experts, message);
    if !moe.enable_cold_hot_expert {
        reader.ignore(&["hot_expert_num", "cold_token_percent", "update_step"]);
        (moe.hot_expert_num, moe.cold_token_percent, moe.update_step) = (None, None, None);
        return;
    }
    if count == 0 && reader.is_sound("hot_expert_num") {
        match reader.has("hot_expert_num") {
            true => reader.fault(
                "hot_expert_num",
                format!("expected a whole number from 1 to {experts} (`expert_num`), found `0`"),
            ),
            false => reader.fault("enable_cold_hot_expert", "needs `hot_expert_num`, at least 1"),
        }
    }
    moe.hot_expert_num = Some(count);
    moe.cold_token_percent.get_or_insert(1.0);
    moe.update_step.get_or_insert(UPDATE_STEP);
}

/// Fills in the widths of an expert and of the shared ones, unless a key that they follow from is at fault.
fn fill_widths(moe: &mut Moe, reader: &Reader<'_>, model: &Model) {
    let keys = ["moe_intermediate_size", "shared_expert_num", "moe_shared_expert_intermediate_size"];
    if !reader.are_sound(&keys) {
        return;
    }
    moe.moe_intermediate_size =
        moe.moe_intermediate_size.or(Some(model.config.layer.intermediate_size).filter(|size| *size > 0));
    let width = moe.moe_intermediate_size.unwrap_or(0);
    // Files hold gate and up of all experts as one tensor.
    if (model.kind.is(GPT_OSS) || moe.enable_moe_block) && !width.is_multiple_of(4) {
        let message = format!("of such experts is a multiple of 4, and {width} is none");
        let key = if reader.has(keys[0]) { keys[0] } else { "intermediate_size" };
        reader.fault(key, message);
    }
    let given = moe.moe_shared_expert_intermediate_size.filter(|size| *size > 0);
    let product = match moe.shared_expert_num {
        0 => None,
        count => moe.moe_intermediate_size.map(|width| count.saturating_mul(width)),
    };
    for (key, size) in [("moe_shared_expert_intermediate_size", given), ("shared_expert_num", product)] {
        if let Some(size) = size.filter(|size| *size > MAX_SIZE) {
            reader.fault(key, format!("makes the layer {size} wide; expected 1 to {MAX_SIZE}"));
        }
    }
    moe.moe_shared_expert_intermediate_size = given.or(product);
    if moe.moe_shared_expert_intermediate_size.is_some() && model.kind.is(GPT2) {
        let key = if given.is_some() { "moe_shared_expert_intermediate_size" } else { "shared_expert_num" };
        reader.fault(
            key,
            "only Llama's layers can hold a shared expert; remove it, or write `type: LlamaConfig`",
        );
    }
    moe.shared_expert_num = 0;
    if moe.moe_shared_expert_intermediate_size.is_none() {
        reader.ignore(&["use_shared_expert_gating"]);
        moe.use_shared_expert_gating = false;
    }
}

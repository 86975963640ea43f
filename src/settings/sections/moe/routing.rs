//! Which experts are chosen, and how much each chosen one counts.

use super::rows::{Moe, RoutingPolicy, TopkMethod};
use crate::model::config::{Family, GroupScore, ModelConfig};
use crate::settings::engine::*;
use crate::settings::sections::model::{GPT2, Model};

/// `moe_norm_min` of ERNIE 4.5 where none is written.
const NORM_MIN_OF_ERNIE: f64 = 1e-12;

/// Decides the groups and whether gates are normalised. One group, or the choice of all groups, excludes no expert, so
/// there are none then.
pub(super) fn fill(moe: &mut Moe, reader: &Reader<'_>, model: &Model) {
    let (experts, chosen) = (moe.expert_num, moe.num_experts_chosen);
    let message = format!("a token cannot choose {chosen} of {experts} experts (`expert_num`); lower it");
    reader.require(&["num_experts_chosen", "expert_num"], chosen <= experts, message);
    // The first router, that of GPT-2's layers, normalises the gate of a single choice, too.
    let is_first = model.kind.is(GPT2);
    if moe.sparsemixer_jitter_eps.is_some() {
        moe.norm_topk_prob.get_or_insert(false);
    }
    check_sparse_mixer(moe, reader, model);
    let normalises =
        moe.norm_topk_prob.unwrap_or(!is_first || chosen > 1 || moe.routing_policy == RoutingPolicy::V1);
    let has_single = is_first && moe.routing_policy == RoutingPolicy::V1;
    moe.norm_topk_prob = Some(normalises && (chosen > 1 || has_single));
    if moe.norm_topk_prob == Some(false) {
        reader.ignore(&["moe_norm_min"]);
        moe.moe_norm_min = None;
    } else if model.config.family == Family::Ernie45 {
        moe.moe_norm_min.get_or_insert(NORM_MIN_OF_ERNIE);
    }
    if !reader.are_sound(&["topk_method", "n_group", "topk_group", "expert_num", "num_experts_chosen"]) {
        return;
    }
    let groups = groups(moe, reader).filter(|(count, kept)| kept < count);
    (moe.n_group, moe.topk_group) = groups.unzip();
    if groups.is_none() {
        moe.topk_method = None;
    }
}

/// SparseMixer is a router of its own, of the files of one class.
fn check_sparse_mixer(moe: &Moe, reader: &Reader<'_>, model: &Model) {
    const KEY: &str = "sparsemixer_jitter_eps";
    if moe.sparsemixer_jitter_eps.is_none() {
        return;
    }
    let ModelConfig { family, latent, .. } = &model.config;
    let is_llama = *family == Family::Llama && latent.is_none() && !moe.enable_moe_block;
    reader.require(&[KEY], is_llama, "not built yet for this type or beside dense networks; remove it");
    let message = "2 experts are chosen beside `sparsemixer_jitter_eps`; write `2`, or remove that";
    reader.require(&["num_experts_chosen", KEY], moe.num_experts_chosen == 2, message);
    reader
        .note(KEY, "experts are those of the largest logits in training, too, where transformers draws them");
    for (key, is_other) in [
        ("norm_topk_prob", moe.norm_topk_prob == Some(true)),
        ("use_gating_sigmoid", moe.use_gating_sigmoid),
        ("balance_via_topk_bias", moe.balance_via_topk_bias),
        ("topk_method", matches!(moe.topk_method, Some(TopkMethod::Grouped(_)))),
    ] {
        let message = "another router than that of `sparsemixer_jitter_eps`; remove one of the two";
        reader.require(&[key, KEY], !is_other, message);
    }
}

/// How many groups there are, and from how many a token may choose.
fn groups(moe: &Moe, reader: &Reader<'_>) -> Option<(usize, usize)> {
    let (experts, chosen) = (moe.expert_num, moe.num_experts_chosen);
    let fault = |key: &str, message: String| {
        reader.fault(key, message);
        None
    };
    let Some(TopkMethod::Grouped(score)) = moe.topk_method else {
        if moe.topk_method.is_none() && moe.n_group.is_some_and(|count| count > 1) {
            let remedy = "write `group_limited_greedy` (a group's best score) or `noaux_tc` (its two best)";
            return fault("n_group", format!("needs `topk_method`: {remedy}"));
        }
        reader.ignore(&["n_group", "topk_group"]);
        return None;
    };
    let Some(count) = moe.n_group else {
        let method = TopkMethod::Grouped(score).word();
        return fault("topk_method", format!("`{method}` needs `n_group`, how many groups there are"));
    };
    if count == 0 {
        let message = format!("expected a whole number from 1 to {experts} (`expert_num`), found `0`");
        return fault("n_group", message);
    }
    if !experts.is_multiple_of(count) {
        let message =
            format!("{count} groups do not divide {experts} experts (`expert_num`); change one of them");
        return fault("n_group", message);
    }
    let Some(kept) = moe.topk_group else {
        return fault("n_group", "needs `topk_group`, from how many groups a token may choose".to_string());
    };
    if kept == 0 || kept > count {
        let message = format!("expected a whole number from 1 to {count} (`n_group`), found `{kept}`");
        return fault("topk_group", message);
    }
    let size = experts / count;
    if chosen > kept * size {
        let message = format!(
            "{kept} groups have {} experts, fewer than the {chosen} that a token chooses (`num_experts_chosen`); \
             raise topk_group",
            kept * size
        );
        return fault("topk_group", message);
    }
    if score == GroupScore::BestTwo && size < 2 {
        let message = "`topk_method: noaux_tc` scores a group by its two best experts, and a group has one; lower \
                       n_group";
        return fault("n_group", message.to_string());
    }
    Some((count, kept))
}

//! A mixture of experts written out as `moe_config`.

use super::balance;
use super::node::Node;
use super::resolved::Entries;
use super::routing;
use crate::config::Instruments;
use crate::model::config::{
    BalanceLosses, Capacity, DropOrder, ExpertGroups, HotExperts, MixtureConfig, RouterConfig, Score,
    SharedExpert, TokenDispatch,
};

/// The section that reads back as `mixture` and what is shown of it.
pub(super) fn entries(mixture: &MixtureConfig, instruments: &Instruments) -> Entries {
    // Every field is named, so that none can be forgotten.
    let MixtureConfig {
        route: RouterConfig { experts, chosen, score, groups, norm_top_k, scaling },
        has_bias,
        bias_update_rate,
        intermediate_size,
        first_dense_layers,
        shared,
        losses: BalanceLosses { expert, sequence, z },
        dispatch,
        fuses_permutation,
        router_init_std: _, // no key of the original's
    } = mixture.clone();
    let mut entries = Entries::of([
        ("expert_num", u64::from(experts).into()),
        ("num_experts_chosen", u64::from(chosen).into()),
        ("moe_intermediate_size", intermediate_size.into()),
        ("first_k_dense_replace", first_dense_layers.into()),
        ("use_gating_sigmoid", (score == Score::Sigmoid).into()),
        ("norm_topk_prob", norm_top_k.into()),
        ("routed_scaling_factor", shortest(scaling).into()),
        ("use_fused_ops_permute", fuses_permutation.into()),
        ("callback_moe_droprate", instruments.logs_drop_rate.into()),
        ("save_token_distribution", instruments.token_distribution.is_some().into()),
    ]);
    if let Some(ExpertGroups { count, chosen, score }) = groups {
        entries.set("topk_method", routing::method(score));
        entries.set("n_group", u64::from(count));
        entries.set("topk_group", u64::from(chosen));
    }
    if has_bias {
        entries.set("balance_via_topk_bias", true);
        entries.set("topk_bias_update_rate", bias_update_rate);
    }
    if let Some(SharedExpert { intermediate_size, is_gated }) = shared {
        entries.set("moe_shared_expert_intermediate_size", intermediate_size);
        entries.set("use_shared_expert_gating", is_gated);
    }
    if expert > 0.0 {
        entries.set("aux_loss_types", Node::List(vec!["expert".into()]));
        entries.set("aux_loss_factors", Node::List(vec![expert.into()]));
    }
    if sequence > 0.0 {
        entries.set("moe_aux_loss_coeff", sequence);
        entries.set("moe_router_load_balancing_type", balance::SEQUENCE);
    }
    entries.some("z_loss_factor", Some(z).filter(|z| *z > 0.0));
    match dispatch {
        TokenDispatch::Dropless { safe_tokens } => {
            entries.set("use_gmm", true);
            entries.set("enable_gmm_safe_tokens", safe_tokens);
        }
        TokenDispatch::Capacity(Capacity { factor, order, renormalises, hot }) => {
            entries.set("use_gmm", false);
            entries.set("routing_policy", if renormalises { "TopkRouterV1" } else { "TopkRouterV2" });
            entries.set("capacity_factor", factor);
            entries.set("enable_sdrop", order == DropOrder::Token);
            // The checkpoint's step is a callback's.
            if let Some(HotExperts { count, cold_token_share, update_step, checkpoint_step: _ }) = hot {
                entries.set("enable_cold_hot_expert", true);
                entries.set("hot_expert_num", count);
                entries.set("cold_token_percent", cold_token_share);
                entries.set("update_step", update_step);
            }
        }
    }
    entries
}

/// The callbacks that say the rest.
pub(super) fn callbacks(mixture: Option<&MixtureConfig>, instruments: &Instruments) -> Vec<Node> {
    let mut callbacks = Vec::new();
    let hot = mixture.and_then(|mixture| match mixture.dispatch {
        TokenDispatch::Capacity(capacity) => capacity.hot,
        TokenDispatch::Dropless { .. } => None,
    });
    if let Some(step) = hot.and_then(|hot| hot.checkpoint_step) {
        let entries = [("type", super::instruments::COLD_HOT.into()), ("save_checkpoint_steps", step.into())];
        callbacks.push(Entries::of(entries).into());
    }
    if let Some(summary) = &instruments.token_distribution {
        let entries = [
            ("type", super::instruments::SUMMARY.into()),
            ("summary_dir", summary.folder.display().to_string().into()),
            ("collect_freq", summary.every_steps.into()),
        ];
        callbacks.push(Entries::of(entries).into());
    }
    callbacks
}

/// The number that was written, not the digits that a longer type sees in it.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

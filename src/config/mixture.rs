//! The mixture of experts: `moe_config`, and the same keys under `model.model_config`.

use super::balance;
use super::document::Document;
use super::mixture_sections::MixtureSections;
use super::node::{FromNode, Node};
use super::routing;
use super::section::Notes;
use crate::error::Result;
use crate::model::config::{BalanceLosses, Family, HotExperts, RouterConfig};

/// The keys of a mixture as written, those that the shape of the model does not decide checked against each other.
///
/// The names are the original's; those of Megatron and Hugging Face mean the same. A model is a mixture where `expert_num`
/// is above 1. With `expert_num: 1`, which most files of the original carry, it is dense whatever else is written, as
/// there: the other keys are ignored with a notice.
///
/// **Which tokens an expert takes.** `use_gmm: True`: all that chose it (grouped matmul, dropless); `capacity_factor` is
/// ignored with a notice. Otherwise at most ceil(k N `capacity_factor` / E) of a micro-batch's N tokens; a factor of 0 or
/// below drops nothing and is computed as `use_gmm` is. `enable_sdrop` drops the last tokens first instead of the last
/// choices.
///
/// **`routing_policy`.** `TopkRouterV2`, the default, leaves the gates of what was kept as they are; `TopkRouterV1` makes
/// them sum to what all of a token's gates would have. That is all it selects: the original needs V1 for
/// `save_token_distribution` and for cold and hot experts, which work here with either. Under V1 `aux_loss_factor` is
/// read, as k times the `expert` loss, where `return_extra_loss: True` asks for it.
///
/// **Balance.** A loss joins the objective because its factor is written, whatever `return_extra_loss` says:
/// `aux_loss_types` with `aux_loss_factors`, `moe_aux_loss_coeff` with `moe_router_load_balancing_type`, and
/// `z_loss_factor`. The types `device` and `comm` balance devices; on one device they are constants and left out.
#[derive(Clone, Debug, PartialEq)]
pub struct MixtureSection {
    /// Who is chosen, and what the chosen count.
    pub route: RouterConfig,
    /// `balance_via_topk_bias`.
    pub balance_via_topk_bias: bool,
    /// By how much the bias moves in a step.
    pub topk_bias_update_rate: f64,
    /// Inner width of an expert; that of the dense layers where absent.
    pub moe_intermediate_size: Option<usize>,
    /// The first so many layers are dense; `True` is 1.
    pub first_k_dense_replace: usize,
    /// Experts that every token visits.
    pub shared_expert_num: usize,
    /// Width of all of them together, where it is given.
    pub moe_shared_expert_intermediate_size: Option<usize>,
    /// Whether their output is gated.
    pub use_shared_expert_gating: bool,
    /// What the objective adds.
    pub losses: BalanceLosses,
    /// Whether all tokens are taken.
    pub use_gmm: bool,
    /// `enable_gmm_safe_tokens`.
    pub enable_gmm_safe_tokens: bool,
    /// Slots over choices of an equal share, if it was written.
    pub capacity_factor: Option<f64>,
    /// Whether the last tokens are dropped first.
    pub enable_sdrop: bool,
    /// Whether `routing_policy` is `TopkRouterV1`.
    pub is_topk_router_v1: bool,
    /// Cold and hot experts; the checkpoint's step comes from the callbacks.
    pub hot: Option<HotExperts>,
    /// `use_fused_ops_permute`.
    pub use_fused_ops_permute: bool,
    /// `callback_moe_droprate`.
    pub callback_moe_droprate: bool,
    /// `save_token_distribution`.
    pub save_token_distribution: bool,
}

impl MixtureSection {
    /// The original's factor where none is written.
    pub const CAPACITY_FACTOR: f64 = 1.1;

    /// Whether no expert is ever full.
    pub fn is_dropless(&self) -> bool {
        self.use_gmm || self.capacity_factor() <= 0.0
    }

    /// `capacity_factor` or its default.
    pub fn capacity_factor(&self) -> f64 {
        self.capacity_factor.unwrap_or(Self::CAPACITY_FACTOR)
    }
}

const MAX_EXPERTS: usize = 512;
const MAX_CHOSEN: usize = 16;

/// Reads both sections; `None` for a dense model.
pub(super) fn read(document: &Document, family: Family, notes: &mut Notes) -> Result<Option<MixtureSection>> {
    let sections = MixtureSections::open(document, notes)?;
    let experts = sections.whole("expert_num")?.unwrap_or(1);
    if experts == 0 {
        let message = format!("expected a whole number from 1 to {MAX_EXPERTS}, found `0`");
        return Err(sections.error("expert_num", message));
    }
    let use_moe: Option<bool> = sections.get("use_moe")?;
    if experts == 1 {
        if use_moe == Some(true) {
            return Err(sections.error("use_moe", "asks for experts; give `expert_num` a number above 1"));
        }
        sections.ignore_all(notes);
        return Ok(None);
    }
    if use_moe == Some(false) {
        return Err(sections.error("use_moe", format!("contradicts `expert_num`, {experts}; remove it")));
    }
    if family != Family::Llama {
        let message = "only Llama's layers can hold experts; write `type: LlamaConfig`, or 1 here";
        return Err(sections.error("expert_num", message));
    }
    let chosen = sections.whole("num_experts_chosen")?.unwrap_or(1);
    for (key, number, most) in
        [("expert_num", experts, MAX_EXPERTS), ("num_experts_chosen", chosen, MAX_CHOSEN)]
    {
        if number == 0 || number > most {
            let message = format!("expected a whole number from 1 to {most}, found `{number}`");
            return Err(sections.error(key, message));
        }
    }
    if chosen > experts {
        let message = format!("a token cannot choose {chosen} of {experts} experts (`expert_num`); lower it");
        return Err(sections.error("num_experts_chosen", message));
    }
    let route = routing::read(&sections, experts as u32, chosen as u32, notes)?;
    let policy = sections.word("routing_policy", &["TopkRouterV2", "TopkRouterV1"])?;
    let is_topk_router_v1 = policy == Some("TopkRouterV1");
    check_router_type(&sections, notes)?;
    let balance_via_topk_bias = sections.or("balance_via_topk_bias", false)?;
    let rate = sections.number("topk_bias_update_rate", 0.0, "a number from 0", |rate| rate >= 0.0)?;
    if !balance_via_topk_bias {
        sections.ignore(&["topk_bias_update_rate"], notes);
    } else if rate == 0.0 {
        let text = "`topk_bias_update_rate` is not above 0, so the bias stays as it is";
        notes.add(format!("{}: {text}", sections.path("balance_via_topk_bias")));
    }
    let mixture = MixtureSection {
        losses: balance::read(&sections, chosen, is_topk_router_v1, notes)?,
        route,
        balance_via_topk_bias,
        topk_bias_update_rate: if balance_via_topk_bias { rate } else { 0.0 },
        moe_intermediate_size: sections.whole("moe_intermediate_size")?,
        first_k_dense_replace: first_dense(&sections)?,
        shared_expert_num: shared_experts(&sections)?,
        moe_shared_expert_intermediate_size: sections.whole("moe_shared_expert_intermediate_size")?,
        use_shared_expert_gating: sections.or("use_shared_expert_gating", false)?,
        use_gmm: sections.or("use_gmm", false)?,
        enable_gmm_safe_tokens: sections.or("enable_gmm_safe_tokens", false)?,
        capacity_factor: sections.get("capacity_factor")?,
        enable_sdrop: drops_last_tokens(&sections)?,
        is_topk_router_v1,
        hot: hot(&sections, notes)?,
        use_fused_ops_permute: sections.or("use_fused_ops_permute", false)?,
        callback_moe_droprate: sections.or("callback_moe_droprate", false)?,
        save_token_distribution: sections.or("save_token_distribution", false)?,
    };
    check_dispatch(&sections, &mixture, notes)?;
    note_idle_policy(&sections, &mixture, notes);
    Ok(Some(mixture))
}

/// The original takes three words and computes in bfloat16 for one of them.
fn check_router_type(sections: &MixtureSections, notes: &mut Notes) -> Result<()> {
    let words = ["float32", "float16", "bfloat16", "fp32"];
    if let Some("float16" | "bfloat16") = sections.word("router_dense_type", &words)? {
        let text = "the router computes in float32, which is more precise";
        notes.add(format!("{}: {text}", sections.path("router_dense_type")));
    }
    Ok(())
}

fn shared_experts(sections: &MixtureSections) -> Result<usize> {
    match sections.whole("shared_expert_num")?.unwrap_or(0) {
        count if count > MAX_EXPERTS => {
            let message = format!("expected a whole number from 0 to {MAX_EXPERTS}, found `{count}`");
            Err(sections.error("shared_expert_num", message))
        }
        count => Ok(count),
    }
}

/// What the way tokens are dispatched leaves without meaning.
fn check_dispatch(sections: &MixtureSections, mixture: &MixtureSection, notes: &mut Notes) -> Result<()> {
    let is_written = mixture.capacity_factor.is_some();
    if mixture.use_gmm && is_written {
        let text = "ignored, as `use_gmm: True` drops no token";
        notes.add(format!("{}: {text}", sections.path("capacity_factor")));
    } else if mixture.is_dropless() && is_written {
        let text = "not above 0, so no token is dropped";
        notes.add(format!("{}: {text}", sections.path("capacity_factor")));
    }
    if mixture.hot.is_some() && mixture.is_dropless() {
        let message = "needs slots to share out; write `use_gmm: False` and a `capacity_factor` above 0";
        return Err(sections.error("enable_cold_hot_expert", message));
    }
    if mixture.is_dropless() {
        for (is_on, key, text) in [
            (mixture.enable_sdrop, "enable_sdrop", "ignored, as no token is dropped"),
            (
                mixture.callback_moe_droprate,
                "callback_moe_droprate",
                "shows rates of 0, as no token is dropped",
            ),
        ] {
            if is_on {
                notes.add(format!("{}: {text}", sections.path(key)));
            }
        }
    } else {
        sections.ignore(&["enable_gmm_safe_tokens"], notes);
        if sections.node("enable_sdrop").and_then(Node::word) == Some("probs") {
            let text = "later choices are dropped first, whatever their probability";
            notes.add(format!("{}: {text}", sections.path("enable_sdrop")));
        }
    }
    if mixture.shared_expert_num == 0 && mixture.moe_shared_expert_intermediate_size.is_none() {
        sections.ignore(&["use_shared_expert_gating"], notes);
    }
    Ok(())
}

/// Says where `TopkRouterV1` has no gates to renormalise.
fn note_idle_policy(sections: &MixtureSections, mixture: &MixtureSection, notes: &mut Notes) {
    let text = match mixture {
        _ if !mixture.is_topk_router_v1 => return,
        _ if mixture.is_dropless() => "`TopkRouterV1` renormalises where tokens are dropped, and none is",
        _ if mixture.route.norm_top_k => return,
        _ if mixture.route.chosen == 1 => "`TopkRouterV1` does not renormalise the gate of one chosen expert",
        _ => "`TopkRouterV1` does not renormalise with `norm_topk_prob: False`",
    };
    notes.add(format!("{}: {text}", sections.path("routing_policy")));
}

/// A number of layers, or a switch for the first.
fn first_dense(sections: &MixtureSections) -> Result<usize> {
    match sections.node("first_k_dense_replace").and_then(bool::from_node) {
        Some(is_dense) => Ok(is_dense.into()),
        None => Ok(sections.whole("first_k_dense_replace")?.unwrap_or(0)),
    }
}

/// `enable_sdrop`, or Megatron's words for it.
fn drops_last_tokens(sections: &MixtureSections) -> Result<bool> {
    match sections.node("enable_sdrop").and_then(Node::word) {
        Some("position") => Ok(true),
        Some("probs") => Ok(false),
        _ => sections.or("enable_sdrop", false),
    }
}

fn hot(sections: &MixtureSections, notes: &mut Notes) -> Result<Option<HotExperts>> {
    let share = |share: f64| share > 0.0 && share <= 1.0;
    let cold_token_share = sections.number("cold_token_percent", 1.0, "a share in (0, 1]", share)?;
    let experts = sections.whole("expert_num")?.unwrap_or(1);
    let count = sections.whole("hot_expert_num")?.unwrap_or(0);
    if count > experts {
        let message = format!("{count} of {experts} experts (`expert_num`) cannot be hot; lower it");
        return Err(sections.error("hot_expert_num", message));
    }
    let update_step: u64 = sections.or("update_step", 10_000)?;
    if update_step == 0 {
        return Err(sections.error("update_step", "expected a whole number above 0, found `0`"));
    }
    if !sections.or("enable_cold_hot_expert", false)? {
        sections.ignore(&["hot_expert_num", "cold_token_percent", "update_step"], notes);
        return Ok(None);
    }
    if count == 0 {
        return Err(sections.error("enable_cold_hot_expert", "needs `hot_expert_num`, at least 1"));
    }
    Ok(Some(HotExperts { count, cold_token_share, update_step, checkpoint_step: None }))
}

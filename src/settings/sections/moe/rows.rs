//! The keys of a mixture.

use super::PATH;
use crate::model::config::GroupScore;
use crate::settings::engine::*;

rows! {
    /// `moe_config`: the mixture of experts. A model is a mixture where `expert_num` is above 1; with 1 the
    /// other keys are ignored with a notice. The same keys may be written under
    /// `model.model_config`. An expert is a SwiGLU without biases, and in the layers of GPT-2, Bloom and PanGu-α two
    /// products with biases and GELU; PanGu-α's last layer stays dense. N: tokens of a micro-batch, E: experts, k:
    /// experts that a token visits.
    pub struct Moe in PATH {
        /// Experts of a layer (E), up to 512.
        expert_num: usize = Shape.default(1).within(EXPERTS).example("16"),
        /// Experts that a token visits (k), up to 16.
        num_experts_chosen: usize = Shape.default(1).within(CHOSEN).example("3"),
        /// Inner width of an expert; by default that of a dense layer.
        moe_intermediate_size: Option<usize> = Shape.optional().within(SIZE).example("40"),
        /// The first so many layers are dense; none by default. `True` is 1.
        first_k_dense_replace: usize = Shape.default(0).read_by(first_dense),
        /// Experts that every token visits, computed as one; in Llama's layers alone.
        shared_expert_num: usize = Shape.default(0).within(SHARED).example("2"),
        /// Width of the shared experts together; by default their number times the width of an expert.
        moe_shared_expert_intermediate_size: Option<usize> = Shape.optional().example("36"),
        /// Whether the output of the shared experts is multiplied with sigmoid(x · w), w learned.
        use_shared_expert_gating: bool = Shape.default(false).example("True\nshared_expert_num: 1"),
        /// Whether scores are sigmoids of the logits instead of their softmax; the words `sigmoid` and `softmax` do
        /// too.
        use_gating_sigmoid: bool = Numbers.default(false).read_by(is_sigmoid),
        /// Whether the gates of a token are made to sum to 1 (before `routed_scaling_factor`), where k > 1. In
        /// GPT-2's layers under `TopkRouterV1` a single gate is 1, too.
        norm_topk_prob: Option<bool> = Numbers.optional().filled("`True`, where k > 1")
            .example("False\nnum_experts_chosen: 2"),
        /// Factor of all gates.
        routed_scaling_factor: f64 = Numbers.default(1.0).within(SCALING),
        /// How experts are chosen: `greedy` among all, or only in the best groups, by a group's best score
        /// (`group_limited_greedy`) or the sum of its two best (`noaux_tc`). Exactly `topk_group` groups are kept,
        /// and no expert outside them is ever chosen.
        topk_method: Option<TopkMethod> = Numbers.optional().example("group_limited_greedy\nn_group: 4\ntopk_group: 2"),
        /// Groups of experts; they divide E.
        n_group: Option<usize> = Numbers.optional()
            .example("4\ntopk_method: noaux_tc\ntopk_group: 2"),
        /// Groups from which a token may choose.
        topk_group: Option<usize> = Numbers.optional()
            .example("1\ntopk_method: noaux_tc\nn_group: 2"),
        /// Whether a bias that no gradient reaches, one number an expert, takes part in the choice. It moves once a
        /// step on the device, and not after an overflow; no callback is needed.
        balance_via_topk_bias: bool = Numbers.default(false),
        /// By how much that bias moves in a step, towards experts that had less than the mean.
        topk_bias_update_rate: Option<f64> = Numbers.optional().within(FROM_ZERO)
            .example("0.01\nbalance_via_topk_bias: True"),
        /// Balance losses: `expert`, over the tokens of a micro-batch. `device` and `comm` balance devices and are
        /// left out with a notice, since what a step computes does not depend on how many there are. A loss joins the
        /// objective because its factor is written.
        aux_loss_types: Vec<String> = Numbers.optional().example("[expert]\naux_loss_factors: [0.1]"),
        /// A factor for each of `aux_loss_types`.
        aux_loss_factors: Vec<f64> = Numbers.optional().within(FACTORS).example("[0.2]\naux_loss_types: [expert]"),
        /// Factor of the balance loss that `moe_router_load_balancing_type` names.
        moe_aux_loss_coeff: Option<f64> = Numbers.optional().within(FROM_ZERO).example("0.1"),
        /// Which loss that is: over each sequence (`seq_aux_loss`, the default), over the micro-batch (`aux_loss`,
        /// `gbs_aux_loss`), or none.
        moe_router_load_balancing_type: Option<Balancing> = Numbers.optional()
            .example("aux_loss\nmoe_aux_loss_coeff: 0.1"),
        /// Factor of the loss on the logits' size (z-loss).
        z_loss_factor: f64 = Numbers.default(0.0).within(FROM_ZERO),
        /// Dropless: experts take every token that chose them, in grouped products; `capacity_factor` is then ignored
        /// with a notice. `False`: an expert has ceil(k N `capacity_factor` / E) slots, at most N, and drops the
        /// rest.
        use_gmm: bool = Numbers.default(false),
        /// One more row of zeros for each expert; no result changes by a bit, and empty experts work without it.
        enable_gmm_safe_tokens: bool = Host.default(false).example("True\nuse_gmm: True"),
        /// The router: the second by default, in the layers of GPT-2, Bloom and PanGu-α the first.
        /// `TopkRouterV2` leaves the gates of what was kept as they are; `TopkRouterV1` makes them sum to what all of
        /// a token's gates would have. Both find the same experts, so without drops, without `norm_topk_prob` or with
        /// k = 1 the word changes nothing, and a notice says so; but in the layers of GPT-2, Bloom and PanGu-α it
        /// makes a single gate 1.
        routing_policy: RoutingPolicy = Numbers.optional().example("TopkRouterV1\nnum_experts_chosen: 2"),
        /// Slots of an expert over its share of the choices. 0 or below drops nothing and is computed as
        /// `use_gmm: True` is.
        capacity_factor: Option<f64> = Numbers.optional().filled("`1.1`").example("1.5"),
        /// Which choices a full expert drops: those of later tokens, not later choices of all tokens. Megatron's
        /// words for it are `position` and `probs`.
        enable_sdrop: bool = Numbers.default(false).read_by(drops_last_tokens),
        /// Two capacities: the busiest experts keep all their slots, the others a share. With
        /// `parallel_config.expert_parallel` above 1 every rank has a copy of the busiest, on which it computes the
        /// rows of its own tokens. Checkpoints have each expert once, whatever is hot.
        enable_cold_hot_expert: bool = Numbers.default(false)
            .example("True\nhot_expert_num: 1\ncold_token_percent: 0.5"),
        /// How many experts are hot; not all of them where experts are spread over ranks.
        hot_expert_num: Option<usize> = Numbers.optional().example("2\nenable_cold_hot_expert: True"),
        /// Slots of the others, as a share: ceil(k N `capacity_factor` / E) times this, rounded
        /// down, but at least one, with a notice.
        cold_token_percent: Option<f64> = Numbers.optional().filled("`1`").within(SHARE_ABOVE_ZERO)
            .example("0.75\nenable_cold_hot_expert: True\nhot_expert_num: 1"),
        /// The hot experts are chosen anew every so many steps, before that at every power of two, and after the
        /// first step of a checkpoint, not at its multiples: see `callbacks.ColdHotExpertMonitor`.
        update_step: Option<u64> = Numbers.optional().filled("`10000`").within(COUNT)
            .example("20\nenable_cold_hot_expert: True\nhot_expert_num: 1"),
        /// Whether each layer's drop rate is logged.
        callback_moe_droprate: bool = Host.default(false),
        /// Whether `.npy` files with the choices of all of a step's tokens are written, for
        /// `gristmill token-distribution`.
        save_token_distribution: bool = Host.default(false),
    }
}

const EXPERTS: Range = Range::new("a whole number from 1 to 512", |n| (1.0..=512.0).contains(&n), 0.0);
const SHARED: Range = Range::new("a whole number from 0 to 512", |n| (0.0..=512.0).contains(&n), 513.0);
const CHOSEN: Range = Range::new("a whole number from 1 to 16", |n| (1.0..=16.0).contains(&n), 17.0);
const FACTORS: Range = Range::new("numbers from 0", |x| x >= 0.0, -1.0);
const SCALING: Range = Range::new(
    "a number above 0 and finite in float32",
    |x| x > 0.0 && x as f32 > 0.0 && (x as f32).is_finite(),
    0.0,
);

/// `topk_method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopkMethod {
    /// A token chooses among all experts.
    Greedy,
    /// A token chooses in the best groups, by this score.
    Grouped(GroupScore),
}

impl Words for TopkMethod {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("greedy", Self::Greedy),
        ("group_limited_greedy", Self::Grouped(GroupScore::Best)),
        ("noaux_tc", Self::Grouped(GroupScore::BestTwo)),
    ];
}

words! {
    /// `moe_router_load_balancing_type`.
    pub enum Balancing {
        /// The loss is over the tokens of each sequence.
        #[default]
        Sequence = "seq_aux_loss" "sub_seq_aux_loss",
        /// The loss is over the tokens of a micro-batch.
        MicroBatch = "aux_loss",
        /// Megatron: the loss is over the tokens of the global batch; here over those of the micro-batch, with a
        /// notice.
        GlobalBatch = "gbs_aux_loss",
        /// There is no such loss.
        None = "none",
    }
}

words! {
    /// `routing_policy`.
    pub enum RoutingPolicy {
        /// Gates of kept choices stay as they are.
        #[default]
        V2 = "TopkRouterV2",
        /// Gates of kept choices are renormalised.
        V1 = "TopkRouterV1",
    }
}

/// A switch, or the name of the function.
fn is_sigmoid(reader: &Reader<'_>, key: &'static str) -> Option<bool> {
    let node = reader.node(key)?;
    match node.word() {
        Some("sigmoid") => Some(true),
        Some("softmax") => Some(false),
        Some(word) if bool::from_node(node).is_none() => {
            reader.fault(key, format!("expected softmax or sigmoid, found `{}`", word.escape_debug()));
            None
        }
        _ => reader.convert(key, node),
    }
}

/// A number of layers, or a switch for the first.
fn first_dense(reader: &Reader<'_>, key: &'static str) -> Option<usize> {
    let node = reader.node(key)?;
    bool::from_node(node).map(usize::from).or_else(|| reader.convert(key, node))
}

/// `enable_sdrop`, or Megatron's words for it.
fn drops_last_tokens(reader: &Reader<'_>, key: &'static str) -> Option<bool> {
    let node = reader.node(key)?;
    match node.word() {
        Some("position") => Some(true),
        Some("probs") => Some(false),
        _ => reader.convert(key, node),
    }
}

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
        /// Number of layers, from the first, that stay dense. `True` is 1.
        first_k_dense_replace: usize = Shape.default(0).read_by(first_dense),
        /// Shared experts, which every token visits, computed as one; only in Llama's layers.
        shared_expert_num: usize = Shape.default(0).within(SHARED).example("2")
            .filled("`0`, 2 in DeepseekV2Config and 1 in DeepseekV3Config"),
        /// Inner width of all shared experts together; by default `shared_expert_num` times the inner width of an
        /// expert.
        moe_shared_expert_intermediate_size: Option<usize> = Shape.optional().example("36"),
        /// Whether the output of the shared experts is multiplied by sigmoid(x · w), with a learned w, as in Qwen2.
        use_shared_expert_gating: bool = Shape.default(false).example("True\nshared_expert_num: 1"),
        /// Whether each layer with experts has a dense network of `intermediate_size` beside them, as in Gemma 4, whose
        /// files call it so. Dense network, experts and router each read the residual stream through a norm of their
        /// own, the outputs of the first two are normalised and added, and the gates of each expert have a learned
        /// factor. Needs norms before and after (`norm_placement: both`).
        enable_moe_block: bool = Shape.default(false),
        /// Whether scores are sigmoids of the logits instead of their softmax; `sigmoid` and `softmax` are accepted,
        /// too.
        use_gating_sigmoid: bool = Numbers.default(false).read_by(is_sigmoid)
            .filled("`False`, of `DeepseekV3Config` `True`"),
        /// ε of SparseMixer, the router of Phi-3.5-MoE, whose files call it `router_jitter_noise`: a token visits the
        /// experts of its two largest logits. The gate of the first is its share in a softmax over the experts near it,
        /// whose logits z are at most 2 ε · max(|z|, z₁) below its own, z₁; that of the second is the same among the
        /// other experts. Experts are chosen so in training, too, where `transformers` draws them.
        sparsemixer_jitter_eps: Option<f64> = Numbers.optional().within(FROM_ZERO)
            .example("0.05\nnum_experts_chosen: 2"),
        /// Whether the gates of a token are normalised to sum to 1 (before `routed_scaling_factor`), where k > 1; not
        /// beside `sparsemixer_jitter_eps`. In GPT-2's layers under `TopkRouterV1` a single gate is set to 1, too.
        norm_topk_prob: Option<bool> = Numbers.optional()
            .filled("`True`, where k > 1, of `DeepseekV2Config` `False`")
            .example("False\nnum_experts_chosen: 2"),
        /// The least number that the gates of a token are divided by where they are normalised, as in ERNIE 4.5, whose
        /// files call it so: they are divided by their sum, or by this if it is larger. Where none is written, by
        /// their sum plus 1e-9, or in `Lfm2Config` plus 1e-6.
        moe_norm_min: Option<f64> = Numbers.optional().within(NORM_MIN)
            .filled("none, 1e-12 in `Ernie4_5Config`")
            .example("0.25\nnum_experts_chosen: 2"),
        /// Factor of all gates, after their normalisation.
        routed_scaling_factor: f64 = Numbers.default(1.0).within(SCALING).filled("`1.0`, of `DeepseekV3Config` `2.5`"),
        /// How experts are chosen: `greedy` among all, or only in the `topk_group` best of `n_group` groups, by a
        /// group's best score (`group_limited_greedy`) or the sum of its two best (`noaux_tc`). No expert outside these
        /// groups is ever chosen.
        topk_method: Option<TopkMethod> = Numbers.optional().example("group_limited_greedy\nn_group: 4\ntopk_group: 2"),
        /// Number of groups of experts, a divisor of E.
        n_group: Option<usize> = Numbers.optional()
            .example("4\ntopk_method: noaux_tc\ntopk_group: 2"),
        /// Number of groups in which a token may choose, at most `n_group`; they have at least k experts.
        topk_group: Option<usize> = Numbers.optional()
            .example("1\ntopk_method: noaux_tc\nn_group: 2"),
        /// Whether a bias of each expert, without gradient, is added to the scores for the choice, but not for the
        /// gates. It is updated on the device after each step that does not overflow; no callback is needed.
        balance_via_topk_bias: bool = Numbers.default(false).filled("`False`, of `DeepseekV3Config` `True`"),
        /// Change of the bias of `balance_via_topk_bias` in a step, up for experts with less than the mean load, down
        /// for those with more.
        topk_bias_update_rate: Option<f64> = Numbers.optional().within(FROM_ZERO)
            .filled("`0.0`, of `DeepseekV3Config` `0.001`")
            .example("0.01\nbalance_via_topk_bias: True"),
        /// Balance losses: `expert`, E Σ f p over the tokens of a micro-batch, with f the share of choices and p the
        /// mean probability of each expert (Fedus et al., 2021). `device` and `comm` balance devices and are left out
        /// with a notice, since the result of a step does not depend on the number of devices. A loss joins the
        /// objective because its factor is written.
        aux_loss_types: Vec<String> = Numbers.optional().example("[expert]\naux_loss_factors: [0.1]"),
        /// Factor of each of `aux_loss_types`.
        aux_loss_factors: Vec<f64> = Numbers.optional().within(FACTORS).example("[0.2]\naux_loss_types: [expert]"),
        /// Factor of the balance loss that `moe_router_load_balancing_type` names.
        moe_aux_loss_coeff: Option<f64> = Numbers.optional().within(FROM_ZERO).example("0.1"),
        /// Balance loss of `moe_aux_loss_coeff`: over each sequence (`seq_aux_loss`, the default), over the micro-batch
        /// (`aux_loss`; `gbs_aux_loss` with a notice), or `none`.
        moe_router_load_balancing_type: Option<Balancing> = Numbers.optional()
            .example("aux_loss\nmoe_aux_loss_coeff: 0.1"),
        /// Factor of the z-loss, the mean of (ln Σ exp logits)² (Zoph et al., 2022).
        z_loss_factor: f64 = Numbers.default(0.0).within(FROM_ZERO),
        /// Whether experts process every token that chose them (dropless), by grouped products; `capacity_factor` is
        /// then ignored with a notice. `False`: an expert has ceil(k N `capacity_factor` / E) slots, at most N, and
        /// drops the other choices.
        use_gmm: bool = Numbers.default(false),
        /// Whether each expert gets one more row, of zeros; results stay bitwise the same, and experts without tokens
        /// need none.
        enable_gmm_safe_tokens: bool = Host.default(false).example("True\nuse_gmm: True"),
        /// Gates after drops: `TopkRouterV2`, the default, leaves those of kept choices as they are; `TopkRouterV1`,
        /// the default in the layers of GPT-2, Bloom and PanGu-α, renormalises them to the sum of all of a token's
        /// gates. Both choose the same experts, so without drops, without `norm_topk_prob` or with k = 1 the policy has
        /// no effect, and a notice says so; but in the layers of GPT-2, Bloom and PanGu-α V1 sets a single gate to 1.
        routing_policy: RoutingPolicy = Numbers.optional().example("TopkRouterV1\nnum_experts_chosen: 2"),
        /// Slots of an expert divided by k N / E, its choices under a uniform load. 0 or below drops nothing, as
        /// `use_gmm: True`.
        capacity_factor: Option<f64> = Numbers.optional().filled("`1.1`").example("1.5"),
        /// Choices that a full expert drops first: those of later tokens (`True`, Megatron's `position`), or later
        /// choices of all tokens (`False`, Megatron's `probs`).
        enable_sdrop: bool = Numbers.default(false).read_by(drops_last_tokens),
        /// Whether the busiest experts (hot) keep all their slots and the others (cold) only a share. With
        /// `parallel_config.expert_parallel` above 1 every rank has a copy of the hot experts, on which it computes the
        /// rows of its own tokens. Checkpoints have each expert once, whatever is hot.
        enable_cold_hot_expert: bool = Numbers.default(false)
            .example("True\nhot_expert_num: 1\ncold_token_percent: 0.5"),
        /// Number of hot experts, up to E; below E where ranks share the experts.
        hot_expert_num: Option<usize> = Numbers.optional().example("2\nenable_cold_hot_expert: True"),
        /// Slots of a cold expert as a share of ceil(k N `capacity_factor` / E), rounded down; at least one slot, with
        /// a notice where the share comes to less.
        cold_token_percent: Option<f64> = Numbers.optional().filled("`1`").within(SHARE_ABOVE_ZERO)
            .example("0.75\nenable_cold_hot_expert: True\nhot_expert_num: 1"),
        /// Hot experts are selected anew after every step that is a multiple of this, after every power of two below
        /// it, and after one step more, that of `callbacks.ColdHotExpertMonitor`, but not after its multiples.
        update_step: Option<u64> = Numbers.optional().filled("`10000`").within(COUNT)
            .example("20\nenable_cold_hot_expert: True\nhot_expert_num: 1"),
        /// Whether each layer's drop rate is logged.
        callback_moe_droprate: bool = Host.default(false),
        /// Whether the choices of all tokens of a step are written as `.npy` files for `gristmill token-distribution`,
        /// when and where `callbacks.SummaryMonitor` says.
        save_token_distribution: bool = Host.default(false),
    }
}

const EXPERTS: Range = Range::new("a whole number from 1 to 512", |n| (1.0..=512.0).contains(&n), 0.0);
const SHARED: Range = Range::new("a whole number from 0 to 512", |n| (0.0..=512.0).contains(&n), 513.0);
const CHOSEN: Range = Range::new("a whole number from 1 to 16", |n| (1.0..=16.0).contains(&n), 17.0);
const FACTORS: Range = Range::new("numbers from 0", |x| x >= 0.0, -1.0);
const NORM_MIN: Range =
    Range::new("a number above 0 and up to 1", |x| x > 0.0 && x as f32 > 0.0 && x <= 1.0, 0.0);
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

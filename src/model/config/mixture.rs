//! The resolved configuration of a mixture of experts.

use super::{Activation, Family, Gate, ModelConfig, Norm, NormPlacement, QkNorm};
use crate::ops::permute::{DropOrder, HotAndCold, PlacementConfig, RowAllocation, Slots, capacity_slots};
use crate::ops::route::{RouterConfig, Score};
use std::ops::Range;

/// A mixture of experts: feed-forward networks of which each token visits only a few (Shazeer et al., "Outrageously
/// Large Neural Networks", 2017).
///
/// A layer scores the experts for each token, places the k choices of all tokens in rows sorted by expert, multiplies
/// the rows with the matrices of their experts, and sums the results of each token, weighted by gates
/// ([`route`](crate::ops::route), [`permute`](crate::ops::permute), [`grouped_matmul`](crate::ops::grouped_matmul)).
/// All of this is decided on the device.
///
/// # What the configuration's keys select
///
/// [`Moe`](crate::settings::Moe) reads `moe_config`. Two of its keys select
/// [`dispatch`](Self::dispatch), a third one whether gates are renormalised after drops.
///
/// | keys | selected |
/// |---|---|
/// | `use_gmm: True` | [`TokenDispatch::Dropless`]; a `capacity_factor` is ignored with a notice |
/// | `use_gmm: False`, `capacity_factor` 0 or below | [`TokenDispatch::Dropless`], with the same results |
/// | `use_gmm: False`, `capacity_factor` above 0 (default 1.1) | [`TokenDispatch::Capacity`] |
/// | `routing_policy: TopkRouterV2`, the default | gates of dropped choices are 0, the other gates of the token do not change |
/// | `routing_policy: TopkRouterV1` | gates of a token's kept choices are renormalised to the sum that all would have ([`Capacity::renormalises`]), if gates are normalised at all (`norm_topk_prob`, k > 1) |
///
/// Both policies choose the same experts, place the same rows and drop the same choices, so layers differ only if
/// something is dropped. In MindSpore Transformers they are two implementations that differ in more:
///
/// * V1 chooses in k rounds, and a token that finds an expert full may choose it again in the next round. Here the k
///   choices of a token are k different experts, under V1 too.
/// * Only V1 writes token distributions and has cold and hot experts; only V2 has groups, the z-loss and the bias of
///   the choice. Here each of these works with either policy.
/// * V1 has a balance loss of its own, `aux_loss_factor`, once for each round. Here it is read under V1, if
///   `return_extra_loss: True` asks for it and no other key gives an `expert` loss, as k times that loss. Otherwise it
///   is ignored with a notice.
/// * V1 drops elements of each expert's output. Here dropout is of their sum.
///
/// An expert has the activation of the model's dense layers: SwiGLU without biases, in gpt-oss its clamped form with a
/// bias in all projections and in the router, or, in the layers of GPT-2, Bloom
/// and PanGu-α, GELU of one projection, with a bias in both projections
/// ([`grouped_linear_gelu`](crate::tape::Tape::grouped_linear_gelu)). These models use V1 unless V2 is written, and
/// with V1 the gate of a single choice is 1. PanGu-α's last layer, whose queries are learned, is dense.
///
/// A configuration shaped like Mixtral, with capacities and the gates of V2:
///
/// ```
/// use gristmill::settings::{Override, RunConfig, RunPlan};
/// use gristmill::model::config::TokenDispatch;
/// use std::path::Path;
///
/// # fn main() -> gristmill::error::Result<()> {
/// let text = "
/// model:
///   model_config: { vocab_size: 256, hidden_size: 64, num_layers: 2, num_heads: 4, seq_length: 32 }
/// moe_config: { expert_num: 8, num_experts_chosen: 2, capacity_factor: 1.25, routing_policy: TopkRouterV2 }
/// lr_schedule: { learning_rate: 1e-3 }
/// train_dataset:
///   data_loader: { type: CargoRegistryDataLoader }
/// ";
/// let plan = |flags: &[&str]| -> gristmill::error::Result<RunPlan> {
///     Ok(RunConfig::parse(text, Path::new("small.yaml"), &Override::parse_all(flags.iter().copied())?)?.plan)
/// };
/// let mixture = plan(&[])?.model.mixture.expect("8 experts");
/// assert_eq!((mixture.experts(), mixture.chosen()), (8, 2));
/// let TokenDispatch::Capacity(capacity) = mixture.dispatch else { panic!("a factor above 0 limits experts") };
/// assert!(!capacity.renormalises);
///
/// let mixture = plan(&["--moe_config.capacity_factor=0"])?.model.mixture.expect("8 experts");
/// assert_eq!(mixture.dispatch, TokenDispatch::Dropless { safe_tokens: false });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct MixtureConfig {
    /// The router: k of E experts for each token, and their gates.
    pub route: RouterConfig,
    /// Whether a bias for each expert, which has no gradient, is added to the scores by which experts are chosen.
    pub has_bias: bool,
    /// Change of that bias after a step, towards experts with less than the mean load; 0: it does not change.
    pub bias_update_rate: f64,
    /// Inner width of an expert (F).
    pub intermediate_size: usize,
    /// The number of layers, from the first, that have a dense feed-forward network instead.
    pub first_dense_layers: usize,
    /// The shared expert, which every token visits.
    pub shared: Option<SharedExpert>,
    /// Whether each of these layers has a dense network, too, as in Gemma 4: both read the residual stream through
    /// norms of their own, and the sum of their normalised outputs is the layer's. The router has a norm, and a factor
    /// for each expert.
    pub is_beside_dense: bool,
    /// The load-balancing losses in the objective.
    pub losses: BalanceLosses,
    /// Which tokens an expert processes.
    pub dispatch: TokenDispatch,
    /// Standard deviation of the router's initial weights.
    pub router_init_std: f64,
}

impl MixtureConfig {
    /// Experts of a layer (E).
    pub fn experts(&self) -> usize {
        self.route.experts as usize
    }

    /// Experts that a token visits (k).
    pub fn chosen(&self) -> usize {
        self.route.chosen as usize
    }

    /// How the choices of `tokens` tokens are placed in rows: by [`dispatch`](Self::dispatch) or, if `is_dropless`,
    /// such that every choice has a row.
    pub fn placement(&self, tokens: u32, is_dropless: bool) -> PlacementConfig {
        let RouterConfig { experts, chosen, .. } = self.route;
        let allocation = match self.dispatch {
            _ if is_dropless => RowAllocation::Dropless { safe_tokens: false },
            TokenDispatch::Dropless { safe_tokens } => RowAllocation::Dropless { safe_tokens },
            TokenDispatch::Capacity(capacity) => capacity.allocation(chosen, tokens, experts),
        };
        PlacementConfig { tokens, chosen, experts, allocation }
    }

    /// Slots of a hot expert in micro-batches of `tokens` tokens, if some experts are hot.
    pub(crate) fn hot_slots(&self, tokens: u32) -> Option<u32> {
        self.placement(tokens, false).hot_and_cold().map(|two| two.capacity)
    }

    /// The sum to which the gates of a token are renormalised after some of its choices were dropped; `None`: they are
    /// not renormalised.
    pub(crate) fn renormalised_sum(&self) -> Option<f32> {
        match self.dispatch {
            TokenDispatch::Capacity(capacity) if capacity.renormalises && self.route.norm.is_some() => {
                Some(self.route.scaling)
            }
            _ => None,
        }
    }
}

impl ModelConfig {
    /// The layers that have experts; numbers from `num_layers` on are blocks of multi-token prediction. The layer with
    /// learned queries is dense, as in MindFormers.
    pub(crate) fn mixture_layers(&self) -> Range<usize> {
        let Some(mixture) = &self.mixture else { return 0..0 };
        let depth = self.multi_token.map_or(0, |ahead| ahead.depth);
        let end = self.num_layers.saturating_add(depth).saturating_sub(usize::from(self.learns_queries()));
        mixture.first_dense_layers..end.max(mixture.first_dense_layers)
    }

    /// Whether layers with experts have a dense network beside them.
    pub(crate) fn has_dense_beside_experts(&self) -> bool {
        self.mixture.as_ref().is_some_and(|mixture| mixture.is_beside_dense)
    }

    /// Whether `layer` has a dense network.
    pub(crate) fn has_dense(&self, layer: usize) -> bool {
        self.mixture_of(layer).is_none_or(|mixture| mixture.is_beside_dense)
    }

    /// Whether the first and the second product of an expert have biases: as in dense layers, except that of experts
    /// with a gate only those of gpt-oss have some.
    pub(crate) fn expert_biases(&self) -> [bool; 2] {
        match self.activation {
            Activation::Gated(_) => [self.family == Family::GptOss; 2],
            Activation::Gelu(_) | Activation::Xielu => [self.gate_up_bias, self.down_bias],
        }
    }

    /// Whether the logits of the router have a bias. It has a gradient, and is another thing than the bias of the
    /// choice.
    pub(crate) fn router_has_bias(&self) -> bool {
        self.family == Family::GptOss
    }

    /// The activation of the shared expert's gate, that of dense layers where these have one.
    pub(crate) fn shared_gate(&self) -> Gate {
        self.activation.gate().unwrap_or_default()
    }

    /// Whether Mixtral's architecture computes this model: softmax scores, normalised gates, the same experts in every
    /// layer and nothing beside them, attention without biases and QK-norm (Jiang et al., "Mixtral of Experts", 2024).
    pub(crate) fn is_mixtral(&self) -> bool {
        let is_plain_attention = !self.qkv_bias
            && !self.qk_norm
            && self.layer.rotary_dim == self.layer.head_dim
            && self.has_plain_norms();
        let is_plain = |mixture: &MixtureConfig| mixture.route.score == Score::Softmax && !mixture.has_bias;
        self.mixture.as_ref().is_some_and(is_plain) && self.has_only_experts() && is_plain_attention
    }

    /// Whether MiniMax-M2's architecture computes this model: sigmoid scores with a bias of the choice, normalised
    /// gates, the same experts in every layer and nothing beside them, q and k normalised over all heads, no biases
    /// (MiniMax, 2025).
    pub(crate) fn is_minimax_m2(&self) -> bool {
        let normalises = self.qk_norm && self.qk_norm_kind == QkNorm::AllHeads && self.has_plain_norms();
        let is_biased = |mixture: &MixtureConfig| mixture.route.score == Score::Sigmoid && mixture.has_bias;
        self.mixture.as_ref().is_some_and(is_biased)
            && self.has_only_experts()
            && normalises
            && !self.qkv_bias
    }

    /// Whether the router is that of Phi-3.5-MoE (Microsoft, 2024), whose files have Mixtral's names.
    pub(crate) fn has_sparse_mixer(&self) -> bool {
        let is_mixer = |score| matches!(score, Score::SparseMixer { .. });
        self.mixture.as_ref().is_some_and(|mixture| is_mixer(mixture.route.score))
    }

    /// Whether every layer has experts and nothing beside them, chosen without groups, whose gates sum to 1.
    fn has_only_experts(&self) -> bool {
        self.activation.gate().is_some()
            && self.mixture.as_ref().is_some_and(|mixture| {
                let RouterConfig { groups, norm, scaling, .. } = mixture.route;
                let has_others = mixture.shared.is_some() || mixture.is_beside_dense;
                let is_alone = !has_others && mixture.first_dense_layers == 0;
                groups.is_none() && norm.is_some() && scaling == 1.0 && is_alone
            })
            && self.multi_token.is_none()
    }

    fn has_plain_norms(&self) -> bool {
        let are_plain = self.norm == Norm::RmsNorm && !self.zero_centered_norms;
        are_plain && self.norm_placement == NormPlacement::Before && self.parallel_residual.is_none()
    }
}

/// The shared expert, which every token visits (DeepSeekMoE, 2024).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Inner width (S): that of an expert times the number of shared experts.
    pub intermediate_size: usize,
    /// Whether its output is multiplied by sigmoid(x · w), with a learned w (D), as in Qwen2.
    pub is_gated: bool,
}

/// Factors of the load-balancing losses; 0 leaves a loss out of the objective.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BalanceLosses {
    /// Factor of E · Σ f·p over the tokens of a micro-batch: f the share of choices, p the mean probability of each
    /// expert (Fedus et al., "Switch Transformers", 2021).
    pub expert: f64,
    /// Factor of the same loss over the tokens of each sequence, averaged over sequences (DeepSeek-V3, 2024).
    pub sequence: f64,
    /// Factor of the mean of (ln Σ exp logits)² (Zoph et al., "ST-MoE", 2022).
    pub z: f64,
}

/// Which tokens an expert processes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TokenDispatch {
    /// All tokens that chose it.
    Dropless {
        /// Whether each expert gets one more row, of zeros, as its last. Results do not change.
        safe_tokens: bool,
    },
    /// At most a capacity; the others are dropped.
    Capacity(Capacity),
}

/// The capacity of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Capacity factor: slots of an expert over the choices it gets under a uniform load; above 0.
    pub factor: f64,
    /// Which choices are dropped first.
    pub order: DropOrder,
    /// Whether the gates of a token's kept choices are renormalised to the sum that all its gates would have, if gates
    /// are normalised at all.
    pub renormalises: bool,
    /// Hot experts, which have a larger capacity.
    pub hot: Option<HotExperts>,
}

impl Capacity {
    fn allocation(&self, chosen: u32, tokens: u32, experts: u32) -> RowAllocation {
        let slots = capacity_slots(chosen, tokens, self.factor, experts, 1);
        let slots = match self.hot {
            // With a slot for every token nothing is dropped, and unused slots would only be padding.
            None if slots >= tokens => return RowAllocation::Dropless { safe_tokens: false },
            None => Slots::Equal(slots),
            Some(hot) => Slots::HotAndCold(HotAndCold::new(hot.count as u32, slots, hot.cold_token_share)),
        };
        RowAllocation::Capacity { slots, order: self.order }
    }
}

/// Hot experts: the busiest keep the whole capacity, the others have less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotExperts {
    /// Number of hot experts.
    pub count: usize,
    /// Capacity of the other experts, as a share in (0, 1].
    pub cold_token_share: f64,
    /// Hot experts are selected anew after every step whose number is a multiple of this, and before the first of these
    /// after every power of two.
    pub update_step: u64,
    /// Hot experts are also selected after this step, at which a checkpoint is written.
    pub checkpoint_step: Option<u64>,
}

/// Multi-token prediction: blocks after the last layer, each of which predicts one token further than the previous one
/// (DeepSeek-V3, 2024, section 2.2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MultiToken {
    /// Number of blocks: block i, from 0, predicts i + 1 tokens further than the model.
    pub depth: usize,
    /// Factor of the blocks' mean loss in the objective.
    pub loss_factor: f64,
}

//! The shape of a mixture of experts, every number decided.

use crate::ops::permute::{DropOrder, HotAndCold, PlacementConfig, RowAllocation, Slots, capacity_slots};
use crate::ops::route::RouterConfig;

/// Feed-forward networks of which each token visits a few (Shazeer et al., "Outrageously Large Neural Networks", 2017).
///
/// A layer scores the experts for each token, places the k choices of all tokens in rows sorted by expert, multiplies each
/// row with its expert's matrices, and adds up what comes out, times the gates ([`route`](crate::ops::route),
/// [`permute`](crate::ops::permute), [`grouped_matmul`](crate::ops::grouped_matmul)). All of that is decided on the device.
///
/// # What the configuration's keys select
///
/// [`MixtureSection`](crate::settings::MixtureSection) reads `moe_config`; two of its keys decide [`dispatch`](Self::dispatch),
/// a third one how gates end.
///
/// | keys | selected |
/// |---|---|
/// | `use_gmm: True` | [`TokenDispatch::Dropless`]; a `capacity_factor` is ignored with a notice |
/// | `use_gmm: False`, `capacity_factor` 0 or below | [`TokenDispatch::Dropless`] too, and so the same numbers |
/// | `use_gmm: False`, `capacity_factor` above 0 (1.1 unless written) | [`TokenDispatch::Capacity`] |
/// | `routing_policy: TopkRouterV2`, the default | gates of dropped choices are 0, the others of the token stay as they are |
/// | `routing_policy: TopkRouterV1` | gates of a token's choices that were not dropped are made to sum to what all would have ([`Capacity::renormalises`]), if gates are normalised at all (`norm_topk_prob`, k > 1) |
///
/// The two policies choose the same experts, place the same rows and drop the same choices, so layers differ only where
/// something is dropped. In the original they are two implementations, and more hangs on the word:
///
/// * V1 chooses in k rounds, and a token that found an expert full may choose it again in the next one. Here none does: the k
///   choices of a token are k experts, under V1 too.
/// * V1 alone writes token distributions and knows cold and hot experts; V2 alone knows groups, the z-loss and the bias of the
///   choice. Here each of these works with either policy.
/// * V1 has a balance loss of its own, `aux_loss_factor`, once for each round. Here it is read under V1, where
///   `return_extra_loss: True` asks for it and no other key gives an `expert` loss, as k times that loss. Otherwise it is
///   ignored with a notice.
/// * V1's experts are two matrices with biases. Here an expert is SwiGLU without biases, as in V2.
///
/// A configuration of Mixtral's shape, with V2's rules and capacities:
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
    /// Which experts a token visits, and how much each counts: E experts, k of them for a token.
    pub route: RouterConfig,
    /// Whether a bias that no gradient reaches, one number an expert, takes part in the choice.
    pub has_bias: bool,
    /// By how much that bias moves after a step towards experts that had too little to do; 0: it stays.
    pub bias_update_rate: f64,
    /// Inner width of an expert (F).
    pub intermediate_size: usize,
    /// So many layers, the first ones, have a dense feed-forward network instead.
    pub first_dense_layers: usize,
    /// The expert that every token visits, if there is one.
    pub shared: Option<SharedExpert>,
    /// What the objective adds to keep the experts equally busy.
    pub losses: BalanceLosses,
    /// Which tokens an expert takes.
    pub dispatch: TokenDispatch,
    /// Whether permuting and combining are one kernel each, not several.
    pub fuses_permutation: bool,
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

    /// How the choices of `tokens` tokens are placed in rows: by [`dispatch`](Self::dispatch) or, if `is_dropless`, so that
    /// every choice has a row.
    pub fn placement(&self, tokens: u32, is_dropless: bool) -> PlacementConfig {
        let RouterConfig { experts, chosen, .. } = self.route;
        let allocation = match self.dispatch {
            _ if is_dropless => RowAllocation::Dropless { safe_tokens: false },
            TokenDispatch::Dropless { safe_tokens } => RowAllocation::Dropless { safe_tokens },
            TokenDispatch::Capacity(capacity) => capacity.allocation(chosen, tokens, experts),
        };
        PlacementConfig { tokens, chosen, experts, allocation, is_fused: self.fuses_permutation }
    }

    /// What the gates of a token are made to sum to after some of its choices were dropped; `None`: they stay as they are.
    pub fn renormalised_sum(&self) -> Option<f32> {
        match self.dispatch {
            TokenDispatch::Capacity(capacity) if capacity.renormalises && self.route.norm_top_k => {
                Some(self.route.scaling)
            }
            _ => None,
        }
    }
}

/// The expert that every token visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Its inner width: that of an expert times their number.
    pub intermediate_size: usize,
    /// Whether its output is multiplied with sigmoid(x · w), w (D) learned.
    pub is_gated: bool,
}

/// Factors of the losses that keep experts equally busy; 0: the loss is left out of the objective.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BalanceLosses {
    /// Of E · Σ f·p over the tokens of a micro-batch: f the share of choices, p the mean probability of each expert
    /// (Fedus et al., "Switch Transformers", 2021).
    pub expert: f64,
    /// The same over the tokens of each sequence, averaged over sequences.
    pub sequence: f64,
    /// Of the mean of (ln Σ exp logits)² (Zoph et al., "ST-MoE", 2022).
    pub z: f64,
}

/// Which tokens an expert takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TokenDispatch {
    /// All that chose it.
    Dropless {
        /// Each expert gets one more row, of zeros, the last of its group.
        safe_tokens: bool,
    },
    /// So many at most; the rest is dropped.
    Capacity(Capacity),
}

/// How many tokens an expert takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Slots of an expert over the number of choices it would get if all got as many; above 0.
    pub factor: f64,
    /// Who is dropped first.
    pub order: DropOrder,
    /// Whether the gates of a token's choices that were not dropped are made to sum to what all would have, where gates are
    /// normalised at all.
    pub renormalises: bool,
    /// Experts with more slots than the others, if there are such.
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

/// Experts that were busiest lately keep all their slots; the others have fewer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotExperts {
    /// How many are hot.
    pub count: usize,
    /// Slots of the others, as a share in (0, 1].
    pub cold_token_share: f64,
    /// The busiest are chosen anew every so many steps, before that at every power of two.
    pub update_step: u64,
    /// And after this step, where checkpoints are written.
    pub checkpoint_step: Option<u64>,
}

/// Blocks after the last layer that predict tokens further ahead (DeepSeek-V3, 2024, section 2.2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MultiToken {
    /// How many: block i predicts i tokens further than the model.
    pub depth: usize,
    /// What their mean loss counts in the objective.
    pub loss_factor: f64,
}

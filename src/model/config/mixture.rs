//! The shape of a mixture of experts, every number decided.

use crate::ops::route::Route;

/// Feed-forward networks of which each token visits a few (Shazeer et al., "Outrageously Large Neural Networks", 2017).
#[derive(Clone, Debug, PartialEq)]
pub struct MixtureConfig {
    /// Which experts a token visits, and how much each counts: E experts, k of them for a token.
    pub route: Route,
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
    pub dispatch: Dispatch,
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
pub enum Dispatch {
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

/// Who is dropped first where an expert has more choices than slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropOrder {
    /// Later choices: all tokens' first choices come before any second choice.
    Choice,
    /// Later tokens: all choices of a token come before any of the next.
    Token,
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

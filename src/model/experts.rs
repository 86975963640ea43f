//! Mixtures of experts beside their parameters: what is decided once, and what routers remember between micro-batches.

use super::config::{BalanceLosses, HotExperts, MixtureConfig, ModelConfig, TokenDispatch};
use crate::element::Element;
use crate::ops::balance::Balance;
use crate::ops::hot_experts::HotSteps;
use crate::ops::permute::{HotAndCold, PlacementConfig, RowAllocation, Slots, capacity_slots};
use crate::ops::route::RouterConfig;
use crate::ops::swiglu::gate_up_cols;
use crate::ops::tally::tally_columns;
use crate::record::{BINDING_ALIGNMENT, BufferId, Persistents, Tensor};
use crate::tape::RouterLosses;

/// What all mixtures of a model share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experts {
    pub route: RouterConfig,
    /// F: inner width of an expert.
    pub inner: u32,
    /// Inner width of the expert that every token visits; 0 if there is none.
    pub shared_inner: u32,
    /// What gates of a token are made to sum to where some of its choices were dropped, if they are.
    pub renormalised_to: Option<f32>,
    pub state: ExpertState,
    allocation: RowAllocation,
    is_fused: bool,
    losses: BalanceLosses,
    /// T.
    sequence_length: u32,
    /// `StepState` and the micro-batches of a step, in training.
    training: Option<(Tensor, u32)>,
}

impl Experts {
    /// Those of `config` for micro-batches of `tokens`; adds what they remember to the persistent buffers.
    pub fn new(config: &ModelConfig, tokens: u32, persistents: &mut Persistents) -> Option<Self> {
        let mixture = config.mixture.as_ref()?;
        let allocation = row_allocation(mixture, tokens);
        let renormalises =
            matches!(mixture.dispatch, TokenDispatch::Capacity(capacity) if capacity.renormalises);
        Some(Self {
            route: mixture.route,
            inner: mixture.intermediate_size as u32,
            shared_inner: mixture.shared.map_or(0, |shared| shared.intermediate_size as u32),
            renormalised_to: (renormalises && mixture.route.norm_top_k).then_some(mixture.route.scaling),
            state: ExpertState::new(config, mixture, allocation, persistents),
            allocation,
            is_fused: mixture.fuses_permutation,
            losses: mixture.losses,
            sequence_length: config.seq_length as u32,
            training: None,
        })
    }

    pub fn balancing(self, step: Tensor, accumulation: u32) -> Self {
        Self { training: Some((step, accumulation)), ..self }
    }

    pub fn dropless(self) -> Self {
        Self { allocation: RowAllocation::Dropless { safe_tokens: false }, renormalised_to: None, ..self }
    }

    /// How the choices of `tokens` tokens are placed in rows.
    pub fn placement(&self, tokens: u32) -> PlacementConfig {
        let RouterConfig { experts, chosen, .. } = self.route;
        PlacementConfig { tokens, chosen, experts, allocation: self.allocation, is_fused: self.is_fused }
    }

    /// How many rows each expert has, where that changes from step to step.
    pub fn varying_capacities(&self, layer: usize) -> Option<Tensor> {
        let varies = matches!(self.allocation, RowAllocation::Capacity { slots: Slots::HotAndCold(_), .. });
        self.state.capacities(layer).filter(|_| varies)
    }

    /// What the router of `layer` adds to the objective and to its tally, in training.
    pub fn losses(&self, layer: usize) -> Option<RouterLosses> {
        let (step, accumulation) = self.training?;
        let BalanceLosses { expert, sequence, z } = self.losses;
        let balance = Balance {
            expert: expert as f32,
            sequence: sequence as f32,
            z: z as f32,
            tokens: self.sequence_length,
            accumulation,
        };
        Some(RouterLosses { balance, step, tally: self.state.tally(layer) })
    }
}

/// What the routers of a model remember, on the device: a row a layer in each of three buffers.
#[derive(Clone, Copy, Debug)]
pub struct ExpertState {
    experts: u32,
    /// The first layer that has experts, and how many have.
    layers: (usize, usize),
    tallies: BufferId,
    biases: Option<BufferId>,
    capacities: Option<BufferId>,
    slots: Option<Slots>,
    hot_steps: Option<HotSteps>,
    bias_update_rate: f32,
}

impl ExpertState {
    fn new(
        config: &ModelConfig,
        mixture: &MixtureConfig,
        allocation: RowAllocation,
        persistents: &mut Persistents,
    ) -> Self {
        let depth = config.multi_token.map_or(0, |multi_token| multi_token.depth);
        let first = mixture.first_dense_layers;
        let count = config.num_layers + depth - first;
        let mut rows = |label: &str, cols: u32| {
            BufferId::Persistent(persistents.add(label, count as u64 * slot_bytes(cols)))
        };
        let experts = mixture.route.experts;
        let slots = match allocation {
            RowAllocation::Dropless { .. } => None,
            RowAllocation::Capacity { slots, .. } => Some(slots),
        };
        Self {
            experts,
            layers: (first, count),
            tallies: rows("expert tallies", tally_columns(experts)),
            biases: mixture.has_bias.then(|| rows("expert biases", experts)),
            capacities: slots.map(|_| rows("expert capacities", experts)),
            slots,
            hot_steps: hot(mixture)
                .map(|hot| HotSteps { update_step: hot.update_step, checkpoint_step: hot.checkpoint_step }),
            bias_update_rate: mixture.bias_update_rate as f32,
        }
    }

    /// E.
    pub fn experts(&self) -> u32 {
        self.experts
    }

    /// The layers that have experts, by number.
    pub fn layers(&self) -> std::ops::Range<usize> {
        let (first, count) = self.layers;
        first..first + count
    }

    /// What the experts of a layer did in the step: see [`TallyColumns`](crate::ops::tally::TallyColumns).
    pub fn tally(&self, layer: usize) -> Tensor {
        self.row(self.tallies, layer, tally_columns(self.experts))
    }

    /// The buffer of all tallies, and its bytes.
    pub fn tallies(&self) -> (BufferId, u64) {
        (self.tallies, self.layers.1 as u64 * slot_bytes(tally_columns(self.experts)))
    }

    /// Bytes from one layer's tally to the next.
    pub fn tally_bytes(&self) -> u64 {
        slot_bytes(tally_columns(self.experts))
    }

    /// What is added to a layer's scores where experts are chosen (1, E), if anything is.
    pub fn bias(&self, layer: usize) -> Option<Tensor> {
        self.biases.map(|biases| self.row(biases, layer, self.experts))
    }

    /// By how much those biases move after a step, if they do.
    pub fn bias_update_rate(&self) -> Option<f32> {
        (self.biases.is_some() && self.bias_update_rate > 0.0).then_some(self.bias_update_rate)
    }

    /// How many rows each expert of a layer has (1, E), u32, where they are limited.
    pub fn capacities(&self, layer: usize) -> Option<Tensor> {
        self.capacities.map(|capacities| self.row(capacities, layer, self.experts))
    }

    /// What [`capacities`](Self::capacities) start as.
    pub fn initial_capacities(&self) -> Vec<u32> {
        match self.slots {
            None => Vec::new(),
            Some(Slots::Equal(capacity)) => vec![capacity; self.experts as usize],
            Some(Slots::HotAndCold(two)) => two.initial(self.experts),
        }
    }

    /// The two capacities, and when experts change between them, if they do.
    pub fn hot_and_cold(&self) -> Option<(HotAndCold, HotSteps)> {
        match self.slots {
            Some(Slots::HotAndCold(two)) => self.hot_steps.map(|steps| (two, steps)),
            _ => None,
        }
    }

    fn row(&self, buffer: BufferId, layer: usize, cols: u32) -> Tensor {
        assert!(self.layers().contains(&layer), "layer {layer} has no experts");
        let offset = (layer - self.layers.0) as u64 * slot_bytes(cols);
        Tensor::new(buffer, offset, 1, cols, Element::F32)
    }
}

/// Rows and columns of the widest tensor that the experts of a model work on, for micro-batches of `tokens`; in generation
/// none of their choices `is_dropped`.
pub fn widest_expert_tensor(config: &ModelConfig, tokens: u32, is_dropped: bool) -> Option<[u64; 2]> {
    let mixture = config.mixture.as_ref()?;
    let RouterConfig { experts, chosen, .. } = mixture.route;
    let allocation = if is_dropped {
        row_allocation(mixture, tokens)
    } else {
        RowAllocation::Dropless { safe_tokens: false }
    };
    let placement = PlacementConfig { tokens, chosen, experts, allocation, is_fused: true };
    let inner = gate_up_cols(mixture.intermediate_size as u32);
    Some([u64::from(placement.rows()), u64::from(inner.max(config.hidden_size as u32))])
}

/// Bytes from one layer's row to the next: each can be bound.
fn slot_bytes(cols: u32) -> u64 {
    (4 * u64::from(cols)).next_multiple_of(BINDING_ALIGNMENT)
}

fn hot(mixture: &MixtureConfig) -> Option<HotExperts> {
    match mixture.dispatch {
        TokenDispatch::Capacity(capacity) => capacity.hot,
        TokenDispatch::Dropless { .. } => None,
    }
}

/// How many rows each expert gets for `tokens` tokens.
fn row_allocation(mixture: &MixtureConfig, tokens: u32) -> RowAllocation {
    let capacity = match mixture.dispatch {
        TokenDispatch::Dropless { safe_tokens } => return RowAllocation::Dropless { safe_tokens },
        TokenDispatch::Capacity(capacity) => capacity,
    };
    let RouterConfig { experts, chosen, .. } = mixture.route;
    let slots = capacity_slots(chosen, tokens, capacity.factor, experts, 1);
    let slots = match capacity.hot {
        // As many as there are tokens: nothing can be dropped, so that rows for all would only be padding.
        None if slots >= tokens => return RowAllocation::Dropless { safe_tokens: false },
        None => Slots::Equal(slots),
        Some(hot) => Slots::HotAndCold(HotAndCold::new(hot.count as u32, slots, hot.cold_token_share)),
    };
    RowAllocation::Capacity { slots, order: capacity.order }
}

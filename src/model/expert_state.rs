//! The state that routers carry from step to step.
//!
//! Three buffers with a row per layer. The *tally* is cleared with the gradients, added to by every micro-batch and
//! read back with `StepState`. The *bias* of the choice changes in the update, towards experts with less than the mean
//! load. A checkpoint holds it among the weights, as `model.layers.L.mlp.gate.e_score_correction_bias`; weights from
//! other sources may lack it, and a resumed run needs it. The *capacities* change only if there are hot experts, by the
//! choices of the step, and are saved with the moments, as `expert_capacities.L`. Neither changes on overflow. An
//! expert that becomes hot gets more rows, not other weights.

use super::config::{HotExperts, MixtureConfig, ModelConfig, TokenDispatch};
use super::names::SelectionBias;
use crate::element::Element;
use crate::ops::hot_experts::HotSteps;
use crate::ops::permute::{HotAndCold, RowAllocation, Slots};
use crate::ops::tally::tally_columns;
use crate::record::{BINDING_ALIGNMENT, BufferId, Persistents, Tensor};

/// The state of a model's routers: up to three persistent buffers, with a row for each layer of experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertState {
    bias_names: SelectionBias,
    experts: u32,
    /// The first layer of experts, and the number of such layers.
    layers: (usize, usize),
    tallies: BufferId,
    biases: Option<BufferId>,
    capacities: Option<BufferId>,
    slots: Option<Slots>,
    hot_steps: Option<HotSteps>,
    bias_update_rate: f32,
}

impl ExpertState {
    /// The state for micro-batches of `tokens` tokens, its buffers added to `persistents`; `None` for a dense model.
    pub(super) fn new(config: &ModelConfig, tokens: u32, persistents: &mut Persistents) -> Option<Self> {
        let mixture = config.mixture.as_ref()?;
        let (first, count) = (config.mixture_layers().start, config.mixture_layers().len());
        let mut rows = |label: &str, cols: u32| {
            BufferId::Persistent(persistents.add(label, count as u64 * row_bytes(cols)))
        };
        let experts = mixture.route.experts;
        let slots = match mixture.placement(tokens, false).allocation {
            RowAllocation::Dropless { .. } => None,
            RowAllocation::Capacity { slots, .. } => Some(slots),
        };
        Some(Self {
            bias_names: SelectionBias::of(config),
            experts,
            layers: (first, count),
            tallies: rows("expert tallies", tally_columns(experts)),
            biases: mixture.has_bias.then(|| rows("expert biases", experts)),
            capacities: slots.map(|_| rows("expert capacities", experts)),
            slots,
            hot_steps: hot_experts(mixture)
                .map(|hot| HotSteps { update_step: hot.update_step, checkpoint_step: hot.checkpoint_step }),
            bias_update_rate: mixture.bias_update_rate as f32,
        })
    }

    /// Experts of a layer (E).
    pub fn experts(&self) -> u32 {
        self.experts
    }

    /// The layers that have experts.
    pub fn layers(&self) -> std::ops::Range<usize> {
        let (first, count) = self.layers;
        first..first + count
    }

    /// The tally of a layer in the current step: see [`TallyColumns`](crate::ops::tally::TallyColumns).
    pub fn tally(&self, layer: usize) -> Tensor {
        self.row(self.tallies, layer, tally_columns(self.experts), Element::U32)
    }

    /// The buffer of all tallies, and its size in bytes.
    pub fn tallies(&self) -> (BufferId, u64) {
        (self.tallies, self.layers.1 as u64 * row_bytes(tally_columns(self.experts)))
    }

    /// Bytes from one layer's tally to the next.
    pub(crate) fn tally_bytes(&self) -> u64 {
        row_bytes(tally_columns(self.experts))
    }

    /// The bias that is added to a layer's scores to choose experts: (1, E), f32.
    pub fn bias(&self, layer: usize) -> Option<Tensor> {
        self.biases.map(|biases| self.row(biases, layer, self.experts, Element::F32))
    }

    /// The name and shape of that bias in files.
    pub(crate) fn bias_in_files(&self, layer: usize) -> (String, Vec<usize>) {
        let experts = self.experts as usize;
        let shape = if self.bias_names.is_row { vec![1, experts] } else { vec![experts] };
        (self.bias_names.name(layer), shape)
    }

    /// The change of the biases after a step; `None` if they do not change.
    pub fn bias_update_rate(&self) -> Option<f32> {
        (self.biases.is_some() && self.bias_update_rate > 0.0).then_some(self.bias_update_rate)
    }

    /// Rows of each expert of a layer: (1, E), u32; `None` without capacities.
    pub fn capacities(&self, layer: usize) -> Option<Tensor> {
        self.capacities.map(|capacities| self.row(capacities, layer, self.experts, Element::U32))
    }

    /// The initial contents of [`capacities`](Self::capacities).
    pub(crate) fn initial_capacities(&self) -> Vec<u32> {
        match self.slots {
            None => Vec::new(),
            Some(Slots::Equal(capacity)) => vec![capacity; self.experts as usize],
            Some(Slots::HotAndCold(two)) => two.initial(self.experts),
        }
    }

    /// The capacities of hot and cold experts and the steps after which hot experts are chosen; `None` if all have the
    /// same capacity.
    pub(crate) fn hot_and_cold(&self) -> Option<(HotAndCold, HotSteps)> {
        match self.slots {
            Some(Slots::HotAndCold(two)) => self.hot_steps.map(|steps| (two, steps)),
            _ => None,
        }
    }

    /// The buffer that [`hot_experts`](Self::hot_experts) reads, and its size in bytes; `None` if no expert is hot.
    pub(crate) fn hot_choice(&self) -> Option<(BufferId, u64)> {
        self.hot_and_cold()?;
        self.capacities.map(|buffer| (buffer, self.layers.1 as u64 * row_bytes(self.experts)))
    }

    /// The hot experts of each layer in ascending order, from the `words` of [`hot_choice`](Self::hot_choice).
    pub(crate) fn hot_experts(&self, words: &[u32]) -> Vec<Vec<u32>> {
        let Some((two, _)) = self.hot_and_cold() else { return Vec::new() };
        let rows = words.chunks_exact(row_bytes(self.experts) as usize / size_of::<u32>());
        let hot = |row: &[u32]| two.hot_among(&row[..self.experts as usize]);
        rows.map(|row| hot(row).into_iter().map(|expert| expert as u32).collect()).collect()
    }

    fn row(&self, buffer: BufferId, layer: usize, cols: u32, element: Element) -> Tensor {
        assert!(self.layers().contains(&layer), "layer {layer} has no experts");
        let offset = (layer - self.layers.0) as u64 * row_bytes(cols);
        Tensor::new(buffer, offset, 1, cols, element)
    }
}

/// Bytes from one layer's row to the next, aligned so that a binding can start at each.
fn row_bytes(cols: u32) -> u64 {
    (4 * u64::from(cols)).next_multiple_of(BINDING_ALIGNMENT)
}

fn hot_experts(mixture: &MixtureConfig) -> Option<HotExperts> {
    match mixture.dispatch {
        TokenDispatch::Capacity(capacity) => capacity.hot,
        TokenDispatch::Dropless { .. } => None,
    }
}

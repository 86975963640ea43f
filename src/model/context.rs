//! What a forward pass reads besides parameters.

use super::batch::BatchTensors;
use super::buffers::ModelBuffers;
use super::config::ModelConfig;
use crate::ops::dropout::Dropout;
use crate::ops::matmul::FEW_ROWS;
use crate::ops::rope::Rope;
use crate::ops::spread::ExpertRanks;
use crate::record::Tensor;

/// What a forward pass reads besides parameters: it is the same for all layers.
#[derive(Clone, Copy, Debug)]
pub struct ForwardContext<'c> {
    /// The model.
    pub config: &'c ModelConfig,
    /// Its buffers besides parameters.
    pub buffers: ModelBuffers,
    /// The tokens.
    pub batch: BatchTensors,
    /// The ranks over which experts are spread; `None` if this one holds all.
    pub expert_ranks: Option<&'c ExpertRanks>,
    /// What the pass is for.
    pub mode: Mode<'c>,
}

/// What a forward pass is for.
#[derive(Clone, Copy, Debug)]
pub enum Mode<'c> {
    /// Dropout is applied; routers tally their choices and add balance losses.
    Training(Training),
    /// Neither; experts have the capacities of training.
    Evaluation,
    /// Like an evaluation, but no expert drops a token: the loss of a text does not depend on the others in its batch.
    Scoring,
    /// Whole prompts of B sequences. Writes their keys and values to a cache for each layer, (B·T, 2 G·C). No expert
    /// drops a token, since a text must not depend on the others in its batch.
    Prefill(&'c [Tensor]),
    /// One new token of each of B sequences, which attends to the caches and is appended to them. No expert drops a
    /// token.
    Decode(&'c [Tensor]),
}

/// What training adds to a forward pass.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    /// `StepState`.
    pub step: Tensor,
    /// Micro-batches in a step.
    pub accumulation: u32,
    /// Random bits of dropout masks; `None`: nothing is dropped.
    pub masks: Option<Masks>,
    /// (layers, heads), u32: receives the largest attention scores of each layer, if they are watched.
    pub largest_scores: Option<Tensor>,
}

/// The random bits of dropout masks.
#[derive(Clone, Copy, Debug)]
pub struct Masks {
    /// The run's seed.
    pub seed: u64,
    /// `DropoutState`: the current micro-batch.
    pub state: Tensor,
}

/// An activation that training drops elements of.
#[derive(Clone, Copy, Debug)]
pub(super) enum DropoutSite {
    /// The embedded tokens.
    Embedding,
    /// The weights of attention, in a layer.
    AttentionWeights(usize),
    /// What attention adds to the residual stream, in a layer.
    AttentionOutput(usize),
    /// What the feed-forward network adds to the residual stream, in a layer.
    FeedForwardOutput(usize),
    /// The input of the adapters of a linear layer: the number of its layer, and its own within that.
    AdapterInput(usize, usize),
}

/// The first site of adapters, after those of 1000 layers.
const ADAPTER_SITES: usize = 1 << 14;

/// Sites of adapters in a layer.
const ADAPTER_PLACES: usize = 16;

impl DropoutSite {
    /// Its number, which selects the random bits: a checkpointed run must find the same ones.
    fn number(self) -> u32 {
        let of_layer = |layer: usize, place: usize| (3 * layer + place) as u32;
        match self {
            Self::Embedding => 0,
            Self::AttentionWeights(layer) => of_layer(layer, 1),
            Self::AttentionOutput(layer) => of_layer(layer, 2),
            Self::FeedForwardOutput(layer) => of_layer(layer, 3),
            Self::AdapterInput(layer, place) => {
                assert!(place < ADAPTER_PLACES, "a layer has at most {ADAPTER_PLACES} adapted products");
                (ADAPTER_SITES + ADAPTER_PLACES * layer + place) as u32
            }
        }
    }

    fn probability(self, config: &ModelConfig) -> f64 {
        match self {
            Self::Embedding => config.embedding_dropout,
            Self::AttentionWeights(_) => config.attention_dropout,
            Self::AttentionOutput(_) | Self::FeedForwardOutput(_) => config.hidden_dropout,
            Self::AdapterInput(..) => config.low_rank.as_ref().map_or(0.0, |low_rank| low_rank.dropout),
        }
    }
}

impl ForwardContext<'_> {
    /// The dropout at `site`; `None` outside training and where the probability is 0.
    pub(super) fn dropout(&self, site: DropoutSite) -> Option<Dropout> {
        let Masks { seed, state } = self.training()?.masks?;
        let probability = site.probability(self.config) as f32;
        (probability > 0.0).then(|| Dropout { probability, seed, site: site.number(), state })
    }

    /// The rotary embedding and its table; `None` with learned positions.
    pub(super) fn rope(&self) -> Option<(Rope, Tensor)> {
        self.config.rope().zip(self.buffers.cos_sin)
    }

    /// Added to the mean square or the variance in the norms.
    pub(super) fn epsilon(&self) -> f32 {
        self.config.norm_eps as f32
    }

    /// The row of layer number `layer` that receives its largest attention scores, if they are watched.
    pub(super) fn largest_scores(&self, layer: usize) -> Option<Tensor> {
        let all = self.training()?.largest_scores?;
        Some(all.rows(layer as u32, 1).columns(0, self.config.num_heads as u32))
    }

    /// Whether the pass computes so few tokens that norms and gates belong in the products beside them: a launch costs more than
    /// computing them twice.
    pub(super) fn has_few_rows(&self) -> bool {
        matches!(self.mode, Mode::Decode(_)) && self.batch.tokens.cols <= FEW_ROWS
    }

    pub(super) fn training(&self) -> Option<Training> {
        match self.mode {
            Mode::Training(training) => Some(training),
            Mode::Evaluation | Mode::Scoring | Mode::Prefill(_) | Mode::Decode(_) => None,
        }
    }

    /// Whether no expert drops a token.
    pub(super) fn is_dropless(&self) -> bool {
        matches!(self.mode, Mode::Scoring | Mode::Prefill(_) | Mode::Decode(_))
    }
}

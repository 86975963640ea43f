//! The inputs of a forward pass other than parameters.

use super::batch::BatchTensors;
use super::buffers::ModelBuffers;
use super::config::ModelConfig;
use super::parameters::Linear;
use crate::ops::attention::HeadRange;
use crate::ops::dropout::{Dropout, MaskPart};
use crate::ops::layer_norm::LayerNorm;
use crate::ops::matmul::FEW_ROWS;
use crate::ops::matrix_ranks::MatrixRanks;
use crate::ops::rms_norm::RmsNorm;
use crate::ops::rope::Rope;
use crate::ops::spread::ExpertRanks;
use crate::record::Tensor;
use crate::tape::{CrossEntropy, Parameter, Tape, Var};

/// The inputs of a forward pass other than parameters, which are the same for all layers.
#[derive(Clone, Copy, Debug)]
pub struct ForwardContext<'c> {
    /// The model.
    pub config: &'c ModelConfig,
    /// The buffers of the model other than parameters.
    pub buffers: ModelBuffers,
    /// The tokens.
    pub batch: BatchTensors,
    /// The ranks over which experts are spread; `None` if this rank holds all.
    pub expert_ranks: Option<&'c ExpertRanks>,
    /// The ranks that share each matrix; `config` is then the part of the model that one of them computes. `None` if
    /// this rank holds matrices whole.
    pub matrix_ranks: Option<&'c MatrixRanks>,
    /// The purpose of the pass.
    pub mode: Mode<'c>,
}

/// The purpose of a forward pass.
#[derive(Clone, Copy, Debug)]
pub enum Mode<'c> {
    /// Dropout is applied; routers tally their choices and add balance losses.
    Training(Training),
    /// No dropout, tallies or balance losses; experts have the capacities of training.
    Evaluation,
    /// Like an evaluation, but of the model without its adapters, with which a preference compares it.
    Reference,
    /// Like an evaluation, but no expert drops a token, so that the loss of a text does not depend on the others in its
    /// batch.
    Scoring,
    /// Whole prompts of B sequences. Writes what later tokens read of them to a cache for each layer, which layers
    /// share that share keys and values. No expert drops a token, so that a text does not depend on the others in its
    /// batch.
    Prefill {
        /// The caches.
        caches: &'c [Cache],
        /// (1, B) u32: the row of the last token of each prompt.
        last_rows: Tensor,
    },
    /// One new token of each of B sequences, which attends to the caches and is appended to them. No expert drops a
    /// token.
    Decode(&'c [Cache]),
}

/// What generation keeps of the tokens of B sequences in a layer.
#[derive(Clone, Copy, Debug)]
pub enum Cache {
    /// Keys and values.
    Keys(KeyCache),
    /// The states of linear attention.
    States(LinearCache),
    /// (B·(W - 1), D): the last rows that a gated convolution saw.
    Convolved(Tensor),
}

/// Keys and values of the tokens of B sequences.
#[derive(Clone, Copy, Debug)]
pub struct KeyCache {
    /// (B·T, 2 G·C), or (B·R, 2 G·C) where windows see no more than the last R tokens: a ring, as in
    /// [`DecodeTensors`](crate::ops::decode::DecodeTensors).
    pub rows: Tensor,
    /// (1, B·R) u32: the row of the pass over prompts that each row of a ring receives.
    pub kept: Option<Tensor>,
}

/// The states of linear attention after the tokens of B sequences.
#[derive(Clone, Copy, Debug)]
pub struct LinearCache {
    /// (B·(W - 1), C): the last tokens before the convolution.
    pub conv: Tensor,
    /// (B·H·K, V), f32: what the gated delta rule holds.
    pub rule: Tensor,
}

impl Cache {
    /// Keys and values.
    pub(super) fn keys(self) -> KeyCache {
        let Self::Keys(keys) = self else { panic!("a layer of softmax attention has a cache of keys") };
        keys
    }

    /// The states of linear attention.
    pub(super) fn linear(self) -> LinearCache {
        let Self::States(states) = self else { panic!("a layer of linear attention has states") };
        states
    }

    /// The last rows that a gated convolution saw.
    pub(super) fn convolved(self) -> Tensor {
        let Self::Convolved(rows) = self else { panic!("a layer of a convolution has its last rows") };
        rows
    }
}

/// The additional inputs of a forward pass in training.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    /// `StepState`.
    pub step: Tensor,
    /// Micro-batches per step.
    pub accumulation: u32,
    /// Random bits of dropout masks; `None`: nothing is dropped.
    pub masks: Option<Masks>,
    /// (layers, heads of all ranks), u32: receives the largest attention scores of each layer, if they are watched.
    pub largest_scores: Option<Tensor>,
    /// `LossState` of multi-token prediction, for models that have it.
    pub ahead_loss: Option<Tensor>,
}

/// The random bits of dropout masks.
#[derive(Clone, Copy, Debug)]
pub struct Masks {
    /// The run's seed.
    pub seed: u64,
    /// `DropoutState`: the current micro-batch.
    pub state: Tensor,
}

/// An activation in which training drops elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum DropoutSite {
    /// The embedded tokens.
    Embedding,
    /// The weights of attention, in a layer.
    AttentionWeights(usize),
    /// The output of attention that is added to the residual stream, in a layer.
    AttentionOutput(usize),
    /// The output of the feed-forward network that is added to the residual stream, in a layer.
    FeedForwardOutput(usize),
    /// The input of the adapters of a linear layer: the number of its layer, and its own number within that layer.
    AdapterInput(usize, usize),
}

/// The first site of adapters, after those of 1000 layers.
const ADAPTER_SITES: usize = 1 << 14;

/// Number of adapter sites per layer.
const ADAPTER_PLACES: usize = 16;

impl DropoutSite {
    /// The site's number, which selects the random bits: a resumed run must find the same ones.
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
    /// The cross-entropy of the batch's targets, in a step of one micro-batch.
    pub(crate) fn cross_entropy(&self, step: Tensor, loss: Tensor) -> CrossEntropy {
        CrossEntropy { ignore: self.config.ignore_id, ..CrossEntropy::new(self.batch.targets, step, loss) }
    }

    /// The dropout at `site`; `None` outside of training and if the probability is 0.
    pub(super) fn dropout(&self, site: DropoutSite) -> Option<Dropout> {
        let Masks { seed, state } = self.training()?.masks?;
        let probability = site.probability(self.config) as f32;
        let part = self.mask_part(site);
        (probability > 0.0).then(|| Dropout { probability, seed, site: site.number(), state, part })
    }

    /// The rows of the residual stream that this rank has at `site`; `None`: all of them.
    fn mask_part(&self, site: DropoutSite) -> Option<MaskPart> {
        let is_of_stream = match site {
            DropoutSite::Embedding | DropoutSite::AttentionOutput(_) | DropoutSite::FeedForwardOutput(_) => {
                true
            }
            DropoutSite::AttentionWeights(_) | DropoutSite::AdapterInput(..) => false,
        };
        let ranks = self.matrix_ranks.filter(|ranks| ranks.shares_tokens && is_of_stream)?;
        let first_row = ranks.own_rows(self.batch.tokens.cols).start;
        Some(MaskPart { first_row, first_col: 0, cols: self.config.hidden_size as u32 })
    }

    /// Number of rows of the residual stream that this rank has.
    pub(crate) fn stream_rows(&self) -> u32 {
        let tokens = self.batch.tokens.cols;
        let ranks = self.matrix_ranks.filter(|ranks| ranks.shares_tokens);
        ranks.map_or(tokens, |ranks| ranks.own_rows(tokens).len() as u32)
    }

    /// The heads that this rank has; `None`: all of them.
    pub(super) fn head_range(&self) -> Option<HeadRange> {
        let (ranks, heads) = (self.matrix_ranks?, self.config.num_heads as u32);
        Some(HeadRange { first: ranks.place as u32 * heads, of: ranks.size() * heads })
    }

    /// The rotary embedding of layer number `layer` and its table; `None` with learned positions.
    pub(super) fn rope(&self, layer: usize) -> Option<(Rope, Tensor)> {
        self.buffers.rope(self.config, self.config.layer(layer))
    }

    /// The formula of every RMSNorm, but for the factor of [`post_norm`](Self::post_norm) and the epsilon of
    /// [`latent_norm`](Self::latent_norm).
    pub(super) fn rms_norm(&self) -> RmsNorm {
        let ModelConfig { norm_eps, zero_centered_norms, .. } = *self.config;
        RmsNorm { epsilon: norm_eps as f32, is_zero_centered: zero_centered_norms, factor: None }
    }

    /// The formula of the norms of latent vectors.
    pub(super) fn latent_norm(&self) -> RmsNorm {
        let epsilon = self.config.latent_norm_eps.unwrap_or(self.config.norm_eps);
        RmsNorm { epsilon: epsilon as f32, ..self.rms_norm() }
    }

    /// The formula of every LayerNorm.
    pub(super) fn layer_norm(&self) -> LayerNorm {
        let ModelConfig { norm_eps, zero_centered_norms, .. } = *self.config;
        LayerNorm { epsilon: norm_eps as f32, is_zero_centered: zero_centered_norms }
    }

    /// The formula of the norm after a sublayer, which has the factor of what is added to the residual stream.
    pub(super) fn post_norm(&self) -> RmsNorm {
        RmsNorm { factor: self.config.post_norm_factor(), ..self.rms_norm() }
    }

    /// The row of layer number `layer` that receives its largest attention scores, if they are watched.
    pub(super) fn largest_scores(&self, layer: usize) -> Option<Tensor> {
        let all = self.training()?.largest_scores?;
        Some(all.rows(layer as u32, 1))
    }

    /// x (N, D) as the input of products that ranks divide.
    pub(super) fn enter(&self, tape: &mut Tape<'_, '_>, x: Var) -> Var {
        let enter = |tape: &mut Tape<'_, '_>, ranks| tape.scope("enter", |tape| tape.enter_shared(x, ranks));
        match self.matrix_ranks {
            Some(ranks) if self.config.recomputed.keeps_exchanged => tape.keeping(|tape| enter(tape, ranks)),
            Some(ranks) => enter(tape, ranks),
            None => x,
        }
    }

    /// x + dropout(y), or without x just y, where each of `ranks` computes `part`, one term of y (N, D).
    pub(super) fn leave<'p>(
        &self,
        tape: &mut Tape<'_, 'p>,
        ranks: &MatrixRanks,
        dropout: Option<Dropout>,
        x: Option<Var>,
        part: impl FnOnce(&mut Tape<'_, 'p>) -> Var,
    ) -> Var {
        let sum = |tape: &mut Tape<'_, 'p>| {
            let part = part(tape);
            tape.scope("leave", |tape| tape.leave_shared(part, ranks))
        };
        let y = if self.config.recomputed.keeps_exchanged { tape.keeping(sum) } else { sum(tape) };
        match (x, dropout) {
            (None, _) => y,
            (Some(x), Some(dropout)) => tape.scope("dropout", |tape| tape.dropout(y, Some(x), dropout)),
            (Some(x), None) => tape.scope("residual", |tape| tape.add_to(y, x)),
        }
    }

    /// The ranks that share the vocabulary.
    pub(super) fn vocabulary_ranks(&self) -> Option<&MatrixRanks> {
        self.matrix_ranks.filter(|ranks| ranks.shares_vocabulary)
    }

    /// Rows of the embedding (V, D) for ids (1, N), whose indices `order` sorts, times their factor, plus rows of
    /// positions; this rank's rows if ranks share tokens. Rows of another width are projected first.
    pub(super) fn embed<'p>(
        &self,
        tape: &mut Tape<'_, 'p>,
        table: &'p Parameter,
        [ids, order]: [Tensor; 2],
        project_in: Option<&'p Linear<Parameter>>,
        positions: Option<&'p Parameter>,
    ) -> Var {
        let (factor, compute) = (self.config.embedding_factor(), self.config.compute);
        let add_positions = |tape: &mut Tape<'_, 'p>, x, adds| match positions {
            None => x,
            Some(table) => tape.scope("positions", |tape| {
                let order = self.position_order();
                let table = (table, self.config.skipped_positions() as u32);
                tape.add_embedding(x, [self.batch.positions, order], table, adds)
            }),
        };
        match self.vocabulary_ranks() {
            Some(ranks) => {
                let x = tape.embedding_part(ids, order, table, factor, compute, ranks);
                let x = add_positions(tape, x, ranks.place == 0);
                tape.scope("leave", |tape| tape.leave_shared(x, ranks))
            }
            None => {
                let mut x = tape.embedding(ids, order, table, factor, compute);
                if let Some(project_in) = project_in {
                    x = tape.scope("project_in", |tape| project_in.forward(tape, self, x, None));
                }
                let x = add_positions(tape, x, true);
                self.own_rows(tape, x)
            }
        }
    }

    /// Token indices, sorted by position.
    pub(super) fn position_order(&self) -> Tensor {
        let Some(order) = self.batch.position_order else {
            panic!("a model with learned positions needs its batches' tokens sorted by position")
        };
        order
    }

    /// This rank's rows of the embedded tokens x (N, D), if ranks share tokens.
    pub(super) fn own_rows(&self, tape: &mut Tape<'_, '_>, x: Var) -> Var {
        match self.matrix_ranks.filter(|ranks| ranks.shares_tokens) {
            Some(ranks) => tape.scope("own_rows", |tape| tape.own_rows(x, ranks)),
            None => x,
        }
    }

    /// All rows (N, D) of the hidden states x for the head.
    pub(super) fn all_rows(&self, tape: &mut Tape<'_, '_>, x: Var) -> Var {
        if self.vocabulary_ranks().is_some() {
            return self.enter(tape, x);
        }
        match self.matrix_ranks.filter(|ranks| ranks.shares_tokens) {
            Some(ranks) => tape.scope("all_rows", |tape| tape.all_rows(x, ranks)),
            None => x,
        }
    }

    /// Whether the pass computes so few tokens that norms and gates belong in the neighbouring products: a launch costs
    /// more than computing them twice.
    pub(super) fn has_few_rows(&self) -> bool {
        matches!(self.mode, Mode::Decode(_)) && self.batch.tokens.cols <= FEW_ROWS
    }

    pub(super) fn training(&self) -> Option<Training> {
        match self.mode {
            Mode::Training(training) => Some(training),
            Mode::Evaluation | Mode::Reference | Mode::Scoring | Mode::Prefill { .. } | Mode::Decode(_) => {
                None
            }
        }
    }

    /// Whether adapters add their product.
    pub(super) fn adapts(&self) -> bool {
        !matches!(self.mode, Mode::Reference)
    }

    /// Whether no expert drops a token.
    pub(super) fn is_dropless(&self) -> bool {
        matches!(self.mode, Mode::Scoring | Mode::Prefill { .. } | Mode::Decode(_))
    }
}

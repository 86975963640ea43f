//! A whole language model, forward and backward: Llama (Touvron et al. 2023, arXiv:2302.13971) with the variations of
//! Qwen, or GPT-2 (Radford et al. 2019): embedding, blocks, final norm, output projection, cross-entropy. Blocks of
//! either may be mixtures of experts.

use std::collections::BTreeMap;

use super::block::{Activations, Block, Reads};
use super::embedding::{embedding, embedding_backward};
use super::gelu::Gelu;
use super::latent_attention::LatentAttention;
use super::linear_cross_entropy::cross_entropy;
use super::low_rank::LowRank;
use super::matmul::{linear, linear_backward};
use super::mixture::{Memory, Mixture};
use super::multi_token::MultiToken;
use super::objective::{Batch, Memories, with_seeds};
use super::per_layer::{self, PerLayer};
use super::query_scaling::QueryScaling;
use super::rope::Rope;
use super::soft_cap::soft_capped;
use super::storage::Storage;
use super::swiglu::Gate;
use super::variant::{Norms, Variant};
use super::vector::{add, assert_len, rows_of, scaled};

/// Tensors by Hugging Face name; also used for their gradients and moments.
pub type Weights = BTreeMap<String, Vec<f64>>;

/// Sizes and variant of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Llama or GPT-2.
    pub architecture: Architecture,
    /// V, rows of the embedding and of the output projection.
    pub vocab_size: usize,
    /// D, width of the residual stream.
    pub hidden_size: usize,
    /// Number of blocks, without those of multi-token prediction.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads, a divisor of `num_heads`.
    pub num_kv_heads: usize,
    /// Elements of a head; `num_heads · head_dim` may differ from `hidden_size`.
    pub head_dim: usize,
    /// Activation of the gate of Llama's dense feed-forward networks.
    pub gate: Gate,
    /// Width of the feed-forward network.
    pub intermediate_size: usize,
    /// ε of the norms, added to the mean square or variance before the root.
    pub norm_eps: f64,
    /// Rotary embedding of queries and keys in Llama; without latent attention its `head_dim` must equal the one above.
    pub rope: Rope,
    /// The output projection uses the embedding table.
    pub tie_word_embeddings: bool,
    /// Multi-head latent attention; Llama only. `head_dim` is then that of queries and keys, and `rope.head_dim` that
    /// of their part which rotates.
    pub latent: Option<LatentAttention>,
    /// Which linear layers of a Llama have a bias.
    pub biases: Biases,
    /// Factors of its activations.
    pub factors: Factors,
    /// Queries and keys are normalised, in the way of [`Variant::qk_norm`].
    pub qk_norm: bool,
    /// Sliding window: a token sees this many tokens, itself included; `None`: unlimited.
    pub window: Option<usize>,
    /// Layers that are otherwise, by number; `None`: all are alike.
    pub other_layers: Option<BTreeMap<usize, Layer>>,
    /// How the model differs from the architecture.
    pub variant: Variant,
    /// Replaces the feed-forward network from layer `first_dense_layers` on, but for that of the query layer.
    pub mixture: Option<Mixture>,
    /// Multi-token prediction; Llama only.
    pub multi_token: Option<MultiToken>,
    /// Adapters of linear layers of attention and of dense feed-forward networks.
    pub low_rank: Option<LowRank>,
    /// What activations, their gradients and the weights of layers are rounded to.
    pub storage: Storage,
}

/// What a layer may have otherwise than others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// Key and value heads, as in [`Shape::num_kv_heads`].
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// There is no projection to values: they are the projected keys.
    pub key_values: bool,
    /// The earlier layer whose keys and values are read here, where the layer has none.
    pub kv_source: Option<usize>,
    /// Width of a dense feed-forward network.
    pub intermediate_size: usize,
    /// Sliding window, as in [`Shape::window`].
    pub window: Option<usize>,
    /// Rotary embedding of queries and keys; `None`: they do not rotate.
    pub rope: Option<Rope>,
    /// How queries grow with their position.
    pub query_scaling: Option<QueryScaling>,
    /// Each head has a sink, a learned logit beside the scores.
    pub sinks: bool,
    /// Linear attention instead of softmax; Llama only.
    pub linear: Option<LinearHeads>,
    /// Tokens that a gated convolution sees, which takes the place of attention; Llama only.
    pub convolution: Option<usize>,
}

/// The heads of linear attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearHeads {
    /// Value heads.
    pub heads: usize,
    /// Heads of queries and keys, a divisor of `heads`.
    pub key_heads: usize,
    /// Elements of a query and of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Tokens that the convolution sees.
    pub conv_width: usize,
}

/// The kind of layers, and their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// RMSNorm, rotary positions, a gated feed-forward network; no biases except those of `biases`.
    Llama,
    /// LayerNorm, learned positions, GELU, a bias on every linear layer.
    Gpt2 {
        /// Rows of the position table; 0: there is none.
        positions: usize,
        /// The activation.
        activation: Gelu,
    },
}

/// Which linear layers have a bias; those of experts have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// The projections to queries, keys and values, as in Qwen2.
    pub qkv: bool,
    /// The output projection of attention.
    pub output: bool,
    /// The projections to gate and up.
    pub gate_up: bool,
    /// The projection down.
    pub down: bool,
    /// The head, as in GPT-J.
    pub head: bool,
}

impl Biases {
    /// No layer.
    pub const NONE: Self = Self { qkv: false, output: false, gate_up: false, down: false, head: false };
    /// Only those of queries, keys and values.
    pub const QKV: Self = Self { qkv: true, ..Self::NONE };
}

/// Factors that a model multiplies by, as Granite does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Of the embedded tokens.
    pub embedding: f64,
    /// Of what attention and feed-forward network add to the residual stream.
    pub residual: f64,
    /// Of the scores of attention; `None`: 1/√head_dim, or that of latent attention.
    pub scores: Option<f64>,
    /// Of the values of attention.
    pub values: f64,
    /// Of the logits.
    pub logits: f64,
}

impl Factors {
    /// A model without factors.
    pub const NONE: Self = Self { embedding: 1.0, residual: 1.0, scores: None, values: 1.0, logits: 1.0 };
}

/// logits (N, V) of tokens (N) at positions (N), in sequences of `sequence_length` tokens, with routers in the state
/// `memories`.
#[track_caller]
pub fn logits(
    shape: &Shape,
    weights: &Weights,
    memories: &Memories,
    tokens: &[u32],
    positions: &[u32],
    sequence_length: usize,
) -> Vec<f64> {
    let weights = &shape.storage.copies(weights);
    let last = forward(shape, weights, memories, tokens, positions, sequence_length);
    let (table, bias) = (shape.head_table(weights), shape.head_bias(weights));
    let logits = linear(
        &last.normed,
        &table,
        bias.as_deref(),
        tokens.len(),
        shape.vocab_size,
        shape.embedding_width(),
    );
    logits.into_iter().map(|logit| soft_capped(logit, shape.variant.logit_cap)).collect()
}

/// (loss_sum, count): the cross-entropy summed over targets (N) other than `ignore`, and the number of those.
#[track_caller]
pub fn loss(
    shape: &Shape,
    weights: &Weights,
    tokens: &[u32],
    targets: &[u32],
    positions: &[u32],
    sequence_length: usize,
    ignore: u32,
) -> (f64, usize) {
    let logits = logits(shape, weights, &shape.memories(), tokens, positions, sequence_length);
    let (loss_sum, count, _) = cross_entropy(&logits, targets, shape.vocab_size, ignore);
    (loss_sum, count)
}

/// (loss_sum, count, gradients of seed·loss_sum), the first two as in [`loss`]. The other terms of the objective are
/// not included: see [`outcome_and_gradients`](super::objective::outcome_and_gradients).
#[track_caller]
#[expect(
    clippy::too_many_arguments,
    reason = "the arguments of `loss` and a seed, so that both have the same signature"
)]
pub fn loss_and_gradients(
    shape: &Shape,
    weights: &Weights,
    tokens: &[u32],
    targets: &[u32],
    positions: &[u32],
    sequence_length: usize,
    ignore: u32,
    seed: f64,
) -> (f64, usize, Weights) {
    let batch = Batch { tokens, targets, positions, sequence_length, ignore };
    let (outcome, grads) = with_seeds(shape, weights, &shape.memories(), &batch, seed, 0.0);
    (outcome.loss_sum, outcome.count, grads)
}

impl Shape {
    /// The mixture of a layer, or `None` if it is dense. Layers from `num_layers` on are those of multi-token
    /// prediction.
    pub fn mixture_of(&self, layer: usize) -> Option<&Mixture> {
        let has_experts =
            |mixture: &&Mixture| layer >= mixture.first_dense_layers && !self.is_query_layer(layer);
        self.mixture.as_ref().filter(has_experts)
    }

    /// The layers that are not among the others. Latent attention rotates by itself.
    pub fn common_layer(&self) -> Layer {
        Layer {
            num_kv_heads: self.num_kv_heads,
            head_dim: self.head_dim,
            key_values: false,
            kv_source: None,
            intermediate_size: self.intermediate_size,
            window: self.window,
            rope: Some(self.rope).filter(|_| self.rotates() && self.latent.is_none()),
            query_scaling: None,
            sinks: self.variant.sinks,
            linear: None,
            convolution: None,
        }
    }

    /// Layer number `layer`.
    pub(super) fn layer(&self, layer: usize) -> Layer {
        let other = self.other_layers.as_ref().and_then(|others| others.get(&layer));
        other.copied().unwrap_or_else(|| self.common_layer())
    }

    /// The state of all routers before the first step.
    pub fn memories(&self) -> Memories {
        let layers = 0..self.num_layers + self.multi_token.map_or(0, |further| further.depth);
        layers.filter_map(|layer| Some((layer, Memory::new(self.mixture_of(layer)?)))).collect()
    }

    /// Block `layer`, applied to a batch.
    pub(super) fn block<'a>(
        &'a self,
        weights: &'a Weights,
        memories: &'a Memories,
        layer: usize,
        batch: &Batch<'a>,
    ) -> Block<'a> {
        let Batch { positions, sequence_length, .. } = *batch;
        Block { shape: self, weights, layer, positions, sequence_length, memory: memories.get(&layer) }
    }

    /// Elements of a row of the embedding.
    pub(super) fn embedding_width(&self) -> usize {
        self.variant.embedding_width.unwrap_or(self.hidden_size)
    }

    /// The embedded tokens, times their factor: (N, D), projected where their rows have another width.
    pub(super) fn embedded(&self, weights: &Weights, tokens: &[u32]) -> Vec<f64> {
        let rows = self.rows_of(weights, tokens);
        match self.variant.embedding_width {
            Some(width) => {
                let projected =
                    linear(&rows, &weights[PROJECT_IN], None, tokens.len(), self.hidden_size, width);
                self.storage.store(projected)
            }
            None => rows,
        }
    }

    fn rows_of(&self, weights: &Weights, tokens: &[u32]) -> Vec<f64> {
        let rows = embedding(&weights[self.embedding()], tokens, self.embedding_width());
        self.storage.store(scaled(&rows, self.factors.embedding))
    }

    /// Adds the gradients of the embedding's table and of the projection to `grads`, given that of [`Shape::embedded`].
    pub(super) fn embedded_backward(
        &self,
        weights: &Weights,
        dx: &[f64],
        tokens: &[u32],
        grads: &mut Weights,
    ) {
        let width = self.embedding_width();
        let drows = self.variant.embedding_width.map(|_| {
            let rows = self.rows_of(weights, tokens);
            let (drows, dw, _) =
                linear_backward(&rows, &weights[PROJECT_IN], dx, tokens.len(), self.hidden_size, width);
            accumulate(grads, PROJECT_IN, dw);
            self.storage.store(drows)
        });
        let dtable = embedding_backward(drows.as_deref().unwrap_or(dx), tokens, self.vocab_size, width);
        accumulate(grads, self.embedding(), scaled(&dtable, self.factors.embedding));
    }

    /// What the head reads (N, D) of the residual stream x after the last block: after the final norm, unless sums are
    /// normalised.
    fn last_norm(&self, weights: &Weights, x: &[f64]) -> Vec<f64> {
        match self.variant.norms {
            Norms::AfterSum => x.to_vec(),
            Norms::Before | Norms::After | Norms::Both => {
                self.storage.store(self.norm(weights, self.final_norm(), x))
            }
        }
    }

    /// Rows x (N, D) as the head's table takes them.
    fn projected_out(&self, weights: &Weights, x: &[f64]) -> Vec<f64> {
        let Some(width) = self.variant.embedding_width else { return x.to_vec() };
        let rows = x.len() / self.hidden_size;
        self.storage.store(linear(x, &weights[PROJECT_OUT], None, rows, width, self.hidden_size))
    }

    /// The gradient of the residual stream x after the last block, given that of what the head reads.
    pub(super) fn head_input_backward(
        &self,
        weights: &Weights,
        x: &[f64],
        dh: &[f64],
        grads: &mut Weights,
    ) -> Vec<f64> {
        let dnormed = self.variant.embedding_width.map(|width| {
            let (normed, rows) = (self.last_norm(weights, x), x.len() / self.hidden_size);
            let (dnormed, dw, _) =
                linear_backward(&normed, &weights[PROJECT_OUT], dh, rows, width, self.hidden_size);
            accumulate(grads, PROJECT_OUT, dw);
            self.storage.store(dnormed)
        });
        let dnormed = dnormed.as_deref().unwrap_or(dh);
        match self.variant.norms {
            Norms::AfterSum => dnormed.to_vec(),
            Norms::Before | Norms::After | Norms::Both => {
                self.norm_backward(weights, self.final_norm(), x, dnormed, grads)
            }
        }
    }

    /// The name of the output projection.
    pub(super) fn head(&self) -> &'static str {
        if self.tie_word_embeddings { self.embedding() } else { HEAD }
    }

    /// Panics unless `weights` holds exactly the tensors of [`Shape::parameters`].
    #[track_caller]
    fn assert_fits(&self, weights: &Weights) {
        let parameters = self.parameters();
        for (name, count) in &parameters {
            let tensor = weights.get(name);
            assert!(tensor.is_some(), "the weights should contain {name}.");
            assert_len(name, tensor.map_or(&[], Vec::as_slice), *count);
        }
        let unknown = weights.keys().find(|&held| parameters.iter().all(|(name, _)| name != held));
        assert!(unknown.is_none(), "the weights contain {unknown:?}, which this shape does not have.");
        let rotating = self.head_dim - self.latent.map_or(0, |latent| latent.nope_dim);
        assert!(self.rope.head_dim == rotating, "rope.head_dim should be that of the heads' rotating part.");
        let is_plain = self.multi_token.is_none() && self.latent.is_none();
        let is_llama = self.architecture == Architecture::Llama;
        let message = "only Llama supports multi-token prediction and latent attention.";
        assert!(is_plain || is_llama, "{message}");
        let is_moved = self.variant.query_layer || self.variant.head_epsilon.is_some();
        let is_moved = is_moved || self.biases.head;
        assert!(self.multi_token.is_none() || !is_moved, "multi-token prediction needs a plain head.");
    }
}

/// Adds `gradient` to the entry `name` of `grads`: a tied table is used twice, and every weight once per micro-batch.
pub(super) fn accumulate(grads: &mut Weights, name: &str, gradient: Vec<f64>) {
    let sum = match grads.get(name) {
        Some(held) => add(held, &gradient),
        None => gradient,
    };
    grads.insert(name.to_owned(), sum);
}

pub(super) const QUERIES: &str = "transformer.wqe.weight";
pub(super) const PROJECT_IN: &str = "model.decoder.project_in.weight";
pub(super) const PROJECT_OUT: &str = "model.decoder.project_out.weight";
pub(super) const HEAD: &str = "lm_head.weight";
pub(super) const HEAD_BIAS: &str = "lm_head.bias";

/// The results of the forward pass that the loss and the backward pass need.
pub(super) struct Forward {
    pub(super) blocks: Vec<Activations>,
    /// Input of the final norm (N, D): the output of the last block, or of the one before the query layer.
    pub(super) x: Vec<f64>,
    /// What the head reads (N, D), projected where its table has another width.
    pub(super) normed: Vec<f64>,
    /// The embedded tokens (N, D) before their norm, if they have one.
    pub(super) embedded: Vec<f64>,
    /// The input (N, D) of the first block, and the embeddings that blocks make of it.
    pub(super) first: Vec<f64>,
    pub(super) per_layer: PerLayer,
}

#[track_caller]
pub(super) fn forward(
    shape: &Shape,
    weights: &Weights,
    memories: &Memories,
    tokens: &[u32],
    positions: &[u32],
    sequence_length: usize,
) -> Forward {
    shape.assert_fits(weights);
    assert!(rows_of("tokens", tokens, sequence_length) > 0, "a batch should hold at least one sequence.");
    assert_len("positions", positions, tokens.len());
    let mut x = shape.embedded(weights, tokens); // (N, D)
    if shape.position_rows() > 0 {
        let rows = shape.rows_of_positions(positions);
        let rows = embedding(&weights[shape.position_table()], &rows, shape.hidden_size);
        x = shape.storage.store(add(&x, &rows));
    }
    let embedded = x.clone();
    if shape.variant.embedding_norm {
        x = shape.storage.store(shape.norm(weights, shape.embedding_norm(), &x));
    }
    let first = x.clone();
    let per_layer = per_layer::forward(shape, weights, tokens, &first);
    let mut before_queries = None;
    let mut blocks: Vec<Activations> = Vec::with_capacity(shape.num_layers);
    for layer in 0..shape.num_layers {
        if shape.is_query_layer(layer) {
            before_queries = Some(x.clone());
            x = shape.storage.store(shape.norm(weights, shape.final_norm(), &x));
        }
        let memory = memories.get(&layer);
        let block = Block { shape, weights, layer, positions, sequence_length, memory };
        let source = shape.layer(layer).kv_source.map(|source| &blocks[source]);
        let input = per_layer.of_layers.get(layer).map(Vec::as_slice);
        let (out, saved) = block.forward(x, Reads { keys: source.map(Activations::keys_and_values), input });
        x = out;
        blocks.push(saved);
    }
    match before_queries {
        Some(before) => Forward { blocks, x: before, normed: x, embedded, first, per_layer },
        None => {
            let normed = shape.projected_out(weights, &shape.last_norm(weights, &x));
            Forward { blocks, x, normed, embedded, first, per_layer }
        }
    }
}

#[cfg(test)]
mod tests;

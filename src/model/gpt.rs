//! The model: a decoder shaped like Llama or GPT-2, read from top to bottom.
//!
//! Letters: N = B·T tokens, D width, H query heads and G key-value heads of C dimensions, F feed-forward width, V
//! vocabulary.

use super::config::Activation;
use super::mixture::mixture;
use super::parameters::{Block, DenseFeedForward, FeedForward, Gpt, Linear, NormWeights, SelfAttention};
use super::shape::{Rotation, Shape};
use crate::element::Element;
use crate::ops::attention::{Attention, DocumentBounds};
use crate::ops::decode::Decode;
use crate::ops::dropout::Dropout;
use crate::record::Tensor;
use crate::tape::{Parameter, Tape, Var};

/// The tokens of one micro-batch, as they lie on the device.
#[derive(Clone, Copy, Debug)]
pub struct BatchTensors {
    /// Input ids (1, N).
    pub tokens: Tensor,
    /// Target ids (1, N).
    pub targets: Tensor,
    /// Position of each token in its document (1, N).
    pub positions: Tensor,
    /// Token numbers sorted by input id (1, N).
    pub order: Tensor,
    /// The document that each token belongs to; `None`: every sequence is one document.
    pub documents: Option<DocumentBounds>,
    /// Token numbers sorted by position (1, N), for models that learn a table of positions.
    pub position_order: Option<Tensor>,
    /// The same tokens and targets further ahead, for models that predict those too.
    pub ahead: Option<AheadTensors>,
}

/// Tokens and targets of a micro-batch, i places further in row i - 1: see [`Ahead`](crate::data::Ahead).
#[derive(Clone, Copy, Debug)]
pub struct AheadTensors {
    /// Input ids (depth, N).
    pub tokens: Tensor,
    /// Target ids (depth, N).
    pub targets: Tensor,
    /// Token numbers sorted by input id (depth, N).
    pub order: Tensor,
}

impl Gpt<Parameter> {
    /// The head's table (V, D): the embedding's, where they are tied.
    pub fn head_table(&self) -> &Parameter {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// Hidden states (N, D) after the last norm, ready for the head.
pub fn hidden<'p>(
    tape: &mut Tape<'_, 'p>,
    gpt: &'p Gpt<Parameter>,
    shape: &Shape,
    batch: &BatchTensors,
    recompute: bool,
) -> Var {
    let x = stream(tape, gpt, shape, batch, recompute);
    last_norm(tape, gpt, shape, x)
}

/// The residual stream (N, D) after the last layer, which blocks that predict further ahead go on from.
pub fn stream<'p>(
    tape: &mut Tape<'_, 'p>,
    gpt: &'p Gpt<Parameter>,
    shape: &Shape,
    batch: &BatchTensors,
    recompute: bool,
) -> Var {
    stream_with(tape, gpt, shape, batch, recompute, |_| None)
}

/// Hidden states (N, D) of the residual stream, ready for the head.
pub fn last_norm<'p>(tape: &mut Tape<'_, 'p>, gpt: &'p Gpt<Parameter>, shape: &Shape, x: Var) -> Var {
    norm(tape, "norm", x, &gpt.norm, shape.epsilon)
}

/// [`hidden`] of prompts (B·T), whose keys and values are kept in `caches`, one of [`Shape::decode`] a layer.
pub fn prefill<'p>(
    tape: &mut Tape<'_, 'p>,
    gpt: &'p Gpt<Parameter>,
    shape: &Shape,
    batch: &BatchTensors,
    caches: &[Tensor],
) -> Tensor {
    let x = stream_with(tape, gpt, shape, batch, false, |layer| Some(Cache::Fill(caches[layer])));
    last_norm(tape, gpt, shape, x).tensor
}

/// Hidden states (B, D) of one new token a sequence, which sees what `caches` hold of those before it.
pub fn decode<'p>(
    tape: &mut Tape<'_, 'p>,
    gpt: &'p Gpt<Parameter>,
    shape: &Shape,
    batch: &BatchTensors,
    caches: &[Tensor],
) -> Tensor {
    let x = stream_with(tape, gpt, shape, batch, false, |layer| Some(Cache::Extend(caches[layer])));
    last_norm(tape, gpt, shape, x).tensor
}

/// Places of dropout in a layer: its weights of attention, and what attention and the feed-forward network add.
const PLACES: u32 = 3;

/// What a layer does with the keys and values (B·T, 2 G·C) that generation keeps.
#[derive(Clone, Copy)]
enum Cache {
    /// Writes those of whole prompts.
    Fill(Tensor),
    /// Adds those of one new token a sequence, and attends to all.
    Extend(Tensor),
}

fn stream_with<'p>(
    tape: &mut Tape<'_, 'p>,
    gpt: &'p Gpt<Parameter>,
    shape: &Shape,
    batch: &BatchTensors,
    recompute: bool,
    cache: impl Fn(usize) -> Option<Cache>,
) -> Var {
    let mut x = tape.scope("embedding", |tape| embedding(tape, gpt, batch)); // (N, D)
    if let Some(dropout) = shape.dropout(shape.dropout.embedding, 0) {
        x = tape.scope("embedding_dropout", |tape| tape.dropout(x, None, dropout));
    }
    for (layer, parameters) in gpt.blocks.iter().enumerate() {
        let shape = *shape;
        let place = Place { batch: *batch, layer, cache: cache(layer) };
        x = tape.scope(format!("layers.{layer}"), |tape| match recompute {
            true => tape.checkpoint(x, move |tape, x| block(tape, parameters, &shape, &place, x)),
            false => block(tape, parameters, &shape, &place, x),
        });
    }
    x
}

/// What differs from layer to layer, and from recording to recording.
#[derive(Clone, Copy)]
pub(super) struct Place {
    batch: BatchTensors,
    layer: usize,
    cache: Option<Cache>,
}

impl Place {
    /// Layer number `layer`, in a recording that keeps no keys and values.
    pub fn new(batch: &BatchTensors, layer: usize) -> Self {
        Self { batch: *batch, layer, cache: None }
    }

    /// Number of the layer's first dropout.
    fn first_op(&self) -> u32 {
        1 + PLACES * self.layer as u32
    }
}

/// The tokens' rows of the embedding, and those of their positions where positions are learned: (N, D).
fn embedding<'p>(tape: &mut Tape<'_, 'p>, gpt: &'p Gpt<Parameter>, batch: &BatchTensors) -> Var {
    let x = tape.embedding(batch.tokens, batch.order, &gpt.embedding, Element::F32);
    match (&gpt.positions, batch.position_order) {
        (None, _) => x,
        (Some(table), Some(order)) => {
            tape.scope("positions", |tape| tape.add_embedding(x, batch.positions, order, table))
        }
        (Some(_), None) => panic!("the batch of a model that learns positions comes with their order"),
    }
}

/// LayerNorm where there is a bias, RMSNorm where there is none.
pub(super) fn norm<'p>(
    tape: &mut Tape<'_, 'p>,
    name: &str,
    x: Var, // (N, D)
    norm: &'p NormWeights<Parameter>,
    epsilon: f32,
) -> Var {
    tape.scope(name, |tape| match &norm.bias {
        Some(bias) => tape.layer_norm(x, &norm.weight, bias, epsilon),
        None => tape.rms_norm(x, &norm.weight, epsilon),
    })
}

/// One layer: attention, then the feed-forward network, each normalised before and added to the residual stream.
pub(super) fn block<'p>(
    tape: &mut Tape<'_, 'p>,
    block: &'p Block<Parameter>,
    shape: &Shape,
    place: &Place,
    x: Var, // (N, D)
) -> Var {
    let h = norm(tape, "attention_norm", x, &block.attention_norm, shape.epsilon);
    let x = tape.scope("attention", |tape| attention(tape, &block.attention, shape, place, [h, x]));
    let h = norm(tape, "ffn_norm", x, &block.ffn_norm, shape.epsilon);
    let op = place.first_op() + 2;
    tape.scope("feed_forward", |tape| match &block.feed_forward {
        FeedForward::Dense(dense) => feed_forward(tape, dense, shape, op, h, x),
        FeedForward::Mixture(experts) => mixture(tape, experts, shape, place.layer, op, [h, x]),
    })
}

fn attention<'p>(
    tape: &mut Tape<'_, 'p>,
    attention: &'p SelfAttention<Parameter>,
    shape: &Shape,
    place: &Place,
    [h, x]: [Var; 2], // (N, D) each
) -> Var {
    let layout = shape.layout;
    let qkv = tape.scope("wqkv", |tape| linear(tape, h, &attention.wqkv, None)); // (N, (H + 2 G)·C)
    let qkv = match &attention.qk_norm {
        Some([q, k]) => tape.scope("qk_norm", |tape| tape.qk_norm(qkv, q, k, layout, shape.epsilon)),
        None => qkv,
    };
    let qkv = match shape.rotation {
        Some(Rotation { rope, cos_sin, .. }) => {
            tape.scope("rope", |tape| tape.rope(qkv, place.batch.positions, cos_sin, layout, rope))
        }
        None => qkv,
    };
    let y = attend(tape, shape, place, qkv); // (N, H·C)
    tape.scope("wo", |tape| add_linear(tape, y, &attention.wo, shape, place.first_op() + 1, x)) // (N, D)
}

fn attend(tape: &mut Tape<'_, '_>, shape: &Shape, place: &Place, qkv: Var) -> Var {
    match place.cache {
        Some(Cache::Extend(cache)) => {
            return tape
                .scope("decode", |tape| tape.decode(qkv, place.batch.positions, cache, &shape.decode()));
        }
        Some(Cache::Fill(cache)) => tape.scope("cache", |tape| tape.fill_cache(qkv, cache, &shape.decode())),
        None => {}
    }
    let Decode { layout, tokens, scale, window } = shape.decode();
    let dropout = shape.dropout(shape.dropout.attention, place.first_op());
    let attention = Attention { layout, tokens, is_causal: true, scale, window, dropout };
    tape.scope("flash_attention", |tape| tape.attention(qkv, place.batch.documents, attention))
}

/// x Wᵀ + b + residual.
fn linear<'p>(tape: &mut Tape<'_, 'p>, x: Var, linear: &'p Linear<Parameter>, residual: Option<Var>) -> Var {
    tape.linear(x, &linear.weight, linear.bias.as_ref(), residual)
}

/// x + dropout(W y + b): where nothing is dropped, the product's kernel adds x.
fn add_linear<'p>(
    tape: &mut Tape<'_, 'p>,
    y: Var,
    weights: &'p Linear<Parameter>,
    shape: &Shape,
    op: u32,
    x: Var, // (N, D)
) -> Var {
    let dropout = shape.dropout(shape.dropout.hidden, op);
    let y = linear(tape, y, weights, dropout.is_none().then_some(x));
    add_dropped(tape, y, dropout, x)
}

/// x + dropout(y), or y, which has x in it then, where nothing is dropped.
pub(super) fn add_dropped(tape: &mut Tape<'_, '_>, y: Var, dropout: Option<Dropout>, x: Var) -> Var {
    match dropout {
        None => y,
        Some(dropout) => tape.scope("dropout", |tape| tape.dropout(y, Some(x), dropout)),
    }
}

fn feed_forward<'p>(
    tape: &mut Tape<'_, 'p>,
    dense: &'p DenseFeedForward<Parameter>,
    shape: &Shape,
    op: u32,
    h: Var, // (N, D)
    x: Var, // (N, D)
) -> Var {
    let h = tape.scope("w_gate_up", |tape| linear(tape, h, &dense.w_gate_up, None)); // (N, 2 F), or (N, F) without a gate
    let y = match shape.activation {
        Activation::SwiGlu => tape.scope("mul", |tape| tape.swiglu(h, shape.inner)), // (N, F)
        Activation::Gelu(kind) => tape.scope("gelu", |tape| tape.gelu(h, kind)),     // (N, F)
    };
    tape.scope("w_down", |tape| add_linear(tape, y, &dense.w_down, shape, op, x)) // (N, D)
}

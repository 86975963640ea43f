//! The model: a Llama-shaped decoder, read from top to bottom.
//!
//! Letters: N = B·T tokens, D width, H query heads and G key-value heads of C dimensions, F feed-forward width, V
//! vocabulary.

use super::config::ModelConfig;
use super::parameters::{Block, Gpt};
use crate::element::Element;
use crate::ops::attention::{Attention, Segments};
use crate::ops::dropout::Dropout;
use crate::ops::heads::HeadLayout;
use crate::ops::rope::{Rope, cos_sin_table};
use crate::record::{Persistents, Tensor};
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
    /// Which tokens belong to the same document; `None`: every sequence is one.
    pub segments: Option<Segments>,
}

/// Everything of a model that is not a parameter.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    layout: HeadLayout,
    rope: Rope,
    inner: u32,
    sequence_length: u32,
    window: Option<u32>,
    epsilon: f32,
    cos_sin: Tensor,
    dropout: DropoutShares,
    /// Seed and state of the masks; `None`: nothing is dropped, whatever the shares.
    masks: Option<(u64, Tensor)>,
}

/// How much training drops, and where.
#[derive(Clone, Copy, Debug)]
struct DropoutShares {
    attention: f32,
    hidden: f32,
    embedding: f32,
}

/// Places of dropout in a layer: its weights of attention, and what attention and the feed-forward network add.
const PLACES: u32 = 3;

impl Shape {
    /// The shape of `config`; adds the rotary table (T, rotary_dim) to the persistent buffers.
    pub fn new(config: &ModelConfig, persistents: &mut Persistents) -> Self {
        let head_dim = config.head_dim as u32;
        let layout = HeadLayout {
            heads: config.num_heads as u32,
            kv_heads: config.num_kv_heads as u32,
            head_dim,
            value_dim: head_dim,
        };
        let rope = Rope {
            rotary_dim: config.rotary_dim as u32,
            theta: config.rope_theta,
            is_interleaved: config.rotary_interleaved,
        };
        let (positions, cols) = (config.seq_length as u32, config.rotary_dim as u32);
        let cos_sin = persistents.tensor("cos_sin", positions, cols, Element::F32);
        Self {
            layout,
            rope,
            inner: config.intermediate_size as u32,
            sequence_length: positions,
            window: config.sliding_window.map(|window| window as u32),
            epsilon: config.rms_norm_eps as f32,
            cos_sin,
            dropout: DropoutShares {
                attention: config.attention_dropout as f32,
                hidden: config.hidden_dropout as f32,
                embedding: config.embedding_dropout as f32,
            },
            masks: None,
        }
    }

    /// Whether training drops anything.
    pub fn has_dropout(&self) -> bool {
        let DropoutShares { attention, hidden, embedding } = self.dropout;
        [attention, hidden, embedding].iter().any(|share| *share > 0.0)
    }

    /// The shape in training: with the dropout of the configuration, its masks from `seed` and `DropoutState` `state`.
    pub fn dropping(self, seed: u64, state: Tensor) -> Self {
        Self { masks: Some((seed, state)), ..self }
    }

    /// Dropout number `op` of the model, if `share` of anything is dropped.
    fn dropout(&self, share: f32, op: u32) -> Option<Dropout> {
        let (seed, state) = self.masks.filter(|_| share > 0.0)?;
        Some(Dropout { probability: share, seed, op, state })
    }

    /// Where the rotary table lies, and what it holds.
    pub fn rotary_table(&self) -> (Tensor, Vec<f32>) {
        (self.cos_sin, cos_sin_table(self.sequence_length, &self.rope))
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
    let mut x = tape.scope("embedding", |tape| {
        tape.embedding(batch.tokens, batch.order, &gpt.embedding, Element::F32) // (N, D)
    });
    if let Some(dropout) = shape.dropout(shape.dropout.embedding, 0) {
        x = tape.scope("embedding_dropout", |tape| tape.dropout(x, None, dropout));
    }
    for (layer, parameters) in gpt.blocks.iter().enumerate() {
        let (shape, batch, first_op) = (*shape, *batch, 1 + PLACES * layer as u32);
        x = tape.scope(format!("layers.{layer}"), |tape| match recompute {
            true => tape.checkpoint(x, move |tape, x| block(tape, parameters, &shape, &batch, first_op, x)),
            false => block(tape, parameters, &shape, &batch, first_op, x),
        });
    }
    tape.scope("norm", |tape| tape.rms_norm(x, &gpt.norm, shape.epsilon))
}

/// One layer: attention, then the feed-forward network, each normalised before and added to the residual stream.
fn block<'p>(
    tape: &mut Tape<'_, 'p>,
    block: &'p Block<Parameter>,
    shape: &Shape,
    batch: &BatchTensors,
    first_op: u32,
    x: Var, // (N, D)
) -> Var {
    let h = tape.scope("attention_norm", |tape| tape.rms_norm(x, &block.attention_norm, shape.epsilon));
    let x = tape.scope("attention", |tape| attention(tape, block, shape, batch, first_op, [h, x]));
    let h = tape.scope("ffn_norm", |tape| tape.rms_norm(x, &block.ffn_norm, shape.epsilon));
    tape.scope("feed_forward", |tape| feed_forward(tape, block, shape, first_op + 2, h, x))
}

fn attention<'p>(
    tape: &mut Tape<'_, 'p>,
    block: &'p Block<Parameter>,
    shape: &Shape,
    batch: &BatchTensors,
    first_op: u32,
    [h, x]: [Var; 2], // (N, D) each
) -> Var {
    let layout = shape.layout;
    let qkv = tape.scope("wqkv", |tape| tape.linear(h, &block.wqkv, block.bqkv.as_ref(), None)); // (N, (H + 2 G)·C)
    let qkv = match (&block.q_norm, &block.k_norm) {
        (Some(q), Some(k)) => tape.scope("qk_norm", |tape| tape.qk_norm(qkv, q, k, layout, shape.epsilon)),
        _ => qkv,
    };
    let qkv = tape.scope("rope", |tape| tape.rope(qkv, batch.positions, shape.cos_sin, layout, shape.rope));
    let attention = Attention {
        layout,
        tokens: shape.sequence_length,
        is_causal: true,
        scale: 1.0 / (layout.head_dim as f32).sqrt(),
        window: shape.window,
        dropout: shape.dropout(shape.dropout.attention, first_op),
    };
    let y = tape.scope("flash_attention", |tape| tape.attention(qkv, batch.segments, attention)); // (N, H·C)
    tape.scope("wo", |tape| add_linear(tape, y, &block.wo, shape, first_op + 1, x)) // (N, D)
}

/// x + dropout(W y): where nothing is dropped, the product's kernel adds x.
fn add_linear<'p>(
    tape: &mut Tape<'_, 'p>,
    y: Var,
    weight: &'p Parameter,
    shape: &Shape,
    op: u32,
    x: Var, // (N, D)
) -> Var {
    let Some(dropout) = shape.dropout(shape.dropout.hidden, op) else {
        return tape.linear(y, weight, None, Some(x));
    };
    let y = tape.linear(y, weight, None, None);
    tape.scope("dropout", |tape| tape.dropout(y, Some(x), dropout))
}

fn feed_forward<'p>(
    tape: &mut Tape<'_, 'p>,
    block: &'p Block<Parameter>,
    shape: &Shape,
    op: u32,
    h: Var, // (N, D)
    x: Var, // (N, D)
) -> Var {
    let gate_up = tape.scope("w_gate_up", |tape| tape.linear(h, &block.w_gate_up, None, None)); // (N, 2 F)
    let y = tape.scope("mul", |tape| tape.swiglu(gate_up, shape.inner)); // (N, F)
    tape.scope("w_down", |tape| add_linear(tape, y, &block.w_down, shape, op, x)) // (N, D)
}

//! Blocks that predict tokens further ahead (DeepSeek-V3, 2024, section 2.2).
//!
//! Block i goes on from what the last layer made, or the block before it, and from the tokens i places further:
//! h_i = block(W [norm(embedding) | norm(h_(i-1))]). Embedding and head are the model's.

use super::gpt::{BatchTensors, Place, block};
use super::parameters::{Gpt, MultiTokenBlock};
use super::shape::Shape;
use crate::element::Element;
use crate::record::Tensor;
use crate::tape::{Parameter, Tape, Var};

/// What one block makes.
#[derive(Clone, Copy, Debug)]
pub struct Prediction {
    /// Hidden states (N, D), ready for the head.
    pub hidden: Var,
    /// What they should predict (1, N).
    pub targets: Tensor,
}

/// What each block makes of the residual stream x (N, D) after the last layer, the nearest first.
pub fn multi_token<'p>(
    tape: &mut Tape<'_, 'p>,
    gpt: &'p Gpt<Parameter>,
    shape: &Shape,
    batch: &BatchTensors,
    x: Var,
) -> Vec<Prediction> {
    let mut state = x;
    let mut predictions = Vec::new();
    for (i, parameters) in gpt.multi_token.iter().enumerate() {
        let layer = gpt.blocks.len() + i;
        let Some(ahead) = batch.ahead else { panic!("the batch has no tokens further ahead") };
        let row = |tensor: Tensor| tensor.rows(i as u32, 1);
        let [tokens, targets, order] = [ahead.tokens, ahead.targets, ahead.order].map(row);
        state = tape.scope(format!("layers.{layer}"), |tape| {
            let embedded =
                tape.scope("embedding", |tape| tape.embedding(tokens, order, &gpt.embedding, Element::F32));
            let fused = fuse(tape, parameters, shape, embedded, state);
            block(tape, &parameters.block, shape, &Place::new(batch, layer), fused)
        });
        let hidden = tape.scope(format!("layers.{layer}"), |tape| {
            tape.scope("norm", |tape| tape.rms_norm(state, &parameters.norm, shape.epsilon))
        });
        predictions.push(Prediction { hidden, targets });
    }
    predictions
}

/// W [norm(embedded) | norm(state)], (N, D).
fn fuse<'p>(
    tape: &mut Tape<'_, 'p>,
    parameters: &'p MultiTokenBlock<Parameter>,
    shape: &Shape,
    embedded: Var, // (N, D)
    state: Var,    // (N, D)
) -> Var {
    let tokens =
        tape.scope("token_norm", |tape| tape.rms_norm(embedded, &parameters.token_norm, shape.epsilon));
    let state = tape.scope("state_norm", |tape| tape.rms_norm(state, &parameters.state_norm, shape.epsilon));
    tape.scope("w_fuse", |tape| tape.linear_of_two([tokens, state], &parameters.w_fuse))
}

//! Multi-token prediction (DeepSeek-V3, 2024, section 2.2).
//!
//! Block i takes the residual stream of the last layer, or of the previous block, and the embedding of the tokens i + 1
//! further: h_i = block(W [norm(embedding) | norm(h_(i-1))]). Embedding and head are those of the model.
//!
//! The embedding's half comes first in the product, as in the published `eh_proj` of DeepSeek-V3. Embedding table
//! and head accumulate gradients from the model and all blocks. Evaluation and generation leave these blocks out.

use super::context::ForwardContext;
use super::gpt::Shared;
use super::parameters::{Gpt, MultiTokenBlock};
use crate::ops::rms_norm::RmsNorm;
use crate::record::Tensor;
use crate::tape::{Parameter, Tape, Var};

/// The output of one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prediction {
    /// Hidden states (N, D), ready for the head.
    pub hidden: Var,
    /// Target ids (1, N).
    pub targets: Tensor,
}

impl Gpt<Parameter> {
    /// The predictions of all blocks, the nearest token first, from the residual stream x (N, D) after the last layer.
    pub(super) fn predict_ahead<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'p>,
        mut x: Var, // (N, D)
    ) -> Vec<Prediction> {
        let mut predictions = Vec::new();
        for (i, block) in self.multi_token.iter().enumerate() {
            let layer = self.blocks.len() + i;
            let Some(ahead) = ctx.batch.ahead else {
                panic!("a batch without the tokens that multi-token prediction needs")
            };
            let row = |tensor: Tensor| tensor.rows(i as u32, 1);
            let [tokens, targets, order] = [ahead.tokens, ahead.targets, ahead.order].map(row);
            x = tape.scope(format!("layers.{layer}"), |tape| {
                let embedded = tape
                    .scope("embedding", |tape| ctx.embed(tape, &self.embedding, [tokens, order], None, None));
                let fused = block.fuse(tape, ctx.rms_norm(), embedded, x); // (N, D)
                block.block.layer(tape, ctx, layer, fused, &mut Shared::default()) // (N, D)
            });
            let hidden = tape.scope(format!("layers.{layer}"), |tape| {
                tape.scope("norm", |tape| tape.rms_norm(x, &block.norm, ctx.rms_norm())) // (N, D)
            });
            predictions.push(Prediction { hidden, targets });
        }
        predictions
    }
}

impl MultiTokenBlock<Parameter> {
    /// W [norm(embedded) | norm(x)]: (N, D).
    fn fuse<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        norm: RmsNorm,
        embedded: Var, // (N, D)
        x: Var,        // (N, D)
    ) -> Var {
        let tokens = tape.scope("token_norm", |tape| tape.rms_norm(embedded, &self.token_norm, norm));
        let state = tape.scope("state_norm", |tape| tape.rms_norm(x, &self.state_norm, norm));
        tape.scope("w_fuse", |tape| tape.linear_of_two([tokens, state], &self.w_fuse))
    }
}

//! Embeddings that each layer has of its own, which it adds after its feed-forward network (Gemma 3n, 2025, and 4).
//!
//! They are the sum of a row of a table and of a projection of the embedded tokens x₀: with P columns for each of L
//! layers
//!
//! eₗ = (√P · table\[id\]ₗ + norm(W x₀ / √D)ₗ) / √2
//!
//! and layer l adds norm(W_out (act(W_gate x) · eₗ)) to its result x. The projection is one product for all layers,
//! whose parts are ranges of it. Of the table (V, L·P) a layer reads its own columns alone, so that no tensor has the
//! rows of all layers for all tokens, and they are read again where the layer is recomputed.

use super::config::{Activation, Gate, ModelConfig};
use super::context::ForwardContext;
use super::parameters::{LayerInput, PerLayer};
use crate::ops::rms_norm::RmsNorm;
use crate::tape::{Parameter, Tape, Var};
use std::f32::consts::FRAC_1_SQRT_2;

/// What layers make their own embeddings of.
pub(super) struct LayerInputs<'p> {
    source: &'p PerLayer<Parameter>,
    /// For each layer its part (N, P) of the projection of the embedded tokens.
    context: Vec<Var>,
}

impl<'p> LayerInputs<'p> {
    /// Those of the embedded tokens x (N, D).
    pub fn new(
        source: &'p PerLayer<Parameter>,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        x: Var,
    ) -> Self {
        let factor = 1.0 / (ctx.config.hidden_size as f32).sqrt();
        let context =
            tape.scope("per_layer", |tape| source.context.scaled(tape, ctx, x, None, Some(factor), None));
        Self { source, context: tape.split_evenly(context, ctx.config.num_layers as u32) }
    }

    /// The embeddings (N, P) of layer number `layer`.
    fn of_layer(&self, tape: &mut Tape<'_, 'p>, ctx: &ForwardContext<'_>, layer: usize) -> Var {
        let norm = RmsNorm { factor: Some(FRAC_1_SQRT_2), ..ctx.rms_norm() };
        let x = tape.rms_norm(self.context[layer], &self.source.norm, norm);
        let (width, ids) = (x.tensor.cols, [ctx.batch.tokens, ctx.batch.order]);
        let (table, first) = (&self.source.table, layer as u32 * width);
        tape.add_embedding_columns(x, ids, (table, first), (width as f32).sqrt() * FRAC_1_SQRT_2)
    }
}

impl LayerInput<Parameter> {
    /// x + norm(W_out (act(W_gate x) · e)) of the embeddings e of layer number `layer`.
    pub(super) fn forward<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        x: Var, // (N, D)
        inputs: &LayerInputs<'p>,
    ) -> Var {
        let e = tape.scope("embedding", |tape| inputs.of_layer(tape, ctx, layer)); // (N, P)
        let gate = tape.scope("gate", |tape| self.gate.forward(tape, ctx, x, None)); // (N, P)
        let gated = tape.scope("mul", |tape| {
            let both = tape.join([gate, e]);
            tape.swiglu(both, e.tensor.cols, gate_of(ctx.config))
        });
        let y = tape.scope("projection", |tape| self.projection.forward(tape, ctx, gated, None)); // (N, D)
        tape.scope("norm", |tape| tape.add_rms_norm(x, y, &self.norm, ctx.rms_norm()))
    }
}

/// The activation of the feed-forward network, as one of a gate.
fn gate_of(config: &ModelConfig) -> Gate {
    match config.activation {
        Activation::Gated(gate) => gate,
        Activation::Gelu(kind) => Gate::Gelu(kind),
        Activation::Xielu => panic!("xIELU is no gate of embeddings of each layer"),
    }
}

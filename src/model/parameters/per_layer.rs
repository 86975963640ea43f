//! The parameters of embeddings that each layer has of its own.

use super::Linear;
use super::scope::{Scope, StackedRows};
use super::spec::Role;
use crate::model::names;

/// What the embeddings of all L layers are made of, P wide in each.
#[derive(Clone, Debug, PartialEq)]
pub struct PerLayer<P> {
    /// (V, L·P): the rows of all layers side by side.
    pub table: P,
    /// (L·P, D): the projection of the embedded tokens.
    pub context: Linear<P>,
    /// (P): the norm of each layer's part of that projection.
    pub norm: P,
}

/// What adds its own embeddings to a layer's result.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerInput<P> {
    /// (P, D): the gate of the embeddings.
    pub gate: Linear<P>,
    /// (D, P)
    pub projection: Linear<P>,
    /// (D): the norm of what is added.
    pub norm: P,
}

impl<P> PerLayer<P> {
    pub(super) fn declare(model: &mut Scope<'_, P>, layers: usize, width: usize) -> Self {
        let (config, cols) = (model.config, layers * width);
        let std = config.init_std;
        let table = StackedRows::new([names::PER_LAYER_TABLE], &[config.vocab_size]);
        let context = StackedRows::new([names::PER_LAYER_CONTEXT], &[cols]);
        let paths = ["per_layer.context", "per_layer.context_bias"];
        Self {
            table: model.matrix(Role::LayerEmbedding, "per_layer.table", &table, cols, std),
            context: model.linear(paths, &context, config.hidden_size, std, false),
            norm: model.norm_weight("per_layer.norm", names::PER_LAYER_CONTEXT_NORM, width),
        }
    }
}

impl<P> LayerInput<P> {
    pub(super) fn declare(layer: &mut Scope<'_, P>, width: usize) -> Self {
        let (size, std) = (layer.config.hidden_size, layer.config.init_std);
        let residual_std = layer.config.residual_init_std();
        let gate = StackedRows::new([names::PER_LAYER_GATE], &[width]);
        let projection = StackedRows::new([names::PER_LAYER_PROJECTION], &[size]);
        let paths = ["input.projection", "input.projection_bias"];
        Self {
            gate: layer.linear(["input.gate", "input.gate_bias"], &gate, size, std, false),
            projection: layer.linear(paths, &projection, width, residual_std, false),
            norm: layer.norm_weight("input.norm", names::PER_LAYER_NORM, size),
        }
    }
}

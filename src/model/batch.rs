//! The tokens of a micro-batch on the device.

use crate::ops::attention::DocumentBounds;
use crate::record::Tensor;

/// A micro-batch of N tokens; all tensors hold u32.
#[derive(Clone, Copy, Debug)]
pub struct BatchTensors {
    /// Input ids (1, N).
    pub tokens: Tensor,
    /// Target ids (1, N).
    pub targets: Tensor,
    /// Position of each token in its document (1, N).
    pub positions: Tensor,
    /// Token indices sorted by input id (1, N): the order in which the embedding's gradient is summed.
    pub order: Tensor,
    /// The document of each token; `None`: every sequence is one document.
    pub documents: Option<DocumentBounds>,
    /// Token indices sorted by position (1, N), for models with learned positions.
    pub position_order: Option<Tensor>,
    /// Inputs and targets of multi-token prediction, for models that have it.
    pub ahead: Option<AheadTensors>,
}

/// Inputs and targets of multi-token prediction: row i has those of block i, shifted by i + 1 tokens; see
/// [`Ahead`](crate::data::Ahead).
#[derive(Clone, Copy, Debug)]
pub struct AheadTensors {
    /// Input ids (depth, N).
    pub tokens: Tensor,
    /// Target ids (depth, N).
    pub targets: Tensor,
    /// Token indices sorted by input id (depth, N).
    pub order: Tensor,
}

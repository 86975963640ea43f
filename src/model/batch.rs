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
    /// The pairs of answers, for data that are such pairs.
    pub pairs: Option<PairTensors>,
    /// Inputs and targets of multi-token prediction, for models that have it.
    pub ahead: Option<AheadTensors>,
}

/// Which arrays the data of a run need beside those that every model has.
#[derive(Clone, Copy, Debug, Default)]
pub struct DataArrays {
    /// Whether documents are kept apart.
    pub isolates_documents: bool,
    /// Whether the data are pairs of answers.
    pub has_pairs: bool,
    /// Whether the log-probabilities of these pairs under their reference are known beforehand.
    pub has_references: bool,
}

/// The pairs of answers in a micro-batch; see [`Preference::pairs`](crate::ops::preference::Preference::pairs).
#[derive(Clone, Copy, Debug)]
pub struct PairTensors {
    /// The places of the pairs (1, 4 P).
    pub places: Tensor,
    /// (1, 4 P) f32: their log-probabilities under the reference, if they are known beforehand.
    pub references: Option<Tensor>,
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

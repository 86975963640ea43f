//! The id arrays of a micro-batch, on the host and on the device.

use crate::data::Batch;
use crate::element::Element;
use crate::model::config::ModelConfig;
use crate::model::{AheadTensors, BatchTensors};
use crate::ops::attention::DocumentBounds;
use crate::record::{BufferId, Persistents, Tensor};

/// Which id arrays a micro-batch has on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchArrays {
    /// Token indices sorted by position.
    pub sorts_positions: bool,
    /// First and last token of each token's document, two arrays.
    pub isolates_documents: bool,
    /// Depth of multi-token prediction: tokens, targets and order once more for each depth.
    pub ahead: u32,
}

impl BatchArrays {
    /// The arrays that `model` needs, on data whose documents are kept apart if `isolates_documents`.
    pub fn of(model: &ModelConfig, isolates_documents: bool) -> Self {
        Self {
            sorts_positions: model.learns_positions(),
            isolates_documents,
            ahead: model.multi_token.map_or(0, |further| further.depth as u32),
        }
    }

    /// Bytes of all arrays of a micro-batch of `tokens`.
    pub fn bytes(self, tokens: u32) -> u64 {
        let count = 4
            + u64::from(self.sorts_positions)
            + 2 * u64::from(self.isolates_documents)
            + 3 * u64::from(self.ahead);
        count * batch_stride(tokens)
    }

    /// The arrays of a batch, in the order of the device buffer.
    pub fn list(self, batch: &Batch) -> Vec<&[u32]> {
        let Batch { tokens, targets, positions, order, position_order, starts, ends, ahead } = batch;
        let mut arrays: Vec<&[u32]> = vec![tokens, targets, positions, order];
        arrays.extend(self.sorts_positions.then_some(&position_order[..]));
        arrays.extend(self.isolates_documents.then_some([&starts[..], ends]).into_iter().flatten());
        arrays.extend(ahead.iter().map(|ahead| &ahead.tokens[..]));
        arrays.extend(ahead.iter().map(|ahead| &ahead.targets[..]));
        arrays.extend(ahead.iter().map(|ahead| &ahead.order[..]));
        arrays
    }
}

/// Bytes from one id array of a micro-batch to the next, aligned so that each can be bound.
pub(crate) fn batch_stride(tokens: u32) -> u64 {
    (4 * tokens as u64).next_multiple_of(256)
}

/// The id arrays of a micro-batch in one buffer, so that one copy uploads all of them.
pub(crate) fn batch_tensors(
    persistents: &mut Persistents,
    label: &str,
    tokens: u32,
    arrays: BatchArrays,
) -> BatchTensors {
    let buffer = BufferId::Persistent(persistents.add(label, arrays.bytes(tokens)));
    let mut next = 0;
    let mut array = || {
        let array = Tensor::new(buffer, next * batch_stride(tokens), 1, tokens, Element::U32);
        next += 1;
        array
    };
    let [tokens, targets, positions, order] = [array(), array(), array(), array()];
    let position_order = arrays.sorts_positions.then(&mut array);
    let documents = arrays.isolates_documents.then(|| DocumentBounds { starts: array(), ends: array() });
    let mut ahead_rows = || {
        let first = array();
        for _ in 1..arrays.ahead {
            array();
        }
        Tensor { rows: arrays.ahead, stride: (batch_stride(first.cols) / 4) as u32, ..first }
    };
    let ahead = (arrays.ahead > 0).then(|| AheadTensors {
        tokens: ahead_rows(),
        targets: ahead_rows(),
        order: ahead_rows(),
    });
    BatchTensors { tokens, targets, positions, order, position_order, documents, ahead }
}

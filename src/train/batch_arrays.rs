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
}

/// Bytes from one id array of a micro-batch to the next, aligned so that each can be bound.
fn batch_stride(tokens: u32) -> u64 {
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

/// Calls `put` with each id array of a batch on the device, and what is in it.
pub(crate) fn for_each_array(to: &BatchTensors, batch: &Batch, mut put: impl FnMut(Tensor, &[u32])) {
    put(to.tokens, &batch.tokens);
    put(to.targets, &batch.targets);
    put(to.positions, &batch.positions);
    put(to.order, &batch.order);
    if let Some(position_order) = to.position_order {
        put(position_order, &batch.position_order);
    }
    if let Some(DocumentBounds { starts, ends }) = to.documents {
        put(starts, &batch.starts);
        put(ends, &batch.ends);
    }
    let Some(AheadTensors { tokens, targets, order }) = to.ahead else { return };
    for (row, ahead) in (0..).zip(&batch.ahead) {
        put(tokens.rows(row, 1), &ahead.tokens);
        put(targets.rows(row, 1), &ahead.targets);
        put(order.rows(row, 1), &ahead.order);
    }
}

//! The id arrays of a micro-batch, on the host and on the device.

use crate::data::Batch;
use crate::element::Element;
use crate::model::config::ModelConfig;
use crate::model::{AheadTensors, BatchTensors};
use crate::ops::attention::DocumentBounds;
use crate::record::{BufferId, PersistentId, Tensor};

/// The id arrays of a micro-batch, one after the other in a buffer, so that one copy uploads all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchArrays {
    /// Tokens of a micro-batch.
    pub tokens: u32,
    /// Token indices sorted by position.
    pub sorts_positions: bool,
    /// First and last token of each token's document, two arrays.
    pub isolates_documents: bool,
    /// Depth of multi-token prediction: tokens, targets and order once more for each depth.
    pub ahead: u32,
}

/// The ids of an array of a batch; of multi-token prediction those of a depth, counted from 0.
type Ids = fn(&Batch, usize) -> &[u32];

/// A buffer for arrays of which only the places are asked for.
const NOWHERE: BufferId = BufferId::Persistent(PersistentId(u32::MAX));

impl BatchArrays {
    /// The arrays of `tokens` tokens that `model` needs, on data whose documents are kept apart if
    /// `isolates_documents`.
    pub fn of(model: &ModelConfig, tokens: u32, isolates_documents: bool) -> Self {
        Self {
            tokens,
            sorts_positions: model.learns_positions(),
            isolates_documents,
            ahead: model.multi_token.map_or(0, |further| further.depth as u32),
        }
    }

    /// Bytes of all arrays.
    pub fn bytes(self) -> u64 {
        let mut bytes = 0;
        self.lay(NOWHERE, |offset, _, _| bytes = offset + self.stride());
        bytes
    }

    /// The arrays in `buffer`, which has room for [`bytes`](Self::bytes).
    pub fn tensors(self, buffer: BufferId) -> BatchTensors {
        self.lay(buffer, |_, _, _| {})
    }

    /// Calls `put` with the byte offset and the ids of each array of `batch`.
    pub fn for_each(self, batch: &Batch, mut put: impl FnMut(u64, &[u32])) {
        self.lay(NOWHERE, |offset, ids, depth| {
            let ids = ids(batch, depth);
            assert!(ids.len() == self.tokens as usize, "a batch of {} tokens has {}", self.tokens, ids.len());
            put(offset, ids);
        });
    }

    /// Bytes from one array to the next, aligned so that each can be bound.
    fn stride(self) -> u64 {
        (4 * self.tokens as u64).next_multiple_of(256)
    }

    /// The one place that orders the arrays: calls `each` with byte offset, ids and depth of one after the other.
    fn lay(self, buffer: BufferId, mut each: impl FnMut(u64, Ids, usize)) -> BatchTensors {
        let mut offset = 0;
        let mut arrays = |depths: u32, ids: Ids| {
            let first = Tensor::new(buffer, offset, 1, self.tokens, Element::U32);
            for depth in 0..depths as usize {
                each(offset, ids, depth);
                offset += self.stride();
            }
            Tensor { rows: depths, stride: (self.stride() / 4) as u32, ..first }
        };
        let mut array = |ids: Ids| Tensor { stride: Element::U32.stride(self.tokens), ..arrays(1, ids) };
        BatchTensors {
            tokens: array(|batch, _| &batch.tokens),
            targets: array(|batch, _| &batch.targets),
            positions: array(|batch, _| &batch.positions),
            order: array(|batch, _| &batch.order),
            position_order: self.sorts_positions.then(|| array(|batch, _| &batch.position_order)),
            documents: self.isolates_documents.then(|| DocumentBounds {
                starts: array(|batch, _| &batch.starts),
                ends: array(|batch, _| &batch.ends),
            }),
            ahead: (self.ahead > 0).then(|| AheadTensors {
                tokens: arrays(self.ahead, |batch, depth| &batch.ahead[depth].tokens),
                targets: arrays(self.ahead, |batch, depth| &batch.ahead[depth].targets),
                order: arrays(self.ahead, |batch, depth| &batch.ahead[depth].order),
            }),
        }
    }
}

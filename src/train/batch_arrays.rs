//! The id arrays of a micro-batch, one after the other in a buffer, so that one copy uploads all of them.

use crate::data::Batch;
use crate::element::Element;
use crate::model::config::ModelConfig;
use crate::model::{AheadTensors, BatchTensors, DataArrays, PairTensors};
use crate::ops::attention::DocumentBounds;
use crate::ops::preference::PAIR_WORDS;
use crate::record::{PersistentId, Persistents, Tensor};

impl BatchTensors {
    /// The arrays of `tokens` tokens that `model` and its `data` need, in a buffer of their own in `persistents`.
    pub(crate) fn new(
        model: &ModelConfig,
        tokens: u32,
        data: DataArrays,
        persistents: &mut Persistents,
        label: String,
    ) -> Self {
        // From one array to the next, aligned so that each can be bound.
        let stride = (4 * tokens as u64).next_multiple_of(256);
        persistents.laid_out(label, |buffer| {
            let mut offset = 0;
            let mut rows = |rows: u32| {
                let first = Tensor::new(buffer, offset, 1, tokens, Element::U32);
                offset += u64::from(rows) * stride;
                Tensor { rows, stride: (stride / 4) as u32, ..first }
            };
            let mut array = || Tensor { stride: Element::U32.stride(tokens), ..rows(1) };
            let words = tokens / PAIR_WORDS * PAIR_WORDS;
            let of_pairs = |array: Tensor| Tensor { cols: words, stride: words, ..array };
            let arrays = Self {
                tokens: array(),
                targets: array(),
                positions: array(),
                order: array(),
                position_order: model.learns_positions().then(&mut array),
                documents: data.isolates_documents.then(|| DocumentBounds { starts: array(), ends: array() }),
                pairs: data.has_pairs.then(|| PairTensors {
                    places: of_pairs(array()),
                    references: data
                        .has_references
                        .then(|| Tensor { element: Element::F32, ..of_pairs(array()) }),
                }),
                ahead: model.multi_token.map(|further| {
                    let depth = further.depth as u32;
                    AheadTensors { tokens: rows(depth), targets: rows(depth), order: rows(depth) }
                }),
            };
            (arrays, offset)
        })
    }

    /// The buffer in which [`new`](Self::new) has placed the arrays.
    pub(crate) fn buffer(&self) -> PersistentId {
        self.tokens.buffer.persistent().expect("the arrays outlive a pass")
    }

    /// Calls `put` with the byte offset and the ids of each array, which are those of `batch`.
    pub(crate) fn for_each(&self, batch: &Batch, mut put: impl FnMut(u64, &[u32])) {
        let Self { tokens, targets, positions, order, position_order, documents, pairs, ahead } = self;
        let mut row = |tensor: &Tensor, row: usize, ids: &[u32]| {
            assert!(ids.len() == tensor.cols as usize, "a batch of {} tokens has {}", tensor.cols, ids.len());
            put(tensor.offset + 4 * row as u64 * u64::from(tensor.stride), ids);
        };
        row(tokens, 0, &batch.tokens);
        row(targets, 0, &batch.targets);
        row(positions, 0, &batch.positions);
        row(order, 0, &batch.order);
        if let Some(order) = position_order {
            row(order, 0, &batch.position_order);
        }
        if let Some(DocumentBounds { starts, ends }) = documents {
            row(starts, 0, &batch.starts);
            row(ends, 0, &batch.ends);
        }
        if let Some(PairTensors { places, references }) = pairs {
            row(places, 0, &batch.pairs);
            // They are empty while they are computed.
            if let Some(references) = references.filter(|_| !batch.references.is_empty()) {
                row(&references, 0, &batch.references);
            }
        }
        if let Some(AheadTensors { tokens, targets, order }) = ahead {
            for (depth, ahead) in batch.ahead.iter().enumerate() {
                row(tokens, depth, &ahead.tokens);
                row(targets, depth, &ahead.targets);
                row(order, depth, &ahead.order);
            }
        }
    }
}

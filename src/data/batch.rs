//! One micro-batch: its tokens, and the positions, document bounds and orders that are derived from them.
//!
//! A window may hold several documents. A batch gives for each token where its document starts and ends within the
//! window: attention reads no key outside, positions restart, and the loss skips the targets that the rules of the
//! data exclude.

use std::ops::Range;

use super::document_rules::DocumentRules;
use super::token_encoding::NO_TOKEN;

/// The label of a token that the loss skips, for data in memory. Negative labels in files, such as -100, are read as
/// this value.
pub const NO_LABEL: u32 = NO_TOKEN;

/// One micro-batch: `B = batch_size` windows of `T = seq_length` tokens, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token ids that the model reads. (B T)
    pub tokens: Vec<u32>,
    /// Token ids that the model should predict: for each token the one after it, or the id that the loss ignores. (B T)
    pub targets: Vec<u32>,
    /// Position of each token in its window, or in its document if positions restart there. (B T)
    pub positions: Vec<u32>,
    /// Index in its window of the first token that each token may attend to: the start of its document if documents are
    /// isolated, otherwise 0. (B T)
    pub starts: Vec<u32>,
    /// Index in its window one past the last token that may attend to it: the end of its document if documents are
    /// isolated, otherwise T. (B T)
    pub ends: Vec<u32>,
    /// Indices into `tokens`, stably sorted by token id: the order in which the embedding's backward sums. (B T)
    pub order: Vec<u32>,
    /// Indices into `tokens`, stably sorted by position, for the backward of learned positions. (B T), or empty if the
    /// model has no learned positions.
    pub position_order: Vec<u32>,
    /// For each place of a pair of answers: the index of the first token of the chosen one, that of the rejected one,
    /// which follows it, the end of that, and 1; zeros for a place without a pair. Four words for each four tokens,
    /// or empty if the data are no pairs.
    pub pairs: Vec<u32>,
    /// For each place of a pair four words, of which the first and the third are the bits of f32: the
    /// log-probabilities of both answers under the reference. Empty if they are not known beforehand.
    pub references: Vec<u32>,
    /// For multi-token prediction: the batch shifted by 1, 2, ... places, one for each prediction depth.
    pub ahead: Vec<Ahead>,
}

/// Tokens and targets of a batch, shifted to the left within each window by some number of places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Token ids that the model reads; 0 past the end of the window, or of the document if documents are isolated. (B
    /// T)
    pub tokens: Vec<u32>,
    /// Token ids that the model should predict; past the same ends, the id that the loss ignores. (B T)
    pub targets: Vec<u32>,
    /// Indices into `tokens`, stably sorted by token id. (B T)
    pub order: Vec<u32>,
}

impl Batch {
    /// Resizes the buffers to `len` tokens, `position_order` only if it is wanted.
    pub(super) fn resize(&mut self, len: usize, sort_positions: bool) {
        self.position_order.resize(if sort_positions { len } else { 0 }, 0);
        for buffer in self.buffers() {
            buffer.resize(len, 0);
        }
    }

    fn buffers(&mut self) -> [&mut Vec<u32>; 6] {
        let Self { tokens, targets, positions, starts, ends, order, .. } = self;
        [tokens, targets, positions, starts, ends, order]
    }

    /// Derives positions and ends of documents from the tokens. Targets that `rules` exclude from the loss, and targets
    /// of tokens without a label, become `ignore_id`.
    pub(super) fn derive(&mut self, seq_length: usize, rules: &DocumentRules, ignore_id: u32) {
        for row in 0..self.tokens.len() / seq_length {
            self.derive_window(row * seq_length, seq_length, rules, ignore_id);
        }
    }

    /// Makes `tokens`, a range of indices into the batch within one row, a document of its own: nothing outside attends
    /// to it, and its positions start at 0. The documents of that row must have been derived before.
    pub(super) fn isolate(&mut self, tokens: Range<usize>, seq_length: usize) {
        let row = tokens.start - tokens.start % seq_length;
        let (first, end) = ((tokens.start - row) as u32, (tokens.end - row) as u32);
        for (position, at) in (0..).zip(tokens) {
            self.positions[at] = self.positions[at].min(position);
            self.starts[at] = self.starts[at].max(first);
            self.ends[at] = self.ends[at].min(end);
        }
    }

    /// Sorts the indices by token id and by position.
    pub(super) fn sort(&mut self) {
        sort_by_id(&self.tokens, &mut self.order);
        // Positions may restart within a window, so they have to be sorted like ids.
        sort_by_id(&self.positions, &mut self.position_order);
    }

    /// Fills in `ahead` for `depth` predictions beyond the next token.
    pub(super) fn look_ahead(&mut self, depth: usize, seq_length: usize, ignore_id: u32) {
        self.ahead.resize(depth, Ahead::default());
        let Self { tokens, targets, ends, ahead, .. } = self;
        for (places, Ahead { tokens: shifted, targets: shifted_targets, order }) in (1..).zip(ahead) {
            for buffer in [&mut *shifted, shifted_targets, order] {
                buffer.resize(tokens.len(), 0);
            }
            for index in 0..tokens.len() {
                let is_inside = index % seq_length + places < ends[index] as usize;
                shifted[index] = if is_inside { tokens[index + places] } else { 0 };
                shifted_targets[index] = if is_inside { targets[index + places] } else { ignore_id };
            }
            sort_by_id(shifted, order);
        }
    }

    /// Derives the documents of the window that starts at index `first`. As in Megatron, the token that ends a document
    /// belongs to it.
    fn derive_window(&mut self, first: usize, seq_length: usize, rules: &DocumentRules, ignore_id: u32) {
        let mut start = 0;
        self.ends[first..first + seq_length].fill(seq_length as u32);
        for column in 0..seq_length {
            let at = first + column;
            let (token, target) = (self.tokens[at], self.targets[at]);
            self.positions[at] = (column - if rules.resets_positions { start } else { 0 }) as u32;
            self.starts[at] = if rules.isolates_documents { start as u32 } else { 0 };
            if target == NO_LABEL || rules.is_pad(target) || rules.masks_eod_loss && rules.is_eod(token) {
                self.targets[at] = ignore_id;
            }
            if rules.is_pad(token) {
                self.tokens[at] = 0; // `pad` may be outside the vocabulary
            }
            if rules.is_eod(token) {
                if rules.isolates_documents {
                    self.ends[first + start..=at].fill(column as u32 + 1);
                }
                start = column + 1;
            }
        }
    }
}

/// Fills `order` with the indices into `ids`, stably sorted by id; leaves it alone if it is empty.
fn sort_by_id(ids: &[u32], order: &mut [u32]) {
    order.iter_mut().zip(0..).for_each(|(order, index)| *order = index);
    // The index breaks ties, which makes the unstable sort stable, and it needs no buffer. 16 Ki tokens take less than
    // a millisecond; a counting sort would go through the whole vocabulary for every micro-batch.
    order.sort_unstable_by_key(|&index| (ids[index as usize], index));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch of the given windows, in which documents attend to each other.
    fn from_rows(tokens: Vec<u32>, targets: Vec<u32>, seq_length: usize) -> Batch {
        let mut batch = Batch { tokens, targets, ..Batch::default() };
        batch.resize(batch.tokens.len(), true);
        batch.derive(seq_length, &DocumentRules::default(), NO_LABEL);
        batch.sort();
        batch
    }

    #[test]
    fn shifted_tokens_end_with_the_window_and_with_an_isolated_document() {
        let mut batch = from_rows(vec![5, 6, 9, 7, 1, 2, 3, 4], vec![6, 9, 7, 8, 2, 3, 4, 5], 4);
        batch.look_ahead(2, 4, 77);
        assert_eq!(batch.ahead[0].tokens, [6, 9, 7, 0, 2, 3, 4, 0]);
        assert_eq!(batch.ahead[0].targets, [9, 7, 8, 77, 3, 4, 5, 77]);
        assert_eq!(batch.ahead[0].order, [3, 7, 4, 5, 6, 0, 2, 1]);
        assert_eq!(batch.ahead[1].tokens, [9, 7, 0, 0, 3, 4, 0, 0]);
        assert_eq!(batch.ahead[1].targets, [7, 8, 77, 77, 4, 5, 77, 77]);
        let rules = DocumentRules { eod: Some(9), isolates_documents: true, ..DocumentRules::default() };
        batch.derive(4, &rules, 77);
        batch.sort();
        batch.look_ahead(1, 4, 77);
        assert_eq!(batch.ahead[0].tokens, [6, 9, 0, 0, 2, 3, 4, 0]);
        assert_eq!(batch.ahead[0].targets, [9, 7, 77, 77, 3, 4, 5, 77]);
    }

    #[test]
    fn order_is_sorted_stably() {
        let batch = from_rows(vec![5, 1, 5, 0, 1, 5], vec![0; 6], 3);
        assert_eq!(batch.order, [3, 1, 4, 0, 2, 5]);
        assert_eq!(batch.positions, [0, 1, 2, 0, 1, 2]);
        assert_eq!(batch.position_order, [0, 3, 1, 4, 2, 5]);
    }

    /// A batch of two rows: EOD 9 ends two documents within the first row, and the second row starts with an EOD whose
    /// document began before it.
    fn documents(rules: DocumentRules) -> Batch {
        let mut batch = from_rows(vec![1, 9, 2, 3, 9, 4, 9, 5, 9, 9, 6, 7], vec![8; 12], 6);
        batch.derive(6, &DocumentRules { eod: Some(9), ..rules }, 77);
        batch.sort();
        batch
    }

    #[test]
    fn documents_attend_to_each_other_by_default() {
        let batch = documents(DocumentRules::default());
        assert_eq!(batch.positions, [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]);
        assert_eq!((batch.starts, batch.ends, batch.targets), (vec![0; 12], vec![6; 12], vec![8; 12]));
    }

    #[test]
    fn each_rule_changes_its_own_part_alone() {
        let plain = documents(DocumentRules::default());
        let batch = documents(DocumentRules { resets_positions: true, ..DocumentRules::default() });
        assert_eq!(batch.positions, [0, 1, 0, 1, 2, 0, 0, 0, 1, 0, 0, 1]);
        assert_eq!(batch.position_order, [0, 2, 5, 6, 7, 9, 10, 1, 3, 8, 11, 4]);
        let (positions, position_order) = (plain.positions.clone(), plain.position_order.clone());
        assert_eq!(Batch { positions, position_order, ..batch }, plain);

        let batch = documents(DocumentRules { isolates_documents: true, ..DocumentRules::default() });
        assert_eq!(batch.starts, [0, 0, 2, 2, 2, 5, 0, 1, 1, 3, 4, 4]);
        assert_eq!(batch.ends, [2, 2, 5, 5, 5, 6, 1, 3, 3, 4, 6, 6]);
        assert_eq!(Batch { starts: plain.starts.clone(), ends: plain.ends.clone(), ..batch }, plain);

        let batch = documents(DocumentRules { masks_eod_loss: true, ..DocumentRules::default() });
        assert_eq!(batch.targets, [8, 77, 8, 8, 77, 8, 77, 8, 77, 77, 8, 8]);
        assert_eq!(Batch { targets: plain.targets.clone(), ..batch }, plain);
    }

    #[test]
    fn padding_is_neither_predicted_nor_read() {
        let rules = DocumentRules { pad: Some(500), ..DocumentRules::default() };
        let mut batch = from_rows(vec![1, 2, 500, 500], vec![2, 500, 500, 4], 4);
        batch.derive(4, &rules, 77);
        batch.sort();
        assert_eq!((batch.tokens, batch.targets), (vec![1, 2, 0, 0], vec![2, 77, 77, 4]));
        assert_eq!(batch.order, [2, 3, 0, 1]);
    }
}

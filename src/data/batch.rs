//! One micro-batch and what follows from its tokens.

use super::document_rules::DocumentRules;

/// One micro-batch: `batch_size` rows of `seq_length`, row after row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// What the model reads. (B T)
    pub tokens: Vec<u32>,
    /// What it should predict: the tokens one further, or the id that the loss ignores. (B T)
    pub targets: Vec<u32>,
    /// Position of each token in its window, or in its document where positions restart, for rotary embedding. (B T)
    pub positions: Vec<u32>,
    /// Index in its window of the first token that each token may see: that of its document where documents do not
    /// see each other, else 0. (B T)
    pub starts: Vec<u32>,
    /// Index in its window one past the last token that may see it: where its document ends, else T. (B T)
    pub ends: Vec<u32>,
    /// Indices into `tokens` sorted by token id, equal ids in order: the embedding's backward sums along it. (B T)
    pub order: Vec<u32>,
    /// Indices into `tokens` sorted by position, equal positions in order: the same for a learned table of positions.
    /// (B T), or empty where no model asks for it.
    pub position_order: Vec<u32>,
    /// The same tokens and targets further ahead, one place in the first, two in the second, and so on: as many as the model
    /// predicts.
    pub ahead: Vec<Ahead>,
}

/// Tokens and targets of a batch, some places further ahead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Each window moved to the left; token 0 where it, or a document that sees no other, has ended. (B T)
    pub tokens: Vec<u32>,
    /// Likewise; the id that the loss ignores at the ends. (B T)
    pub targets: Vec<u32>,
    /// Indices into `tokens` sorted by token id, equal ids in order. (B T)
    pub order: Vec<u32>,
}

impl Batch {
    /// The batch of given rows, for tests and generation.
    ///
    /// # Panics
    /// If `tokens` and `targets` differ in length or are no whole rows.
    #[track_caller]
    pub fn from_rows(tokens: Vec<u32>, targets: Vec<u32>, seq_length: usize) -> Self {
        assert_eq!(tokens.len(), targets.len(), "tokens and targets must have the same length");
        assert!(tokens.len().is_multiple_of(seq_length), "tokens must be whole rows of {seq_length}");
        let mut batch = Self { tokens, targets, ..Self::default() };
        batch.resize(batch.tokens.len(), true);
        batch.index(seq_length, &DocumentRules::default(), 0);
        batch
    }

    /// Makes room for `len` tokens.
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

    /// Fills in what follows from the tokens: positions, documents and order. Targets that `rules` take out of the loss
    /// become `ignore_id`.
    pub(super) fn index(&mut self, seq_length: usize, rules: &DocumentRules, ignore_id: u32) {
        for row in 0..self.tokens.len() / seq_length {
            self.index_row(row * seq_length, seq_length, rules, ignore_id);
        }
        sort_by_id(&self.tokens, &mut self.order);
        // Sorted like ids, because positions may start again within a row.
        sort_by_id(&self.positions, &mut self.position_order);
    }

    /// Fills in `depth` batches further ahead.
    pub(super) fn look_ahead(&mut self, depth: usize, seq_length: usize, ignore_id: u32) {
        self.ahead.resize(depth, Ahead::default());
        let Self { tokens, targets, ends, ahead, .. } = self;
        for (by, Ahead { tokens: moved, targets: moved_targets, order }) in (1..).zip(ahead) {
            for buffer in [&mut *moved, moved_targets, order] {
                buffer.resize(tokens.len(), 0);
            }
            for index in 0..tokens.len() {
                let is_inside = index % seq_length + by < ends[index] as usize;
                moved[index] = if is_inside { tokens[index + by] } else { 0 };
                moved_targets[index] = if is_inside { targets[index + by] } else { ignore_id };
            }
            sort_by_id(moved, order);
        }
    }

    /// One window, which starts at `first`. As in Megatron, a token that ends a document belongs to it.
    fn index_row(&mut self, first: usize, seq_length: usize, rules: &DocumentRules, ignore_id: u32) {
        let mut start = 0;
        self.ends[first..first + seq_length].fill(seq_length as u32);
        for column in 0..seq_length {
            let at = first + column;
            let (token, target) = (self.tokens[at], self.targets[at]);
            self.positions[at] = (column - if rules.resets_positions { start } else { 0 }) as u32;
            self.starts[at] = if rules.isolates_documents { start as u32 } else { 0 };
            if rules.is_pad(target) || rules.masks_eod_loss && rules.is_eod(token) {
                self.targets[at] = ignore_id;
            }
            if rules.is_pad(token) {
                self.tokens[at] = 0; // which the embedding has a row for, whatever the padding is
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

/// `order`: indices into `ids` sorted by id, equal ids in order; or none, where it is empty.
fn sort_by_id(ids: &[u32], order: &mut [u32]) {
    order.iter_mut().zip(0..).for_each(|(order, index)| *order = index);
    // The index breaks ties, so the unstable sort, which needs no buffer, is a stable one. 16 Ki tokens take under
    // a millisecond; a counting sort would walk the whole vocabulary for every micro-batch.
    order.sort_unstable_by_key(|&index| (ids[index as usize], index));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_ahead_ends_with_the_window_and_with_a_document_that_sees_no_other() {
        let mut batch = Batch::from_rows(vec![5, 6, 9, 7, 1, 2, 3, 4], vec![6, 9, 7, 8, 2, 3, 4, 5], 4);
        batch.look_ahead(2, 4, 77);
        assert_eq!(batch.ahead[0].tokens, [6, 9, 7, 0, 2, 3, 4, 0]);
        assert_eq!(batch.ahead[0].targets, [9, 7, 8, 77, 3, 4, 5, 77]);
        assert_eq!(batch.ahead[0].order, [3, 7, 4, 5, 6, 0, 2, 1]);
        assert_eq!(batch.ahead[1].tokens, [9, 7, 0, 0, 3, 4, 0, 0]);
        assert_eq!(batch.ahead[1].targets, [7, 8, 77, 77, 4, 5, 77, 77]);
        let rules = DocumentRules { eod: Some(9), isolates_documents: true, ..DocumentRules::default() };
        batch.index(4, &rules, 77);
        batch.look_ahead(1, 4, 77);
        assert_eq!(batch.ahead[0].tokens, [6, 9, 0, 0, 2, 3, 4, 0]);
        assert_eq!(batch.ahead[0].targets, [9, 7, 77, 77, 3, 4, 5, 77]);
    }

    #[test]
    fn order_is_sorted_stably() {
        let batch = Batch::from_rows(vec![5, 1, 5, 0, 1, 5], vec![0; 6], 3);
        assert_eq!(batch.order, [3, 1, 4, 0, 2, 5]);
        assert_eq!(batch.positions, [0, 1, 2, 0, 1, 2]);
        assert_eq!(batch.position_order, [0, 3, 1, 4, 2, 5]);
    }

    /// EOD 9 ends two documents within the first row; the second row starts with one that ended before it.
    fn documents(rules: DocumentRules) -> Batch {
        let mut batch = Batch::from_rows(vec![1, 9, 2, 3, 9, 4, 9, 5, 9, 9, 6, 7], vec![8; 12], 6);
        batch.index(6, &DocumentRules { eod: Some(9), ..rules }, 77);
        batch
    }

    #[test]
    fn documents_see_each_other_unless_told_otherwise() {
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
        let mut batch = Batch::from_rows(vec![1, 2, 500, 500], vec![2, 500, 500, 4], 4);
        batch.index(4, &rules, 77);
        assert_eq!((batch.tokens, batch.targets), (vec![1, 2, 0, 0], vec![2, 77, 77, 4]));
        assert_eq!(batch.order, [2, 3, 0, 1]);
    }
}

//! One micro-batch and what follows from its tokens.

/// One micro-batch: `batch_size` rows of `seq_length`, row after row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// What the model reads. (B T)
    pub tokens: Vec<u32>,
    /// What it should predict: the tokens one further. (B T)
    pub targets: Vec<u32>,
    /// Position of each token in its window, for rotary embedding. (B T)
    pub positions: Vec<u32>,
    /// Indices into `tokens` sorted by token id, equal ids in order: the embedding's backward sums along it. (B T)
    pub order: Vec<u32>,
    /// Indices into `tokens` sorted by position, equal positions in order: the same for a learned table of positions.
    /// (B T), or empty where no model asks for it.
    pub position_order: Vec<u32>,
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
        batch.index(seq_length);
        batch
    }

    /// Makes room for `len` tokens.
    pub(super) fn resize(&mut self, len: usize, sort_positions: bool) {
        self.position_order.resize(if sort_positions { len } else { 0 }, 0);
        for buffer in [&mut self.tokens, &mut self.targets, &mut self.positions, &mut self.order] {
            buffer.resize(len, 0);
        }
    }

    /// Fills in what follows from the tokens: positions and order.
    pub(super) fn index(&mut self, seq_length: usize) {
        for (index, (position, order)) in self.positions.iter_mut().zip(&mut self.order).enumerate() {
            *position = (index % seq_length) as u32;
            *order = index as u32;
        }
        // The index breaks ties, so the unstable sort, which needs no buffer, is a stable one. 16 Ki tokens take under
        // a millisecond; a counting sort would walk the whole vocabulary for every micro-batch.
        let tokens = &self.tokens;
        self.order.sort_unstable_by_key(|&index| (tokens[index as usize], index));
        // Sorted like ids, because positions may start again within a row.
        self.position_order.iter_mut().zip(0..).for_each(|(order, index)| *order = index);
        let positions = &self.positions;
        self.position_order.sort_unstable_by_key(|&index| (positions[index as usize], index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_sorted_stably() {
        let batch = Batch::from_rows(vec![5, 1, 5, 0, 1, 5], vec![0; 6], 3);
        assert_eq!(batch.order, [3, 1, 4, 0, 2, 5]);
        assert_eq!(batch.positions, [0, 1, 2, 0, 1, 2]);
        assert_eq!(batch.position_order, [0, 3, 1, 4, 2, 5]);
    }
}

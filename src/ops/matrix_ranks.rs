//! Tensor parallelism: ranks that share the matrices of a layer.
//!
//! Each rank computes some of the heads and of the inner columns, for all tokens, so the last product of attention and
//! of the feed-forward network is one term of a sum over the ranks (Shoeybi et al., "Megatron-LM: training
//! multi-billion parameter language models using model parallelism", 2019). Between these products the residual stream
//! is the same on all ranks or, if they share tokens (sequence parallelism), each rank has a range of its rows
//! (Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022).

use crate::ranks::Group;
use crate::record::{Collective, Recorder, Span, Tensor};
use std::ops::Range;

/// The ranks that share each matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixRanks {
    /// The ranks.
    pub group: Group,
    /// This rank's place in the group.
    pub place: usize,
    /// Whether each rank has a range of the rows of the residual stream.
    pub shares_tokens: bool,
    /// Whether each rank has a range of the rows of the embedding and of the head.
    pub shares_vocabulary: bool,
}

impl MatrixRanks {
    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.group.size() as u32
    }

    /// This rank's range of `rows` rows, which divide evenly.
    #[track_caller]
    pub fn own_rows(&self, rows: u32) -> Range<u32> {
        assert!(rows.is_multiple_of(self.size()), "{} ranks cannot share {rows} rows evenly", self.size());
        let each = rows / self.size();
        let first = self.place as u32 * each;
        first..first + each
    }

    /// Replaces `x`, which is one term of a sum on each rank, by the sum. The exchange starts after the last use of
    /// `x`: gradients of weights that were recorded after the gradient of their input are computed meanwhile.
    pub fn sum(&self, rec: &mut Recorder, x: Tensor) {
        rec.exchange_early("sum", Collective::sum(vec![Span::of(&x)]), &self.group);
    }

    /// Writes this rank's rows of the sum of `x` (N, D) over the ranks to `own` (N / ranks, D), a new tensor. The
    /// exchange starts as early as that of [`sum`](Self::sum).
    #[track_caller]
    pub fn sum_own_rows(&self, rec: &mut Recorder, x: Tensor, own: Tensor) {
        let parts = self.parts(x, own);
        let collective = Collective::ReduceScatter { whole: Span::of(&x), own: Span::of(&own), parts };
        rec.exchange_early("sum", collective, &self.group);
    }

    /// Gathers `x` (N, D) from the rows `own` (N / ranks, D) of each rank.
    #[track_caller]
    pub fn gather_rows(&self, rec: &mut Recorder, own: Tensor, x: Tensor) {
        let parts = self.parts(x, own);
        let collective = Collective::AllGather { own: Span::of(&own), whole: Span::of(&x), parts };
        rec.exchange("rows", collective, &self.group);
    }

    /// The bytes of each rank's rows of `x`.
    #[track_caller]
    fn parts(&self, x: Tensor, own: Tensor) -> Vec<Range<u64>> {
        let fits = (own.rows * self.size(), own.stride, own.element) == (x.rows, x.stride, x.element);
        assert!(fits, "each of {} ranks has {} of {} rows", self.size(), own.rows, x.rows);
        let bytes = own.bytes();
        (0..u64::from(self.size())).map(|rank| rank * bytes..(rank + 1) * bytes).collect()
    }
}

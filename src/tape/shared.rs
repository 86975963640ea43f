//! Ops at the borders of the parts that tensor-parallel ranks divide: sums and ranges of rows. Each is the backward of
//! another.
//!
//! | | forward | backward |
//! |---|---|---|
//! | [`enter`](Tape::enter_shared) | the value itself; of shared tokens the rows of all ranks | a sum; of shared tokens this rank's rows of it |
//! | [`leave`](Tape::leave_shared) | a sum; of shared tokens this rank's rows of it | the gradient itself; of shared tokens the rows of all ranks |
//! | [`own_rows`](Tape::own_rows) | this rank's rows | the rows of all ranks |
//! | [`all_rows`](Tape::all_rows) | the rows of all ranks | this rank's rows |

use super::{Tape, Var};
use crate::ops::add::add;
use crate::ops::cast::cast;
use crate::ops::matrix_ranks::MatrixRanks;
use crate::record::Tensor;

impl<'p> Tape<'_, 'p> {
    /// Hands x to all ranks: each has only one term of the gradient of the result (N, D).
    #[track_caller]
    pub fn enter_shared(&mut self, x: Var, ranks: &MatrixRanks) -> Var {
        let ranks = ranks.clone();
        if ranks.shares_tokens {
            let all = self.gathered(&ranks, x.tensor);
            return self.result(all, &[x], false, move |tape, dy| {
                let own = tape.rows_like("gradient", dy, dy.rows / ranks.size());
                ranks.sum_own_rows(tape.rec, dy, own);
                tape.give_as_stored(x, own);
            });
        }
        self.result(x.tensor, &[x], false, move |tape, dy| {
            ranks.sum(tape.rec, dy);
            tape.give_as_stored(x, dy);
        })
    }

    /// The sum over the ranks of x (N, D), which must have no other reader.
    #[track_caller]
    pub fn leave_shared(&mut self, x: Var, ranks: &MatrixRanks) -> Var {
        let ranks = ranks.clone();
        if ranks.shares_tokens {
            let own = self.rows_like("rows", x.tensor, x.tensor.rows / ranks.size());
            ranks.sum_own_rows(self.rec, x.tensor, own);
            return self.result(own, &[x], false, move |tape, dy| {
                let all = tape.gathered(&ranks, dy);
                tape.give(x, all);
            });
        }
        ranks.sum(self.rec, x.tensor);
        self.result(x.tensor, &[x], false, move |tape, dy| tape.give(x, dy))
    }

    /// This rank's rows of x (N, D). x is the same on all ranks, and so will be its gradient.
    #[track_caller]
    pub fn own_rows(&mut self, x: Var, ranks: &MatrixRanks) -> Var {
        let (ranks, rows) = (ranks.clone(), ranks.own_rows(x.tensor.rows));
        let own = self.rows_like("rows", x.tensor, rows.len() as u32);
        add(self.rec, x.tensor.rows(rows.start, own.rows), own, 1.0, false);
        self.result(own, &[x], false, move |tape, dy| {
            let all = tape.gathered(&ranks, dy);
            tape.give(x, all);
        })
    }

    /// The rows of all ranks: (N, D). Their gradient is the same on all ranks.
    #[track_caller]
    pub fn all_rows(&mut self, x: Var, ranks: &MatrixRanks) -> Var {
        let rows = ranks.own_rows(x.tensor.rows * ranks.size());
        let all = self.gathered(ranks, x.tensor);
        self.result(all, &[x], false, move |tape, dy| {
            if let Some(target) = tape.target(x) {
                let own = dy.rows(rows.start, rows.len() as u32);
                add(tape.rec, own, target.tensor, 1.0, target.accumulate);
            }
        })
    }

    /// y + x, in place: `y` must have no other reader.
    #[track_caller]
    pub fn add_to(&mut self, y: Var, x: Var) -> Var {
        add(self.rec, x.tensor, y.tensor, 1.0, true);
        self.result(y.tensor, &[y, x], false, move |tape, dy| {
            tape.give(y, dy);
            tape.give(x, dy); // last: others may add to dy from here on
        })
    }

    /// Gives x a gradient that may be f32 although x is stored in 16 bits.
    fn give_as_stored(&mut self, x: Var, dy: Tensor) {
        let element = x.tensor.element;
        if dy.element == element {
            return self.give(x, dy);
        }
        let rounded = self.rec.tensor("gradient", dy.rows, dy.cols, element);
        cast(self.rec, dy, rounded);
        self.give(x, rounded);
    }

    /// The rows of all ranks.
    fn gathered(&mut self, ranks: &MatrixRanks, own: Tensor) -> Tensor {
        let all = self.rows_like("rows", own, own.rows * ranks.size());
        ranks.gather_rows(self.rec, own, all);
        all
    }

    /// A tensor of `rows` rows like those of `x`.
    fn rows_like(&mut self, label: &str, x: Tensor, rows: u32) -> Tensor {
        self.rec.tensor(label, rows, x.cols, x.element)
    }
}

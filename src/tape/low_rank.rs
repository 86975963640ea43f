//! Low-rank adapters on the tape (Hu et al., 2021): a product with A, into few columns, and products with B, back to
//! many.
//!
//! They are ops of their own, so that a layer that is recomputed repeats the product with A without repeating the
//! product that the adapter adds to. The dropped input of A is not kept: its backward draws the mask again.
//!
//! The A matrices of all adapters of a matrix are one product, of r columns for each, r rounded up to 4; each B adds its
//! product to a range of the result, in place. Those of experts are grouped products, of the rows of each expert with
//! the factors of that expert.

use super::{Parameter, Tape, Var};
use crate::ops::add::add;
use crate::ops::dropout::{self, Dropout};
use crate::ops::grouped_matmul::{grouped_matmul, grouped_matmul_backward, grouped_matmul_backward_weight};
use crate::ops::matmul::{Epilogue, Layout, matmul};
use crate::ops::work_list::WorkList;
use crate::record::{Recorder, Tensor};

/// A map among those that are stacked, and its adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowRankMap {
    /// The first column of the stacked product that it writes, a multiple of 4.
    pub first: u32,
    /// Number of columns.
    pub count: u32,
    /// Rows of its A.
    pub rank: u32,
    /// The factor of its product; `None`: 1.
    pub factor: Option<f32>,
}

impl<'p> Tape<'_, 'p> {
    /// factor · dropout(x) Aᵀ of x (N, in) and A (R, in): (N, R).
    #[track_caller]
    pub fn low_rank_down(&mut self, x: Var, a: &'p Parameter, dropout: Option<Dropout>, factor: f32) -> Var {
        let w = a.weight();
        let dropped = dropped(self.rec, x.tensor, dropout);
        let product = self.rec.tensor("product", x.tensor.rows, w.rows, x.tensor.element);
        matmul(self.rec, Layout::Nt, dropped, w, product, Epilogue::default());
        let z = scaled(self.rec, product, factor);
        let saved_x = self.save(x);
        self.result(z, &[x], a.trains(), move |tape, dz| {
            let dz = scaled(tape.rec, dz, factor);
            if let Some(da) = a.gradient() {
                let x = tape.saved(saved_x);
                let x = self::dropped(tape.rec, x, dropout);
                matmul(tape.rec, Layout::Tn, dz, x, da, Epilogue { accumulate: true, ..Default::default() });
            }
            let Some(target) = tape.target(x) else { return };
            let into = Epilogue { accumulate: target.accumulate, ..Default::default() };
            match dropout {
                None => matmul(tape.rec, Layout::Nn, dz, w, target.tensor, into),
                Some(dropout) => {
                    let Tensor { rows, cols, element, .. } = target.tensor;
                    let kept = tape.rec.tensor("dropped gradient", rows, cols, element);
                    matmul(tape.rec, Layout::Nn, dz, w, kept, Epilogue::default());
                    dropout::dropout(tape.rec, kept, None, target.tensor, target.accumulate, &dropout);
                }
            }
        })
    }

    /// y (N, out) + factor · z Bᵀ in ranges of its columns, in place: `y` must have no other reader. B (sum of the
    /// ranges, largest r) holds the rows of one of the `maps` after the other, each of r columns and then zeros. A map
    /// adds the product of its rows with r columns of z (N, sum of padded r), which start at the sum of the ranks before,
    /// each rounded up to a multiple of 4. Columns between the end of a range and the next multiple of 4 must be zero.
    #[track_caller]
    pub fn low_rank_up(&mut self, y: Var, z: Var, b: &'p Parameter, maps: Vec<LowRankMap>) -> Var {
        let columns: u32 = maps.iter().map(|map| map.rank.next_multiple_of(4)).sum();
        assert!(
            z.tensor.cols == columns,
            "the ranks of {} maps need {columns} columns, not {}",
            maps.len(),
            z.tensor.cols
        );
        let add_to = |accumulate, factor| Epilogue { accumulate, factor, ..Default::default() };
        for (factor, [y, z, b]) in blocks(&maps, [y.tensor, z.tensor, b.weight()]) {
            matmul(self.rec, Layout::Nt, z, b, y, add_to(true, factor));
        }
        let saved_z = self.save(z);
        self.result(y.tensor, &[y, z], b.trains(), move |tape, dy| {
            if let Some(db) = b.gradient() {
                let z = tape.saved(saved_z);
                for (factor, [dy, z, db]) in blocks(&maps, [dy, z, db]) {
                    matmul(tape.rec, Layout::Tn, dy, z, db, add_to(true, factor));
                }
            }
            if let Some(target) = tape.target(z) {
                for (factor, [dy, dz, b]) in blocks(&maps, [dy, target.tensor, b.weight()]) {
                    matmul(tape.rec, Layout::Nn, dy, b, dz, add_to(target.accumulate, factor));
                }
            }
            tape.give(y, dy); // last: others may add to dy from here on
        })
    }
}

impl<'p> Tape<'_, 'p> {
    /// factor · x A_eᵀ of rows x (R, in), sorted by expert, and the stack A (E · r, in): (R, r). Rows of no expert are
    /// undefined, and so are their gradients.
    #[track_caller]
    pub fn grouped_low_rank_down(&mut self, x: Var, a: &'p Parameter, work: &WorkList, factor: f32) -> Var {
        let (work, rank) = (*work, a.rows() / work.experts);
        let product = self.rec.tensor("product", x.tensor.rows, rank, x.tensor.element);
        grouped_matmul(self.rec, x.tensor, &a.weight, &work, product, Epilogue::default());
        let z = scaled(self.rec, product, factor);
        let saved_x = self.save(x);
        self.result(z, &[x], a.trains(), move |tape, dz| {
            let dz = scaled(tape.rec, dz, factor);
            if let Some(da) = &a.gradient {
                let x = tape.saved(saved_x);
                grouped_matmul_backward_weight(tape.rec, dz, x, &work, da);
            }
            if let Some(target) = tape.target(x) {
                let into = Epilogue { accumulate: target.accumulate, ..Default::default() };
                grouped_matmul_backward(tape.rec, dz, &a.weight, &work, target.tensor, into);
            }
        })
    }

    /// y (R, out) + z B_eᵀ of rows z (R, r), sorted by expert, and the stack B (E · out, r), in place: `y` must have no
    /// other reader.
    #[track_caller]
    pub fn grouped_low_rank_up(&mut self, y: Var, z: Var, b: &'p Parameter, work: &WorkList) -> Var {
        let work = *work;
        let add = Epilogue { accumulate: true, ..Default::default() };
        grouped_matmul(self.rec, z.tensor, &b.weight, &work, y.tensor, add);
        let saved_z = self.save(z);
        self.result(y.tensor, &[y, z], b.trains(), move |tape, dy| {
            if let Some(db) = &b.gradient {
                let z = tape.saved(saved_z);
                grouped_matmul_backward_weight(tape.rec, dy, z, &work, db);
            }
            if let Some(target) = tape.target(z) {
                let into = Epilogue { accumulate: target.accumulate, ..Default::default() };
                grouped_matmul_backward(tape.rec, dy, &b.weight, &work, target.tensor, into);
            }
            tape.give(y, dy); // last: others may add to dy from here on
        })
    }
}

/// For each of `maps` its factor, its columns of y, its columns of z, and its rows of B.
fn blocks(
    maps: &[LowRankMap],
    [y, z, b]: [Tensor; 3],
) -> impl Iterator<Item = (Option<f32>, [Tensor; 3])> + '_ {
    let (mut row, mut column) = (0, 0);
    maps.iter().map(move |&LowRankMap { first, count, rank, factor }| {
        let (own_row, own_column) = (row, column);
        row += count;
        column += rank.next_multiple_of(4);
        let b = b.rows(own_row, count).columns(0, rank);
        (factor, [y.columns(first, count), z.columns(own_column, rank), b])
    })
}

/// x after dropout, if there is any.
fn dropped(rec: &mut Recorder, x: Tensor, dropout: Option<Dropout>) -> Tensor {
    let Some(dropout) = dropout else { return x };
    let y = rec.tensor("dropped", x.rows, x.cols, x.element);
    dropout::dropout(rec, x, None, y, false, &dropout);
    y
}

/// factor · x.
fn scaled(rec: &mut Recorder, x: Tensor, factor: f32) -> Tensor {
    if factor == 1.0 {
        return x;
    }
    let y = rec.tensor("scaled", x.rows, x.cols, x.element);
    add(rec, x, y, factor, false);
    y
}

//! Rows on their way to experts of other ranks, on the tape.

use super::{Tape, Var};
use crate::ops::spread::{Direction, SpreadRows};
use crate::record::Tensor;

impl Tape<'_, '_> {
    /// The rows that arrive here when every rank sends its own (R, D) in `direction`. The gradient returns the other way.
    pub fn exchange_rows(&mut self, rows: Var, spread: &SpreadRows, direction: Direction) -> Var {
        let Tensor { cols, element, .. } = rows.tensor;
        let (sent, received) = match direction {
            Direction::ToExperts => (spread.sent, spread.received),
            Direction::FromExperts => (spread.received, spread.sent),
        };
        let moved = self.rec.tensor("moved", received, cols, element);
        spread.exchange(self.rec, rows.tensor, moved, direction);
        let spread = spread.clone();
        self.result(moved, &[rows], false, move |tape, d_moved| {
            let d_rows = tape.rec.tensor("gradient", sent, cols, element);
            spread.exchange(tape.rec, d_moved, d_rows, direction.reversed());
            tape.give(rows, d_rows);
        })
    }
}

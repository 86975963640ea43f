//! Magnitudes of the columns of an adapted product on the tape (DoRA; Liu et al., 2024).

use super::{Parameter, Tape, Var};
use crate::ops::column_scale::{ColumnFactors, Terms, column_scale, column_scale_backward_weight};
use crate::ops::column_sum::column_sum;

impl<'p> Tape<'_, 'p> {
    /// residual + factor · (f · x + bias) of x (N, D), with the factors f `of` its columns; those of `magnitudes` alone
    /// have a gradient, since norms are taken for constants. The gradient of the residual is the gradient of the
    /// result, without a copy.
    #[track_caller]
    pub fn scaled_columns(
        &mut self,
        x: Var,
        (magnitudes, of): (&'p Parameter, ColumnFactors),
        bias: Option<&'p Parameter>,
        residual: Option<Var>,
        factor: Option<f32>,
    ) -> Var {
        let y = self.rec.tensor("y", x.tensor.rows, x.tensor.cols, x.tensor.element);
        let terms = Terms {
            bias: bias.map(Parameter::weight),
            factor,
            residual: residual.map(|residual| residual.tensor),
        };
        column_scale(self.rec, x.tensor, of, terms, y);
        let saved_x = self.save(x);
        let saved_squares = of.squares.map(|squares| self.save_tensor(squares));
        let inputs: Vec<Var> = [Some(x), residual].into_iter().flatten().collect();
        let trains = Parameter::any_trains([magnitudes].into_iter().chain(bias));
        self.result(y, &inputs, trains, move |tape, dy| {
            let squares = saved_squares.map(|squares| tape.saved(squares));
            let of = ColumnFactors { squares, ..of };
            if let Some(gradient) = magnitudes.gradient() {
                let x = tape.saved(saved_x);
                column_scale_backward_weight(tape.rec, x, dy, of, factor, gradient);
            }
            if let Some(db) = bias.and_then(Parameter::gradient) {
                column_sum(tape.rec, dy, db, factor);
            }
            let dx = tape.rec.tensor("gradient", dy.rows, dy.cols, dy.element);
            column_scale(tape.rec, dy, of, Terms { factor, ..Terms::default() }, dx);
            tape.give(x, dx);
            if let Some(residual) = residual {
                tape.give(residual, dy); // last: others may add to dy from here on
            }
        })
    }
}

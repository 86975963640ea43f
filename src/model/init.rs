//! Initial weights.

use super::parameters::{Init, Piece, Spec};
use crate::random::Philox;

/// The initial values of row `row` of a parameter: a pure function of the seed, so that any part of a model can be
/// initialised on its own, and by tests in f64.
///
/// Every parameter has its own random stream; element (row, column) has number `row · cols + column` in it, where rows
/// are counted in the whole parameter.
pub fn initial_row(spec: &Spec, row: usize, seed: u64) -> Vec<f32> {
    let strips = spec.row_strips();
    let whole_row = strips.iter().find_map(|strip| strip.held_in(row..row + 1)).map(|strip| strip.whole);
    let holds = |row: usize| {
        let is_of = |piece: &Piece| (piece.first_row..piece.first_row + piece.rows).contains(&row);
        spec.role.is_row() || spec.pieces.iter().any(is_of)
    };
    let Some(whole_row) = whole_row.filter(|row| holds(*row)) else { return vec![0.0; spec.cols] };
    let random = Philox::new(seed, spec.stream);
    let first = (whole_row * spec.whole_cols()) as u64;
    let strips = spec.col_strips().into_iter();
    let numbers = strips.flat_map(|strip| (strip.whole..).take(strip.count)).map(|col| first + col as u64);
    match spec.init {
        Init::Ones => vec![1.0; spec.cols],
        Init::Zeros => vec![0.0; spec.cols],
        Init::Pair(pair) => numbers.map(|number| pair[number as usize % 2] as f32).collect(),
        Init::Normal(std) => numbers.map(|number| (std * random.normal(number)) as f32).collect(),
        Init::LogOfDecayRate => {
            let rate = |number| 0.01 + (16.0 - 0.01) * random.uniform(number);
            numbers.map(|number| rate(number).ln() as f32).collect()
        }
        Init::Uniform(bound) => {
            numbers.map(|number| (bound * (2.0 * random.uniform(number) - 1.0)) as f32).collect()
        }
    }
}

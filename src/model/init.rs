//! Initial weights.

use super::parameters::{Init, Piece, Role, Spec};
use crate::random::Philox;

/// The initial values of row `row` of a parameter: a pure function of the seed, so that any part of a model can be
/// initialised by itself, and by tests in f64.
///
/// Every parameter has its own random stream; element (row, column) is number `row · cols + column` of it, where rows are those of
/// the whole parameter.
pub fn initial_row(spec: &Spec, row: usize, seed: u64) -> Vec<f32> {
    let holds = |piece: &Piece| (piece.first_row..piece.first_row + piece.rows).contains(&row);
    let is_padding = spec.role != Role::Vector && !spec.pieces.iter().any(holds);
    let random = Philox::new(seed, spec.stream);
    let whole_row = row + spec.share.map_or(0, |share| share.first_row);
    let first = (whole_row * spec.cols) as u64;
    let numbers = first..first + spec.cols as u64;
    match spec.init {
        _ if is_padding => vec![0.0; spec.cols],
        Init::Ones => vec![1.0; spec.cols],
        Init::Zeros => vec![0.0; spec.cols],
        Init::Normal(std) => numbers.map(|number| (std * random.normal(number)) as f32).collect(),
        Init::Uniform(bound) => {
            numbers.map(|number| (bound * (2.0 * random.uniform(number) - 1.0)) as f32).collect()
        }
    }
}

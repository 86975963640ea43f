//! Initial weights.

use super::parameters::{Init, Piece, Role, Spec};
use crate::random::Philox;

/// The initial values of row `row` of parameter number `index`, counted in the order of
/// [`Gpt::declare`](super::parameters::Gpt::declare): a pure function of the seed, so that any part of a model can be
/// initialised by itself, and by tests in f64.
///
/// Every parameter has its own random stream; element (row, column) is number `row · cols + column` of it.
pub fn initial_row(spec: &Spec, index: usize, row: usize, seed: u64) -> Vec<f32> {
    let holds = |piece: &Piece| (piece.first_row..piece.first_row + piece.rows).contains(&row);
    let is_padding = spec.role != Role::Vector && !spec.pieces.iter().any(holds);
    match spec.init {
        _ if is_padding => vec![0.0; spec.cols],
        Init::Ones => vec![1.0; spec.cols],
        Init::Zeros => vec![0.0; spec.cols],
        Init::Normal(std) => {
            let random = Philox::new(seed, index as u64);
            let first = (row * spec.cols) as u64;
            (0..spec.cols as u64).map(|column| (std * random.normal(first + column)) as f32).collect()
        }
    }
}

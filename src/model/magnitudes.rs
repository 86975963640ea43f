//! The magnitudes of adapted layers (DoRA): the norms that they start from, and the factors that stand in their place
//! where weights do not change.

use super::arena::{ArenaLayout, Holds};
use super::config::LowRank;
use super::parameters::{Lora, Piece, Role, Spec, adapted_module};
use crate::element::Element;
use crate::ops::row_squares::{LowRankFactors, row_factors, row_norms, row_squares};
use crate::ops::zero::zero;
use crate::record::{Recorder, Tensor};
use crate::tape::{LowRankMap, Parameter};

/// The end of the path of magnitudes, after that of their matrix.
const PATH: &str = ".lora_magnitudes";

/// Writes the norms of the rows of all adapted matrices to their magnitudes.
pub(crate) fn start_from_norms(
    rec: &mut Recorder,
    layout: &ArenaLayout,
    low_rank: &LowRank,
    weights: &dyn Holds,
) {
    each(rec, layout, low_rank, weights, false, row_norms);
}

/// Divides all magnitudes by the norms of the rows of their matrices with adapters.
pub(crate) fn fold(rec: &mut Recorder, layout: &ArenaLayout, low_rank: &LowRank, weights: &dyn Holds) {
    each(rec, layout, low_rank, weights, true, row_factors);
}

fn each(
    rec: &mut Recorder,
    layout: &ArenaLayout,
    low_rank: &LowRank,
    weights: &dyn Holds,
    adapted: bool,
    update: fn(&mut Recorder, Tensor, Tensor),
) {
    let specs = layout.parameters.iter().map(|(spec, _)| spec);
    for spec in specs.filter(|spec| spec.role == Role::Magnitudes) {
        let path = spec.path.strip_suffix(PATH).unwrap_or(&spec.path);
        let parameter = |end: &str| layout.held(&format!("{path}{end}"), weights);
        let (a, _) = layout.find(&format!("{path}.lora_a"));
        let lora = Lora {
            a: parameter(".lora_a"),
            b: parameter(".lora_b"),
            scale: 1.0,
            maps: maps(low_rank, a, spec),
            magnitudes: None,
            layer: 0,
            place: 0,
        };
        let magnitudes = parameter(PATH).weight();
        rec.scope(path, |rec| {
            let squares = rec.tensor("squares", 1, magnitudes.cols, Element::F32);
            lora.row_squares(rec, &parameter(""), adapted, squares);
            update(rec, squares, magnitudes);
        });
    }
}

/// The maps of a layer whose first factors are `a` and whose magnitudes are `magnitudes`.
fn maps(low_rank: &LowRank, a: &Spec, magnitudes: &Spec) -> Vec<LowRankMap> {
    let map = |(of_a, own): (&Piece, &Piece)| LowRankMap {
        first: own.first_row as u32,
        count: own.rows as u32,
        rank: of_a.rows as u32,
        factor: adapted_module(&own.name).map(|module| low_rank.scale_of(module) as f32),
    };
    a.pieces.iter().zip(&magnitudes.pieces).map(map).collect()
}

impl Lora<Parameter> {
    /// Writes the sums of squares of the rows of W, with their adapters if these are `adapted`, to `squares` (1, rows):
    /// zeros where no map is adapted.
    pub(super) fn row_squares(&self, rec: &mut Recorder, weight: &Parameter, adapted: bool, squares: Tensor) {
        let (w, a, b) = (weight.weight(), self.a.weight(), self.b.weight());
        let covered: u32 = self.maps.iter().map(|map| map.count.next_multiple_of(4)).sum();
        if covered < squares.cols {
            zero(rec, squares);
        }
        let (mut row, mut rank_row) = (0, 0);
        for LowRankMap { first, count, rank, factor } in self.maps.iter().copied() {
            let padded = rank.next_multiple_of(4);
            let factors = LowRankFactors {
                a: a.rows(rank_row, padded),
                b: b.rows(row, count).columns(0, rank),
                factor: factor.unwrap_or(self.scale),
            };
            let added = adapted.then_some(factors);
            row_squares(rec, w.rows(first, count), added, squares.columns(first, count));
            row += count;
            rank_row += padded;
        }
    }
}

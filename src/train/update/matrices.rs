//! Muon, one matrix at a time. A parameter that packs several matrices (q, k and v; gate and up) is updated matrix by
//! matrix: they are stored together for the sake of one product, but are different maps.

use super::Update;
use crate::error::{Error, Result};
use crate::model::arena::Part;
use crate::model::parameters::{Piece, Spec, Strip, UpdateRule};
use crate::ops::grad_norm::rate_column;
use crate::ops::muon::{self, Block, Matrix, Muon, muon_in_turns};
use crate::ranks::RankLayout;
use crate::record::Recorder;

impl Update<'_> {
    /// Updates all matrices that this rank is responsible for. `settings` are completed by each matrix's own decay,
    /// rate and rounding. Matrices that ranks divide come last.
    pub(super) fn update_matrices(&self, rec: &mut Recorder, settings: &Muon) -> Result<()> {
        let mut divided = Vec::new();
        let parameters = self.layout.parameters.iter();
        for (spec, parts) in parameters.filter(|(spec, _)| spec.trains && spec.rule == UpdateRule::Matrix) {
            let is_ours = |part: &Part| {
                let ranges = self.ownership.updated(self.layout, part.segment);
                ranges.iter().any(|range| range.contains(&part.offset))
            };
            if !parts.iter().any(is_ours) {
                continue; // another rank updates it
            }
            let &[part] = parts.as_slice() else {
                return Err(Error::Plan(format!(
                    "{} does not fit one binding of this adapter, and Muon needs a matrix whole; write `type: AdamW` under \
                     optimizer or choose another adapter with context.device_name",
                    spec.path
                )));
            };
            self.update_pieces(rec, spec, &part, settings, &mut divided);
        }
        let ranks = &self.ownership.ranks;
        let group = (&ranks.matrix_group(), ranks.matrix_part());
        muon_in_turns(rec, &divided, group, &self.tensors.step());
        Ok(())
    }

    /// Updates the matrices of a parameter; matrices that ranks divide are added to `divided` instead.
    fn update_pieces(
        &self,
        rec: &mut Recorder,
        spec: &Spec,
        part: &Part,
        settings: &Muon,
        divided: &mut Vec<muon::DividedMatrix>,
    ) {
        let decay = if spec.decays { self.decays[spec.group] as f32 } else { 0.0 };
        let settings = Muon { decay, rate_column: rate_column(spec.group), ..*settings };
        let peers = self.peers(spec);
        for piece in spec.pieces.iter().flat_map(Piece::matrices) {
            let own = blocks(spec, &piece);
            let (Some(first), Some(last)) = (own.first(), own.last()) else { continue };
            let (first, end) = (first.held[0], last.held[0] + last.size[0]);
            let elements = part.range(spec, first as usize, end as usize);
            let placed = self.places.map(|places| places.runs(part.segment, &elements));
            let rounding = placed.iter().flatten().next().map(|placed| placed.rounding(self.seed));
            let settings = Muon { rounding: rounding.unwrap_or_default(), ..settings };
            let arenas = self.arenas;
            let [weights, gradients, moments] = [&arenas.weights, &arenas.gradients, &arenas.first_moments]
                .map(|arena| arena.part(spec, part).rows(first, end - first));
            let matrix = Matrix { weights, gradients, moments };
            let whole = [piece.rows, spec.whole_cols()].map(|lines| lines as u32);
            let name = piece.name.clone();
            if [weights.rows, weights.cols] == whole {
                rec.scope(name, |rec| muon::muon(rec, &matrix, &self.tensors.step(), &settings));
            } else {
                let of_peers = peers.iter().map(|peer| within_part(blocks(peer, &piece)));
                divided.push(muon::DividedMatrix {
                    name,
                    matrix,
                    settings,
                    whole,
                    blocks: of_peers.collect(),
                });
            }
        }
    }

    /// The part of a parameter that each of the ranks that share matrices holds.
    fn peers(&self, spec: &Spec) -> Vec<Spec> {
        let ranks = self.ownership.ranks;
        let whole = self.whole.iter().find(|whole| ranks.model > 1 && whole.path == spec.path);
        let held = |rank: usize| whole?.clone().held_by(&RankLayout { rank, ..ranks });
        ranks.matrix_group().ranks.into_iter().filter_map(held).collect()
    }
}

/// The blocks that a rank holds of the matrix `piece`.
fn blocks(spec: &Spec, piece: &Piece) -> Vec<Block> {
    let rows = piece.first_row..piece.first_row + piece.rows;
    let row_strips = spec.row_strips().into_iter().filter_map(|strip| strip.whole_in(&rows));
    let cols = spec.col_strips();
    let of_rows = |row: Strip| {
        let block = move |col: &Strip| Block {
            held: [row.held as u32, col.held as u32],
            whole: [(row.whole - piece.first_row) as u32, col.whole as u32],
            size: [row.count as u32, col.count as u32],
        };
        cols.iter().map(block).collect::<Vec<_>>()
    };
    row_strips.flat_map(of_rows).collect()
}

/// `blocks` with rows counted from the part's first row.
fn within_part(blocks: Vec<Block>) -> Vec<Block> {
    let first = blocks.first().map_or(0, |block| block.held[0]);
    let moved = |block: Block| Block { held: [block.held[0] - first, block.held[1]], ..block };
    blocks.into_iter().map(moved).collect()
}

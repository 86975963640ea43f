//! Muon, one matrix at a time. A parameter that packs several matrices (q, k and v; gate and up) is updated matrix by
//! matrix: they are stored together for the sake of one product, but are different maps.

use super::Update;
use crate::error::{Error, Result};
use crate::model::arena::Part;
use crate::model::parameters::{Piece, Spec, Strip, UpdateRule};
use crate::ops::grad_norm::rate_column;
use crate::ops::muon::{Block, Matrix, Muon, Parts, muon};
use crate::ops::rounding::Rounding;
use crate::ranks::RankLayout;
use crate::record::Recorder;
use crate::settings::MuonConfig;

impl Update<'_> {
    /// Updates all matrices that this rank does.
    pub(super) fn update_matrices(&self, rec: &mut Recorder, config: &MuonConfig) -> Result<()> {
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
            self.update_pieces(rec, spec, &part, config);
        }
        Ok(())
    }

    fn update_pieces(&self, rec: &mut Recorder, spec: &Spec, part: &Part, config: &MuonConfig) {
        let settings = Muon {
            momentum: config.momentum as f32,
            is_nesterov: config.nesterov,
            steps: config.ns_steps,
            rms: config.matched_adamw_rms as f32,
            decay: if spec.decays { self.decays[spec.group] as f32 } else { 0.0 },
            rate_column: rate_column(spec.group),
            rounding: Rounding::default(),
        };
        let peers = self.peers(spec);
        for piece in &spec.pieces {
            let own = blocks(spec, piece);
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
            let parts = peers.as_ref().and_then(|peers| self.parts(spec, piece, peers));
            let (step, parts) = (self.tensors.step(), parts.as_ref());
            rec.scope(piece.name.clone(), |rec| muon(rec, &matrix, parts, &step, &settings));
        }
    }

    /// What each of the ranks that share matrices holds of a parameter; `None` if they do not divide it.
    fn peers(&self, spec: &Spec) -> Option<Vec<Spec>> {
        let ranks = self.ownership.ranks;
        let whole = self.whole.iter().find(|whole| whole.path == spec.path)?;
        let is_divided = ranks.model > 1 && spec.split.is_some();
        let held = |rank: usize| whole.clone().held_by(&RankLayout { rank, ..ranks });
        is_divided.then(|| ranks.matrix_group().ranks.into_iter().filter_map(held).collect())
    }

    /// Who holds what of a matrix; `None` if this rank has all of it.
    fn parts(&self, spec: &Spec, piece: &Piece, peers: &[Spec]) -> Option<Parts> {
        let whole = [piece.rows, spec.whole_cols()].map(|lines| lines as u32);
        let own = within_part(blocks(spec, piece));
        if own.iter().any(|block| block.size == whole) {
            return None;
        }
        let mut all: Vec<(usize, Block)> = Vec::new();
        for (place, peer) in peers.iter().enumerate() {
            for block in within_part(blocks(peer, piece)) {
                // Neighbours may hold the same heads.
                if all.iter().all(|(_, other)| other.whole != block.whole) {
                    all.push((place, block));
                }
            }
        }
        Some(Parts { group: self.ownership.ranks.matrix_group(), whole, own, all })
    }
}

/// What a rank holds of a matrix, whose rows and columns are those of `piece`.
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

/// The same, with the rows of the part counted from its first one.
fn within_part(blocks: Vec<Block>) -> Vec<Block> {
    let first = blocks.first().map_or(0, |block| block.held[0]);
    let moved = |block: Block| Block { held: [block.held[0] - first, block.held[1]], ..block };
    blocks.into_iter().map(moved).collect()
}

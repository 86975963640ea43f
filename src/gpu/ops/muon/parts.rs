//! Matrices of which tensor-parallel ranks hold a part each: rows, those of several heads, or columns.
//!
//! Ranks take turns: as many matrices as there are ranks are updated at once. Each rank gets the parts of one of them, orthogonalises
//! it whole and sends the parts back, so it does its share of the work, and a matrix moves twice.

use super::{Matrix, Muon, apply, direction, orthogonalise, params_of, square_rows};
use crate::element::Element;
use crate::ops::add::add;
use crate::ops::grad_norm::StepTensors;
use crate::ranks::Group;
use crate::record::{Collective, Recorder, Span, Tensor};

/// This rank's part of a matrix, and who holds what of it. Parts are equally large.
#[derive(Clone, Debug)]
pub struct Part {
    /// What it is called in a recording.
    pub name: String,
    /// Its weights, gradients and momentum.
    pub matrix: Matrix,
    /// How it is updated.
    pub settings: Muon,
    /// Rows and columns of the whole matrix.
    pub whole: [u32; 2],
    /// What each rank holds; several may hold the same.
    pub blocks: Vec<Vec<Block>>,
}

/// Consecutive rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first row and column in the part that holds them.
    pub held: [u32; 2],
    /// The same in the whole matrix.
    pub whole: [u32; 2],
    /// How many rows and columns there are.
    pub size: [u32; 2],
}

/// Updates this rank's `parts` of matrices as [`muon`](super::muon()) updates a matrix. It is number `place` of the `group`.
#[track_caller]
pub fn muon_in_turns(
    rec: &mut Recorder,
    parts: &[Part],
    (group, place): (&Group, usize),
    step: &StepTensors,
) {
    for round in parts.chunks(group.size()) {
        let (mut directions, mut updates) = (Vec::new(), Vec::new());
        for Part { name, matrix, settings, .. } in round {
            directions.push(rec.scope(name.as_str(), |rec| direction(rec, matrix, step, settings).0));
            let Tensor { rows, cols, .. } = matrix.weights;
            updates.push(rec.tensor("update", rows, cols, Element::F32));
        }
        let turn = round.get(place);
        let of_ranks = turn.map(|part| {
            let Tensor { rows, cols, .. } = part.matrix.weights;
            rec.tensor("parts", group.size() as u32 * rows, cols, Element::F32)
        });
        let [directions, updates_of_round] = [&directions, &updates].map(|of| spans(of, group));
        let received = of_ranks.map_or(vec![directions[0].empty(); group.size()], |x| rows_of(x, group));
        rec.exchange("direction", Collective::AllToAll { sent: directions, received }, group);
        let sent = turn.zip(of_ranks).map(|(part, of_ranks)| {
            let updates = rec.scope(part.name.as_str(), |rec| part.orthogonalise(rec, of_ranks, step));
            rows_of(updates, group)
        });
        let sent = sent.unwrap_or(vec![updates_of_round[0].empty(); group.size()]);
        rec.exchange("direction", Collective::AllToAll { sent, received: updates_of_round }, group);
        for (Part { name, matrix, settings, whole, .. }, update) in round.iter().zip(updates) {
            rec.scope(name.as_str(), |rec| apply(rec, matrix, update, *whole, step, settings));
        }
    }
}

/// The spans of `tensors`, one for each rank, of which the last may have none.
fn spans(tensors: &[Tensor], group: &Group) -> Vec<Span> {
    let mut spans: Vec<Span> = tensors.iter().map(Span::of).collect();
    spans.resize(group.size(), spans[0].empty());
    spans
}

/// The rows of each rank, of which `x` has as many.
fn rows_of(x: Tensor, group: &Group) -> Vec<Span> {
    let rows = x.rows / group.size() as u32;
    (0..group.size() as u32).map(|rank| Span::of(&x.rows(rank * rows, rows))).collect()
}

impl Part {
    /// The updates of the parts of all ranks, one below the other, of their directions `of_ranks`.
    pub fn orthogonalise(&self, rec: &mut Recorder, of_ranks: Tensor, step: &StepTensors) -> Tensor {
        let [rows, cols] = self.whole;
        let is_in_order = |(part, block): &(Tensor, Block)| {
            block.size[1] == cols
                && part.offset - of_ranks.offset == u64::from(block.whole[0]) * u64::from(part.stride) * 4
        };
        let blocks: Vec<(Tensor, Block)> = self.blocks_in(of_ranks);
        let is_whole = of_ranks.rows == rows && blocks.iter().all(is_in_order);
        let x = if is_whole { of_ranks } else { rec.tensor("x", rows, cols, Element::F32) };
        for (part, block) in blocks.iter().filter(|_| !is_whole) {
            add(rec, *part, block.of(x), 1.0, false);
        }
        let params =
            super::Params { rows, cols4: x.stride4(), ..params_of(&self.matrix, step, &self.settings) };
        let partials = square_rows(rec, x, params);
        let update = orthogonalise(rec, x, partials, self.settings.steps, params);
        if is_whole {
            return update;
        }
        let updates = rec.tensor("parts", of_ranks.rows, of_ranks.cols, Element::F32);
        for (part, block) in self.blocks_in(updates) {
            add(rec, block.of(update), part, 1.0, false);
        }
        updates
    }

    /// The blocks of all ranks, whose parts are one below the other in `x`, each with its tensor there.
    fn blocks_in(&self, x: Tensor) -> Vec<(Tensor, Block)> {
        let rows = x.rows / self.blocks.len() as u32;
        let of_rank = |(rank, blocks): (u32, &Vec<Block>)| {
            let part = x.rows(rank * rows, rows);
            let of_block = move |block: &Block| {
                let Block { held: [row, col], size: [rows, cols], .. } = *block;
                (part.rows(row, rows).columns(col, cols), *block)
            };
            blocks.iter().map(of_block).collect::<Vec<_>>()
        };
        (0..).zip(&self.blocks).flat_map(of_rank).collect()
    }
}

impl Block {
    /// It in the whole matrix `x`.
    fn of(&self, x: Tensor) -> Tensor {
        let Self { whole: [row, col], size: [rows, cols], .. } = *self;
        x.rows(row, rows).columns(col, cols)
    }
}

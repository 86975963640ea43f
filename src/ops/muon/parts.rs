//! Muon for matrices of which tensor-parallel ranks hold a part each: rows, rows of several heads, or columns.
//!
//! Ranks take turns: in a turn as many matrices as there are ranks are updated. Each rank gets all parts of one of
//! them, orthogonalises the whole matrix and sends the parts back, so every rank does its share of the work, and a
//! matrix moves twice. The exchanges of several turns are combined into a round of up to [`ROUND_BYTES`].

use super::{Matrix, Muon, apply, direction, orthogonalise, params_of, square_rows};
use crate::element::Element;
use crate::ops::add::add;
use crate::ops::grad_norm::StepTensors;
use crate::ranks::Group;
use crate::record::{Collective, Recorder, Span, Tensor};

/// This rank's part of a matrix, and which rank holds which part. Parts are equally large.
#[derive(Clone, Debug)]
pub struct DividedMatrix {
    /// The part's name in a recording.
    pub name: String,
    /// The weights, gradients and momentum of the part.
    pub matrix: Matrix,
    /// The settings of its update.
    pub settings: Muon,
    /// Rows and columns of the whole matrix.
    pub whole: [u32; 2],
    /// The blocks that each rank holds; several ranks may hold the same.
    pub blocks: Vec<Vec<Block>>,
}

/// Consecutive rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first row and column in the part that holds them.
    pub held: [u32; 2],
    /// The first row and column in the whole matrix.
    pub whole: [u32; 2],
    /// Number of rows and columns.
    pub size: [u32; 2],
}

/// Most bytes that a rank has of the matrices of a round, unless a single turn has more. This many bytes are copied to
/// the host for an exchange, and back; on the device a round takes four times as much: directions, the directions that
/// arrive, and the same for updates.
const ROUND_BYTES: u64 = 8 << 20;

/// Updates this rank's `parts` of matrices as [`muon`](super::muon()) updates a matrix. This rank is number `place` of
/// the `group`.
#[track_caller]
pub fn muon_in_turns(
    rec: &mut Recorder,
    parts: &[DividedMatrix],
    (group, place): (&Group, usize),
    step: &StepTensors,
) {
    let size = group.size();
    for round in rounds(parts, size) {
        let (mut directions, mut updates) = (Vec::new(), Vec::new());
        for DividedMatrix { name, matrix, settings, .. } in round {
            directions.push(rec.scope(name.as_str(), |rec| direction(rec, matrix, step, settings).0));
            let Tensor { rows, cols, .. } = matrix.weights;
            updates.push(rec.tensor("update", rows, cols, Element::F32));
        }
        let own: Vec<&DividedMatrix> = in_turns(round, place, size).collect();
        let gather = |part: &&DividedMatrix| {
            let Tensor { rows, cols, .. } = part.matrix.weights;
            rec.tensor("parts", size as u32 * rows, cols, Element::F32)
        };
        let gathered: Vec<Tensor> = own.iter().map(gather).collect();
        let (sent, received) = (of_ranks(&directions, size), rows_of(&gathered, size));
        rec.exchange("direction", Collective::AllToAll { sent, received }, group);
        let orthogonalise = |(part, gathered): (&DividedMatrix, Tensor)| {
            rec.scope(part.name.as_str(), |rec| part.orthogonalise(rec, gathered, step))
        };
        let orthogonal: Vec<Tensor> = own.into_iter().zip(gathered).map(orthogonalise).collect();
        let (sent, received) = (rows_of(&orthogonal, size), of_ranks(&updates, size));
        rec.exchange("direction", Collective::AllToAll { sent, received }, group);
        for (DividedMatrix { name, matrix, settings, whole, .. }, update) in round.iter().zip(updates) {
            rec.scope(name.as_str(), |rec| apply(rec, matrix, update, *whole, step, settings));
        }
    }
}

/// Groups parts into rounds, whose turns exchange together.
fn rounds(mut parts: &[DividedMatrix], size: usize) -> impl Iterator<Item = &[DividedMatrix]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |turn: &&[DividedMatrix]| {
            bytes += turn.iter().map(DividedMatrix::bytes).sum::<u64>();
            bytes <= ROUND_BYTES
        };
        let turns = parts.chunks(size).take_while(fits).count().max(1);
        let (round, rest) = parts.split_at(parts.len().min(turns * size));
        parts = rest;
        (!round.is_empty()).then_some(round)
    })
}

/// The elements of `all` that the rank at `place` gets.
fn in_turns<T>(all: &[T], place: usize, size: usize) -> impl Iterator<Item = &T> {
    all.iter().skip(place).step_by(size)
}

/// The spans of `tensors` for each rank; the ranks take tensors in turns.
fn of_ranks(tensors: &[Tensor], size: usize) -> Vec<Vec<Span>> {
    (0..size).map(|place| in_turns(tensors, place, size).map(Span::of).collect()).collect()
}

/// The spans of each rank's rows; each of `tensors` has equally many rows for every rank.
fn rows_of(tensors: &[Tensor], size: usize) -> Vec<Vec<Span>> {
    let of_rank = |rank: u32| {
        let rows = |x: &Tensor| {
            let rows = x.rows / size as u32;
            Span::of(&x.rows(rank * rows, rows))
        };
        tensors.iter().map(rows).collect()
    };
    (0..size as u32).map(of_rank).collect()
}

impl DividedMatrix {
    /// Bytes of the part's direction.
    fn bytes(&self) -> u64 {
        let Tensor { rows, stride, .. } = self.matrix.weights;
        Element::F32.bytes_of(u64::from(rows) * u64::from(stride))
    }

    /// The updates of the parts of all ranks, one below the other, computed from their directions `of_ranks`.
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

    /// The blocks of all ranks, whose parts are one below the other in `x`, each with the tensor of its elements in
    /// `x`.
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
    /// The block's range of the whole matrix `x`.
    fn of(&self, x: Tensor) -> Tensor {
        let Self { whole: [row, col], size: [rows, cols], .. } = *self;
        x.rows(row, rows).columns(col, cols)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Capabilities;
    use crate::ops::step_state::{LossState, StepState};
    use crate::record::{Exchange, State};

    /// Halves of matrices; each part has one of `sizes`.
    fn parts(rec: &mut Recorder, sizes: &[[u32; 2]]) -> Vec<DividedMatrix> {
        let part = |&[rows, cols]: &[u32; 2]| {
            let [weights, gradients, moments] =
                [0; 3].map(|_| rec.tensor("matrix", rows, cols, Element::F32));
            let block = |place| vec![Block { held: [0, 0], whole: [place * rows, 0], size: [rows, cols] }];
            DividedMatrix {
                name: "matrix".into(),
                matrix: Matrix { weights, gradients, moments },
                settings: Muon {
                    momentum: 0.9,
                    is_nesterov: true,
                    steps: 1,
                    rms: 0.2,
                    decay: 0.1,
                    rate_column: 0,
                    rounding: Default::default(),
                },
                whole: [2 * rows, cols],
                blocks: vec![block(0), block(1)],
            }
        };
        sizes.iter().map(part).collect()
    }

    #[test]
    fn turns_exchange_together_up_to_a_bound() {
        let mut rec = Recorder::new("rounds", Capabilities::software());
        let ([small, half, large], size) = ([[8, 32], [768, 1024], [4096, 1024]], 2);
        let parts = parts(&mut rec, &[small, small, small, small, half, half, half, half, large]);
        let lengths = |parts| rounds(parts, size).map(<[DividedMatrix]>::len).collect::<Vec<_>>();
        assert_eq!(lengths(&parts), [6, 2, 1]);
        assert_eq!(lengths(&parts[4..6]), [2]);
        assert!(lengths(&[]).is_empty());
    }

    /// An odd number of matrices of unequal sizes: one rank gets one more.
    #[test]
    fn each_rank_receives_what_another_sends() {
        let of_rank = |place| -> Vec<Exchange> {
            let mut rec = Recorder::new("turns", Capabilities::software());
            let parts = parts(&mut rec, &[[8, 32], [4, 12], [16, 8], [6, 20], [2, 7]]);
            let mut words = |words| rec.tensor("words", 1, words, Element::U32);
            let [state, loss] = [StepState::WORDS, LossState::WORDS].map(&mut words);
            let step = StepTensors { state, loss, schedule: rec.tensor("schedule", 2, 5, Element::F32) };
            muon_in_turns(&mut rec, &parts, (&Group::all(2), place), &step);
            rec.finish().exchanges
        };
        let ranks = [0, 1].map(of_rank);
        assert_eq!(ranks.each_ref().map(Vec::len), [2, 2]);
        let lengths = |of: &[Vec<Span>]| -> Vec<Vec<u64>> {
            of.iter().map(|of| of.iter().map(|span| span.bytes).collect()).collect()
        };
        let spans = |rank: usize, number: usize| {
            let Collective::AllToAll { sent, received } = &ranks[rank][number].collective else { panic!() };
            [lengths(sent), lengths(received)]
        };
        for (number, (from, to)) in
            (0..2).flat_map(|number| [(0, 0), (0, 1), (1, 0), (1, 1)].map(|of| (number, of)))
        {
            let ([sent, _], [_, received]) = (spans(from, number), spans(to, number));
            assert_eq!(sent[to], received[from], "exchange {number} from {from} to {to}");
        }
    }
}

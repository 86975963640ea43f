//! The order in which the stages of a pipeline compute and exchange rows: a pure function of the degrees.
//!
//! A step consists of *halves*: forward or backward of one micro-batch through one chunk of layers. 1F1B warms up with
//! as many forward halves as there are stages after this one, then alternates one forward and one backward half, so
//! that a stage keeps as few micro-batches as possible (Narayanan et al., "Efficient large-scale language model
//! training on GPU clusters using Megatron-LM", 2021, section 2.2). If interleaved, micro-batches go through the chunks
//! in groups of as many as there are stages, and the warm-up is longer; the number of micro-batches must be a multiple
//! of the number of stages.
//!
//! **When rows are exchanged.** All stages are simulated with halves that take one tick each. Rows are exchanged before
//! the tick in which the receiver computes with them; until then they wait in the sender's host memory. So every
//! message has a tick, and each rank makes its exchanges in the order of ticks: everything that it sends and receives
//! before a half is one job ([`Turn`]). Of the messages that are not finished, the first in this order finds both its
//! ranks free, since everything that they have to do before is earlier. So no order of jobs can deadlock, even if a
//! send waits until it is received. Exchanges within halves are among ranks of one stage, which make the same turns.

use std::collections::{HashMap, HashSet};

/// The degrees of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// Number of stages.
    pub stages: usize,
    /// Number of chunks per stage.
    pub interleaves: usize,
}

/// The direction of a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the first layer to the loss.
    Forward,
    /// From the loss to the first layer.
    Backward,
}

/// The unit of computation of a stage: a micro-batch through one of its chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Half {
    /// The number of the chunk on its stage.
    pub chunk: usize,
    /// The number of the micro-batch in its step, among those that this rank takes.
    pub micro_batch: usize,
    /// Forward or backward.
    pub direction: Direction,
}

/// A turn of a rank: it sends rows that others need, receives rows that it needs itself, and computes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Halves whose results are sent, in order.
    pub sends: Vec<Half>,
    /// The half that is computed; a turn at the end of a step may have none.
    pub half: Option<Half>,
    /// Whether the half starts from rows of another rank, which are received while `sends` are sent.
    pub receives: bool,
}

/// A half on one of the stages.
type Placed = (usize, Half);

impl Pipeline {
    /// The turns of stage number `stage` in a step of `micro_batches`.
    pub fn turns(self, stage: usize, micro_batches: usize) -> Vec<Turn> {
        self.turns_of(stage, |stage| self.one_forward_one_backward(stage, micro_batches))
    }

    /// The turns of stage number `stage` in an evaluation, which only has forward halves.
    pub fn forward_turns(self, stage: usize, micro_batches: usize) -> Vec<Turn> {
        let halves = |_| {
            let chunks = |micro_batch| {
                let half = move |chunk| Half { chunk, micro_batch, direction: Direction::Forward };
                (0..self.interleaves).map(half)
            };
            (0..micro_batches).flat_map(chunks).collect()
        };
        self.turns_of(stage, halves)
    }

    /// For each chunk of a stage, the most micro-batches whose forward half is done and whose backward half is not.
    pub fn in_flight(self, stage: usize, micro_batches: usize) -> Vec<usize> {
        let mut kept = vec![(0usize, 0usize); self.interleaves];
        for half in self.one_forward_one_backward(stage, micro_batches) {
            let (now, most) = &mut kept[half.chunk];
            match half.direction {
                Direction::Forward => *now += 1,
                Direction::Backward => *now -= 1,
            }
            *most = (*most).max(*now);
        }
        kept.into_iter().map(|(_, most)| most).collect()
    }

    /// The halves of a stage, in order.
    fn one_forward_one_backward(self, stage: usize, micro_batches: usize) -> Vec<Half> {
        let Self { stages, interleaves } = self;
        let after = stages - stage - 1;
        let warm_up = if interleaves == 1 { after } else { 2 * after + (interleaves - 1) * stages };
        let visits = self.visits(micro_batches);
        let forward = visits.iter().map(|&(chunk, micro_batch)| Half {
            chunk,
            micro_batch,
            direction: Direction::Forward,
        });
        let mut backward = visits.iter().map(|&(chunk, micro_batch)| Half {
            chunk: interleaves - 1 - chunk,
            micro_batch,
            direction: Direction::Backward,
        });
        let mut halves = Vec::with_capacity(2 * visits.len());
        for (number, half) in forward.enumerate() {
            halves.push(half);
            halves.extend((number >= warm_up).then(|| backward.next()).flatten());
        }
        halves.extend(backward);
        halves
    }

    /// Chunks and micro-batches in the order of forward halves: group by group, and in each group chunk by chunk.
    fn visits(self, micro_batches: usize) -> Vec<(usize, usize)> {
        let groups = (0..micro_batches).step_by(self.stages);
        let of_group = |first: usize| {
            let group = first..micro_batches.min(first + self.stages);
            (0..self.interleaves).flat_map(move |chunk| group.clone().map(move |number| (chunk, number)))
        };
        groups.flat_map(of_group).collect()
    }

    /// The turns of a stage, where each stage computes its `halves` in order.
    fn turns_of(self, stage: usize, halves: impl Fn(usize) -> Vec<Half>) -> Vec<Turn> {
        let ticks = self.ticks(halves);
        let mut own: Vec<(usize, Half)> = ticks
            .iter()
            .filter(|((of, _), _)| *of == stage)
            .map(|((_, half), tick)| (*tick, *half))
            .collect();
        own.sort_unstable_by_key(|(tick, _)| *tick);
        // By the tick in which the receiver needs it; within a tick, in the order in which they were computed.
        let mut sends: Vec<(usize, Half)> =
            own.iter().filter_map(|&(_, half)| Some((ticks[&self.receiver((stage, half))?], half))).collect();
        sends.sort_by_key(|(tick, _)| *tick);
        let mut sends = sends.into_iter().peekable();
        let mut due = |until: Option<usize>| {
            let mut due = Vec::new();
            while let Some((_, half)) = sends.next_if(|(tick, _)| until.is_none_or(|until| *tick <= until)) {
                due.push(half);
            }
            due
        };
        let mut turns: Vec<Turn> = own
            .into_iter()
            .map(|(tick, half)| Turn {
                sends: due(Some(tick)),
                half: Some(half),
                receives: self.sender((stage, half)).is_some(),
            })
            .collect();
        let last = due(None);
        if !last.is_empty() {
            turns.push(Turn { sends: last, ..Turn::default() });
        }
        turns
    }

    /// The tick of each half, if each takes one tick and starts once its rows have arrived.
    fn ticks(self, halves: impl Fn(usize) -> Vec<Half>) -> HashMap<Placed, usize> {
        let mut left: Vec<_> = (0..self.stages).map(|stage| halves(stage).into_iter().peekable()).collect();
        let mut ticks: HashMap<Placed, usize> = HashMap::new();
        let mut done: HashSet<Placed> = HashSet::new();
        for tick in 0.. {
            let mut now = Vec::new();
            for (stage, halves) in left.iter_mut().enumerate() {
                let is_ready =
                    |half: &Half| self.sender((stage, *half)).is_none_or(|from| done.contains(&from));
                now.extend(halves.next_if(is_ready).map(|half| (stage, half)));
            }
            if now.is_empty() {
                break;
            }
            ticks.extend(now.iter().map(|&placed| (placed, tick)));
            done.extend(now);
        }
        assert!(
            left.iter_mut().all(|halves| halves.peek().is_none()),
            "a half waits for one that never comes"
        );
        ticks
    }

    /// The half that needs the result of this one, if it is on another rank; the last chunk's forward result stays
    /// where it is.
    fn receiver(self, placed: Placed) -> Option<Placed> {
        self.neighbour(placed, placed.1.direction)
    }

    /// The half whose result this one needs, if another rank computes it.
    fn sender(self, placed: Placed) -> Option<Placed> {
        let opposite = match placed.1.direction {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        };
        self.neighbour(placed, opposite)
    }

    /// The same micro-batch in the next chunk, or in the previous one.
    fn neighbour(self, (stage, half): Placed, towards: Direction) -> Option<Placed> {
        let number = half.chunk * self.stages + stage;
        let number = match towards {
            Direction::Forward => Some(number + 1).filter(|next| *next < self.stages * self.interleaves),
            Direction::Backward => number.checked_sub(1),
        }?;
        Some((number % self.stages, Half { chunk: number / self.stages, ..half }))
    }
}

/// The most results that wait to be sent at the same time, including those that are being sent.
pub fn waiting(turns: &[Turn], sends: impl Fn(Half) -> bool) -> usize {
    let (mut now, mut most) = (0usize, 0);
    for turn in turns {
        // A turn's sends are under way while its half makes another result.
        let made = usize::from(turn.half.is_some_and(&sends));
        most = most.max(now + made);
        now = now + made - turn.sends.len();
    }
    most
}

#[cfg(test)]
mod tests;

//! Recomputation: results of the forward pass that are not kept for the backward pass, but recorded again where it reads them
//! (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
//!
//! A recording is plain data, so an op is recorded again by appending its dispatches once more, on other buffers. The same
//! kernels run on the same values, and the results are bit-identical. An op here is what was recorded between two borders: a
//! scope is entered or left, or a result is returned. It reads buffers that earlier ops made, and makes those that were
//! created meanwhile. An op in place makes none: it belongs to the op that made the buffer it writes.
//!
//! It happens where the backward pass first reads a result, once; what it does not read, such as the last product
//! of a block, is not launched again. What a router decided and what is counted is kept (`Tape::keeping`), never
//! decided or counted twice; dropout draws the same words. `Block::layer_with` runs each layer so and keeps its result;
//! `ModelConfig` says what else is kept, by the paths of `model/config/operator.rs`.

use super::{Tape, Var};
use crate::ops::add::add;
use crate::ops::matrix_ranks::MatrixRanks;
use crate::record::{BufferId, Position, Recorder, Tensor, TransientId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

/// What was dropped so far, and how it is recorded again.
pub(super) struct Recomputation<'p> {
    /// Which results are dropped at present; `None`: none.
    rule: Option<Rule<'p>>,
    /// Where the op that is being recorded starts.
    start: Position,
    /// Transient buffers before it.
    transients: u32,
    /// The ops whose results were dropped.
    dropped: Vec<Dropped>,
    /// For each dropped buffer, its op in `dropped`.
    makers: HashMap<BufferId, usize>,
    /// For dropped buffers that were recorded again, the buffers that hold their contents now.
    again: HashMap<BufferId, BufferId>,
    /// Tensors of which each of these ranks keeps its own rows, in a tensor of their own.
    slices: HashMap<BufferId, Slice>,
}

/// What is kept of a tensor.
#[derive(Clone)]
struct Slice {
    whole: Tensor,
    own: Tensor,
    ranks: MatrixRanks,
}

/// Which results a block drops.
struct Rule<'p> {
    /// Components of the block's path.
    depth: usize,
    /// Whether the results of the op at this path below the block are dropped.
    drops: Box<dyn Fn(&str) -> bool + Send + 'p>,
}

/// An op whose results were dropped.
#[derive(Clone, Default)]
struct Dropped {
    /// What was recorded for it, followed by that of ops that wrote its results in place.
    recorded: Vec<Range<Position>>,
    /// The transient buffers that it made.
    made: Vec<BufferId>,
}

impl Recomputation<'_> {
    /// Nothing was dropped.
    pub fn new(rec: &Recorder) -> Self {
        let (start, transients) = (rec.position(), rec.transient_count());
        Self {
            rule: None,
            start,
            transients,
            dropped: Vec::new(),
            makers: HashMap::new(),
            again: HashMap::new(),
            slices: HashMap::new(),
        }
    }
}

impl<'p> Tape<'_, 'p> {
    /// Runs `block`, of which the backward pass finds only its result and the results of ops for which `drops` is false; it
    /// is given an op's path below the block, `feed_forward.mul` for example. What a backward reads of the others is
    /// recorded again at that point, once, with all it depends on, and nothing else is. No bit of any gradient changes.
    ///
    /// An op in place drops nothing by itself: its result is dropped, and made again, with that of the op it writes to. An op
    /// that counts, or adds to a buffer that outlives the pass, must be [kept](Self::keeping).
    #[track_caller]
    pub fn recompute(
        &mut self,
        drops: impl Fn(&str) -> bool + Send + 'p,
        block: impl FnOnce(&mut Self) -> Var,
    ) -> Var {
        let rule = Rule { depth: self.rec.scopes().len(), drops: Box::new(drops) };
        let result = self.under(Some(rule), block);
        self.recomputation.makers.remove(&result.tensor.buffer);
        result
    }

    /// Runs `body`, of which nothing is dropped or recorded again, although it is part of a block that is recomputed.
    #[track_caller]
    pub fn keeping<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        self.under(None, body)
    }

    /// Keeps this rank's rows of x (N, D), which is the same on all of `ranks`, for the backward pass: it gathers the others where it
    /// first reads x.
    #[track_caller]
    pub fn keep_slice(&mut self, x: Var, ranks: &MatrixRanks) {
        let Tensor { cols, element, .. } = x.tensor;
        let rows = ranks.own_rows(x.tensor.rows);
        let count = rows.end - rows.start;
        let own = self.rec.tensor("slice", count, cols, element);
        add(self.rec, x.tensor.rows(rows.start, count), own, 1.0, false);
        let slice = Slice { whole: x.tensor, own, ranks: ranks.clone() };
        self.recomputation.slices.insert(x.tensor.buffer, slice);
    }

    fn under<T>(&mut self, rule: Option<Rule<'p>>, body: impl FnOnce(&mut Self) -> T) -> T {
        self.end_op(None);
        self.begin_op();
        let outer = std::mem::replace(&mut self.recomputation.rule, rule);
        let result = body(self);
        self.end_op(None);
        self.begin_op();
        self.recomputation.rule = outer;
        result
    }

    /// What is recorded from here on is the next op.
    fn begin_op(&mut self) {
        self.recomputation.start = self.rec.position();
        self.recomputation.transients = self.rec.transient_count();
    }

    /// Ends the op that is being recorded, if any, at its border to the next one. It may have a `result`.
    pub(super) fn end_op(&mut self, result: Option<Tensor>) {
        let recorded = self.recomputation.start..self.rec.position();
        let transients = self.recomputation.transients..self.rec.transient_count();
        if !self.is_recording || recorded.start == recorded.end {
            return;
        }
        self.begin_op();
        let made: Vec<BufferId> = transients.map(|id| BufferId::Transient(TransientId(id))).collect();
        let written = result.map(|tensor| tensor.buffer).filter(|buffer| !made.contains(buffer));
        let drops = self.drops();
        let Recomputation { dropped, makers, .. } = &mut self.recomputation;
        let op = match written {
            Some(in_place) => makers.get(&in_place).copied(),
            None => drops.then_some(dropped.len()),
        };
        let Some(op) = op else { return };
        if op == dropped.len() {
            dropped.push(Dropped::default());
        }
        makers.extend(made.iter().map(|buffer| (*buffer, op)));
        dropped[op].recorded.push(recorded);
        dropped[op].made.extend(made);
    }

    /// The buffer with what `buffer` held at the end of the forward pass.
    pub(super) fn present(&mut self, buffer: BufferId) -> BufferId {
        if let Some(slice) = self.recomputation.slices.remove(&buffer) {
            self.gather_slice(slice);
        }
        if let Some(&gathered) = self.recomputation.again.get(&buffer) {
            return gathered;
        }
        let Some(&op) = self.recomputation.makers.get(&buffer) else { return buffer };
        self.record_again(op);
        self.recomputation.again[&buffer]
    }

    /// Whether the results of an op at the present path are dropped.
    fn drops(&self) -> bool {
        let Some(rule) = &self.recomputation.rule else { return false };
        (rule.drops)(&self.rec.scopes()[rule.depth..].join("."))
    }

    fn gather_slice(&mut self, Slice { whole, own, ranks }: Slice) {
        let again = self.rec.another(whole.buffer);
        self.rec.enter("slice");
        ranks.gather_rows(self.rec, own, Tensor { buffer: again, ..whole });
        self.rec.leave();
        self.recomputation.again.insert(whole.buffer, again);
    }

    fn record_again(&mut self, op: usize) {
        let Dropped { recorded, made } = self.recomputation.dropped[op].clone();
        let mut buffers: HashMap<BufferId, BufferId> =
            made.into_iter().map(|buffer| (buffer, self.rec.another(buffer))).collect();
        self.recomputation.again.extend(&buffers);
        for range in &recorded {
            for buffer in self.rec.buffers_of(range.clone()) {
                if let Entry::Vacant(input) = buffers.entry(buffer) {
                    input.insert(self.present(buffer));
                }
            }
        }
        for range in recorded {
            self.rec.repeat(range, "recomputed", &buffers);
        }
    }
}

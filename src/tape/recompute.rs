//! Recomputation: results of the forward pass that are not kept for the backward pass, but recorded again where it
//! reads them (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
//!
//! A recording is plain data, so an op is recorded again by appending its dispatches once more, on other buffers. The
//! same kernels run on the same values, and the results are bit-identical. An op here is everything recorded between
//! two borders: a scope is entered or left, or a result is returned. It reads buffers that earlier ops made, and makes
//! the buffers that were created meanwhile. An in-place op makes none: it belongs to the op that made the buffer it
//! writes.
//!
//! A result is recorded again once, where the backward pass first reads it; results that it does not read, such as that
//! of the last product of a block, are not computed again. The decisions of a router, and counts, are kept
//! (`Tape::keeping`), so nothing is decided or counted twice; dropout draws the same words. `Block::layer_with` runs
//! each layer this way and keeps its result; `ModelConfig` says what else is kept, by the paths of
//! `model/config/operator.rs`.

use super::{Tape, Var};
use crate::ops::add::add;
use crate::ops::matrix_ranks::MatrixRanks;
use crate::record::{BufferId, Position, Recorder, Tensor, TransientId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

/// The ops whose results were dropped so far, and what is needed to record them again.
pub(super) struct Recomputation<'p> {
    /// Which results are currently dropped; `None`: none.
    rule: Option<Rule<'p>>,
    /// Where the op that is being recorded starts.
    start: Position,
    /// Number of transient buffers before that op.
    transients: u32,
    /// The ops whose results were dropped.
    dropped: Vec<Dropped>,
    /// For each dropped buffer, the index in `dropped` of the op that made it.
    makers: HashMap<BufferId, usize>,
    /// For dropped buffers that were recorded again, the buffers that now hold their contents.
    again: HashMap<BufferId, BufferId>,
    /// Tensors of which each rank keeps only its own rows, in a separate tensor.
    slices: HashMap<BufferId, Slice>,
}

/// The rows of a tensor that are kept.
#[derive(Clone)]
struct Slice {
    whole: Tensor,
    own: Tensor,
    ranks: MatrixRanks,
}

/// Which results a block drops.
struct Rule<'p> {
    /// Number of components of the block's path.
    depth: usize,
    /// Whether the results of the op at this path below the block are dropped.
    drops: Box<dyn Fn(&str) -> bool + Send + 'p>,
}

/// An op whose results were dropped.
#[derive(Clone, Default)]
struct Dropped {
    /// The positions of its dispatches, followed by those of in-place ops that wrote to its results.
    recorded: Vec<Range<Position>>,
    /// The transient buffers that it made.
    made: Vec<BufferId>,
}

impl Recomputation<'_> {
    /// The state in which nothing has been dropped.
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
    /// Runs `block`. Of its results the backward pass finds only the block's own and those of ops for which `drops` is
    /// false; `drops` is given an op's path below the block, for example `feed_forward.mul`. Other results that a
    /// backward reads are recorded again at that point, once, with everything they depend on, and nothing else is. No
    /// bit of any gradient changes.
    ///
    /// An in-place op drops nothing by itself: its result is dropped, and made again, together with the result of the
    /// op it writes to. An op that counts, or adds to a buffer that outlives the pass, must be [kept](Self::keeping).
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

    /// Runs `body`. Nothing in it is dropped or recorded again, although it may be part of a block that is recomputed.
    #[track_caller]
    pub fn keeping<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        self.under(None, body)
    }

    /// Keeps only this rank's rows of x (N, D), which is the same on all of `ranks`, for the backward pass, which
    /// gathers the other rows where it first reads x.
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

    /// Begins the next op: everything recorded from here on belongs to it.
    fn begin_op(&mut self) {
        self.recomputation.start = self.rec.position();
        self.recomputation.transients = self.rec.transient_count();
    }

    /// Ends the op that is being recorded, if any. It may have a `result`.
    pub(super) fn end_op(&mut self, result: Option<Tensor>) {
        let recorded = self.recomputation.start..self.rec.position();
        let transients = self.recomputation.transients..self.rec.transient_count();
        if !self.is_recording || recorded.start == recorded.end {
            return;
        }
        self.begin_op();
        let measured: Vec<BufferId> = self.rec.measurements_of(recorded.clone()).collect();
        let made = transients.map(|id| BufferId::Transient(TransientId(id)));
        let made: Vec<BufferId> = made.filter(|buffer| !measured.contains(buffer)).collect();
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

    /// The buffer that now has the contents that `buffer` had at the end of the forward pass.
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

    /// Whether the results of an op at the current path are dropped.
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

//! The global norm of the gradients, their overflow flag, and the decisions of a step.
//!
//! A micro-batch's loss is a mean over its own targets, so tokens of micro-batches with few targets weigh more. With
//! `calculate_per_token_loss` ([`StepRules::tokens`]) the loss of each micro-batch is divided by all its tokens, and
//! here, where the targets of the whole step are known, gradients are multiplied by tokens / targets; this includes the
//! gradients of multi-token prediction. Balance losses are not per token, so the settings refuse the combination.
//!
//! Clipping multiplies by `min(1, max_norm / (norm + 1e-6))`, as in PyTorch. MindFormers multiplies by `max_norm /
//! (max_norm + 1e-6)` even below the bound.

use super::step_state::{LossState, StepState};
use super::{fold, per_row};
use crate::element::Element;
use crate::ranks::Group;
use crate::record::{Collective, Recorder, Span, State, Tensor};
use std::ops::Range;

/// Groups of 4 gradients that are summed in one go in the first pass.
pub(super) const BLOCK: u32 = 256;

/// Most rows of the first pass. The one workgroup of the second pass reduces their partial sums; each segment may add
/// one row. A model with many segments still has some hundred rows for each, which keep a GPU busy.
const MOST_ROWS: u32 = 16384;

/// Most blocks of a row, which an invocation of the software tier sums alone, so that it stays below
/// [`most_turns`](crate::kernels::Capabilities::most_turns): beyond 4 billion gradients there are more rows, on every
/// tier, so that the order of the sum is the same.
const MOST_BLOCKS: u32 = 250;

/// Minimum number of rows of a rank when [`MOST_ROWS`] are divided among ranks: this many workgroups keep a GPU busy.
const LEAST_ROWS: u32 = 256;

crate::params! {
    struct Params {
        count4: u32,
        offset4: u32,
        rows: u32,
        blocks: u32,
        first_partial: u32,
        max_norm: f32,
        schedule_rows: u32,
        schedule_stride4: u32,
        spike_norm: f32,
        halts_on_nan: u32,
        tokens: f32,
    }
}

/// How the gradients of a step are used. By default every finite gradient is used as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepRules {
    /// Gradients are scaled down to this norm.
    pub max_norm: Option<f32>,
    /// A step whose norm, before clipping, is this or more makes no update.
    pub spike_norm: Option<f32>,
    /// Whether the run halts at the first gradient or loss that is not finite.
    pub halts_on_nan: bool,
    /// Tokens of a step, including those with ignored targets, if all other tokens are to weigh the same. The losses
    /// must have been recorded with [`is_per_token`](super::linear_cross_entropy::CrossEntropy::is_per_token).
    pub tokens: Option<f32>,
}

/// The ranks' shares of the gradients, if no rank has all of them. The ranks gather their partial sums.
#[derive(Clone, Debug)]
pub struct NormShares {
    /// For each rank, the elements of its gradients, tensor by tensor, padding included.
    pub lengths: Vec<Vec<u64>>,
    /// The ranks.
    pub group: Group,
    /// This rank's place in the group.
    pub place: usize,
}

/// The tensors that hold the inputs and the decisions of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepTensors {
    /// [`StepState`].
    pub state: Tensor,
    /// [`LossState`].
    pub loss: Tensor,
    /// (steps, 2 + groups), a row for each global step: the learning rate of group 0, the bias corrections of both
    /// moments, and the learning rates of the other parameter groups; see [`rate_column`]. Steps after the last row use
    /// the last row, so training that continues past its schedule keeps the last rate.
    pub schedule: Tensor,
}

/// The column of the schedule that holds a parameter group's learning rate.
pub const fn rate_column(group: usize) -> u32 {
    if group == 0 { 0 } else { group as u32 + 2 }
}

/// Computes norm and overflow flag of all `gradients` (a flat tensor for each segment) and updates the step's state by
/// `rules`.
#[track_caller]
pub fn grad_norm(rec: &mut Recorder, gradients: &[Tensor], tensors: &StepTensors, rules: &StepRules) {
    let lengths: Vec<u64> = gradients.iter().map(length).collect();
    let rows = PartialRows::of(&lengths);
    let total = rows.total();
    let partials = rec.tensor("partials", 1, 2 * total, Element::F32);
    record_sums(rec, gradients, tensors, rules, rows, partials, 0);
    finish_step(rec, partials, total, tensors, rules);
}

/// [`grad_norm`] where no rank has all gradients: `gradients` are this rank's share. The state of every rank receives
/// the norm and the overflow flag of the whole.
#[track_caller]
pub fn grad_norm_of_shares(
    rec: &mut Recorder,
    gradients: &[Tensor],
    tensors: &StepTensors,
    rules: &StepRules,
    shares: &NormShares,
) {
    let (partials, rows) = gathered_sums(rec, gradients, tensors, rules, shares);
    finish_step(rec, partials, rows, tensors, rules);
}

#[track_caller]
fn finish_step(rec: &mut Recorder, partials: Tensor, rows: u32, tensors: &StepTensors, rules: &StepRules) {
    let StepTensors { state, loss, schedule } = tensors;
    let kernel = fold("grad_norm", "finish_step", Element::F32).constant("BLOCK", BLOCK);
    let bindings = [
        schedule.bind("schedule", Element::F32),
        partials.bind("partials_in", Element::F32),
        StepState::bind("state_out", *state),
        LossState::bind("loss", *loss),
    ];
    rec.dispatch(kernel, &bindings, &Params { rows, ..params(tensors, rules) }, [1, 1, 1]);
}

/// (1, 2 rows): norm and number of non-finite groups for each row of the shares of all ranks, and the number of rows.
/// This rank sums its own rows.
fn gathered_sums(
    rec: &mut Recorder,
    gradients: &[Tensor],
    tensors: &StepTensors,
    rules: &StepRules,
    shares: &NormShares,
) -> (Tensor, u32) {
    let lengths: Vec<u64> = gradients.iter().map(length).collect();
    assert!(lengths == shares.lengths[shares.place], "the gradients are the share of this rank");
    let ranks = shares.lengths.len() as u32;
    let mut total = 0;
    let rows = shares.lengths.iter().map(|lengths| {
        let first = total;
        total += PartialRows::of_one_of(ranks, lengths).total();
        first..total
    });
    let rows: Vec<Range<u32>> = rows.collect();
    let partials = rec.tensor("partials", 1, 2 * total, Element::F32);
    let own = PartialRows::of_one_of(ranks, &lengths);
    record_sums(rec, gradients, tensors, rules, own, partials, rows[shares.place].start);
    let byte = |row: u32| 8 * u64::from(row);
    let parts: Vec<_> = rows.iter().map(|rows| byte(rows.start)..byte(rows.end)).collect();
    let whole = Span::of(&partials).part(0, 2 * u64::from(total), Element::F32);
    let Range { start, end } = rows[shares.place];
    let own = whole.part(2 * u64::from(start), 2 * u64::from(end - start), Element::F32);
    rec.exchange("partials", Collective::AllGather { own, whole, parts }, &shares.group);
    (partials, total)
}

/// Records the partial sums of `gradients` from row `first_partial` on.
fn record_sums(
    rec: &mut Recorder,
    gradients: &[Tensor],
    tensors: &StepTensors,
    rules: &StepRules,
    rows: PartialRows,
    partials: Tensor,
    first_partial: u32,
) {
    let mut params = Params { blocks: rows.blocks, first_partial, ..params(tensors, rules) };
    for (segment, count) in gradients.iter().zip(rows.counts) {
        params =
            Params { count4: groups(length(segment)), offset4: segment.offset4(), rows: count, ..params };
        let (kernel, grid) = per_row(rec, "grad_norm", "square_sum", Element::F32, params.rows);
        let bindings = [
            segment.bind_with_offset("gradients", Element::F32),
            partials.bind("partials", Element::F32),
            StepState::bind("state", tensors.state),
            LossState::bind("loss", tensors.loss),
        ];
        rec.dispatch(kernel.constant("BLOCK", BLOCK), &bindings, &params, grid);
        params.first_partial += params.rows;
    }
}

/// Rows of the first pass.
pub(super) struct PartialRows {
    /// Blocks per row.
    pub blocks: u32,
    /// Number of rows of each tensor.
    pub counts: Vec<u32>,
}

impl PartialRows {
    /// The rows for tensors with these numbers of elements (`lengths`).
    pub fn of(lengths: &[u64]) -> Self {
        Self::at_most(MOST_ROWS, lengths)
    }

    /// The rows of one of `ranks` ranks. Each rank receives the rows of all, so the more ranks there are, the fewer
    /// rows each has.
    fn of_one_of(ranks: u32, lengths: &[u64]) -> Self {
        Self::at_most((MOST_ROWS / ranks).max(LEAST_ROWS), lengths)
    }

    /// About `rows` rows in total, and at least one for each tensor.
    fn at_most(rows: u32, lengths: &[u64]) -> Self {
        let blocks: u64 = lengths.iter().map(|length| u64::from(groups(*length).div_ceil(BLOCK))).sum();
        let blocks =
            u32::try_from(blocks.div_ceil(u64::from(rows))).unwrap_or(u32::MAX).clamp(1, MOST_BLOCKS);
        let counts = lengths.iter().map(|length| groups(*length).div_ceil(BLOCK * blocks)).collect();
        Self { blocks, counts }
    }

    /// Rows of all tensors.
    pub fn total(&self) -> u32 {
        self.counts.iter().sum()
    }
}

/// Elements of a tensor, padding included.
pub(super) fn length(tensor: &Tensor) -> u64 {
    u64::from(tensor.stride) * u64::from(tensor.rows)
}

/// Groups of 4 elements in `length` elements.
pub(super) fn groups(length: u64) -> u32 {
    (length / 4) as u32
}

fn params(tensors: &StepTensors, rules: &StepRules) -> Params {
    Params {
        count4: 0,
        offset4: 0,
        rows: 0,
        blocks: 0,
        first_partial: 0,
        max_norm: rules.max_norm.unwrap_or(0.0),
        schedule_rows: tensors.schedule.rows,
        schedule_stride4: tensors.schedule.stride4(),
        spike_norm: rules.spike_norm.unwrap_or(0.0),
        halts_on_nan: rules.halts_on_nan.into(),
        tokens: rules.tokens.unwrap_or(0.0),
    }
}

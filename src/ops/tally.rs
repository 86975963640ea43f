//! What a mixture layer's experts did in a step, and the bias that keeps them equally busy.

use super::fold;
use crate::element::{Element, stride_of};
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        experts: u32,
        last: u32,
        totals: u32,
        rate: f32,
    }
}

/// Where things lie in a layer's tally, a row (1, [`tally_columns`]) of 32-bit words that outlives recordings. The host
/// clears it at the start of each step; every micro-batch adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TallyColumns {
    /// E words: how often each expert was chosen in the step, dropped choices included; u32.
    pub chosen: u32,
    /// E words: the same in the last micro-batch alone; u32.
    pub last: u32,
    /// Choices of the step that found their expert full; u32.
    pub dropped: u32,
    /// Choices of the step; u32.
    pub choices: u32,
    /// E · Σ f_e · p_e over all tokens, before its factor, mean over micro-batches; f32, see [`Balance`].
    ///
    /// [`Balance`]: super::balance::Balance
    pub expert_loss: u32,
    /// The same of each sequence, averaged over sequences; f32.
    pub sequence_loss: u32,
    /// The mean of (ln Σ exp logits)², before its factor; f32.
    pub z_loss: u32,
}

impl TallyColumns {
    /// The layout for so many experts.
    pub const fn of(experts: u32) -> Self {
        let last = stride_of(experts);
        let dropped = 2 * last;
        Self {
            chosen: 0,
            last,
            dropped,
            choices: dropped + 1,
            expert_loss: dropped + 2,
            sequence_loss: dropped + 3,
            z_loss: dropped + 4,
        }
    }
}

/// Words of the tally of a layer with so many experts: whole pieces of 256 bytes, so that the rows of one tensor, a row a
/// layer, can each be bound.
pub const fn tally_columns(experts: u32) -> u32 {
    (TallyColumns::of(experts).z_loss + 1).next_multiple_of(64)
}

/// Adds a micro-batch to `tally`: `counts` (1, E) are the choices of each expert before any is dropped, of which it takes
/// `capacities` (1, E), or all; both u32. A step has fewer than 2^32 choices.
#[track_caller]
pub fn tally(rec: &mut Recorder, counts: Tensor, capacities: Option<Tensor>, tally: Tensor) {
    let experts = counts.cols;
    let capacities = capacities.unwrap_or(counts); // as many as come
    assert!(capacities.cols == experts, "{experts} experts with {} capacities", capacities.cols);
    assert_tally(tally, experts);
    let bindings = [(1, counts.binding()), (2, capacities.binding()), (3, tally.binding())];
    rec.dispatch(fold("tally", "tally", Element::F32), &bindings, &params(experts, 0.0), [1, 1, 1]);
}

/// bias (1, E) += rate · sign(mean choices of the step - choices of each expert), for the recording that updates weights:
/// after `grad_norm`, which says in `state` (`StepState`) whether the step counts. On overflow, while the run is halted, or
/// where nothing was chosen the bias stays. (Wang et al., 2024)
#[track_caller]
pub fn update_bias(rec: &mut Recorder, tally: Tensor, bias: Tensor, rate: f32, state: Tensor) {
    let experts = bias.cols;
    assert!(bias.element == Element::F32, "the bias of the choice is f32");
    assert_tally(tally, experts);
    let bindings = [(1, tally.binding()), (2, bias.binding()), (3, state.binding())];
    rec.dispatch(fold("tally", "update_bias", Element::F32), &bindings, &params(experts, rate), [1, 1, 1]);
}

#[track_caller]
pub(super) fn assert_tally(tally: Tensor, experts: u32) {
    let fits = tally.rows == 1 && tally.cols == tally_columns(experts) && tally.element == Element::F32;
    assert!(fits, "the tally of {experts} experts is one row of {} words", tally_columns(experts));
}

fn params(experts: u32, rate: f32) -> Params {
    let columns = TallyColumns::of(experts);
    Params { experts, last: columns.last, totals: columns.dropped, rate }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_of_five_experts() {
        let columns = TallyColumns::of(5);
        assert_eq!((columns.chosen, columns.last, columns.dropped, columns.choices), (0, 8, 16, 17));
        assert_eq!((columns.expert_loss, columns.sequence_loss, columns.z_loss), (18, 19, 20));
        assert_eq!((tally_columns(5), tally_columns(512)), (64, 1088));
    }
}

//! The tally of a layer's experts in a step, and the update of the load-balancing bias.

use super::fold;
use super::step_state::StepState;
use crate::element::{Element, stride_of};
use crate::record::{Recorder, State, Tensor};

crate::params! {
    struct Params {
        experts: u32,
        last: u32,
        totals: u32,
        rate: f32,
    }
}

/// The columns of a layer's tally, a persistent row (1, [`tally_columns`]) of 32-bit words. The host clears it at the
/// start of each step; every micro-batch adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TallyColumns {
    /// E words, u32: choices of each expert in the step, including dropped ones.
    pub chosen: u32,
    /// E words, u32: choices of each expert in the last micro-batch.
    pub last: u32,
    /// u32: dropped choices of the step.
    pub dropped: u32,
    /// u32: choices of the step.
    pub choices: u32,
    /// f32: E · Σ f_e · p_e over all tokens, without its factor, averaged over micro-batches; see [`Balance`].
    ///
    /// [`Balance`]: super::balance::Balance
    pub expert_loss: u32,
    /// f32: the same loss computed over each sequence, averaged over sequences.
    pub sequence_loss: u32,
    /// f32: the mean of (ln Σ exp logits)², without its factor.
    pub z_loss: u32,
}

impl TallyColumns {
    /// The columns for `experts` experts.
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

/// Words of the tally of `experts` experts: a multiple of 256 bytes, so that each layer's row of a buffer can be bound.
pub const fn tally_columns(experts: u32) -> u32 {
    (TallyColumns::of(experts).z_loss + 1).next_multiple_of(64)
}

/// Adds a micro-batch to `tally`: `counts` (1, E) are the choices of each expert before drops, of which `capacities`
/// (1, E) are kept, or all if they are not given; both u32. A step has fewer than 2^32 choices.
#[track_caller]
pub fn tally(rec: &mut Recorder, counts: Tensor, capacities: Option<Tensor>, tally: Tensor) {
    let experts = counts.cols;
    let capacities = capacities.unwrap_or(counts); // nothing is dropped
    assert!(capacities.cols == experts, "{experts} experts cannot have {} capacities", capacities.cols);
    assert_tally(tally, experts);
    let bindings = [
        counts.bind("counts", Element::U32),
        capacities.bind("capacities", Element::U32),
        tally.bind("tally_row", Element::U32),
    ];
    rec.dispatch(fold("tally", "tally", Element::F32), &bindings, &params(experts, 0.0), [1, 1, 1]);
}

/// bias (1, E) += rate · sign(mean choices of the step - choices of each expert) (Wang et al., "Auxiliary-Loss-Free
/// Load Balancing", 2024). Recorded after `grad_norm`: if `state` (`StepState`) says that the step overflowed or the
/// run is halted, or if nothing was chosen, the bias stays as it is.
#[track_caller]
pub fn update_bias(rec: &mut Recorder, tally: Tensor, bias: Tensor, rate: f32, state: Tensor) {
    let experts = bias.cols;
    assert_tally(tally, experts);
    let bindings = [
        tally.bind("tally_in", Element::U32),
        bias.bind("bias", Element::F32),
        StepState::bind("state", state),
    ];
    rec.dispatch(fold("tally", "update_bias", Element::F32), &bindings, &params(experts, rate), [1, 1, 1]);
}

#[track_caller]
pub(super) fn assert_tally(tally: Tensor, experts: u32) {
    let fits = tally.rows == 1 && tally.cols == tally_columns(experts) && tally.element == Element::U32;
    assert!(fits, "the tally of {experts} experts must be one row of {} u32", tally_columns(experts));
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

//! Hot experts: the busiest experts have a larger capacity than the others.

use super::per_item;
use super::permute::HotAndCold;
use super::step_state::StepState;
use crate::element::Element;
use crate::record::{Recorder, State, Tensor};

crate::params! {
    struct Params {
        experts: u32,
        hot: u32,
        capacity: u32,
        cold_capacity: u32,
        update_step: u32,
        checkpoint_step: u32,
        counts_offset: u32,
    }
}

/// The steps after which hot experts are selected anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotSteps {
    /// Every step whose number is a multiple of this, which is above 0, and every power of two below it.
    pub update_step: u64,
    /// Also this step, at which a checkpoint is written.
    pub checkpoint_step: Option<u64>,
}

/// Writes `capacities` (1, E): the larger capacity for the `hot` experts with the highest `counts` (1, E) of the step,
/// the smaller one for the others; both u32. Ties go to the lower index. After steps that are not among `steps` nothing
/// changes, nor after a step that overflowed or while the run is halted.
///
/// Recorded after [`grad_norm`](super::grad_norm::grad_norm), which counts the step in `state`, overflowed or not.
/// [`HotAndCold::initial`] gives the first contents of `capacities`.
#[track_caller]
pub fn hot_experts(
    rec: &mut Recorder,
    counts: Tensor,
    state: Tensor,
    capacities: Tensor,
    two: &HotAndCold,
    steps: &HotSteps,
) {
    let experts = capacities.cols;
    assert!(counts.cols == experts, "{} counts for {experts} experts", counts.cols);
    assert!(two.hot <= experts, "{} experts cannot be hot: there are {experts}", two.hot);
    assert!(steps.update_step > 0, "update_step must be above 0");
    // Steps are counted in 32 bits: none is a multiple of a number that does not fit.
    let word = |step: u64| u32::try_from(step).unwrap_or(u32::MAX);
    let params = Params {
        experts,
        hot: two.hot,
        capacity: two.capacity,
        cold_capacity: two.cold_capacity,
        update_step: word(steps.update_step),
        checkpoint_step: word(steps.checkpoint_step.unwrap_or(0)),
        counts_offset: 4 * counts.offset4(),
    };
    let (kernel, grid) = per_item("hot_experts", "hot_experts", Element::F32, experts.into());
    let bindings = [
        counts.bind_with_offset("counts", Element::U32),
        StepState::bind("state", state),
        capacities.bind("capacities", Element::U32),
    ];
    rec.dispatch(kernel, &bindings, &params, grid);
}

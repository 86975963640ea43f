//! Which experts have more rows than the others: those that were busiest.

use super::per_item;
use super::permute::HotAndCold;
use crate::element::Element;
use crate::record::{Recorder, Tensor};

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

/// At the end of which steps the hot experts are chosen anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotSteps {
    /// Of every so many, above 0; and before the first of them, of each power of two.
    pub update_step: u64,
    /// And of this one.
    pub checkpoint_step: Option<u64>,
}

/// `capacities` (1, E) = the capacity of hot experts for the `hot` busiest by `counts` (1, E) of the step, that of cold ones for the
/// others; equally busy ones in order of their index. Only at the end of `steps`: at others capacities stay as they are.
///
/// It belongs after [`grad_norm`](super::grad_norm::grad_norm), which counts the step in `state`; steps whose gradients were
/// not finite count too. [`HotAndCold::initial`] is what `capacities` starts as.
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
    assert!(two.hot <= experts, "{} of {experts} experts are hot", two.hot);
    assert!(steps.update_step > 0, "hot experts are chosen anew every 1 or more steps, not every 0");
    let (counts, offset4) = counts.offset_binding();
    // Steps are counted in 32 bits: none is a multiple of what does not fit.
    let word = |step: u64| u32::try_from(step).unwrap_or(u32::MAX);
    let params = Params {
        experts,
        hot: two.hot,
        capacity: two.capacity,
        cold_capacity: two.cold_capacity,
        update_step: word(steps.update_step),
        checkpoint_step: word(steps.checkpoint_step.unwrap_or(0)),
        counts_offset: 4 * offset4,
    };
    let (kernel, grid) = per_item("hot_experts", "hot_experts", Element::F32, experts.into());
    let bindings = [(1, counts), (2, state.binding()), (3, capacities.binding())];
    rec.dispatch(kernel, &bindings, &params, grid);
}

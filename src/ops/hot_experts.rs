//! Hot experts: the busiest experts have a larger capacity than the others.
//!
//! Ranks that spread experts have a copy each of the hot ones ([`hot_copies`](super::hot_copies)). They place the rows
//! of hot experts behind the rows of cold ones, and only the latter travel: [`HotLast`].

use super::per_item;
use super::permute::HotAndCold;
use super::step_state::StepState;
use crate::element::Element;
use crate::kernels::Kernel;
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
    /// Every step whose number is a multiple of this, which is above 0, and before that every power of two.
    pub update_step: u64,
    /// This step too; a checkpoint is written at it.
    pub checkpoint_step: Option<u64>,
}

/// The experts of a layer with the cold ones first and the hot ones last, both in order. All tensors are u32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotLast {
    /// The capacities of hot and cold experts.
    pub two: HotAndCold,
    /// (1, E): the place of each expert in that order. The place of a hot expert among the hot ones is its *slot*.
    pub groups: Tensor,
    /// (1, E + 1): the first row of each expert among the rows of cold experts, and the end of these rows. Hot experts
    /// have no rows there.
    pub cold_offsets: Tensor,
    /// (1, hot + 1): the first row of each hot expert among the rows of hot experts, and the end of these rows.
    pub hot_offsets: Tensor,
}

impl HotLast {
    /// The order by `capacities` (1, E), u32, as [`hot_experts`] leaves them: the experts with the largest words are
    /// hot, of equal words the first.
    #[track_caller]
    pub fn new(rec: &mut Recorder, capacities: Tensor, two: &HotAndCold) -> Self {
        let experts = capacities.cols;
        assert!(two.hot < experts, "of {experts} experts {} are hot: none is left to travel to", two.hot);
        let mut integers = |label, cols| rec.tensor(label, 1, cols, Element::U32);
        let (groups, cold_offsets) = (integers("groups", experts), integers("cold_offsets", experts + 1));
        let last =
            Self { two: *two, groups, cold_offsets, hot_offsets: integers("hot_offsets", two.hot + 1) };
        let kernel = Kernel::new("hot_experts", "hot_experts_last", Element::F32)
            .constant("LANES", experts.next_power_of_two().clamp(16, 256));
        let bindings = [
            capacities.bind("chosen", Element::U32),
            groups.bind("groups", Element::U32),
            cold_offsets.bind("cold_offsets", Element::U32),
            last.hot_offsets.bind("hot_offsets", Element::U32),
        ];
        let params = Params {
            experts,
            hot: two.hot,
            capacity: two.capacity,
            cold_capacity: two.cold_capacity,
            update_step: 0,
            checkpoint_step: 0,
            counts_offset: 0,
        };
        rec.dispatch(kernel, &bindings, &params, [1, 1, 1]);
        last
    }
}

/// Writes `capacities` (1, E): the larger capacity for the `hot` experts with the highest `counts` (1, E) of the step,
/// the smaller one for the others; both u32. If both capacities are equal, those of hot experts have the bit of
/// [`HotAndCold::hot_word`]. Ties go to the lower index. Nothing changes after steps that are not among `steps`, after
/// a step that overflowed, or while the run is halted.
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
    // Steps are counted in 32 bits: none of them is a multiple of a number that does not fit in 32 bits.
    let word = |step: u64| u32::try_from(step).unwrap_or(u32::MAX);
    let params = Params {
        experts,
        hot: two.hot,
        capacity: two.hot_word(),
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

//! Placement: a stable counting sort of the choices by expert, on the device.

use super::{DropOrder, Placement, PlacementConfig, RowAllocation, Slots};
use crate::element::Element;
use crate::kernels::{Condition, Kernel, Tier};
use crate::ops::hot_experts::HotLast;
use crate::record::{Binding, Recorder, Tensor, fold_grid};

/// Maximum number of blocks, which keeps the scan over them short; longer batches have longer blocks.
const MOST_BLOCKS: u32 = 256;

crate::params! {
    struct Params {
        tokens: u32,
        chosen: u32,
        choices: u32,
        experts: u32,
        by_choice: u32,
        block: u32,
        blocks: u32,
        stride: u32,
        rows: u32,
        capacity: u32,
        extra: u32,
        has_empty_rows: u32,
        cold: u32,
        cold_capacity: u32,
    }
}

/// Places the choices `ids` (1, N·k), u32: the expert of choice j of token t at t·k + j. `capacities` (1, E), u32, are
/// the rows of each expert; they are given if and only if the allocation is [`Slots::HotAndCold`], and add up to
/// [`PlacementConfig::rows`].
///
/// Three launches, without waiting for the host. The rows of an expert are in the order of [`PlacementConfig::order`];
/// choices beyond its capacity are dropped.
#[track_caller]
pub fn place(
    rec: &mut Recorder,
    config: &PlacementConfig,
    ids: Tensor,
    capacities: Option<Tensor>,
) -> Placement {
    config.assert_valid();
    assert!(ids.rows == 1 && ids.cols == config.choices(), "{} ids for {config:?}", ids.cols);
    assert!(
        capacities.is_some() == config.has_hot_experts()
            && capacities.is_none_or(|c| c.cols == config.experts),
        "a tensor of {} capacities must be given exactly if there are hot experts",
        config.experts
    );
    let rows = capacities.map_or(Rows::Known, Rows::Each);
    sort(rec, config, ids, rows)
}

/// As [`place`], with the rows of hot experts behind those of cold ones: `offsets` are ordered by the places of experts
/// in `last`, `counts` by expert.
#[track_caller]
pub fn place_hot_last(
    rec: &mut Recorder,
    config: &PlacementConfig,
    ids: Tensor,
    last: &HotLast,
) -> Placement {
    config.assert_valid();
    assert!(ids.rows == 1 && ids.cols == config.choices(), "{} ids for {config:?}", ids.cols);
    assert!(
        config.hot_and_cold() == Some(last.two) && last.groups.cols == config.experts,
        "experts of {:?} placed by {config:?}",
        last.two
    );
    sort(rec, config, ids, Rows::HotLast(last))
}

/// How the kernels find the number of rows of each expert.
enum Rows<'a> {
    /// From the choices, or from one capacity for all.
    Known,
    /// From the capacity of each expert.
    Each(Tensor),
    /// From the place of each expert.
    HotLast(&'a HotLast),
}

#[track_caller]
fn sort(rec: &mut Recorder, config: &PlacementConfig, ids: Tensor, rows: Rows<'_>) -> Placement {
    let mut integers = |name, cols| rec.tensor(name, 1, cols, Element::U32);
    let placement = Placement {
        config: *config,
        counts: integers("counts", config.experts),
        offsets: integers("offsets", config.experts + 1),
        places: integers("places", config.choices()),
        sources: integers("sources", config.rows()),
    };
    let last = if let Rows::HotLast(last) = rows { Some(last) } else { None };
    // If places stand for experts, the kernels count by place.
    let counts = if last.is_some() { integers("place_counts", config.experts) } else { placement.counts };
    let Placement { offsets, places, sources, .. } = placement;
    // Software: one invocation per block. Portable: one workgroup per block, part of which a shorter block would leave
    // idle.
    let is_software = rec.capabilities().tier == Tier::Software;
    let (lanes, least) = if is_software { (16, 64) } else { (64, 256) };
    let block = config.choices().div_ceil(MOST_BLOCKS).max(least).next_multiple_of(lanes);
    let blocks = config.choices().div_ceil(block);
    let histograms = rec.tensor("histograms", blocks, config.experts, Element::U32);
    let params = params(config, block, blocks, histograms);
    let groups = last.map(|last| bind("groups", last.groups));
    let launch = |rec: &mut Recorder, entry, bindings: &[Binding]| {
        let kernel =
            Kernel::new("permute/sort", entry, Element::F32).condition(Condition::HotLast, last.is_some());
        let kernel = kernel.constant("LANES", lanes).condition(Condition::SharedTile, !is_software);
        let workgroups = if is_software { blocks.div_ceil(lanes) } else { blocks };
        let bindings: Vec<Binding> = bindings.iter().copied().chain(groups).collect();
        rec.dispatch(kernel, &bindings, &params, fold_grid(workgroups.into()));
    };
    let (ids, histograms) = (bind("ids", ids), bind("histograms", histograms));
    launch(rec, "histogram", &[ids, histograms]);
    let mut bindings = vec![histograms, bind("counts", counts), bind("offsets", offsets)];
    let kernel = Kernel::new("permute/sort", "scan", Element::F32)
        .constant("LANES", config.experts.next_power_of_two().clamp(16, 256));
    let kernel = match rows {
        Rows::Known => kernel,
        Rows::Each(capacities) => {
            bindings.push(bind("capacities", capacities));
            kernel.condition(Condition::Capacities, true)
        }
        Rows::HotLast(_) => {
            bindings.push(bind("counts_by_expert", placement.counts));
            bindings.extend(groups);
            kernel.condition(Condition::HotLast, true)
        }
    };
    rec.dispatch(kernel, &bindings, &params, [1, 1, 1]);
    let (counts, offsets) = (bind("counts_in", counts), bind("offsets_in", offsets));
    let (places, sources) = (bind("places", places), bind("sources", sources));
    launch(rec, "scatter", &[ids, histograms, counts, offsets, places, sources]);
    placement
}

#[track_caller]
fn bind(variable: &'static str, integers: Tensor) -> Binding {
    integers.bind(variable, Element::U32)
}

fn params(config: &PlacementConfig, block: u32, blocks: u32, histograms: Tensor) -> Params {
    let (capacity, extra) = match config.allocation {
        RowAllocation::Dropless { safe_tokens } => (0, u32::from(safe_tokens)),
        RowAllocation::Capacity { slots: Slots::Equal(capacity), .. } => (capacity, 0),
        RowAllocation::Capacity { slots: Slots::HotAndCold(two), .. } => (two.capacity, 0), // or in a tensor
    };
    let (cold, cold_capacity) =
        config.hot_and_cold().map_or((0, 0), |two| (config.experts - two.hot, two.cold_capacity));
    Params {
        tokens: config.tokens,
        chosen: config.chosen,
        choices: config.choices(),
        experts: config.experts,
        by_choice: u32::from(config.order() == DropOrder::Choice),
        block,
        blocks,
        stride: histograms.stride,
        rows: config.rows(),
        capacity,
        extra,
        has_empty_rows: u32::from(capacity > 0 || extra > 0),
        cold,
        cold_capacity,
    }
}

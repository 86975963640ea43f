//! How a product is divided among the workgroups of a GPU: into tiles, and into parts of sums ("split K") where tiles
//! alone would leave units idle.
//!
//! The division is the cheapest by a model of a unit's time: the workgroups of the fullest unit, and the cost of
//! writing and reading the sums of parts and adding them in a launch of their own. Parts of one product never take more
//! bytes than its factors do, nor more than a binding. The division depends only on the problem and the capabilities.

use super::{Epilogue, PORTABLE, Params, Plan, Problem, Tile, factors};
use crate::element::{Element, stride_of};
use crate::kernels::{Capabilities, Condition};
use crate::ops::per_item;
use crate::record::{Recorder, Tensor};

/// Instructions that all lanes issue in the time of one byte to or from memory: 6 to 40 by published figures, and fewer
/// where a cache still holds the written data.
const OF_A_BYTE: f64 = 10.0;

/// Instructions that all lanes of a unit issue in the 5 us that a launch takes: half a million to a million and a half
/// by published figures.
const OF_A_LAUNCH: f64 = 1e6;

/// The share of the cost that more parts must save: smaller savings are beyond the accuracy of the model, and parts
/// take memory.
const WORTH: f64 = 0.03;

/// Shortest part: long enough that loading its first slices and storing its tile cost little compared to its products.
const SHORTEST: u32 = 256;

/// Parts are a multiple of every tile's step along k, and start at whole groups of 4.
const STEP: u32 = 16;

/// How a product is divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Division {
    /// The tile of each workgroup.
    pub tile: Tile,
    /// Length of the parts of sums; k if they are not split.
    pub part_k: u32,
    /// Instructions of the lanes of the fullest unit.
    cost: f64,
}

/// The division of `problem`.
pub(super) fn divide(problem: Problem, capabilities: Capabilities) -> Division {
    let lengths = part_lengths(problem, capabilities).into_iter();
    fewest_of_the_best(lengths.map(|part_k| best_tile(problem, 1, None, part_k, capabilities)).collect())
}

/// The tile for `count` products of one shape, whose sums are not split; a tile of `rows` rows, if they are given.
pub(super) fn tile(problem: Problem, count: u32, rows: Option<u32>, capabilities: Capabilities) -> Tile {
    best_tile(problem, count, rows, problem.k, capabilities).tile
}

/// Records a product in parts, and their sum with the epilogue. `params` describe the whole product.
pub(super) fn in_parts(
    rec: &mut Recorder,
    plan: Plan,
    [a, b, y]: [Tensor; 3],
    epilogue: &Epilogue,
    params: Params,
) {
    let parts = rec.tensor("parts", plan.grid[2] * params.m, params.n, Element::F32);
    let kernel = plan.kernel.condition(Condition::Split, true);
    let mut bindings = factors(rec, &kernel, [a, b], [None; 2]);
    let kernel = Epilogue::default().apply(kernel, a.element, parts, &mut bindings);
    let of_parts = Params { y_offset: 0, y_stride: parts.stride4(), ..params };
    rec.dispatch(kernel, &bindings, &of_parts, plan.grid);

    let items = u64::from(params.m) * u64::from(params.n.div_ceil(4));
    let (kernel, grid) = per_item("matmul/sum_parts", "sum_parts", a.element, items);
    let mut bindings = vec![parts.bind("parts", Element::F32)];
    let kernel = epilogue.apply(kernel, a.element, y, &mut bindings);
    rec.dispatch(kernel, &bindings, &Params { a_offset: 0, a_stride: parts.stride4(), ..params }, grid);
}

/// The possible lengths of parts, longest first.
fn part_lengths(problem: Problem, capabilities: Capabilities) -> Vec<u32> {
    let Problem { m, n, k, .. } = problem;
    let [of_result, of_factors] = [u64::from(m) * u64::from(n), (u64::from(m) + u64::from(n)) * u64::from(k)];
    let bytes = Element::F32.bytes_of(u64::from(m) * u64::from(stride_of(n)));
    let most =
        (of_factors / of_result).min(capabilities.limits.binding_bytes / bytes).min((k / SHORTEST).into());
    let mut lengths: Vec<u32> =
        (1..=most.max(1)).map(|parts| k.min(k.div_ceil(parts as u32).next_multiple_of(STEP))).collect();
    lengths.dedup();
    lengths
}

fn best_tile(
    problem: Problem,
    count: u32,
    rows: Option<u32>,
    part_k: u32,
    capabilities: Capabilities,
) -> Division {
    let tiles = PORTABLE.into_iter().filter(|(tile, _)| rows.is_none_or(|rows| rows == tile.rows()));
    let divisions = tiles.filter_map(|(tile, instructions)| {
        let tile = tile.by_matrices(capabilities);
        let instructions = match tile {
            Tile::Portable { matrices: Some(tile), .. } if !tile.fits() => return None,
            Tile::Portable { matrices: Some(tile), .. } => tile.instructions(),
            _ => instructions,
        };
        let cost = cost(problem, count, (tile, instructions), part_k, capabilities);
        Some(Division { tile, part_k, cost })
    });
    divisions.min_by(|a, b| a.cost.total_cmp(&b.cost)).expect("there are tiles")
}

/// Instructions of the lanes of the fullest unit; for a step of `tile` along k, a lane issues `instructions`.
fn cost(
    problem: Problem,
    count: u32,
    (tile, instructions): (Tile, f64),
    part_k: u32,
    capabilities: Capabilities,
) -> f64 {
    let (units, workgroup) = (capabilities.units, tile.workgroup(problem.layout));
    let parts = u64::from(problem.k.div_ceil(part_k));
    let tiles = tile.grid(problem).map(u64::from).iter().product::<u64>() * u64::from(count);
    let of_a_part = f64::from(workgroup.lanes) * instructions * f64::from(part_k);
    let products = units.rounds(workgroup, tiles * parts) as f64 * of_a_part;
    let bytes = 2 * parts * Element::F32.bytes_of(u64::from(problem.m) * u64::from(problem.n));
    let sums = bytes as f64 * OF_A_BYTE / f64::from(units.count) + OF_A_LAUNCH;
    products + if parts > 1 { sums } else { 0.0 }
}

/// The first division that is nearly as good as the best one: it has the fewest parts.
fn fewest_of_the_best(divisions: Vec<Division>) -> Division {
    let least = divisions.iter().map(|division| division.cost).fold(f64::INFINITY, f64::min);
    let found = divisions.into_iter().find(|division| division.cost * (1.0 - WORTH) <= least);
    found.expect("the best is one of them")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::matmul::Layout;

    #[test]
    fn lengths_cover_k_and_keep_to_the_bytes() {
        let lengths = |m, n, k| {
            let problem = Problem { layout: Layout::Nn, m, n, k };
            part_lengths(problem, Capabilities::portable())
        };
        assert_eq!(lengths(768, 768, 511), [511], "short sums");
        assert_eq!(lengths(64, 64, 1030), [1030, 528, 352, 272], "multiples of 16");
        assert_eq!(
            lengths(4096, 768, 3072),
            [3072, 1536, 1024, 768],
            "five would take more bytes than the factors"
        );
        assert_eq!(lengths(1, 1, 1), [1]);
        let small = Capabilities::portable().with_binding_bytes(3 * 4 * 64 * 64);
        let problem = Problem { layout: Layout::Nn, m: 64, n: 62, k: 4096 };
        assert_eq!(part_lengths(problem, small).len(), 3, "parts fit a binding, padding included");
    }

    #[test]
    fn parts_must_be_worth_their_memory() {
        let division = |part_k, cost| Division { tile: Tile::LARGE, part_k, cost };
        let chosen = |costs: &[f64]| {
            let divisions = costs.iter().zip(1..).map(|(cost, parts)| division(100 / parts, *cost));
            fewest_of_the_best(divisions.collect()).part_k
        };
        assert_eq!(chosen(&[100.0, 98.0, 99.0]), 100);
        assert_eq!(chosen(&[100.0, 96.0, 95.0]), 50);
        assert_eq!(chosen(&[100.0, 120.0, 90.0]), 33);
    }
}

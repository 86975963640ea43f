//! Products of few rows, which decoding a token takes: as fast as the weights can be read.

use super::{Layout, Plan, Problem};
use crate::element::Element;
use crate::kernels::{Capabilities, Kernel, Tier};
use crate::ops::sharing;

/// Most rows: more would need more sums than registers, and reuse weights enough for a tile.
const MOST_ROWS: u32 = 4;

/// Groups of 4 columns that a workgroup computes: compilers keep a sum for each of up to 16 pairs of a row and a column in
/// registers.
const fn columns4(rows: u32) -> u32 {
    if rows <= 2 { 2 } else { 1 }
}

/// Elements of a matrix that is rather read from memory than from a core's cache. Gathers, by which an adapter with uniform loads
/// reads different addresses, are not prefetched: from memory they are half as fast, and from the cache 1.5 times.
const OUT_OF_CACHE: u64 = 1 << 18;

/// Most workgroups along a dimension of a grid.
const MOST_WORKGROUPS: u32 = 65535;

/// Kernel and grid for `problem`, if it has few rows and the weights are stored row by row.
pub(super) fn plan(problem: Problem, element: Element, capabilities: Capabilities) -> Option<Plan> {
    let Problem { layout, m, n, k } = problem;
    let workgroups = n.div_ceil(4 * columns4(m));
    if layout != Layout::Nt || m > MOST_ROWS || workgroups > MOST_WORKGROUPS {
        return None;
    }
    let kernel =
        Kernel::new("matmul/vector", "matmul", element).constant("ROWS", m).constant("COLUMNS4", columns4(m));
    let kernel = match capabilities.tier {
        // More steps at once hide the cost of the loop; eight are no faster, and take longer to compile.
        Tier::Software if capabilities.uniform_loads && n as u64 * k as u64 >= OUT_OF_CACHE => {
            kernel.constant("LANES", 1).constant("UNROLL", 4)
        }
        tier => {
            let lanes = if tier == Tier::Software { capabilities.software_workgroup() } else { 64 };
            let kernel = kernel.constant("LANES", lanes).constant("UNROLL", 1);
            kernel.condition(sharing(capabilities), true)
        }
    };
    Some(Plan { kernel, grid: [workgroups, 1, 1], part_k: k })
}

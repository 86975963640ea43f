//! What the products of a mixture of experts have to do, found on the device from how many rows each expert has.

use super::matmul::{Layout, Problem, Tile};
use crate::element::Element;
use crate::kernels::{Capabilities, Kernel, Tier};
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        tiles: u32,
        grids: u32,
    }
}

/// Tiles side by side that a grouped product may have: results of 32,768 columns at least.
const MAX_GRID_COLUMNS: u32 = 512;
/// Columns that a grouped product may have on any tier: as many as the smallest tiles have side by side.
pub const MAX_COLUMNS: u32 = 64 * MAX_GRID_COLUMNS;
/// What a dimension of a grid can hold.
const MAX_TILES: u32 = 65535;
/// Invocations of the one workgroup.
const LANES: u32 = 64;

/// Rows sorted by expert, and the tiles they are cut into: at most `rows / tile + experts`, whoever has how many rows.
///
/// One list serves every product over these rows, forward and backward.
#[derive(Clone, Copy, Debug)]
pub struct WorkList {
    /// (1, E + 1), integers: the first row of each expert, and where the last one's end.
    pub offsets: Tensor,
    /// Rows there can be (R): those of the tensors that are multiplied. Rows at and after `offsets[E]` are left alone.
    pub rows: u32,
    /// Experts (E).
    pub experts: u32,
    /// (1, 4 T), integers: (expert, first row, end row, 0) of each tile. What lies behind the last tile is undefined.
    pub tiles: Tensor,
    /// (1, 4 C), integers: (c + 1, number of tiles, 1, 0), the grid of a product with c + 1 tiles side by side.
    pub grids: Tensor,
    /// What a workgroup computes.
    pub(super) tile: Tile,
}

impl WorkList {
    /// The list for `rows` rows at most, of which `offsets` (1, E + 1; integers, ascending, from 0 on) says whose they are.
    #[track_caller]
    pub fn new(rec: &mut Recorder, offsets: Tensor, rows: u32) -> Self {
        assert!(
            offsets.rows == 1 && offsets.cols >= 2,
            "offsets are a row: one for each expert, and the end"
        );
        assert!(offsets.element == Element::F32, "offsets are stored in 4 bytes each");
        assert!(rows > 0, "a work list over no rows");
        let experts = offsets.cols - 1;
        let tile = tile_of(rows, experts, rec.capabilities());
        let count = tile_bound(rows, experts, tile.rows());
        assert!(count <= MAX_TILES, "{rows} rows of {experts} experts have more tiles than a grid can hold");
        let tiles = rec.tensor("tiles", 1, 4 * count, Element::F32);
        let grids = rec.tensor("grids", 1, 4 * MAX_GRID_COLUMNS, Element::F32);
        let kernel = Kernel::new("work_list", "work_list", Element::F32)
            .constant("EXPERTS", experts)
            .constant("HEIGHT", tile.rows())
            .constant("LANES", LANES)
            .constant("SHARE", experts.div_ceil(LANES));
        let bindings = [(1, offsets.binding()), (2, tiles.binding()), (3, grids.binding())];
        rec.dispatch(kernel, &bindings, &Params { tiles: count, grids: MAX_GRID_COLUMNS }, [1, 1, 1]);
        Self { offsets, rows, experts, tiles, grids, tile }
    }

    /// Whether so many rows of so many experts can be worked on: a grid has at most 65,535 tiles.
    pub fn fits(rows: u32, experts: u32, capabilities: Capabilities) -> bool {
        tile_bound(rows, experts, tile_of(rows, experts, capabilities).rows()) <= MAX_TILES
    }

    /// Tiles there can be: `rows / tile + experts`, or fewer where there are not so many rows.
    pub fn tile_bound(&self) -> u32 {
        tile_bound(self.rows, self.experts, self.tile.rows())
    }

    /// Rows of a tile.
    pub fn tile_rows(&self) -> u32 {
        self.tile.rows()
    }

    /// Where the device finds the grid of a product with `columns` columns, and the most it can be.
    #[track_caller]
    pub(super) fn grid(&self, columns: u32) -> (Tensor, [u32; 3]) {
        let side_by_side = columns.div_ceil(self.tile.columns());
        assert!(
            side_by_side <= MAX_GRID_COLUMNS,
            "an expert's product has {columns} columns, which is too wide"
        );
        (self.grids.columns(4 * (side_by_side - 1), 3), [side_by_side, self.tile_bound(), 1])
    }
}

/// Each expert with rows has at most one tile that is not full.
fn tile_bound(rows: u32, experts: u32, height: u32) -> u32 {
    (rows / height + experts).min(rows)
}

/// One height for all products: a list of its own for each would cost more than a better tile gains. Groups that would
/// mostly pad a large tile get the small one.
fn tile_of(rows: u32, experts: u32, capabilities: Capabilities) -> Tile {
    match capabilities.tier {
        Tier::Software => Tile::software(16, capabilities),
        Tier::Portable => Tile::Portable { width4: if rows / experts >= 512 { 2 } else { 1 } },
    }
}

/// The tile of one expert's weight gradient, which needs no list.
pub(super) fn weight_tile(
    out: u32,
    cols: u32,
    rows: u32,
    experts: u32,
    capabilities: Capabilities,
) -> (Tile, Problem) {
    let problem = Problem { layout: Layout::Tn, m: out, n: cols, k: rows };
    (Tile::of(problem, experts, capabilities), problem)
}

//! The tiles of grouped products, computed on the device from the number of rows of each expert.
//!
//! The host does not know how many rows an expert has when it encodes a dispatch, so the device reads the grid from a
//! buffer. Rows of each expert are cut into tiles of one height, so the work is proportional to the number of rows, not
//! to the rows of the busiest expert. Weight gradients have a workgroup for each tile of each expert's matrix instead,
//! which iterates over that expert's rows.

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

/// Maximum number of tiles along the columns of a grouped product.
const MAX_GRID_COLUMNS: u32 = 512;
/// Maximum number of columns of a grouped product on any tier: that of the smallest tiles.
pub const MAX_COLUMNS: u32 = 64 * MAX_GRID_COLUMNS;
/// Maximum size of a dimension of a grid.
const MAX_TILES: u32 = 65535;
/// Invocations of the one workgroup.
const LANES: u32 = 64;

/// The tiles of rows that are sorted by expert: at most `rows / tile + experts`, however the rows are distributed.
///
/// One list serves all products over these rows, forward and backward.
#[derive(Clone, Copy, Debug)]
pub struct WorkList {
    /// (1, E + 1), u32: the first row of each expert, and the end of the last expert's rows.
    pub offsets: Tensor,
    /// Rows of the tensors that are multiplied (R). Rows from `offsets[E]` on are not touched.
    pub rows: u32,
    /// Experts (E).
    pub experts: u32,
    /// (1, 4 T), u32: (expert, first row, end row, 0) of each tile; undefined past the last tile.
    pub tiles: Tensor,
    /// (1, 4 C), u32: (c + 1, number of tiles, 1, 0), the grid of a product with c + 1 tiles along its columns.
    pub grids: Tensor,
    /// A tile with as many rows as the tiles of the list.
    tile: Tile,
}

impl WorkList {
    /// Computes the list for at most `rows` rows. `offsets` (1, E + 1), u32, ascending from 0, gives the rows of each
    /// expert.
    #[track_caller]
    pub fn new(rec: &mut Recorder, offsets: Tensor, rows: u32) -> Self {
        assert!(
            offsets.rows == 1 && offsets.cols >= 2,
            "offsets must be one row: one for each expert, and the end"
        );
        assert!(rows > 0, "a work list needs at least one row");
        let experts = offsets.cols - 1;
        let tile = tile_of(rows, experts, rec.capabilities());
        let count = tile_bound(rows, experts, tile.rows());
        // If there are more tiles than a grid holds, the first product is refused, since its grid is too large.
        let tiles = rec.tensor("tiles", 1, 4 * count, Element::U32);
        let grids = rec.tensor("grids", 1, 4 * MAX_GRID_COLUMNS, Element::U32);
        let kernel = Kernel::new("work_list", "work_list", Element::F32)
            .constant("EXPERTS", experts)
            .constant("HEIGHT", tile.rows())
            .constant("LANES", LANES)
            .constant("SHARE", experts.div_ceil(LANES));
        let bindings = [
            offsets.bind("offsets", Element::U32),
            tiles.bind("tiles", Element::U32),
            grids.bind("grids", Element::U32),
        ];
        rec.dispatch(kernel, &bindings, &Params { tiles: count, grids: MAX_GRID_COLUMNS }, [1, 1, 1]);
        Self { offsets, rows, experts, tiles, grids, tile }
    }

    /// Whether the tiles of `rows` rows of `experts` experts fit a grid, which has at most 65,535.
    pub fn fits(rows: u32, experts: u32, capabilities: Capabilities) -> bool {
        tile_bound(rows, experts, tile_of(rows, experts, capabilities).rows()) <= MAX_TILES
    }

    /// Maximum number of tiles: `rows / tile + experts`, and at most one for each row.
    pub fn tile_bound(&self) -> u32 {
        tile_bound(self.rows, self.experts, self.tile.rows())
    }

    /// Rows of a tile.
    pub fn tile_rows(&self) -> u32 {
        self.tile.rows()
    }

    /// The tile of a workgroup for a product with n columns over sums of length k. The rows of experts end within
    /// tiles; if experts have random numbers of rows, this wastes half a tile per expert.
    pub(super) fn tile_of(&self, layout: Layout, n: u32, k: u32, capabilities: Capabilities) -> Tile {
        let m = self.rows.saturating_add(self.experts.saturating_mul(self.tile.rows() / 2));
        self.tile.widened_for(Problem { layout, m, n, k }, capabilities)
    }

    /// The row of `grids` for a product with `columns` columns in tiles like `tile`, and the largest grid it can hold.
    #[track_caller]
    pub(super) fn grid(&self, columns: u32, tile: Tile) -> (Tensor, [u32; 3]) {
        let side_by_side = columns.div_ceil(tile.columns());
        assert!(side_by_side <= MAX_GRID_COLUMNS, "a grouped product of {columns} columns is too wide");
        (self.grids.columns(4 * (side_by_side - 1), 3), [side_by_side, self.tile_bound(), 1])
    }
}

/// Every expert has at most one partial tile.
fn tile_bound(rows: u32, experts: u32, height: u32) -> u32 {
    (rows / height + experts).min(rows)
}

/// The tiles of all products have the same number of rows: separate lists would cost more than better tiles gain. They
/// are high if the experts have enough rows on average to fill them; how wide they are follows from the product and the
/// units ([`WorkList::tile_of`]).
fn tile_of(rows: u32, experts: u32, capabilities: Capabilities) -> Tile {
    match capabilities.tier {
        Tier::Software => Tile::software(16, capabilities),
        Tier::Portable | Tier::Matrix if rows / experts >= 512 => Tile::LARGE,
        Tier::Portable | Tier::Matrix => Tile::SMALL,
    }
}

/// The tile of the weight gradients of experts, which need no list.
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

//! Tiles that cooperative matrices compute. Their sizes are those of the portable tier, so that work lists of grouped
//! products serve both.

use super::Tile;
use crate::element::Element;
use crate::kernels::{Condition, Kernel, Matrices, Workgroup};
use crate::ops::largest::PARTS;

/// Most invocations of a workgroup.
const MOST_LANES: u32 = 256;

/// Steps along k per slice.
const DEPTH: u32 = 32;

/// A tile that `matrices` compute; a subgroup owns a patch of 2 by 4 matrices.
#[derive(Clone, Copy)]
pub(super) struct MatrixTile {
    rows: u32,
    columns: u32,
    matrices: Matrices,
}

impl MatrixTile {
    pub fn new(tile: Tile, matrices: Matrices) -> Self {
        Self { rows: tile.rows(), columns: tile.columns(), matrices }
    }

    fn patches(self) -> u32 {
        self.rows / (2 * self.matrices.side) * (self.columns / (4 * self.matrices.side))
    }

    /// Subgroups that compute patches side by side.
    fn subgroups(self) -> u32 {
        self.patches().min(MOST_LANES / self.matrices.subgroup)
    }

    fn lanes(self) -> u32 {
        self.subgroups() * self.matrices.subgroup
    }

    /// The kernel without the constants for rows and columns, which every tile sets.
    pub fn kernel(self, element: Element) -> Kernel {
        let kernel = Kernel::new("matmul/matrix", "matmul", element)
            .condition(Condition::SmallMatrices, self.matrices.side == 8)
            .constant("AREAS", self.subgroups())
            .constant("DEPTH", DEPTH)
            .constant("LANES", self.lanes());
        if element == Element::Bf16 { kernel.constant("PARTS", PARTS) } else { kernel }
    }

    /// The resources of a unit that a workgroup takes: registers by the compilers for RDNA 3 and Ampere, and the
    /// shader's workgroup memory.
    pub fn workgroup(self) -> Workgroup {
        let staged = 2 * (self.rows + self.columns) * (DEPTH + 8);
        let finished = 4 * self.subgroups() * self.matrices.side.pow(2);
        Workgroup { lanes: self.lanes(), registers: 160, bytes: staged + finished }
    }

    /// Instructions of a lane for a step along k: a quarter for each multiply-add, as matrices have four times the peak
    /// of RDNA 3's lanes, and more than that on other GPUs; 2.5 for reading operands; and 1.4 for each block of 4 x 4
    /// that it stages, by AMD's compiler (benches/LOG.md). If patches take turns, operands are staged anew for each
    /// turn.
    pub fn instructions(self) -> f64 {
        let lanes = f64::from(self.lanes());
        let turns = f64::from(self.patches().div_ceil(self.subgroups()));
        let blocks = f64::from((self.rows + self.columns) * DEPTH / 16) / lanes;
        f64::from(self.rows * self.columns) / lanes / 4.0 + turns * (2.5 + 1.4 * blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Unit;

    /// Tiles fit in the workgroup memory that the tier requests of devices, and workgroups are whole subgroups.
    #[test]
    fn tiles_keep_to_the_limits() {
        for (side, subgroup) in [(8, 4), (8, 8), (8, 32), (16, 32), (16, 64)] {
            for tile in [Tile::SMALL, Tile::FLAT, Tile::TALL, Tile::LARGE] {
                let tile = MatrixTile::new(tile, Matrices { side, subgroup });
                let Workgroup { lanes, bytes, .. } = tile.workgroup();
                assert!(lanes <= MOST_LANES && lanes.is_multiple_of(subgroup), "{lanes} lanes");
                let others = 4 + 8 * lanes + 64; // the count of subgroups, largest magnitudes, levels of NF4
                assert!(bytes + others <= 32 << 10, "{bytes} bytes and {others}");
                assert_eq!(tile.patches() % tile.subgroups(), 0, "each turn has all its patches");
            }
        }
    }

    /// Larger tiles compute more from the data that they stage, and matrices take fewer instructions than the portable
    /// tier's 1.2 to 1.5.
    #[test]
    fn larger_tiles_take_less_for_a_multiply_add() {
        let of = |tile: Tile, subgroup| {
            let each = MatrixTile::new(tile, Matrices { side: 16, subgroup });
            each.instructions() * f64::from(each.lanes()) / f64::from(tile.rows() * tile.columns())
        };
        for subgroup in [32, 64] {
            assert!(of(Tile::FLAT, subgroup) < of(Tile::SMALL, subgroup));
            assert!(of(Tile::SMALL, subgroup) < 0.5);
        }
        assert!(of(Tile::LARGE, 32) < of(Tile::FLAT, 32));
        assert!(of(Tile::FLAT, 64) < of(Tile::LARGE, 64), "whose 8 patches 4 subgroups take in turns");
        let unit = Unit { lanes: 2048, registers: 65536, workgroup_bytes: 227 << 10 };
        assert_eq!(unit.resident(MatrixTile::new(Tile::SMALL, Matrices::ASSUMED).workgroup()), 6);
    }
}

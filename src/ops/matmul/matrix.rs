//! Tiles that cooperative matrices compute. Their sizes are those of the portable tier, so that work lists of grouped
//! products serve both.

use super::Tile;
use crate::element::Element;
use crate::kernels::{Capabilities, Condition, Kernel, Matrices, Workgroup};
use crate::ops::largest::PARTS;

/// Most invocations of a workgroup.
const MOST_LANES: u32 = 256;

/// Steps along k per slice, of factors in one term.
const DEPTH: u32 = 32;

/// Most bytes of workgroup memory.
const MOST_BYTES: u32 = 32 << 10;

/// A tile that `matrices` compute; a subgroup owns a patch of 2 by 4 matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixTile {
    rows: u32,
    columns: u32,
    matrices: Matrices,
    /// Terms of f16 of each element: two of f32.
    terms: u32,
}

impl MatrixTile {
    /// The tile by the matrices of `capabilities`, for factors that these split or not.
    pub fn new(tile: Tile, capabilities: Capabilities) -> Option<Self> {
        let terms = if capabilities.splits_f32 { 2 } else { 1 };
        let (rows, columns) = (tile.rows(), tile.columns());
        capabilities.matrices.map(|matrices| Self { rows, columns, matrices, terms })
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
            .constant("DEPTH", self.depth())
            .constant("LANES", self.lanes());
        if element == Element::F16 { kernel } else { kernel.constant("PARTS", PARTS) }
    }

    /// Steps along k per slice: both terms of two lie in workgroup memory.
    fn depth(self) -> u32 {
        DEPTH / self.terms
    }

    /// Whether the tile fits in the workgroup memory that the tier requests of devices. In two terms the largest does
    /// not, but for matrices of 8 in large subgroups.
    pub fn fits(self) -> bool {
        let others = 16 + 8 * self.lanes() + 64; // the count of subgroups, largest magnitudes, levels of NF4
        self.workgroup().bytes + others <= MOST_BYTES
    }

    /// The resources of a unit that a workgroup takes: registers by the compilers for RDNA 3 and Ampere, in two terms
    /// the latter's, and the shader's workgroup memory.
    pub fn workgroup(self) -> Workgroup {
        let staged = 2 * (self.rows + self.columns) * (self.depth() + 8);
        let finished = 4 * self.subgroups() * self.matrices.side.pow(2);
        let registers = if self.terms == 1 { 160 } else { 216 };
        Workgroup { lanes: self.lanes(), registers, bytes: self.terms * (staged + finished) }
    }

    /// Instructions of a lane for a step along k: a quarter for each multiply-add, as matrices have four times the peak
    /// of RDNA 3's lanes, and more than that on other GPUs; 2.5 for reading operands; and 1.4 for each block of 4 x 4
    /// that it stages, by AMD's compiler (benches/LOG.md). If patches take turns, operands are staged anew for each
    /// turn.
    pub fn instructions(self) -> f64 {
        let lanes = f64::from(self.lanes());
        let turns = f64::from(self.patches().div_ceil(self.subgroups()));
        let blocks = f64::from((self.rows + self.columns) * DEPTH / 16) / lanes;
        let (terms, products) = (f64::from(self.terms), f64::from(2 * self.terms - 1));
        let by_matrices = products * f64::from(self.rows * self.columns) / lanes / 4.0;
        by_matrices + turns * terms * (2.5 + 1.4 * blocks)
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
                for terms in [1, 2] {
                    let of = MatrixTile { terms, ..of(tile, side, subgroup) };
                    let lanes = of.lanes();
                    assert!(lanes <= MOST_LANES && lanes.is_multiple_of(subgroup), "{lanes} lanes");
                    let may_be_left_out = (tile, terms) == (Tile::LARGE, 2);
                    assert!(of.fits() || may_be_left_out, "{of:?}: {} bytes", of.workgroup().bytes);
                    assert_eq!(of.patches() % of.subgroups(), 0, "each turn has all its patches");
                }
            }
        }
    }

    fn of(tile: Tile, side: u32, subgroup: u32) -> MatrixTile {
        let capabilities = Capabilities::matrix().with_matrices(Matrices { side, subgroup });
        MatrixTile::new(tile, capabilities).expect("matrices")
    }

    /// Larger tiles compute more from the data that they stage, and matrices take fewer instructions than the portable
    /// tier's 1.2 to 1.5.
    #[test]
    fn larger_tiles_take_less_for_a_multiply_add() {
        let share = |tile: Tile, subgroup| {
            let each = of(tile, 16, subgroup);
            each.instructions() * f64::from(each.lanes()) / f64::from(tile.rows() * tile.columns())
        };
        for subgroup in [32, 64] {
            assert!(share(Tile::FLAT, subgroup) < share(Tile::SMALL, subgroup));
            assert!(share(Tile::SMALL, subgroup) < 0.5);
        }
        assert!(share(Tile::LARGE, 32) < share(Tile::FLAT, 32));
        assert!(share(Tile::FLAT, 64) < share(Tile::LARGE, 64), "whose 8 patches 4 subgroups take in turns");
        let unit = Unit { lanes: 2048, registers: 65536, workgroup_bytes: 227 << 10 };
        assert_eq!(unit.resident(of(Tile::SMALL, 16, 32).workgroup()), 6);
    }
}

//! The cost per lane of the loop over tiles in the attention kernels for GPUs. Bytes of workgroup memory and barriers
//! follow from the shaders; instructions and registers are those of compiled kernels (benches/LOG.md).

use super::tile::{Pass, Tile, VECTORS};
use crate::element::Element;
use crate::kernels::{Condition, Kernel};

/// The cost of a kernel's loop for one lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoopCost {
    /// Instructions per multiply-add of scores and sums.
    pub instructions: f64,
    /// Bytes of workgroup memory per multiply-add.
    pub shared_bytes: f64,
    /// Barriers per 1,024 multiply-adds.
    pub barriers: f64,
    /// Registers per lane.
    pub registers: u32,
}

impl LoopCost {
    /// The cost of an attention kernel for GPUs; `None` for any other kernel.
    pub fn of(kernel: &Kernel) -> Option<Self> {
        let (tier, pass) = kernel.file.strip_prefix("attention/")?.split_once('/')?;
        let pass = match pass {
            "forward" => Pass::Forward,
            "backward_q" => Pass::BackwardQ,
            "backward_kv" => Pass::BackwardKv,
            _ => return None,
        };
        match tier {
            "matrix" => {
                let is_wide = kernel.conditions().any(|condition| condition == Condition::WideHeads);
                Some(Self::by_matrices(pass, is_wide, kernel.element))
            }
            "portable" => Some(Self::portable(pass, kernel)),
            _ => None,
        }
    }

    /// Everything except the multiply-adds of matrices, and the most registers that the compilers for RDNA 3 and Ampere
    /// need. bf16 takes about as many more instructions in all passes.
    pub(super) fn by_matrices(pass: Pass, is_wide: bool, element: Element) -> Self {
        let (instructions, shared_bytes, barriers, registers) = match (pass, is_wide) {
            (Pass::Forward, _) => (0.35, 0.73, 6.0, 144),
            (Pass::BackwardQ, false) => (0.27, 0.70, 4.0, 192),
            (Pass::BackwardQ, true) => (0.40, 0.80, 4.0, 192),
            (Pass::BackwardKv, false) => (0.33, 0.74, 3.0, 216),
            (Pass::BackwardKv, true) => (0.44, 0.84, 3.0, 204),
        };
        let instructions = if element == Element::Bf16 { instructions + 0.08 } else { instructions };
        Self { instructions, shared_bytes, barriers, registers }
    }

    fn portable(pass: Pass, kernel: &Kernel) -> Self {
        let constant = |name| {
            let found = kernel.constants().iter().find(|(known, _)| *known == name);
            found.unwrap_or_else(|| panic!("{kernel} has no {name}")).1
        };
        let [width, groups, share, chunk] = ["WIDTH", "GROUPS", "SHARE", "CHUNK"].map(constant);
        let tile = Tile { width, groups, share, chunk };
        let is_split = kernel.conditions().any(|condition| condition == Condition::Split);
        let walk = Walk { pass, tile, d4: constant("D4"), v4: constant("V4"), is_split };
        // For f32 without masks, or with a window where masks choose the tile. Masks and parts of the queries' gradient
        // take more instructions, and on RDNA 3 more registers; there, workgroup memory limits the workgroups of a unit
        // before registers do.
        let (instructions, registers) = match (pass, width, share) {
            (Pass::Forward, 8, 4) => (1.69, 96),
            (Pass::Forward, 8, _) => (1.52, 120),
            (Pass::Forward, 16, _) if groups == 8 => (1.41, 120),
            (Pass::Forward, 16, _) => (1.44, 120),
            (Pass::Forward, ..) => (1.52, 96),
            (Pass::BackwardQ, 8, _) => (1.59, 96),
            (Pass::BackwardQ, 16, _) => (1.51, 96),
            (Pass::BackwardQ, ..) => (1.68, 88),
            (Pass::BackwardKv, 8, _) => (1.57, 120),
            (Pass::BackwardKv, 16, _) => (1.54, 132),
            (Pass::BackwardKv, 32, 4) => (1.57, 120),
            (Pass::BackwardKv, 32, _) => (1.79, 96),
            (Pass::BackwardKv, ..) => (1.80, 108),
        };
        let multiply_adds = f64::from(walk.multiply_adds());
        Self {
            instructions,
            shared_bytes: f64::from(16 * walk.vectors()) / multiply_adds,
            barriers: f64::from(1024 * walk.barriers()) / multiply_adds,
            registers,
        }
    }
}

/// The work of an invocation in one tile. Columns, and transfers to and from workgroup memory, are counted in vectors
/// of 4.
struct Walk {
    pass: Pass,
    tile: Tile,
    d4: u32,
    v4: u32,
    is_split: bool,
}

impl Walk {
    /// The columns of the rows whose products are scores.
    fn scores(&self) -> Vec<u32> {
        match self.pass {
            Pass::Forward => vec![self.d4],
            Pass::BackwardQ | Pass::BackwardKv => vec![self.d4, self.v4],
        }
    }

    /// The columns of the sums.
    fn sums(&self) -> Vec<u32> {
        match self.pass {
            Pass::Forward => vec![self.v4],
            Pass::BackwardQ => vec![self.d4],
            Pass::BackwardKv => vec![self.v4, self.d4],
        }
    }

    /// The columns of the queries' gradient, if the kernel leaves it in parts.
    fn of_queries(&self) -> u32 {
        if self.is_split { self.d4 } else { 0 }
    }

    fn multiply_adds(&self) -> u32 {
        let columns = self.scores().iter().chain(&self.sums()).sum::<u32>() + self.of_queries();
        16 * self.tile.share * columns
    }

    fn vectors(&self) -> u32 {
        let scores = self.scores().into_iter().map(|columns| self.score_vectors(columns));
        let sums = self.sums().into_iter().map(|columns| self.sum_vectors(columns));
        scores.chain(sums).sum::<u32>() + self.weights() + self.maxima()[0] + self.query_vectors()
    }

    fn barriers(&self) -> u32 {
        let Tile { width, chunk, .. } = self.tile;
        let scores = self.scores().into_iter().map(|columns| columns.div_ceil(chunk));
        let sums = self.sums().into_iter().map(|columns| self.tile.walked() / self.portion(columns));
        let of_queries = self.of_queries().div_ceil(width);
        2 * (scores.chain(sums).sum::<u32>() + of_queries) + self.maxima()[1]
    }

    /// Both sides are staged in chunks; a product reads 4 owned rows and SHARE walked ones.
    fn score_vectors(&self, columns: u32) -> u32 {
        let Tile { share, chunk, .. } = self.tile;
        let round = self.tile.lanes() / chunk;
        let staged = self.tile.rows().div_ceil(round) + self.tile.walked().div_ceil(round);
        columns.div_ceil(chunk) * staged + columns * (4 + share)
    }

    /// Walked rows are staged in portions; each is read with a vector of weights.
    fn sum_vectors(&self, columns: u32) -> u32 {
        let Tile { width, groups, .. } = self.tile;
        let (own, portion) = (columns.div_ceil(width), self.portion(columns));
        self.tile.walked() / portion * (portion * own).div_ceil(groups) + self.tile.walked() * (own + 1)
    }

    /// Owned keys are staged; for a few queries at a time 4 keys are read, and their weights.
    fn query_vectors(&self) -> u32 {
        let Tile { width, groups, .. } = self.tile;
        let queries = (self.tile.walked() / groups).min(4);
        let times = self.tile.walked() / (groups * queries);
        self.of_queries().div_ceil(width) * (4 + times * groups * (4 + queries))
    }

    /// Vectors for weights, and for scores that wait in their place.
    fn weights(&self) -> u32 {
        let Tile { share, chunk, .. } = self.tile;
        let pitch = if chunk == 8 { 8 } else { chunk + 1 };
        let is_free = (self.tile.rows() + self.tile.walked()) * pitch <= VECTORS;
        match self.pass {
            Pass::Forward => share,
            Pass::BackwardQ => 3 * share,
            Pass::BackwardKv => 2 * share + if is_free { 2 * self.tile.part() } else { 0 },
        }
    }

    /// Vectors and barriers for the largest scores.
    fn maxima(&self) -> [u32; 2] {
        match self.pass {
            Pass::Forward if self.tile.lanes() <= 128 => [1 + self.tile.width, 2],
            Pass::Forward => [1 + 4 + 1 + self.tile.width / 4, 4],
            Pass::BackwardQ | Pass::BackwardKv => [0, 0],
        }
    }

    /// Rows that are staged at once for a sum.
    fn portion(&self, columns: u32) -> u32 {
        let Tile { width, .. } = self.tile;
        let own = columns.div_ceil(width);
        (width * self.tile.part()).min(VECTORS / width / if own == 3 { 4 } else { own })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instructions that access workgroup memory, and barriers, in AMD's compiled code for a tile of f32, each counted
    /// as often as its loops run.
    #[test]
    fn bytes_and_barriers_are_those_of_the_assembly() {
        let forward = |d4, width, groups, share, chunk| {
            let tile = Tile { width, groups, share, chunk };
            Walk { pass: Pass::Forward, tile, d4, v4: d4, is_split: false }
        };
        let backward = |pass, d4, width, share, is_split| {
            let tile = Tile { width, groups: 8, share, chunk: 4 };
            Walk { pass, tile, d4, v4: d4, is_split }
        };
        for (walk, vectors, barriers) in [
            (forward(8, 8, 16, 4, 8), 149, 6),
            (forward(16, 16, 16, 8, 4), 486, 20),
            (forward(32, 16, 16, 4, 8), 486, 20),
            (forward(32, 16, 8, 8, 4), 865, 34),
            (forward(64, 32, 8, 4, 4), 994, 68),
            (backward(Pass::BackwardQ, 32, 16, 4, false), 780, 40),
            (backward(Pass::BackwardKv, 16, 16, 4, false), 568, 24),
            (backward(Pass::BackwardKv, 16, 16, 4, true), 700, 26),
            (backward(Pass::BackwardKv, 32, 32, 4, false), 1112, 64),
        ] {
            assert_eq!((walk.vectors(), walk.barriers()), (vectors, barriers), "{:?}", walk.tile);
        }
    }
}

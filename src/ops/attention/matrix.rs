//! Chooses which passes of attention cooperative matrices compute, and their tiles.

use super::Attention;
use super::cost::LoopCost;
use super::tile::Pass;
use crate::element::Element;
use crate::kernels::{Capabilities, Condition, Kernel, Matrices, Tier, Workgroup};
use crate::ops::largest::PARTS;

/// Subgroups that compute a block: each owns a strip, or half of the columns of one.
const SUBGROUPS: u32 = 4;

/// Most matrices along a row, of owned operands and of sums, for which a subgroup has variables and a GPU registers.
const MOST_FORWARD: u32 = 8;
const MOST_BACKWARD: u32 = 4;

/// The kernel that computes `pass` of an attention by matrices, and the rows of a workgroup. `None` on other tiers, for
/// f32, and for heads that are wider than the kernel has variables for.
pub(super) fn kernel(
    pass: Pass,
    shape: &Attention,
    element: Element,
    capabilities: Capabilities,
) -> Option<(Kernel, u32)> {
    let tile = Tile::of(pass, shape, element, capabilities)?;
    Some((tile.kernel(element), tile.block()))
}

/// The rows of a workgroup of that kernel, and the resources that it takes of a unit.
pub(super) fn workgroup(
    pass: Pass,
    shape: &Attention,
    element: Element,
    capabilities: Capabilities,
) -> Option<(u32, Workgroup)> {
    let tile = Tile::of(pass, shape, element, capabilities)?;
    let registers = LoopCost::by_matrices(pass, tile.sharers() == 2, element).registers;
    let scores = tile.sharers() * tile.block() * (tile.walked() + 4);
    let bytes = 2 * tile.operands() + 4 * scores;
    Some((tile.block(), Workgroup { lanes: tile.lanes(), registers, bytes }))
}

/// The sizes of `shaders/attention/matrix/tiles.wgsl`.
struct Tile<'a> {
    pass: Pass,
    shape: &'a Attention,
    matrices: Matrices,
}

impl<'a> Tile<'a> {
    /// The tiles of a pass that matrices compute.
    fn of(pass: Pass, shape: &'a Attention, element: Element, capabilities: Capabilities) -> Option<Self> {
        let is_for_matrices =
            capabilities.tier == Tier::Matrix && matches!(element, Element::F16 | Element::Bf16);
        let matrices = capabilities.matrices.filter(|_| is_for_matrices)?;
        Some(Self { pass, shape, matrices }).filter(Self::fits)
    }

    /// Whether the subgroups of a strip have enough variables for all matrices along a row.
    fn fits(&self) -> bool {
        let most = match self.pass {
            Pass::Forward => MOST_FORWARD,
            Pass::BackwardQ | Pass::BackwardKv => 2 * MOST_BACKWARD,
        };
        self.widest() <= most * self.matrices.side
    }

    fn widest(&self) -> u32 {
        self.shape.layout.head_dim.max(self.shape.layout.value_dim)
    }

    /// Subgroups that share a strip.
    fn sharers(&self) -> u32 {
        let is_wide = self.pass != Pass::Forward && self.widest() > MOST_BACKWARD * self.matrices.side;
        if is_wide { 2 } else { 1 }
    }

    fn kernel(&self, element: Element) -> Kernel {
        let (file, entry) = match self.pass {
            Pass::Forward => ("attention/matrix/forward", "attention"),
            Pass::BackwardQ => ("attention/matrix/backward_q", "attention_backward_q"),
            Pass::BackwardKv => ("attention/matrix/backward_kv", "attention_backward_kv"),
        };
        let kernel = Kernel::new(file, entry, element)
            .condition(Condition::SmallMatrices, self.matrices.side == 8)
            .condition(Condition::WideHeads, self.sharers() == 2)
            .constant("LANES", self.lanes())
            .constant("OPERANDS", self.operands());
        if element == Element::Bf16 { kernel.constant("PARTS", PARTS) } else { kernel }
    }

    /// Owned rows.
    fn block(&self) -> u32 {
        SUBGROUPS / self.sharers() * self.matrices.side
    }

    /// Walked rows.
    fn walked(&self) -> u32 {
        2 / self.sharers() * self.matrices.side
    }

    /// As many as the subgroups have, and 1 to 4 lanes for a row of a strip.
    fn lanes(&self) -> u32 {
        let rows = SUBGROUPS * self.matrices.side;
        (SUBGROUPS * self.matrices.subgroup).clamp(rows, 4 * rows)
    }

    /// f16 elements in workgroup memory: the owned rows at the start, followed by the regions that the kernel's
    /// constants lay out.
    fn operands(&self) -> u32 {
        let Attention { layout, .. } = self.shape;
        let [head_dim, value_dim] = [layout.head_dim, layout.value_dim]
            .map(|dim| dim.next_multiple_of(self.sharers() * self.matrices.side));
        let stride = self.walked() + 8; // of weights and columns
        let weights_or_rows = |dim: u32| (self.block() * stride).max(self.walked() * (dim + 8));
        let columns = |dim: u32| dim * stride;
        let (walked, owned) = match self.pass {
            Pass::Forward => (weights_or_rows(head_dim) + columns(value_dim), head_dim),
            Pass::BackwardQ => {
                let rows = self.walked() * (value_dim + 8);
                (weights_or_rows(head_dim) + rows + columns(head_dim), head_dim.max(value_dim))
            }
            Pass::BackwardKv => {
                let of_both = |of: &dyn Fn(u32) -> u32| of(head_dim) + of(value_dim);
                (of_both(&weights_or_rows) + of_both(&columns), head_dim.max(value_dim))
            }
        };
        walked.max(self.block() * (owned + 8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::compose;
    use crate::ops::dropout::Dropout;
    use crate::ops::heads::HeadLayout;
    use crate::record::{BufferId, PersistentId, Tensor};

    /// Tiles fit in the workgroup memory that the tier requests of devices, at the most that a kernel declares, and
    /// rows are whole groups of lanes.
    #[test]
    fn tiles_keep_to_the_limits() {
        let state = Tensor::new(BufferId::Persistent(PersistentId(0)), 0, 1, 4, Element::U32);
        for (side, subgroup) in [(8, 4), (8, 8), (8, 32), (8, 64), (16, 16), (16, 32), (16, 64)] {
            for pass in [Pass::Forward, Pass::BackwardQ, Pass::BackwardKv] {
                for (head_dim, value_dim) in [(4, 4), (64, 64), (128, 128), (128, 4), (4, 128), (36, 20)] {
                    let shape = Attention {
                        layout: HeadLayout { heads: 2, kv_heads: 1, head_dim, value_dim },
                        tokens: 100,
                        is_causal: true,
                        scale: 1.0,
                        soft_cap: None,
                        window: None,
                        has_alibi: false,
                        head_range: None,
                        dropout: Some(Dropout { probability: 0.1, seed: 1, site: 1, state, part: None }),
                    };
                    let tile = Tile { pass, shape: &shape, matrices: Matrices { side, subgroup } };
                    if !tile.fits() {
                        assert!(head_dim.max(value_dim) > 8 * side);
                        continue;
                    }
                    assert!(tile.lanes() <= 256 && tile.lanes().is_multiple_of(tile.block()));
                    assert!(tile.lanes() >= tile.sharers() * subgroup.min(64), "{} lanes", tile.lanes());
                    let kernel = tile
                        .kernel(Element::F16)
                        .condition(Condition::Causal, true)
                        .condition(Condition::Dropout, true)
                        .constant("D4", head_dim / 4)
                        .constant("V4", value_dim / 4);
                    let module = compose(&kernel).unwrap_or_else(|e| panic!("{e}")).module;
                    let mut layouter = naga::proc::Layouter::default();
                    layouter.update(module.to_ctx()).expect("the layout of a valid module");
                    let shared = module
                        .global_variables
                        .iter()
                        .filter(|(_, global)| global.space == naga::AddressSpace::WorkGroup);
                    let bytes: u32 = shared.map(|(_, global)| layouter[global.ty].size).sum();
                    assert!(bytes <= 32 << 10, "{kernel}: {bytes} bytes");
                }
            }
        }
    }
}

//! Stochastic rounding of updated weights that are stored in bfloat16 (`shaders/lib/rounding.wgsl`).
//!
//! The optimizers widen a weight, update it in f32 and round it to one of its two neighbours, by bits that Philox draws
//! from the seed, the number of the update and the weight's place in the arena. Rounding to nearest would lose every
//! update below half the distance between neighbours. The place depends on the segments, and so on the adapter's
//! largest binding. Ranks that hold a part of the model, some experts or a part of each matrix, number its weights as
//! one rank that holds the whole model would (`ranks/sharding/global_offsets.rs`). Checkpoints hold these weights as
//! BF16, which is exact; initial and loaded weights are rounded to nearest.

use crate::element::Element;
use crate::record::Tensor;

/// The source of the bits that round the weights of a launch. Weights in f32 are not rounded.
///
/// Places are counted in groups of 4 weights of the whole model, whichever part of it this rank holds. The weights lie
/// in runs of equal length at equal distances in the whole model, for example in rows of which a rank has some columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding {
    /// The run's seed.
    pub seed: u64,
    /// The place of the first group.
    pub first4: u32,
    /// Groups of the first run that precede the first group.
    pub skipped4: u32,
    /// Groups per run.
    pub run4: u32,
    /// Places between two runs, which are not this rank's.
    pub gap4: u32,
}

impl Default for Rounding {
    fn default() -> Self {
        Self::consecutive(0, 0)
    }
}

impl Rounding {
    /// Rounding of weights at consecutive places from `first4` on.
    pub const fn consecutive(seed: u64, first4: u32) -> Self {
        Self { seed, first4, skipped4: 0, run4: u32::MAX, gap4: 0 }
    }

    /// Both words of the seed, and the places of `weights`, as fields of params structs.
    ///
    /// # Panics
    /// If the weights are f16, for which no update rounds.
    #[track_caller]
    pub(super) fn params(&self, weights: &Tensor) -> [u32; 6] {
        let element = weights.element;
        let is_stored = matches!(element, Element::F32 | Element::Bf16);
        assert!(is_stored, "weights are updated in f32 or bf16, not in {}", element.name());
        assert!(self.run4 > 0, "places come in runs");
        let Self { seed, first4, skipped4, run4, gap4 } = *self;
        [seed as u32, (seed >> 32) as u32, first4, skipped4, run4, gap4]
    }
}

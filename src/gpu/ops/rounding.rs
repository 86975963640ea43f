//! Stochastic rounding of updated weights that are stored in bfloat16 (`shaders/lib/rounding.wgsl`).
//!
//! The optimizers widen a weight, update it in f32 and round it to one of its two neighbours, by bits that Philox
//! draws from the seed, the number of the update and the weight's place in the arena. Rounding to nearest would
//! lose every update below half the distance between neighbours. The place depends on the segments, and so on the
//! adapter's largest binding. Ranks that hold some of the experts number them as one rank that holds the whole
//! model (`sharding/places.rs`). Checkpoints hold these weights as BF16, which is exact; initial and loaded weights
//! are rounded to nearest.

use crate::element::Element;
use crate::record::Tensor;

/// Where the bits come from that round some weights. Weights in f32 are not rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounding {
    /// The run's seed.
    pub seed: u64,
    /// Groups of 4 weights before them in the whole model, whatever part of it this rank holds.
    pub first4: u32,
}

impl Rounding {
    /// Both words of the seed, and the groups of 4 before `weights`: the fields of params structs.
    ///
    /// # Panics
    /// If the weights are f16, for which no update rounds.
    #[track_caller]
    pub(super) fn params(&self, weights: &Tensor) -> [u32; 3] {
        let element = weights.element;
        let is_stored = matches!(element, Element::F32 | Element::Bf16);
        assert!(is_stored, "weights are updated in f32 or bf16, not in {}", element.name());
        [self.seed as u32, (self.seed >> 32) as u32, self.first4]
    }
}

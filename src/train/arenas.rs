//! The arenas of a run: weights, gradients and moments, in the same layout.

use crate::model::arena::{Arena, ArenaLayout, Kind};
use crate::record::Persistents;
use crate::settings::OptimizerConfig;

/// The four arenas. Each has room only for the parameters that need it.
#[derive(Clone, Debug)]
pub struct Arenas {
    /// Parameters.
    pub weights: Arena,
    /// Their gradients.
    pub gradients: Arena,
    /// First moments, or momentum.
    pub first_moments: Arena,
    /// Second moments, for optimizers that have them.
    pub second_moments: Arena,
}

impl Arenas {
    /// Adds the arenas to the persistent buffers.
    pub(super) fn new(
        layout: &ArenaLayout,
        persistents: &mut Persistents,
        optimizer: &OptimizerConfig,
    ) -> Self {
        let trains = |kind: Kind| !kind.is_frozen;
        let moments = |kind: Kind| if trains(kind) { optimizer.moments(kind.rule) } else { 0 };
        Self {
            weights: layout.arena(persistents, "weights", |_| true),
            gradients: layout.arena(persistents, "gradients", trains),
            first_moments: layout.arena(persistents, "first moments", |kind| moments(kind) > 0),
            second_moments: layout.arena(persistents, "second moments", |kind| moments(kind) > 1),
        }
    }

    /// All of them.
    pub fn all(&self) -> [&Arena; 4] {
        [&self.weights, &self.gradients, &self.first_moments, &self.second_moments]
    }
}

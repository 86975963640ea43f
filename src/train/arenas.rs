//! The arenas of a run: weights, gradients and moments, in the same layout.

use crate::model::arena::{Arena, ArenaLayout, Kind};
use crate::model::parameters::UpdateRule;
use crate::record::Persistents;

/// The four arenas. Each has room only for the parameters that need it.
#[derive(Clone, Debug)]
pub struct Arenas {
    /// Parameters.
    pub weights: Arena,
    /// Their gradients.
    pub gradients: Arena,
    /// First moments of AdamW, momentum of Muon.
    pub first_moments: Arena,
    /// Second moments of AdamW.
    pub second_moments: Arena,
}

impl Arenas {
    /// Adds the arenas to the persistent buffers.
    pub(super) fn new(layout: &ArenaLayout, persistents: &mut Persistents) -> Self {
        let trains = |kind: Kind| !kind.is_frozen;
        let has_variance = |kind: Kind| trains(kind) && kind.rule == UpdateRule::AdamW;
        Self {
            weights: layout.arena(persistents, "weights", |_| true),
            gradients: layout.arena(persistents, "gradients", trains),
            first_moments: layout.arena(persistents, "first moments", trains),
            second_moments: layout.arena(persistents, "second moments", has_variance),
        }
    }

    /// All of them.
    pub fn all(&self) -> [&Arena; 4] {
        [&self.weights, &self.gradients, &self.first_moments, &self.second_moments]
    }
}

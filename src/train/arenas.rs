//! The arenas of a run: weights, their copies, gradients and moments, in the same layout.

use crate::element::Element;
use crate::model::arena::{Arena, ArenaLayout, Kind};
use crate::record::Persistents;
use crate::settings::OptimizerConfig;

/// The arenas. Each has room only for the parameters that need it.
#[derive(Clone, Debug)]
pub struct Arenas {
    /// Parameters. Those that the optimizer updates are master weights in f32, or, if it rounds them stochastically, those that
    /// layers read in bfloat16 as these read them. Frozen ones are stored as layers read them.
    pub weights: Arena,
    /// Copies of the others that layers read in 16 bits.
    pub copies: Arena,
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
        let moments = |kind: Kind| if kind.is_frozen { 0 } else { optimizer.moments(kind.rule) };
        let stored = |kind: Kind| {
            if kind.is_frozen || optimizer.stochastic_rounding { kind.compute } else { Element::F32 }
        };
        let weights = layout.arena(persistents, "weights", |kind| Some(stored(kind)));
        let mut arena = |name, holds: &dyn Fn(Kind) -> bool| {
            layout.arena(persistents, name, |kind| holds(kind).then_some(Element::F32))
        };
        Self {
            weights,
            gradients: arena("gradients", &|kind| !kind.is_frozen),
            first_moments: arena("first moments", &|kind| moments(kind) > 0),
            second_moments: arena("second moments", &|kind| moments(kind) > 1),
            copies: layout.arena(persistents, "weight copies", |kind| {
                Some(kind.compute).filter(|element| *element != stored(kind))
            }),
        }
    }

    /// What layers read: the copies, and the weights of which there are none.
    pub fn read(&self) -> Arena {
        self.copies.or(&self.weights)
    }

    /// All of them.
    pub fn all(&self) -> [&Arena; 5] {
        [&self.weights, &self.copies, &self.gradients, &self.first_moments, &self.second_moments]
    }
}

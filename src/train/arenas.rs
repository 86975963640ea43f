//! The arenas of a run: weights, their copies, gradients and moments, in the same layout.
//!
//! The optimizer updates f32 weights; where layers read 16 bits, the recording `copy` rounds them into an arena of
//! copies after each update. With `optimizer.stochastic_rounding` the weights that layers read in bfloat16, norms and
//! biases included, exist only in bfloat16, and there are no copies of them (`ops/rounding.rs`). Frozen parameters have
//! no gradients and no moments and are stored as layers read them, so a checkpoint holds 16 bits of them, which is what
//! the run computed with.

use crate::element::Element;
use crate::model::arena::{Arena, ArenaLayout, Segment, SegmentKind};
use crate::ranks::sharding::ownership::Ownership;
use crate::record::Persistents;
use crate::settings::Optimizer;

/// The arenas. Each has room only for the parameters that need it.
#[derive(Clone, Debug)]
pub struct Arenas {
    /// Parameters. Those that the optimizer updates are master weights in f32; if it rounds stochastically, those that
    /// layers read in bfloat16 are stored in bfloat16. Frozen ones are stored as layers read them.
    pub weights: Arena,
    /// Copies of those master weights that layers read in 16 bits.
    pub copies: Arena,
    /// Gradients.
    pub gradients: Arena,
    /// First moments, or momentum.
    pub first_moments: Arena,
    /// Second moments, for optimizers that have them.
    pub second_moments: Arena,
}

impl Arenas {
    /// Adds the arenas to the persistent buffers.
    pub(crate) fn new(
        layout: &ArenaLayout,
        persistents: &mut Persistents,
        optimizer: &Optimizer,
        ownership: &Ownership,
    ) -> Self {
        let moments = |kind: SegmentKind| if kind.is_frozen { 0 } else { optimizer.moments(kind.rule) };
        let stored = |kind: SegmentKind| optimizer.stored(kind.is_frozen, kind.compute);
        let copied = |kind: SegmentKind| Some(kind.compute).filter(|element| *element != stored(kind));
        let updated = |index: usize, kind: SegmentKind| match kind.is_frozen {
            true => vec![layout.segments[index].whole()],
            false => ownership.updated(layout, index),
        };
        // Every rank has the weights that layers read whole, unless it gathers them each time.
        let read = |index: usize, kind: SegmentKind| match ownership.shards_weights() {
            true => updated(index, kind),
            false => vec![layout.segments[index].whole()],
        };
        let weights = layout.arena_of(persistents, "weights", |index, Segment { kind, .. }| {
            let held = if copied(*kind).is_some() { updated(index, *kind) } else { read(index, *kind) };
            Some((stored(*kind), held))
        });
        let gradients = layout.arena_of(persistents, "gradients", |index, segment| {
            let Segment { kind, .. } = *segment;
            let held =
                if ownership.shards_gradients() { updated(index, kind) } else { vec![segment.whole()] };
            (!kind.is_frozen).then_some((Element::F32, held))
        });
        let mut arena = |name, count| {
            layout.arena_of(persistents, name, |index, Segment { kind, .. }| {
                (moments(*kind) > count).then(|| (Element::F32, updated(index, *kind)))
            })
        };
        Self {
            weights,
            gradients,
            first_moments: arena("first moments", 0),
            second_moments: arena("second moments", 1),
            copies: layout.arena_of(persistents, "weight copies", |index, Segment { kind, .. }| {
                Some((copied(*kind)?, read(index, *kind)))
            }),
        }
    }

    /// The weights that layers read: the copies where there are any, and otherwise the weights.
    pub fn read(&self) -> Arena {
        self.copies.or(&self.weights)
    }

    /// All arenas.
    pub fn all(&self) -> [&Arena; 5] {
        [&self.weights, &self.copies, &self.gradients, &self.first_moments, &self.second_moments]
    }
}

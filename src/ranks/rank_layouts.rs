//! Where the parameters of a run lie on each of its ranks.
//!
//! Every rank can compute this, so saving and loading need no negotiation. Loading needs no exchange at all: each rank
//! reads the rows that it holds. A new way to spread parameters needs a share in `Spec`, or ranges held in an arena,
//! and no change to the code of checkpoints.

use crate::error::Result;
use crate::kernels::Limits;
use crate::model::arena::ArenaLayout;
use crate::ranks::RankLayout;
use crate::record::Persistents;
use crate::train::arenas::Arenas;
use crate::train::recordings::{Recordings, held_by};

/// The layouts and arenas of all ranks, which each rank can compute, since they follow from the layout of ranks.
pub(crate) struct RankLayouts {
    /// By stage of the pipeline, part of the matrices and part of the experts; ranks that agree in these have the same
    /// layout.
    layouts: Vec<ArenaLayout>,
    /// By rank: the index of the layout, and the arenas.
    arenas: Vec<(usize, Arenas)>,
}

impl RankLayouts {
    /// The layouts for the run of `recordings`, whose adapters have `limits`.
    ///
    /// # Errors
    /// A parameter that no binding can hold.
    pub fn of(recordings: &Recordings, limits: &Limits) -> Result<Self> {
        let Recordings { whole, stages, optimizer, ownership, .. } = recordings;
        let RankLayout { expert, model, pipeline, .. } = ownership.ranks;
        let on = |rank| RankLayout { rank, ..ownership.ranks };
        let number =
            |rank| (on(rank).stage() * model + on(rank).matrix_part()) * expert + on(rank).expert_part();
        let mut layouts: Vec<Option<ArenaLayout>> = vec![None; pipeline * model * expert];
        for rank in 0..ownership.ranks.world() {
            let layout = &mut layouts[number(rank)];
            if layout.is_none() {
                *layout = Some(ArenaLayout::new(held_by(&on(rank), stages, whole)?, limits)?);
            }
        }
        let layouts: Vec<ArenaLayout> = layouts.into_iter().flatten().collect();
        let of_rank = |rank| {
            let layout = &layouts[number(rank)];
            let arenas = match rank == ownership.ranks.rank {
                true => recordings.arenas.clone(),
                // These arenas are never allocated.
                false => {
                    let ownership = ownership.of_rank(rank, layout);
                    Arenas::new(layout, &mut Persistents::new(), optimizer, &ownership)
                }
            };
            (number(rank), arenas)
        };
        let arenas = (0..ownership.ranks.world()).map(of_rank).collect();
        Ok(Self { layouts, arenas })
    }

    /// The layout and the arenas of each rank, in order.
    pub fn by_rank(&self) -> impl Iterator<Item = (&ArenaLayout, &Arenas)> {
        self.arenas.iter().map(|(layout, arenas)| (&self.layouts[*layout], arenas))
    }
}

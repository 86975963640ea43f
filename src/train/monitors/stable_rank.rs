//! Stable ranks of weights, by power iteration after the update. Ranks that hold a matrix together take turns: one of them has the
//! whole, iterates as a single rank would, and tells the others.

use crate::element::Element;
use crate::error::{Error, Result};
use crate::model::arena::ArenaLayout;
use crate::model::groups::Selection;
use crate::model::parameters::{Role, Spec};
use crate::ops::power_iteration::{PowerIteration, Spectra, power_iteration};
use crate::record::{Collective, Persistents, Recorder, Recording, Span, Tensor};
use crate::train::run_parts::RunParts;

/// The stable ranks of a run.
pub struct StableRanks {
    /// They are computed after every so many steps.
    pub interval: u64,
    /// The parameters, in the order of their matrices.
    pub watched: Vec<Matrices>,
    /// A place for each matrix of the model.
    pub spectra: Spectra,
    /// Computes them.
    pub recording: Recording,
}

/// The matrices of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrices {
    /// Path of the parameter.
    pub path: String,
    /// Its number in the model.
    pub parameter: usize,
    /// How many there are: E in a stack of experts, else 1.
    pub count: u32,
    /// Whether it is a stack of experts.
    pub is_stack: bool,
}

impl StableRanks {
    /// Those that the run asks for; `None` if there are none.
    ///
    /// # Errors
    /// A launch over WebGPU's limits.
    pub(super) fn new(run: &RunParts<'_>, persistents: &mut Persistents) -> Result<Option<Self>> {
        let Some(config) = &run.plan.settings.stable_rank else { return Ok(None) };
        let selection = Selection::new(&config.target, false).map_err(Error::Plan)?;
        let specs = run.whole.iter().enumerate();
        let of = |(parameter, spec): (usize, &Spec)| {
            let is_watched = spec.trains && !spec.role.is_vector() && selection.takes(spec);
            is_watched.then(|| Matrices::of(parameter, spec))
        };
        let watched: Vec<Matrices> = specs.filter_map(of).collect();
        let count: u32 = watched.iter().map(|matrices| matrices.count).sum();
        if count == 0 {
            return Ok(None);
        }
        let mut places = |name: &str| Spectra {
            eigenvalues: persistents.tensor(format!("{name} eigenvalues"), 1, count, Element::F32),
            sums: persistents.tensor(format!("{name} squares"), count, 4, Element::F32),
        };
        let spectra = places("watched");
        // Keeps 0 where another rank iterates.
        let own = if run.ownership.shares_norm() { places("own") } else { spectra };
        let mut rec = Recorder::new("stable_ranks", run.capabilities);
        let mut index = 0;
        for (number, matrices) in watched.iter().enumerate() {
            let settings = PowerIteration {
                iterations: config.power_iteration_num as u32,
                seed: run.plan.settings.run.seed,
                stream: matrices.parameter as u32,
                first_matrix: 0,
            };
            rec.scope(matrices.path.clone(), |rec| {
                run.iterate(rec, number, matrices, settings, (&own, index))
            })?;
            index += matrices.count;
        }
        if run.ownership.shares_norm() {
            let of = |spectra: &Spectra| vec![Span::of(&spectra.eigenvalues), Span::of(&spectra.sums)];
            let sums = Collective::sum_into(of(&own), of(&spectra));
            rec.exchange("spectra", sums, &run.ownership.norm_group());
        }
        let recording = rec.try_finish()?;
        Ok(Some(Self { interval: config.step_interval, watched, spectra, recording }))
    }
}

impl RunParts<'_> {
    /// Power iteration on the matrices of a parameter that this rank's stage holds, if it is this rank's turn; their places are those
    /// from the given one on.
    fn iterate(
        &self,
        rec: &mut Recorder,
        number: usize,
        matrices: &Matrices,
        settings: PowerIteration,
        (spectra, first): (&Spectra, u32),
    ) -> Result<()> {
        let Self { layout, arenas, ownership, .. } = self;
        let held = self.held(matrices.parameter);
        let Some((spec, parts)) = held.filter(|(_, parts)| ownership.counts(layout, parts[0].segment)) else {
            return Ok(()); // another stage does
        };
        let group = ownership.holders(spec);
        let turn = group.ranks[number % group.size()];
        let (ranks, whole) = (&ownership.ranks, self.spec(matrices.parameter));
        let own = whole.clone().of_expert_rank(ranks.expert_part(), ranks.expert);
        let is_divided = (spec.rows, spec.cols) != (own.rows, own.cols);
        let is_sharded =
            ownership.shards_optimizer() && (ownership.shards_weights() || arenas.copies.holds(parts));
        let tensors: Vec<Tensor> = match is_divided || is_sharded {
            true => {
                let own = ArenaLayout::new(vec![own], &rec.capabilities().limits)?.parameters.remove(0);
                ownership.put_together(rec, (layout, &arenas.weights), parts, whole, &own, turn)
            }
            false => parts.iter().map(|part| arenas.weights.part(spec, part)).collect(),
        };
        if turn == ranks.rank {
            let (count, first_matrix) = match spec.role {
                Role::ExpertStack { experts } => (experts as u32, (ranks.expert_part() * experts) as u32),
                _ => (1, 0),
            };
            let settings = PowerIteration { first_matrix, ..settings };
            let state = self.tensors.state;
            power_iteration(rec, &tensors, count, state, &settings, spectra, first + first_matrix);
        }
        Ok(())
    }
}

impl Matrices {
    fn of(parameter: usize, spec: &Spec) -> Self {
        let (count, is_stack) = match spec.role {
            Role::ExpertStack { experts } => (experts as u32, true),
            _ => (1, false),
        };
        Self { path: spec.path.clone(), parameter, count, is_stack }
    }
}

//! Stable ranks of weights, by power iteration after the update.

use super::Watchable;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::model::arena::Part;
use crate::model::groups::Selection;
use crate::model::parameters::{Role, Spec};
use crate::ops::power_iteration::{PowerIteration, Spectra, power_iteration};
use crate::record::{Persistents, Recorder, Recording, Tensor};

/// The stable ranks of a run.
pub struct StableRanks {
    /// They are computed after every so many steps.
    pub interval: u64,
    /// The parameters, in the order of their matrices.
    pub watched: Vec<Matrices>,
    /// A place for each matrix.
    pub spectra: Spectra,
    /// Computes them.
    pub recording: Recording,
}

/// The matrices of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrices {
    /// Path of the parameter.
    pub path: String,
    /// Its number in the layout.
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
    pub(super) fn new(run: &Watchable<'_>, persistents: &mut Persistents) -> Result<Option<Self>> {
        let Some(config) = &run.plan.settings.stable_rank else { return Ok(None) };
        let selection = Selection::new(&config.target, false).map_err(Error::Plan)?;
        let specs = run.layout.parameters.iter().map(|(spec, _)| spec).enumerate();
        let of = |(parameter, spec): (usize, &Spec)| {
            let is_watched = spec.trains && spec.role != Role::Vector && selection.takes(spec);
            is_watched.then(|| Matrices::of(parameter, spec))
        };
        let watched: Vec<Matrices> = specs.filter_map(of).collect();
        let count: u32 = watched.iter().map(|matrices| matrices.count).sum();
        if count == 0 {
            return Ok(None);
        }
        let spectra = Spectra {
            eigenvalues: persistents.tensor("watched eigenvalues", 1, count, Element::F32),
            sums: persistents.tensor("watched squares", count, 4, Element::F32),
        };
        let mut rec = Recorder::new("stable_ranks", run.capabilities);
        let mut index = 0;
        for Matrices { path, parameter, count, .. } in &watched {
            let settings = PowerIteration {
                iterations: config.power_iteration_num as u32,
                seed: run.plan.settings.run.seed,
                stream: *parameter as u32,
            };
            let (spec, parts) = &run.layout.parameters[*parameter];
            let parts: Vec<Tensor> =
                parts.iter().map(|part: &Part| run.arenas.weights.part(spec, part)).collect();
            rec.scope(path.clone(), |rec| {
                power_iteration(rec, &parts, *count, run.tensors.state, &settings, &spectra, index);
            });
            index += count;
        }
        let recording = rec.try_finish()?;
        Ok(Some(Self { interval: config.step_interval, watched, spectra, recording }))
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

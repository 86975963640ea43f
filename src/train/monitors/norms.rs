//! Norms of gradients, moments and weights, as sums of squares that are computed after the update. The norms of
//! gradients also serve `runner_wrapper.local_norm`, which needs them after every step and for all parameters that
//! train.

use crate::element::Element;
use crate::error::Result;
use crate::model::arena::Part;
use crate::model::groups::Selection;
use crate::model::parameters::{Spec, UpdateRule};
use crate::ops::squares::squares;
use crate::record::{Collective, Persistents, Recorder, Recording, Span, Tensor};
use crate::settings::Rule;
use crate::train::run_parts::RunParts;

/// Norms that are computed after the same steps.
pub struct Norms {
    /// Number of steps after which they are computed.
    pub interval: u64,
    /// The tensors of each sum, and its tag if `monitor_config` reports it.
    pub watched: Vec<(Watched, Option<String>)>,
    /// A [`SquareSum`](crate::ops::squares::SquareSum) for each.
    pub sums: Tensor,
    /// Computes the sums.
    pub recording: Recording,
}

/// The tensors whose norm is taken; parameters by their number in the model, of which a stage of a pipeline has some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The gradient of a parameter, still scaled.
    Gradient(usize),
    /// The first moment of a parameter, or its momentum.
    FirstMoment(usize),
    /// The second moment of a parameter.
    SecondMoment(usize),
    /// All weights that train.
    Weights,
}

impl Norms {
    /// The norms of gradients; `None` if nothing asks for them.
    ///
    /// # Errors
    /// A launch over WebGPU's limits.
    pub(super) fn of_gradients(run: &RunParts<'_>, persistents: &mut Persistents) -> Result<Option<Self>> {
        let settings = &run.plan.settings;
        let reported = match settings.monitor.local_norm_format.is_on() {
            true => run.selected(),
            false => Vec::new(),
        };
        let (watched, interval) = match settings.wrapper.local_norm {
            true => (run.trained().collect(), 1),
            false => (reported.clone(), settings.monitor.step_interval),
        };
        let tag = |index| reported.contains(&index).then(|| run.tag(Watched::Gradient(index)));
        let watched = watched.into_iter().map(|index| (Watched::Gradient(index), tag(index))).collect();
        Self::new("gradient_norms", run, watched, interval, persistents)
    }

    /// The norms of moments and weights; `None` if nothing asks for them.
    ///
    /// # Errors
    /// A launch over WebGPU's limits.
    pub(super) fn of_states(run: &RunParts<'_>, persistents: &mut Persistents) -> Result<Option<Self>> {
        let watched = run.states().into_iter().map(|watched| (watched, Some(run.tag(watched)))).collect();
        Self::new("watched_norms", run, watched, run.plan.settings.monitor.step_interval, persistents)
    }

    fn new(
        name: &'static str,
        run: &RunParts<'_>,
        watched: Vec<(Watched, Option<String>)>,
        interval: u64,
        persistents: &mut Persistents,
    ) -> Result<Option<Self>> {
        if watched.is_empty() {
            return Ok(None);
        }
        let mut sums = |label| persistents.tensor(label, watched.len() as u32, 4, Element::F32);
        let all = sums(name.to_string());
        // Stays 0 for tensors of which this rank has nothing.
        let own = if run.ownership.shares_norm() { sums(format!("own {name}")) } else { all };
        let mut rec = Recorder::new(name, run.capabilities);
        for (index, (watched, _)) in (0..).zip(&watched) {
            let parts = run.parts(*watched);
            if !parts.is_empty() {
                rec.scope(run.scope(*watched), |rec| squares(rec, &parts, own, index));
            }
        }
        if own != all {
            let [addends, sums] = [own, all].map(|sums| vec![Span::of(&sums)]);
            rec.exchange(name, Collective::sum_into(addends, sums), &run.ownership.norm_group());
        }
        Ok(Some(Self { interval, watched, sums: all, recording: rec.try_finish()? }))
    }
}

impl RunParts<'_> {
    /// The numbers of the parameters that train.
    fn trained(&self) -> impl Iterator<Item = usize> {
        (0..self.whole.len()).filter(|&index| self.spec(index).trains)
    }

    /// The parameters whose norms `monitor_config` reports one by one.
    fn selected(&self) -> Vec<usize> {
        let monitor = &self.plan.settings.monitor;
        let Ok(selection) = Selection::new(&monitor.target, monitor.invert) else { return vec![] };
        self.trained().filter(|&index| selection.takes(self.spec(index))).collect()
    }

    pub(super) fn spec(&self, index: usize) -> &Spec {
        &self.whole[index]
    }

    /// The part of a parameter that this rank holds, if its stage has the parameter.
    pub(super) fn held(&self, index: usize) -> Option<&(Spec, Vec<Part>)> {
        let path = &self.spec(index).path;
        self.layout.parameters.iter().find(|(spec, _)| spec.path == *path)
    }

    /// The moments and weights that are watched, in the order in which they are logged.
    fn states(&self) -> Vec<Watched> {
        let monitor = &self.plan.settings.monitor;
        let moments = if monitor.optimizer_state_format.is_on() { self.selected() } else { vec![] };
        let each = |of: fn(usize) -> Watched, number: usize| {
            let has =
                |index: &&usize| self.plan.settings.optimizer.moments(self.spec(**index).rule) >= number;
            moments.iter().filter(has).map(|&index| of(index)).collect::<Vec<_>>()
        };
        each(Watched::FirstMoment, 1)
            .into_iter()
            .chain(each(Watched::SecondMoment, 2))
            .chain(monitor.weight_state_format.is_on().then_some(Watched::Weights))
            .collect()
    }

    /// The name under which `monitor_config` reports a norm.
    fn tag(&self, watched: Watched) -> String {
        match watched {
            Watched::Gradient(index) => format!("local_norm/{}", self.spec(index).path),
            Watched::FirstMoment(index) => {
                let is_adam = match self.plan.settings.optimizer.rule {
                    Rule::AdamW { .. } => true,
                    Rule::Muon { .. } => self.spec(index).rule == UpdateRule::Elementwise,
                    Rule::Sgd { .. } => false,
                };
                format!("{}/{}", if is_adam { "adam_m_norm" } else { "momentum_norm" }, self.spec(index).path)
            }
            Watched::SecondMoment(index) => format!("adam_v_norm/{}", self.spec(index).path),
            Watched::Weights => "weight_norm".to_string(),
        }
    }

    /// The ranges of its tensors in this rank's share of the norm, flat.
    fn parts(&self, watched: Watched) -> Vec<Tensor> {
        let RunParts { layout, arenas, ownership, .. } = self;
        let (index, arena) = match watched {
            Watched::Gradient(index) => (index, &arenas.gradients),
            Watched::FirstMoment(index) => (index, &arenas.first_moments),
            Watched::SecondMoment(index) => (index, &arenas.second_moments),
            Watched::Weights => {
                let trained =
                    (0..layout.segments.len()).filter(|&segment| !layout.segments[segment].kind.is_frozen);
                let of_segment = |segment| {
                    let ranges = ownership.normed(layout, segment).into_iter();
                    ranges.map(move |range| arenas.weights.range(segment, range))
                };
                return trained.flat_map(of_segment).collect();
            }
        };
        let Some((spec, parts)) = self.held(index) else { return Vec::new() };
        let of_part = |part: &Part| {
            let ranges = ownership.normed_of(layout, spec, part).into_iter();
            let segment = part.segment;
            ranges.map(move |range| arena.range(segment, range))
        };
        parts.iter().flat_map(of_part).collect()
    }

    fn scope(&self, watched: Watched) -> String {
        let path = |index| &self.spec(index).path;
        match watched {
            Watched::Gradient(index) => format!("gradient.{}", path(index)),
            Watched::FirstMoment(index) => format!("first_moment.{}", path(index)),
            Watched::SecondMoment(index) => format!("second_moment.{}", path(index)),
            Watched::Weights => "weights".to_string(),
        }
    }
}

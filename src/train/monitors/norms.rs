//! Norms of gradients, moments and weights, as sums of squares that are computed after the update.

use super::Watchable;
use crate::element::Element;
use crate::error::Result;
use crate::model::arena::{Arena, Part};
use crate::model::groups::Selection;
use crate::model::parameters::Spec;
use crate::ops::squares::squares;
use crate::record::{Collective, Persistents, Recorder, Recording, Span, Tensor};

/// The norms of a run.
pub struct Norms {
    /// They are computed after every so many steps.
    pub interval: u64,
    /// What each sum is of.
    pub watched: Vec<Watched>,
    /// A [`SquareSum`](crate::ops::squares::SquareSum) for each.
    pub sums: Tensor,
    /// Computes them.
    pub recording: Recording,
}

/// What a norm is of; parameters by their number in the layout.
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
    /// Those that the run asks for; `None` if there are none.
    ///
    /// # Errors
    /// A launch over WebGPU's limits.
    pub(super) fn new(run: &Watchable<'_>, persistents: &mut Persistents) -> Result<Option<Self>> {
        let watched = run.watched();
        if watched.is_empty() {
            return Ok(None);
        }
        let mut sums = |label| persistents.tensor(label, watched.len() as u32, 4, Element::F32);
        let all = sums("watched norms");
        // Keeps 0 where this rank has nothing.
        let own = if run.sharing.shares_norm() { sums("own watched norms") } else { all };
        let mut rec = Recorder::new("watched_norms", run.capabilities);
        for (index, watched) in (0..).zip(&watched) {
            let parts = run.parts(*watched);
            if !parts.is_empty() {
                rec.scope(run.scope(*watched), |rec| squares(rec, &parts, own, index));
            }
        }
        if own != all {
            let [addends, sums] = [own, all].map(|sums| vec![Span::of(&sums)]);
            rec.exchange(
                "watched_norms",
                Collective::AllReduce { addends, sums },
                &run.sharing.shards.block(),
            );
        }
        let interval = run.plan.settings.monitor.step_interval;
        Ok(Some(Self { interval, watched, sums: all, recording: rec.try_finish()? }))
    }
}

impl Watchable<'_> {
    /// What is watched, in the order in which it is logged.
    fn watched(&self) -> Vec<Watched> {
        let monitor = &self.plan.settings.monitor;
        let selection = Selection::new(&monitor.target, monitor.invert).ok();
        let is_selected =
            |spec: &Spec| spec.trains && selection.as_ref().is_some_and(|selection| selection.takes(spec));
        let selected: Vec<usize> = (0..self.layout.parameters.len())
            .filter(|&index| is_selected(&self.layout.parameters[index].0))
            .collect();
        let each = |is_on: bool, of: fn(usize) -> Watched, arena: &Arena| {
            let held = selected.iter().filter(|&&index| arena.holds(&self.layout.parameters[index].1));
            held.filter(|_| is_on).map(|&index| of(index)).collect::<Vec<_>>()
        };
        let [gradients, moments] =
            [monitor.local_norm_format, monitor.optimizer_state_format].map(|formats| formats.is_on());
        let weights = monitor.weight_state_format.is_on().then_some(Watched::Weights);
        each(gradients, Watched::Gradient, &self.arenas.gradients)
            .into_iter()
            .chain(each(moments, Watched::FirstMoment, &self.arenas.first_moments))
            .chain(each(moments, Watched::SecondMoment, &self.arenas.second_moments))
            .chain(weights)
            .collect()
    }

    /// What of it is in this rank's share of the norm: flat tensors.
    fn parts(&self, watched: Watched) -> Vec<Tensor> {
        let Watchable { layout, arenas, sharing, .. } = self;
        let (index, arena) = match watched {
            Watched::Gradient(index) => (index, &arenas.gradients),
            Watched::FirstMoment(index) => (index, &arenas.first_moments),
            Watched::SecondMoment(index) => (index, &arenas.second_moments),
            Watched::Weights => {
                let trained =
                    (0..layout.segments.len()).filter(|&segment| !layout.segments[segment].kind.is_frozen);
                let of_segment = |segment| {
                    let ranges = sharing.normed(layout, segment).into_iter();
                    ranges.map(move |range| arenas.weights.range(segment, range))
                };
                return trained.flat_map(of_segment).collect();
            }
        };
        let (spec, parts) = &layout.parameters[index];
        let of_part = |part: &Part| {
            let ranges = sharing.normed_of(layout, spec, part).into_iter();
            let segment = part.segment;
            ranges.map(move |range| arena.range(segment, range))
        };
        parts.iter().flat_map(of_part).collect()
    }

    fn scope(&self, watched: Watched) -> String {
        let path = |index: usize| &self.layout.parameters[index].0.path;
        match watched {
            Watched::Gradient(index) => format!("gradient.{}", path(index)),
            Watched::FirstMoment(index) => format!("first_moment.{}", path(index)),
            Watched::SecondMoment(index) => format!("second_moment.{}", path(index)),
            Watched::Weights => "weights".to_string(),
        }
    }
}

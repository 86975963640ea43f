//! The recording of an update: gradient norm, step state and loss scale, then the optimizer, segment by segment or
//! matrix by matrix.

mod matrices;

use super::arenas::Arenas;
use super::hot_copies::HotCopies;
use super::tensors::RunTensors;
use crate::element::Element;
use crate::error::Result;
use crate::kernels::Capabilities;
use crate::model::arena::{Arena, ArenaLayout, SegmentKind};
use crate::model::parameters::{Spec, UpdateRule};
use crate::model::{ExpertState, ModelBuffers};
use crate::ops::adamw::{self, AdamW};
use crate::ops::grad_norm::{StepRules, grad_norm, grad_norm_of_shares, rate_column};
use crate::ops::hot_experts::hot_experts;
use crate::ops::loss_scale::loss_scale;
use crate::ops::muon::Muon;
use crate::ops::sgd::{self, Sgd, SgdTensors};
use crate::ops::tally::{TallyColumns, update_bias};
use crate::ranks::sharding::global_offsets::{GlobalOffsets, PlacedRange};
use crate::ranks::sharding::ownership::Ownership;
use crate::record::{Recorder, Recording, Tensor};
use crate::settings::{Optimizer, OptimizerType, Rule};

/// The inputs of the recording of an update.
pub(super) struct Update<'a> {
    pub optimizer: &'a Optimizer,
    /// The run's seed, for weights that are rounded stochastically.
    pub seed: u64,
    /// The weight decay of each parameter group, by its number.
    pub decays: Vec<f64>,
    /// How gradients are used.
    pub rules: StepRules,
    /// Which part of the parameters this rank updates.
    pub ownership: &'a Ownership,
    /// The parameters of the whole model.
    pub whole: &'a [Spec],
    pub layout: &'a ArenaLayout,
    /// The places of its parameters in the whole model; `None` if no weights are rounded by their places.
    pub places: Option<&'a GlobalOffsets>,
    pub arenas: &'a Arenas,
    pub hot_copies: Option<&'a HotCopies>,
    pub tensors: &'a RunTensors,
}

impl Update<'_> {
    /// Writes the recording.
    ///
    /// # Errors
    /// A matrix under Muon that lies in several bindings; a launch over WebGPU's limits.
    pub fn record(&self, capabilities: Capabilities) -> Result<Recording> {
        let mut rec = Recorder::new("update", capabilities);
        let RunTensors { state, scaler, model: ModelBuffers { experts, .. }, .. } = *self.tensors;
        let (losses, step) = (self.tensors.sums().collect::<Vec<_>>(), self.tensors.step());
        self.ownership.sum_counts(&mut rec, &losses, experts.as_ref());
        self.ownership.sum_copied(&mut rec, self.layout, &self.arenas.gradients);
        if let Some(copies) = self.hot_copies {
            copies.add_gradients(&mut rec, (self.layout, &self.arenas.gradients), self.ownership);
        }
        let trained = (0..self.layout.segments.len()).filter(|&i| !self.layout.segments[i].kind.is_frozen);
        let updated: Vec<Updated> = trained.clone().flat_map(|i| self.updated(i)).collect();
        let gradients: Vec<Tensor> = trained.flat_map(|i| self.normed_gradients(i)).collect();
        rec.scope("grad_norm", |rec| match self.ownership.norm_shares() {
            None => grad_norm(rec, &gradients, &step, &self.rules),
            Some(shares) => grad_norm_of_shares(rec, &gradients, &step, &self.rules, &shares),
        });
        if let Some(scaler) = &scaler {
            rec.scope("loss_scale", |rec| loss_scale(rec, scaler, state));
        }
        let elementwise = |part: &&Updated| self.kind_of(part).rule == UpdateRule::Elementwise;
        for part in updated.iter().filter(elementwise) {
            match self.optimizer.rule {
                Rule::AdamW { betas, eps } | Rule::Muon { adamw_betas: betas, adamw_eps: eps, .. } => {
                    rec.scope(part.label("adamw"), |rec| self.adamw(rec, part, betas, eps));
                }
                Rule::Sgd { momentum, dampening, nesterov } => {
                    rec.scope(part.label("sgd"), |rec| self.sgd(rec, part, momentum, dampening, nesterov));
                }
            }
        }
        if let Rule::Muon { momentum, nesterov, ns_steps, matched_adamw_rms, .. } = self.optimizer.rule {
            let settings = Muon {
                momentum: momentum as f32,
                is_nesterov: nesterov,
                steps: ns_steps as u32,
                rms: matched_adamw_rms as f32,
                ..Muon::default()
            };
            rec.scope("muon", |rec| self.update_matrices(rec, &settings))?;
        }
        if let Some(experts) = experts {
            experts.layers().for_each(|layer| update_router(&mut rec, &experts, layer, state));
        }
        // The weights without copies are gathered here; for the others the copies are gathered.
        let copies = &self.arenas.copies.segments;
        self.ownership.gather(&mut rec, &self.arenas.weights, "weights", |segment| copies[segment].is_none());
        rec.try_finish()
    }

    /// The ranges of a segment that this rank updates, divided so that one launch can number the places of each.
    fn updated(&self, segment: usize) -> Vec<Updated> {
        let is_rounded = self.arenas.weights.element(segment) == Element::Bf16;
        let ranges = self.ownership.updated(self.layout, segment).into_iter();
        let parts = ranges.flat_map(|range| match self.places.filter(|_| is_rounded) {
            Some(places) => places.runs(segment, &range),
            None => vec![PlacedRange::consecutive(range, 0)],
        });
        parts.enumerate().map(|(number, placed)| Updated { segment, number, placed }).collect()
    }

    /// The gradients of a segment in this rank's share of the norm.
    fn normed_gradients(&self, segment: usize) -> Vec<Tensor> {
        let ranges = self.ownership.normed(self.layout, segment).into_iter();
        ranges.map(|range| self.arenas.gradients.range(segment, range)).collect()
    }

    /// AdamW on all parameters of a part at once.
    fn adamw(&self, rec: &mut Recorder, part: &Updated, betas: [f64; 2], eps: f64) {
        let segment = adamw::AdamWTensors {
            weights: part.of(&self.arenas.weights),
            gradients: part.of(&self.arenas.gradients),
            first_moments: part.of(&self.arenas.first_moments),
            second_moments: part.of(&self.arenas.second_moments),
        };
        let kind = self.kind_of(part);
        let settings = AdamW {
            decay: self.decay_of(kind),
            beta1: betas[0] as f32,
            beta2: betas[1] as f32,
            epsilon: eps as f32,
            corrects_epsilon: self.optimizer.kind == OptimizerType::AdamWeightDecayX,
            rate_column: rate_column(kind.group),
            rounding: part.placed.rounding(self.seed),
        };
        adamw::adamw(rec, &segment, &self.tensors.step(), &settings);
    }

    /// SGD on all parameters of a part at once.
    fn sgd(&self, rec: &mut Recorder, part: &Updated, momentum: f64, dampening: f64, is_nesterov: bool) {
        let Arenas { weights, gradients, first_moments, .. } = self.arenas;
        let [weights, gradients, moments] = [weights, gradients, first_moments].map(|arena| part.of(arena));
        let kind = self.kind_of(part);
        let settings = Sgd {
            decay: self.decay_of(kind),
            momentum: momentum as f32,
            dampening: dampening as f32,
            is_nesterov,
            rate_column: rate_column(kind.group),
            rounding: part.placed.rounding(self.seed),
        };
        sgd::sgd(rec, &SgdTensors { weights, gradients, moments }, &self.tensors.step(), &settings);
    }

    fn kind_of(&self, part: &Updated) -> SegmentKind {
        self.layout.segments[part.segment].kind
    }

    /// The weight decay of a segment's parameters.
    fn decay_of(&self, kind: SegmentKind) -> f32 {
        if kind.is_exempt { 0.0 } else { self.decays[kind.group] as f32 }
    }
}

/// A part of a segment that this rank updates.
struct Updated {
    segment: usize,
    /// The number of this part among the parts of the segment.
    number: usize,
    /// The part's elements, and their places in the whole model.
    placed: PlacedRange,
}

impl Updated {
    fn of(&self, arena: &Arena) -> Tensor {
        arena.range(self.segment, self.placed.range.clone())
    }

    fn label(&self, name: &str) -> String {
        match self.number {
            0 => format!("{name}.{}", self.segment),
            number => format!("{name}.{}.{number}", self.segment),
        }
    }
}

/// Updates the state of a layer's router: the selection bias, and which experts are hot.
fn update_router(rec: &mut Recorder, experts: &ExpertState, layer: usize, state: Tensor) {
    let tally = experts.tally(layer);
    rec.scope(format!("layers.{layer}"), |rec| {
        if let (Some(bias), Some(rate)) = (experts.bias(layer), experts.bias_update_rate()) {
            rec.scope("bias", |rec| update_bias(rec, tally, bias, rate, state));
        }
        if let (Some(capacities), Some((two, steps))) = (experts.capacities(layer), experts.hot_and_cold()) {
            let counts = tally.columns(TallyColumns::of(experts.experts()).chosen, experts.experts());
            rec.scope("hot_experts", |rec| hot_experts(rec, counts, state, capacities, &two, &steps));
        }
    });
}

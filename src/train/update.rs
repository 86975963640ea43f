//! The recording of an update: gradient norm, step state and loss scale, then the optimizer, segment by segment.

use super::arenas::Arenas;
use crate::error::{Error, Result};
use crate::kernels::Capabilities;
use crate::model::ExpertState;
use crate::model::arena::{ArenaLayout, Kind, Part};
use crate::model::parameters::{Spec, UpdateRule};
use crate::ops::adamw::{self, AdamW};
use crate::ops::grad_norm::{StepRules, StepTensors, grad_norm, rate_column};
use crate::ops::hot_experts::hot_experts;
use crate::ops::local_norm::local_norm;
use crate::ops::loss_scale::{LossScaler, loss_scale};
use crate::ops::muon::{self, Matrix, Muon};
use crate::ops::rounding::Rounding;
use crate::ops::sgd::{self, Sgd, SgdTensors};
use crate::ops::tally::{TallyColumns, update_bias};
use crate::record::{Recorder, Recording, Tensor};
use crate::settings::{AdamWConfig, Correction, MuonConfig, OptimizerConfig, OptimizerKind, SgdConfig};

/// What the recording of an update depends on.
pub(super) struct Update<'a> {
    pub optimizer: &'a OptimizerConfig,
    /// The run's seed, for weights that are rounded stochastically.
    pub seed: u64,
    /// The weight decay of each parameter group, by its number.
    pub decays: Vec<f64>,
    /// What is made of the gradients.
    pub rules: StepRules,
    /// What the loss scale adapts by, if it does.
    pub scaler: Option<LossScaler>,
    /// Receives the sum of squares of each parameter's gradients, if it is asked for.
    pub local_norms: Option<Tensor>,
    pub layout: &'a ArenaLayout,
    pub arenas: &'a Arenas,
    pub tensors: StepTensors,
    pub experts: Option<ExpertState>,
}

impl Update<'_> {
    /// Writes the recording.
    ///
    /// # Errors
    /// A matrix under Muon that lies in several bindings; a launch over WebGPU's limits.
    pub fn record(&self, capabilities: Capabilities) -> Result<Recording> {
        let mut rec = Recorder::new("update", capabilities);
        let trained = (0..self.layout.segments.len()).filter(|&i| !self.layout.segments[i].kind.is_frozen);
        let gradients: Vec<Tensor> =
            trained.clone().map(|i| self.arenas.gradients.segment(self.layout, i)).collect();
        rec.scope("grad_norm", |rec| grad_norm(rec, &gradients, &self.tensors, &self.rules));
        if let Some(norms) = self.local_norms {
            rec.scope("local_norm", |rec| self.local_norms(rec, norms));
        }
        if let Some(scaler) = &self.scaler {
            rec.scope("loss_scale", |rec| loss_scale(rec, scaler, self.tensors.state));
        }
        for i in trained.filter(|&i| self.layout.segments[i].kind.rule == UpdateRule::Elementwise) {
            match self.optimizer.kind {
                OptimizerKind::AdamW(adamw) | OptimizerKind::Muon(MuonConfig { adamw, .. }) => {
                    rec.scope(format!("adamw.{i}"), |rec| self.adamw_segment(rec, i, &adamw));
                }
                OptimizerKind::Sgd(config) => {
                    rec.scope(format!("sgd.{i}"), |rec| self.sgd_segment(rec, i, &config));
                }
            }
        }
        if let OptimizerKind::Muon(config) = self.optimizer.kind {
            rec.scope("muon", |rec| self.update_matrices(rec, &config))?;
        }
        if let Some(experts) = self.experts {
            experts.layers().for_each(|layer| update_router(&mut rec, &experts, layer, self.tensors.state));
        }
        rec.try_finish()
    }

    /// The sum of squares of each trained parameter's gradients.
    fn local_norms(&self, rec: &mut Recorder, norms: Tensor) {
        let trained = (0..).zip(&self.layout.parameters).filter(|(_, (spec, _))| spec.trains);
        for (index, (spec, parts)) in trained {
            let parts: Vec<Tensor> =
                parts.iter().map(|part| self.arenas.gradients.part(spec, part)).collect();
            local_norm(rec, &parts, &self.tensors, &self.rules, norms, index);
        }
    }

    /// AdamW on all parameters of segment number `i` at once.
    fn adamw_segment(&self, rec: &mut Recorder, i: usize, config: &AdamWConfig) {
        let segment = adamw::AdamWTensors {
            weights: self.arenas.weights.segment(self.layout, i),
            gradients: self.arenas.gradients.segment(self.layout, i),
            first_moments: self.arenas.first_moments.segment(self.layout, i),
            second_moments: self.arenas.second_moments.segment(self.layout, i),
        };
        let kind = self.layout.segments[i].kind;
        let settings = AdamW {
            decay: self.decay_of(kind),
            beta1: config.beta1 as f32,
            beta2: config.beta2 as f32,
            epsilon: config.eps as f32,
            corrects_epsilon: config.correction == Correction::WithEps,
            rate_column: rate_column(kind.group),
            rounding: self.rounding(i),
        };
        adamw::adamw(rec, &segment, &self.tensors, &settings);
    }

    /// SGD on all parameters of segment number `i` at once.
    fn sgd_segment(&self, rec: &mut Recorder, i: usize, config: &SgdConfig) {
        let Arenas { weights, gradients, first_moments, .. } = self.arenas;
        let [weights, gradients, moments] =
            [weights, gradients, first_moments].map(|arena| arena.segment(self.layout, i));
        let kind = self.layout.segments[i].kind;
        let settings = Sgd {
            decay: self.decay_of(kind),
            momentum: config.momentum as f32,
            dampening: config.dampening as f32,
            is_nesterov: config.nesterov,
            rate_column: rate_column(kind.group),
            rounding: self.rounding(i),
        };
        sgd::sgd(rec, &SgdTensors { weights, gradients, moments }, &self.tensors, &settings);
    }

    /// The bits for the weights of segment number `i`.
    fn rounding(&self, i: usize) -> Rounding {
        let before: u64 = self.layout.segments[..i].iter().map(|segment| segment.elements).sum();
        // Weights that are 2^34 places apart share their bits.
        Rounding { seed: self.seed, first4: (before / 4) as u32 }
    }

    /// The weight decay of a segment's parameters.
    fn decay_of(&self, kind: Kind) -> f32 {
        if kind.is_exempt { 0.0 } else { self.decays[kind.group] as f32 }
    }

    /// Muon, one matrix at a time. A parameter that packs several matrices (q, k and v; gate and up) is updated
    /// matrix by matrix: they are stored together for the sake of one product, but are different maps.
    fn update_matrices(&self, rec: &mut Recorder, config: &MuonConfig) -> Result<()> {
        let parameters = self.layout.parameters.iter();
        for (spec, parts) in
            parameters.into_iter().filter(|(spec, _)| spec.trains && spec.rule == UpdateRule::Matrix)
        {
            let &[part] = parts.as_slice() else {
                return Err(Error::Plan(format!(
                    "{} does not fit one binding of this adapter, and Muon needs a matrix whole; write `type: AdamW` under \
                     optimizer or choose another adapter with context.device_name",
                    spec.path
                )));
            };
            self.update_pieces(rec, spec, &part, config);
        }
        Ok(())
    }

    fn update_pieces(&self, rec: &mut Recorder, spec: &Spec, part: &Part, config: &MuonConfig) {
        let settings = Muon {
            momentum: config.momentum as f32,
            is_nesterov: config.nesterov,
            steps: config.ns_steps,
            rms: config.matched_adamw_rms as f32,
            decay: if spec.decays { self.decays[spec.group] as f32 } else { 0.0 },
            rate_column: rate_column(spec.group),
            rounding: self.rounding(part.segment),
        };
        let Arenas { weights, gradients, first_moments, .. } = self.arenas;
        for piece in &spec.pieces {
            let [weights, gradients, moments] = [weights, gradients, first_moments]
                .map(|arena| arena.part(spec, part).rows(piece.first_row as u32, piece.rows as u32));
            let matrix = Matrix { weights, gradients, moments };
            rec.scope(piece.name.clone(), |rec| muon::muon(rec, &matrix, &self.tensors, &settings));
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

//! The recording of an update: norm and decisions, then the optimizer, kind by kind of parameter.

use super::recordings::Arenas;
use crate::error::{Error, Result};
use crate::kernels::Capabilities;
use crate::model::ExpertState;
use crate::model::arena::ArenaLayout;
use crate::model::parameters::Rule;
use crate::ops::adamw::{self, AdamW};
use crate::ops::grad_norm::{StepTensors, grad_norm, rate_column};
use crate::ops::hot_experts::hot_experts;
use crate::ops::muon::{self, Matrix, Muon};
use crate::ops::tally::{TallyColumns, update_bias};
use crate::record::{Recorder, Recording, Tensor};
use crate::settings::RunPlan;
use crate::settings::{MuonConfig, OptimizerKind};

/// Writes the recording.
///
/// # Errors
/// A matrix that Muon cannot take whole.
pub(super) fn update(
    plan: &RunPlan,
    capabilities: Capabilities,
    layout: &ArenaLayout,
    arenas: &Arenas,
    tensors: &StepTensors,
    experts: Option<ExpertState>,
) -> Result<Recording> {
    let mut rec = Recorder::new("update", capabilities);
    let trained = (0..layout.segments.len()).filter(|&i| !layout.segments[i].kind.is_frozen);
    let gradients: Vec<Tensor> = trained.clone().map(|i| arenas.gradients.segment(layout, i)).collect();
    rec.scope("grad_norm", |rec| {
        grad_norm(rec, &gradients, tensors, plan.settings.wrapper.clip().map(|clip| clip as f32))
    });
    for i in trained.filter(|&i| layout.segments[i].kind.rule == Rule::AdamW) {
        let segment = adamw::Segment {
            weights: arenas.weights.segment(layout, i),
            gradients: arenas.gradients.segment(layout, i),
            first_moments: arenas.first_moments.segment(layout, i),
            second_moments: arenas.second_moments.segment(layout, i),
        };
        let kind = layout.segments[i].kind;
        let settings = AdamW {
            decay: if kind.is_exempt { 0.0 } else { plan.weight_decay(kind.group) as f32 },
            beta1: plan.optimizer.beta1 as f32,
            beta2: plan.optimizer.beta2 as f32,
            epsilon: plan.optimizer.eps as f32,
            corrects_epsilon: plan.optimizer.kind == OptimizerKind::AdamWeightDecayX,
            rate_column: rate_column(kind.group),
        };
        rec.scope(format!("adamw.{i}"), |rec| adamw::adamw(rec, &segment, tensors, &settings));
    }
    if let OptimizerKind::Muon(config) = plan.optimizer.kind {
        rec.scope("muon", |rec| update_matrices(rec, plan, &config, layout, arenas, tensors))?;
    }
    if let Some(experts) = experts {
        experts.layers().for_each(|layer| remember(&mut rec, &experts, layer, tensors.state));
    }
    Ok(rec.finish())
}

/// What the router of a layer learns of the step beside its gradient: the bias of the choice, and which experts are hot.
fn remember(rec: &mut Recorder, experts: &ExpertState, layer: usize, state: Tensor) {
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

/// Muon, one matrix after the other. A parameter that holds several (q, k and v; gate and up) is several matrices: what
/// is stored together for one product's sake has not become one map.
fn update_matrices(
    rec: &mut Recorder,
    plan: &RunPlan,
    config: &MuonConfig,
    layout: &ArenaLayout,
    arenas: &Arenas,
    tensors: &StepTensors,
) -> Result<()> {
    let parameters = layout.parameters.list();
    for (spec, parts) in parameters.into_iter().filter(|(spec, _)| spec.trains && spec.rule == Rule::Muon) {
        let &[part] = parts.as_slice() else {
            return Err(Error::Plan(format!(
                "{} does not fit one binding of this adapter, and Muon needs a matrix whole; write `type: AdamW` under \
                 optimizer or choose another adapter with context.device_name",
                spec.path
            )));
        };
        let settings = Muon {
            momentum: config.momentum as f32,
            is_nesterov: config.nesterov,
            steps: config.ns_steps,
            rms: config.matched_adamw_rms as f32,
            decay: if spec.decays { plan.weight_decay(spec.group) as f32 } else { 0.0 },
            rate_column: rate_column(spec.group),
        };
        for piece in &spec.pieces {
            let rows = |tensor: Tensor| tensor.rows(piece.first_row as u32, piece.rows as u32);
            let [weights, gradients, moments] = [&arenas.weights, &arenas.gradients, &arenas.first_moments]
                .map(|arena| rows(arena.part(spec, &part)));
            let matrix = Matrix { weights, gradients, moments };
            rec.scope(piece.name.clone(), |rec| muon::muon(rec, &matrix, tensors, &settings));
        }
    }
    Ok(())
}

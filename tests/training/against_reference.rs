//! A run on the device against an f64 run of the whole trainer.

use crate::runs::{Setup, Weights, reference_name, reference_shape, relative_distance};
use gristmill::model::config::ModelConfig;
use gristmill::model::parameters::{Gpt, Spec};
use gristmill::reference::adamw;
use gristmill::reference::trainer::{AdamWSettings, MuonSettings, Rule, SgdSettings, Trainer};
use gristmill::settings::{
    AdamWConfig, Correction, MuonConfig, OptimizerConfig, OptimizerKind, RunPlan, SgdConfig,
};
use gristmill::train::length::RunLength;

/// Relative error allowed to losses and to the final weights.
pub const ALLOWED: f64 = 1e-5;

/// Trains `steps` steps in f32 on the device and in f64 on the host, from the same initial weights and the same text, and
/// compares every loss and the final weights.
pub fn follows_the_reference(setup: &Setup, steps: u64) {
    let trained = setup.train(steps);
    let plan = setup.plan();
    let (mut reference, groups) = reference_trainer(setup, &plan);
    let (rule, settings) = reference_optimizer(&plan.optimizer);
    reference.rule = rule;
    let data = plan.load_data().expect("the text is there");
    let length = RunLength::new(&plan, data.train.steps_per_epoch());
    let accumulation = plan.settings.runner.gradient_accumulation_steps as u64;
    for step in 0..steps {
        let batches: Vec<(Vec<u32>, Vec<u32>)> = (step * accumulation..(step + 1) * accumulation)
            .map(|i| data.train.batch(i).expect("a batch"))
            .map(|batch| (batch.tokens, batch.targets))
            .collect();
        let lr = length.schedule.lr_at(step);
        let rate = |group: usize| group.checked_sub(1).map(|i| length.group_schedules[i].lr_at(step));
        reference.rates =
            groups.iter().filter_map(|(name, group)| Some((name.clone(), rate(*group)?))).collect();
        let want = reference.train_step(
            &batches,
            plan.model.seq_length,
            lr,
            &settings,
            plan.settings.wrapper.clip(),
        );
        let got = &trained.states[step as usize];
        let error = |got: f32, want: f64| (f64::from(got) - want).abs() / want;
        let (loss, norm) = (error(got.loss, want.loss), error(got.grad_norm, want.grad_norm));
        println!(
            "{} step {}: loss {:.6}, {:.1} % of the allowed error; norm {:.4}, {:.1} %",
            setup.name,
            step + 1,
            got.loss,
            100.0 * loss / ALLOWED,
            got.grad_norm,
            100.0 * norm / ALLOWED
        );
        assert!(loss <= ALLOWED, "{} step {step}: loss {} and {}", setup.name, got.loss, want.loss);
    }
    let (mut got, mut want) = (trained.weights, reference.weights);
    if plan.model.learns_positions() {
        let mut gradients = trained.gradients;
        let whole = norm(&gradients);
        let of_keys = norm(&take_key_biases(&plan.model, &mut gradients)) / whole;
        assert!(of_keys <= ALLOWED, "{}: key biases have {of_keys:.2e} of the gradient", setup.name);
        take_key_biases(&plan.model, &mut got);
        take_key_biases(&plan.model, &mut want);
    }
    let distance = relative_distance(&got, &want);
    println!("{}: final weights at {:.1} % of the allowed error", setup.name, 100.0 * distance / ALLOWED);
    assert!(distance <= ALLOWED, "{}: the final weights differ by {distance:.2e} in norm", setup.name);
}

/// The f64 trainer with the plan's optimizer, exemptions and frozen tensors; and the parameter group of each tensor.
fn reference_trainer(setup: &Setup, plan: &RunPlan) -> (Trainer, Vec<(String, usize)>) {
    let mut reference = Trainer::new(reference_shape(&plan.model), setup.initial_weights());
    let plain = Gpt::describe(&plan.model);
    let sorted = plan.grouping().apply(Gpt::describe(&plan.model)).expect("groups");
    let pairs = || sorted.iter().zip(&plain);
    let names = |spec: &Spec| spec.pieces.iter().map(|piece| reference_name(&piece.name)).collect::<Vec<_>>();
    let decay = |spec: &Spec| if spec.decays { plan.weight_decay(spec.group) } else { 0.0 };
    // What decays without groups and exemptions is the reference's own rule.
    reference.weight_decays = pairs()
        .filter(|(spec, plain)| spec.group > 0 || spec.decays != plain.decays)
        .flat_map(|(spec, _)| names(spec).into_iter().map(move |name| (name, decay(spec))))
        .collect();
    reference.frozen = pairs().filter(|(spec, _)| !spec.trains).flat_map(|(spec, _)| names(spec)).collect();
    let groups = pairs().flat_map(|(spec, _)| names(spec).into_iter().map(|name| (name, spec.group)));
    let groups = groups.collect();
    (reference, groups)
}

/// The f64 trainer's rule, and AdamW's settings for the tensors that the rule leaves to it.
fn reference_optimizer(optimizer: &OptimizerConfig) -> (Rule, AdamWSettings) {
    let (rule, adamw) = match optimizer.kind {
        OptimizerKind::AdamW(adamw) => (Rule::AdamW, adamw),
        OptimizerKind::Sgd(SgdConfig { momentum, dampening, nesterov }) => {
            (Rule::Sgd(SgdSettings { momentum, dampening, nesterov }), AdamWConfig::default())
        }
        OptimizerKind::Muon(muon) => {
            let MuonConfig { momentum, nesterov, ns_steps: steps, matched_adamw_rms: rms, adamw } = muon;
            (Rule::Muon(MuonSettings { momentum, nesterov, steps, rms }), adamw)
        }
    };
    let AdamWConfig { beta1, beta2, eps, correction } = adamw;
    let correction = match correction {
        Correction::Published => adamw::Correction::Published,
        Correction::Absent => adamw::Correction::Absent,
        Correction::WithEps => adamw::Correction::WithEps,
    };
    (rule, AdamWSettings { beta1, beta2, eps, weight_decay: optimizer.weight_decay, correction })
}

/// Takes the key biases out of `weights`. Without rotation such a bias adds the same amount to all scores of a query, which
/// softmax ignores: its gradient is zero except for rounding, and AdamW turns that rounding into full-length steps. No two
/// computations agree on these biases, and no loss depends on them.
fn take_key_biases(model: &ModelConfig, weights: &mut Weights) -> Weights {
    let (first, width) = (model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim);
    let biases = weights.iter_mut().filter(|(name, _)| name.ends_with("attn.c_attn.bias"));
    let taken: Weights = biases
        .map(|(name, bias)| (name.clone(), bias.drain(first..first + width).collect::<Vec<f64>>()))
        .collect();
    assert_eq!(taken.len(), model.num_layers);
    taken
}

fn norm(weights: &Weights) -> f64 {
    weights.values().flatten().map(|v| v * v).sum::<f64>().sqrt()
}

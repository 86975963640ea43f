//! The numbers of `monitor_config` against the f64 trainer.
//!
//! Only due steps have them, and they change no loss.

mod on_ranks;

use crate::against_reference::{reference_batch, reference_optimizer, reference_trainer};
use crate::latent::{RANKS, V3, deepseek};
use crate::runs::{FolderRun, Setup, metrics, reference_tensors};
use gristmill::element::Element;
use gristmill::model::config::BalanceLosses;
use gristmill::model::parameters::{Gpt, Spec};
use gristmill::settings::RunPlan;
use gristmill::train::length::RunLength;
use gristmill::train::run::Summary;
use pollster::block_on;
use reference::objective::Outcome;
use reference::trainer::{StepResult, Trainer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Relative error allowed to what is a mean or a norm over much, in f32.
const ALLOWED: f64 = 1e-5;

/// Relative errors that are allowed.
struct Bounds {
    /// Of losses, and of the norm of all weights.
    mean: f64,
    /// Of the norm of all gradients.
    whole: f64,
    /// Of norms of single parameters' gradients and first moments, which are small differences of large sums in some.
    /// Second moments, which are their squares, have twice as much.
    single: f64,
    /// Of attention scores.
    score: f64,
}

impl Bounds {
    /// In 16 bits, multiples of half an ulp: the reference rounds where the kernels do, but what both round differs by
    /// f32's errors, so that some values are rounded the other way.
    fn of(element: Element) -> Self {
        let in_half_ulps =
            |half: f64| Self { mean: 0.5 * half, whole: 2.0 * half, single: 8.0 * half, score: 4.0 * half };
        match element {
            Element::F16 => in_half_ulps(2f64.powi(-11)),
            Element::Bf16 => in_half_ulps(2f64.powi(-8)),
            _ => Self { mean: ALLOWED, whole: ALLOWED, single: 3.0 * ALLOWED, score: 3.0 * ALLOWED },
        }
    }
}

/// A step of the f64 trainer, and the trainer after it.
type Reference = (StepResult, Trainer);

/// The first `steps` steps of `setup` in f64.
fn reference(setup: &Setup, plan: &RunPlan, steps: u64) -> Vec<Reference> {
    let (mut trainer, _) = reference_trainer(setup, plan);
    let (rule, settings) = reference_optimizer(&plan.settings.optimizer);
    trainer.rule = rule;
    let data = plan.load_data().expect("the text is there");
    let length = RunLength::new(plan, data.train.steps_per_epoch());
    let accumulation = plan.settings.runner.gradient_accumulation_steps as u64;
    let step = |step: u64| {
        let batches: Vec<_> =
            (step * accumulation..(step + 1) * accumulation).map(|i| reference_batch(plan, i)).collect();
        let (lr, clip) = (length.schedule.lr_at(step), plan.settings.wrapper.clip());
        let result = trainer.train_step(&batches, plan.model.seq_length, lr, &settings, clip);
        (result, trainer.clone())
    };
    (0..steps).map(step).collect()
}

/// The norm of a parameter in `tensors`, whose names are those of its pieces.
fn norm(spec: &Spec, tensors: &BTreeMap<String, Vec<f64>>) -> f64 {
    let of_piece = |name: &str| {
        let names = reference_tensors(name, vec![0.0; 2]).into_iter().map(|(name, _)| name);
        names.flat_map(|name| tensors[&name].clone()).map(|x| x * x).sum::<f64>()
    };
    spec.pieces.iter().map(|piece| of_piece(&piece.name)).sum::<f64>().sqrt()
}

/// Holds `got` against `want` with `allowed` relative error, and removes it from `left`.
fn take(left: &mut BTreeMap<String, f32>, tag: &str, want: f64, allowed: f64) {
    let got = left.remove(tag).unwrap_or_else(|| panic!("{tag} is missing, of {:?}", left.keys()));
    let error = (f64::from(got) - want).abs() / want;
    println!("{tag}: {got:e}, {:.1} % of the allowed error", 100.0 * error / allowed);
    assert!(error <= allowed, "{tag}: {got:e} and not {want:e}");
}

const EVERYTHING: &str = "--monitor_config={monitor_on: True, local_norm_format: log, local_loss_format: log, \
    optimizer_state_format: log, weight_state_format: log, max_attention_logit_format: log}";

fn specs(plan: &RunPlan) -> Vec<Spec> {
    let specs = plan.grouping().apply(Gpt::describe(&plan.model)).expect("patterns that fit");
    specs.into_iter().filter(|spec| spec.trains).collect()
}

/// Trains `steps` steps with everything watched and compares what `metrics.jsonl` says of each.
fn follows_the_reference(setup: Setup, steps: u64) {
    let run = FolderRun::new(setup.with(&[EVERYTHING]));
    let plan = run.setup.plan();
    let bounds = Bounds::of(plan.model.compute);
    run.train(steps);
    let lines = metrics(&run.folder());
    assert_eq!(lines.len() as u64, steps, "{}", run.setup.name);
    for (step, (want, trainer)) in lines.iter().zip(reference(&run.setup, &plan, steps)) {
        println!("{} step {}", run.setup.name, step.step);
        let mut left = step.monitor.clone().expect("numbers of the monitors");
        for spec in specs(&plan) {
            let path = &spec.path;
            take(&mut left, &format!("local_norm/{path}"), norm(&spec, &want.gradients), bounds.single);
            let has = |left: &BTreeMap<String, f32>, tag: &str| left.contains_key(&format!("{tag}/{path}"));
            if has(&left, "adam_v_norm") {
                take(&mut left, &format!("adam_m_norm/{path}"), norm(&spec, &trainer.m), bounds.single);
                take(&mut left, &format!("adam_v_norm/{path}"), norm(&spec, &trainer.v), 2.0 * bounds.single);
            } else {
                take(&mut left, &format!("momentum_norm/{path}"), norm(&spec, &trainer.m), bounds.single);
            }
        }
        let squares: f64 = specs(&plan).iter().map(|spec| norm(spec, &trainer.weights).powi(2)).sum();
        take(&mut left, "weight_norm", squares.sqrt(), bounds.mean);
        left.insert("global_norm".into(), step.global_norm);
        take(&mut left, "global_norm", want.grad_norm, bounds.whole);
        let factors = plan.model.mixture.as_ref().map(|mixture| mixture.losses).unwrap_or_default();
        for (kind, loss) in losses(&want, factors) {
            take(&mut left, &format!("local_{kind}_loss"), loss, bounds.mean);
        }
        let layers = plan.model.num_layers + plan.model.multi_token.map_or(0, |ahead| ahead.depth);
        for layer in 0..layers {
            let heads: Vec<f64> = (0..plan.model.num_heads)
                .map(|head| {
                    want.outcomes.iter().map(|of| of.largest_scores[layer][head]).fold(f64::MIN, f64::max)
                })
                .collect();
            let tag = format!("max_attention_logit/layers.{layer}.attention");
            let mean = heads.iter().sum::<f64>() / heads.len() as f64;
            let largest = heads.iter().copied().fold(f64::MIN, f64::max);
            take(&mut left, &format!("{tag}/mean"), mean, bounds.score);
            take(&mut left, &format!("{tag}/max"), largest, bounds.score);
        }
        assert!(left.is_empty(), "{left:?}");
    }
}

/// The losses of a step that the model has: means over its micro-batches, the balance losses of all layers with their
/// factors.
fn losses(step: &StepResult, factors: BalanceLosses) -> Vec<(&'static str, f64)> {
    let mean =
        |of: &dyn Fn(&Outcome) -> f64| step.outcomes.iter().map(of).sum::<f64>() / step.outcomes.len() as f64;
    let ahead = |outcome: &Outcome| {
        let (sums, counts): (Vec<f64>, Vec<usize>) = outcome.further.iter().copied().unzip();
        sums.into_iter().sum::<f64>() / counts.into_iter().sum::<usize>() as f64
    };
    let balance = |outcome: &Outcome| {
        let of_layers = outcome.mixtures.values().map(|mixture| mixture.losses);
        of_layers.map(|of| factors.expert * of.expert + factors.sequence * of.sequence).sum()
    };
    let first = &step.outcomes[0];
    let ahead = (!first.further.is_empty()).then(|| ("mtp", mean(&ahead)));
    let balance = (factors.expert > 0.0 || factors.sequence > 0.0).then(|| ("aux", mean(&balance)));
    [("lm", step.loss)].into_iter().chain(ahead).chain(balance).collect()
}

#[test]
fn norms_and_losses_are_those_of_the_reference() {
    follows_the_reference(Setup::new("watched", ""), 3);
    follows_the_reference(Setup::new("watched sgd", "").with(&["--optimizer={type: SGD, momentum: 0.9}"]), 3);
}

#[test]
fn gpt2_and_alibi_are_watched() {
    follows_the_reference(Setup::gpt2("watched gpt2", ""), 3);
    follows_the_reference(Setup::typed("BloomConfig", "watched bloom", ""), 2);
}

/// Balance losses, multi-token prediction, and the scores of a window on the kernels that a GPU runs.
#[test]
fn mixtures_are_watched() {
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, aux_loss_types: [expert], \
                   aux_loss_factors: [0.1], z_loss_factor: 0.01";
    let model = "mtp_depth: 1, mtp_loss_factor: 0.3, sliding_window: 7";
    let portable = "--context.tier=portable";
    follows_the_reference(Setup::experts("watched mixture", routing, model).with(&[portable]), 3);
}

#[test]
fn latent_attention_is_watched() {
    follows_the_reference(deepseek("watched v3", "DeepseekV3Config", &format!("{RANKS}, {V3}")), 3);
}

#[test]
fn runs_in_16_bits_are_watched() {
    for element in ["float16", "bfloat16"] {
        let compute = format!("--model.model_config.compute_dtype={element}");
        let keys = [&compute, "--runner_wrapper.scale_sense=1024"];
        follows_the_reference(Setup::new("watched in 16 bits", "n_kv_heads: 2").with(&keys), 3);
    }
}

#[test]
fn muon_has_momentum_and_moments() {
    follows_the_reference(
        Setup::new("watched muon", "").with(&["--optimizer={type: Muon, weight_decay: 0.1}"]),
        2,
    );
}

/// Frozen parameters, tied tables, and loss scales that adapt.
#[test]
fn only_what_trains_is_watched() {
    let frozen = "--model.model_config.freeze=['layers.0.feed_forward']";
    let tied = "--model.model_config.tie_word_embeddings=True";
    let scale = "--runner_wrapper.scale_sense={type: DynamicLossScaleUpdateCell, loss_scale_value: 65536, scale_window: 1}";
    follows_the_reference(Setup::new("watched in part", "").with(&[frozen, tied, scale]), 3);
}

#[test]
fn target_and_interval_choose_what_is_watched() {
    let monitor = "--monitor_config={monitor_on: True, local_norm_format: log, weight_state_format: tensorboard, \
                   step_interval: 2, target: ['attention.wo'], invert: True}";
    let run = FolderRun::new(Setup::new("chosen", "").with(&[monitor]));
    run.train(5);
    let steps = metrics(&run.folder());
    let due: Vec<u64> = steps.iter().filter(|step| step.monitor.is_some()).map(|step| step.step).collect();
    assert_eq!(due, [2, 4]);
    let tags: Vec<String> = steps[1].monitor.clone().expect("numbers").into_keys().collect();
    let others = specs(&run.setup.plan()).into_iter().map(|spec| spec.path);
    let mut want: Vec<String> = others
        .filter(|path| !path.ends_with("attention.wo"))
        .map(|path| format!("local_norm/{path}"))
        .collect();
    want.push("weight_norm".into());
    want.sort();
    assert_eq!(tags, want);
    let plain = FolderRun::new(Setup::new("chosen", ""));
    plain.train(5);
    let losses = |run: &FolderRun| metrics(&run.folder()).iter().map(|step| step.loss).collect::<Vec<_>>();
    assert_eq!(losses(&run), losses(&plain), "watching changes nothing");
}

#[test]
fn names_are_printed_and_nothing_is_trained() {
    let run = FolderRun::new(
        Setup::new("printed", "").with(&["--monitor_config={monitor_on: True, print_struct: True}"]),
    );
    let config = run.setup.write(run.home.path());
    let summary = block_on(gristmill::train::run(&config, &run.arguments(3), Arc::default()));
    assert_eq!(summary.unwrap_or_else(|e| panic!("{e}")), Summary::default());
    assert!(!run.folder().exists(), "the folder is left to the run itself");
}

//! The numbers of `monitor_config` against the f64 trainer.

use crate::against_reference::{reference_batch, reference_optimizer, reference_trainer};
use crate::runs::{FolderRun, Setup, metrics, on_ranks, reference_tensors};
use gristmill::model::parameters::{Gpt, Role, Spec};
use gristmill::random::StartVector;
use gristmill::reference::stable_rank::power_iteration;
use gristmill::reference::trainer::{StepResult, Trainer};
use gristmill::settings::RunPlan;
use gristmill::train::length::RunLength;
use gristmill::train::run::{Summary, run_on_ranks};
use pollster::block_on;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Relative error allowed to norms of weights and first moments and to losses; gradients of single parameters have three times
/// as much, since they are small differences of large sums in some, and second moments, their squares, six times.
const ALLOWED: f64 = 1e-5;

/// A step of the f64 trainer, and the trainer after it.
type Reference = (StepResult, Trainer);

/// The first `steps` steps of `setup` in f64.
fn reference(setup: &Setup, plan: &RunPlan, steps: u64) -> Vec<Reference> {
    let (mut trainer, _) = reference_trainer(setup, plan);
    let (rule, settings) = reference_optimizer(&plan.optimizer);
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

const EVERYTHING: &str = "--monitor_config={monitor_on: True, local_norm_format: log, device_local_norm_format: log, \
    local_loss_format: log, device_local_loss_format: log, optimizer_state_format: log, weight_state_format: log, \
    max_attention_logit_format: log, throughput_baseline: 2.0}";

fn specs(plan: &RunPlan) -> Vec<Spec> {
    let specs = plan.grouping().apply(Gpt::describe(&plan.model)).expect("patterns that fit");
    specs.into_iter().filter(|spec| spec.trains).collect()
}

/// Trains `steps` steps with everything watched and compares what `metrics.jsonl` says of each.
fn follows_the_reference(setup: Setup, steps: u64) {
    let run = FolderRun::new(setup.with(&[EVERYTHING]));
    let plan = run.setup.plan();
    run.train(steps);
    for (step, (want, trainer)) in metrics(&run.folder()).iter().zip(reference(&run.setup, &plan, steps)) {
        println!("{} step {}", run.setup.name, step.step);
        let mut left = step.monitor.clone().expect("numbers of the monitors");
        for spec in specs(&plan) {
            let path = &spec.path;
            take(&mut left, &format!("local_norm/{path}"), norm(&spec, &want.gradients), 3.0 * ALLOWED);
            let has = |left: &BTreeMap<String, f32>, tag: &str| left.contains_key(&format!("{tag}/{path}"));
            if has(&left, "adam_v_norm") {
                take(&mut left, &format!("adam_m_norm/{path}"), norm(&spec, &trainer.m), 3.0 * ALLOWED);
                take(&mut left, &format!("adam_v_norm/{path}"), norm(&spec, &trainer.v), 6.0 * ALLOWED);
            } else {
                take(&mut left, &format!("momentum_norm/{path}"), norm(&spec, &trainer.m), 3.0 * ALLOWED);
            }
        }
        let squares: f64 = specs(&plan).iter().map(|spec| norm(spec, &trainer.weights).powi(2)).sum();
        take(&mut left, "weight_norm", squares.sqrt(), ALLOWED);
        take(&mut left, "device_local_norm", want.grad_norm, ALLOWED);
        take(&mut left, "local_lm_loss", want.loss, ALLOWED);
        take(&mut left, "device_accum_local_lm_loss", want.loss, ALLOWED);
        // It depends on the clock.
        assert!(left.remove("throughput_linearity").is_some_and(|linearity| linearity > 0.0));
        for layer in 0..plan.model.num_layers {
            let heads: Vec<f64> = (0..plan.model.num_heads)
                .map(|head| {
                    want.outcomes.iter().map(|of| of.largest_scores[layer][head]).fold(f64::MIN, f64::max)
                })
                .collect();
            let tag = format!("max_attention_logit/layers.{layer}.attention");
            let mean = heads.iter().sum::<f64>() / heads.len() as f64;
            take(&mut left, &format!("{tag}/mean"), mean, 3.0 * ALLOWED);
            take(
                &mut left,
                &format!("{tag}/max"),
                heads.iter().copied().fold(f64::MIN, f64::max),
                3.0 * ALLOWED,
            );
        }
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn norms_and_losses_are_those_of_the_reference() {
    follows_the_reference(Setup::new("watched", ""), 3);
    follows_the_reference(Setup::new("watched sgd", "").with(&["--optimizer={type: SGD, momentum: 0.9}"]), 3);
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

/// Every matrix of a Llama and of its experts, after 3 steps, two of which are due.
#[test]
fn stable_ranks_are_those_of_the_reference() {
    let experts = "expert_num: 4, num_experts_chosen: 2, use_gmm: True";
    for setup in [Setup::new("ranks of weights", ""), Setup::experts("ranks of experts", experts, "")] {
        let monitor = "--monitor_config={monitor_on: True, stable_rank_config: {format: log, step_interval: 2, power_iteration_num: 4}}";
        let run = FolderRun::new(setup.with(&[monitor]));
        let plan = run.setup.plan();
        run.train(3);
        let steps = metrics(&run.folder());
        assert!(steps[0].monitor.is_none() && steps[2].monitor.is_none());
        let mut left = steps[1].monitor.clone().expect("stable ranks");
        let (_, trainer) = reference(&run.setup, &plan, 2).pop().expect("two steps");
        let all = Gpt::describe(&plan.model);
        for (parameter, spec) in all.iter().enumerate().filter(|(_, spec)| spec.role != Role::Vector) {
            let matrices = matrices(spec, &trainer.weights);
            let is_stack = matrices.len() > 1;
            let tag = |name: &str, end: &str| match is_stack {
                true => format!("{name}/{}/expert_{end}", spec.path),
                false => format!("{name}/{}", spec.path),
            };
            let mut ranks = Vec::new();
            for (number, matrix) in matrices.iter().enumerate() {
                let (groups, seed) = (spec.cols.div_ceil(4), plan.settings.run.seed);
                let vector = StartVector { seed, stream: parameter as u32, step: 2 };
                let start = (0..groups).flat_map(|group| vector.at((number * groups + group) as u32));
                let start: Vec<f64> = start.take(spec.cols).map(f64::from).collect();
                let eigenvalue = power_iteration(matrix, matrix.len() / spec.cols, &start, 4);
                let rank = matrix.iter().map(|x| x * x).sum::<f64>() / eigenvalue;
                take(&mut left, &tag("weight_eigenvalue", &number.to_string()), eigenvalue, 5.0 * ALLOWED);
                take(&mut left, &tag("weight_stable_rank", &number.to_string()), rank, 5.0 * ALLOWED);
                ranks.push(rank);
            }
            if is_stack {
                let (least, most) = (
                    ranks.iter().copied().fold(f64::MAX, f64::min),
                    ranks.iter().copied().fold(0.0, f64::max),
                );
                let mean = ranks.iter().sum::<f64>() / ranks.len() as f64;
                for (end, want) in [("min", least), ("max", most), ("mean", mean)] {
                    take(&mut left, &tag("weight_stable_rank", end), want, 5.0 * ALLOWED);
                    assert!(left.remove(&tag("weight_eigenvalue", end)).is_some());
                }
            }
        }
        assert!(left.is_empty(), "{left:?}");
    }
}

/// The matrices of a parameter as it is stored, row by row.
fn matrices(spec: &Spec, tensors: &BTreeMap<String, Vec<f64>>) -> Vec<Vec<f64>> {
    let count = match spec.role {
        Role::ExpertStack { experts } => experts,
        _ => 1,
    };
    let stored = spec.pieces.iter().flat_map(|piece| {
        let names = reference_tensors(&piece.name, vec![0.0; 2]).into_iter();
        names.flat_map(|(name, _)| tensors[&name].clone()).collect::<Vec<f64>>()
    });
    let stored: Vec<f64> = stored.collect();
    stored.chunks_exact(stored.len() / count).map(<[f64]>::to_vec).collect()
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

/// Norms on two ranks that share gradients, moments, weights and experts, against those of one that accumulates as much.
#[test]
fn ranks_watch_the_norms_of_one() {
    let monitor = "--monitor_config={monitor_on: True, local_norm_format: log, optimizer_state_format: log, weight_state_format: log, \
                   local_loss_format: log}";
    let experts = "expert_num: 4, num_experts_chosen: 2, use_gmm: True";
    let setup =
        |flags: &[&str]| FolderRun::new(Setup::experts("ranked", experts, "").with(&[monitor]).with(flags));
    let one = setup(&[]);
    one.train(2);
    let want = metrics(&one.folder());
    let shared = [
        "--parallel.enable_parallel_optimizer=True",
        "--parallel.parallel_optimizer_config.gradient_accumulation_shard=True",
    ];
    for (spread, sharing) in
        [("", &[][..]), ("", &shared[..]), (", expert_parallel: 2", &[]), (", expert_parallel: 2", &shared)]
    {
        let degrees = format!("--parallel_config={{data_parallel: 2{spread}}}");
        let flags = ["--use_parallel=True", &degrees, "--gradient_accumulation_steps=1", "--stop_step=2"];
        let run = setup(&[&flags[..], sharing].concat());
        let config = run.setup.write(run.home.path());
        on_ranks(2, |ranks| {
            let trained = block_on(run_on_ranks(&config, &run.setup.overrides, Arc::default(), ranks));
            trained.unwrap_or_else(|e| panic!("{e}"))
        });
        for (got, want) in metrics(&run.folder()).into_iter().zip(&want) {
            let (mut left, want) = (got.monitor.expect("numbers"), want.monitor.as_ref().expect("numbers"));
            // Of the two micro-batches the first rank has one.
            assert!(
                left.remove("local_lm_loss").is_some_and(|loss| (loss - want["local_lm_loss"]).abs() < 0.2)
            );
            for (tag, want) in want.iter().filter(|(tag, _)| *tag != "local_lm_loss") {
                take(&mut left, tag, f64::from(*want), 3.0 * ALLOWED);
            }
            assert!(left.is_empty(), "{left:?}");
        }
    }
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

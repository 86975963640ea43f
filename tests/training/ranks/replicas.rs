//! Ranks that hold the same weights: unlike devices are refused, and weights that differ end the run before they are
//! saved.

use super::spread::{Spread, run_each};
use crate::runs::{FolderRun, Setup, metrics, on_ranks, set_gradient};
use gristmill::train::Trainer;
use gristmill::train::length::RunLength;
use pollster::block_on;

const SHARED: [&str; 2] = ["--use_parallel=True", "--parallel_config.data_parallel=2"];

/// Two ranks for two steps; then rank 1 does another one than rank 0, from a changed gradient of parameter `changed`,
/// after which both compare what they hold. Returns the lines of both.
fn drifted(name: &'static str, setup: Setup, changed: usize) -> Vec<Option<String>> {
    let setup = setup.with(&SHARED);
    on_ranks(2, |ranks| {
        let is_changed = ranks.rank() == 1;
        let plan = setup.plan_on_rank(ranks.rank(), 2);
        let data = plan.load_data().expect("data");
        let length = RunLength::new(&plan, data.train.steps_per_epoch());
        let gpu = setup.gpu_for(&plan);
        let mut trainer = block_on(Trainer::on_rank(&gpu, &plan, &length, ranks)).expect("a trainer");
        let micro_steps = plan.settings.runner.gradient_accumulation_steps as u64;
        block_on(trainer.check_replicas(0, None)).unwrap_or_else(|e| panic!("{name}, initial weights: {e}"));
        for step in 1..=2 {
            block_on(trainer.step(step, &data.train, (step - 1) * micro_steps)).expect("a step");
        }
        block_on(trainer.check_replicas(2, None)).unwrap_or_else(|e| panic!("{name}, after two steps: {e}"));
        block_on(trainer.micro_steps(&data.train, 2 * micro_steps)).expect("gradients");
        if is_changed {
            set_gradient(&trainer, changed, 1.0);
        }
        block_on(trainer.update(3)).expect("an update");
        block_on(trainer.check_replicas(3, Some(2))).err().map(|error| error.to_string())
    })
}

#[test]
fn weights_that_drifted_apart_are_one_line() {
    let lines = drifted("float32", Setup::new("drifted", ""), 2);
    let line = lines[0].as_deref().expect("a refusal");
    println!("{line}");
    assert!(line.starts_with("rank 1 has other weights than rank 0 after step 3, first in "), "{line}");
    assert!(line.ends_with("continue from the checkpoint of step 2 with --resume_training=True"), "{line}");
    assert_eq!(lines[1].as_deref(), Some(line), "all ranks end with it");
}

/// In 16 bits layers read copies, which are replicas too.
#[test]
fn copies_and_experts_are_compared_where_several_hold_them() {
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, balance_via_topk_bias: True, \
                   topk_bias_update_rate: 0.01";
    for (name, setup) in [
        ("bfloat16", Setup::new("drifted", "compute_dtype: bfloat16")),
        (
            "stochastic",
            Setup::new("drifted", "compute_dtype: bfloat16").with(&["--optimizer.stochastic_rounding=True"]),
        ),
        ("experts", Setup::experts("drifted", routing, "")),
    ] {
        let lines = drifted(name, setup, 2);
        assert!(lines.iter().all(Option::is_some), "{name}: {lines:?}");
    }
}

/// What one rank updates for all is sent to the others, so nothing drifts apart whatever it is.
#[test]
fn what_one_rank_updates_cannot_drift() {
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True";
    let spread = "--parallel_config.expert_parallel=2";
    let sharded = "--parallel.enable_parallel_optimizer=True";
    for (name, setup) in [
        ("float32", Setup::new("sent", "").with(&[sharded])),
        ("float16", Setup::new("sent", "compute_dtype: float16").with(&[sharded])),
        ("spread", Setup::experts("sent", routing, "").with(&[spread, sharded])),
    ] {
        assert_eq!(drifted(name, setup, 2), [None, None], "{name}");
    }
}

/// Another tier stands for another device: it rounds otherwise.
#[test]
fn unlike_devices_are_refused_unless_each_weight_has_one_owner() {
    let run = |sharding: &'static [&'static str]| {
        let run = FolderRun::new(Setup::new("unlike", ""));
        let config = run.setup.write(run.home.path());
        let spread = Spread { data: 2, keys: sharding, ..Spread::ONE };
        let arguments = ["software", "portable"].map(|tier| {
            let mut arguments = spread.arguments(&run, 3);
            arguments.push(format!("--context.tier={tier}"));
            arguments.push("--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 1}]".into());
            arguments
        });
        let results = run_each(&config, &arguments);
        (run, results)
    };
    let (refused, results) = run(&[]);
    let lines: Vec<String> =
        results.into_iter().map(|result| result.expect_err("a refusal").to_string()).collect();
    assert!(
        lines[0].starts_with("rank 1: its device is ") && lines[0].contains("tier portable"),
        "{lines:?}"
    );
    for text in
        [", and that of rank 0 ", "tier software", "context.device_name", "enable_parallel_optimizer=True"]
    {
        assert!(lines[0].contains(text), "`{text}` is missing: {lines:?}");
    }
    assert!(lines[0].ends_with(&lines[1]), "{lines:?}");
    assert!(!refused.folder().exists(), "a run that is refused makes no folder");
    let (shared, results) = run(&["--parallel.enable_parallel_optimizer=True"]);
    results.into_iter().for_each(|result| drop(result.expect("a run whose checkpoints compare equal")));
    assert_eq!((metrics(&shared.folder()).len(), shared.newest()), (3, Some(3)));
}

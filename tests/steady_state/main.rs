//! After the second step a run creates nothing: replay only encodes, and the host waits for no result.
//!
//! A binary of its own, because it measures how far the host runs ahead of the device: tests beside it in one process
//! would compete with both. For the same reason its tests run one at a time.

#[path = "../runs/mod.rs"]
mod runs;

use gristmill::device::{Gpu, GpuCounters};
use gristmill::perf::profile::Profile;
use gristmill::train::length::RunLength;
use gristmill::train::{FinishedStep, Trainer};
use pollster::block_on;
use runs::{Setup, new_trainer, on_ranks, save_checkpoint};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The host may be 3 submissions ahead of the device, and a step has at least 2, so a result is at most 2 steps late.
const MOST_STEPS_LATE: u64 = 2;

/// A run with one evaluation and one checkpoint.
struct Schedule {
    steps: u64,
    evaluation_at: u64,
    checkpoint_at: u64,
}

/// What was seen of a run.
struct Observed {
    /// By how many steps the newest result was behind after each step.
    lags: Vec<u64>,
    finished: Vec<FinishedStep>,
}

/// Keeps the tests of this binary from running at the same time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Trains, and asserts after every step from the second on that no wgpu object was created or dropped.
fn observe(setup: &Setup, gpu: &Gpu, schedule: &Schedule, look: impl Fn(&Trainer<'_>)) -> Observed {
    let (plan, data, length) = setup.data();
    let eval = data.eval.as_ref().expect("evaluation data");
    let mut trainer = new_trainer(gpu, &plan, &length);
    let folder = tempfile::tempdir().expect("a folder");
    let mut counters: Option<GpuCounters> = None;
    let (mut lags, mut finished, mut evaluations) = (Vec::new(), Vec::new(), Vec::new());
    for step in 1..=schedule.steps {
        let first = (step - 1) * plan.settings.runner.gradient_accumulation_steps as u64;
        block_on(trainer.step(step, &data.train, first)).expect("a step");
        if step == schedule.evaluation_at {
            let evaluation = trainer.evaluate(step, eval, eval.micro_steps_per_epoch(), |_| Ok(()));
            block_on(evaluation).expect("an evaluation");
        }
        finished.extend(trainer.finished_steps().expect("states"));
        evaluations.extend(trainer.finished_evaluations().expect("evaluations"));
        lags.push(step - finished.len() as u64);
        if step == schedule.checkpoint_at {
            save_checkpoint(&trainer, step, folder.path());
        }
        if step == 2 {
            // wgpu drops unused objects when it is polled.
            block_on(trainer.wait()).expect("the device");
            counters = Some(gpu.counters());
        }
        // Compared while steps are in flight, so that objects which live for a single step count too.
        if let Some(before) = counters {
            let name = setup.name;
            assert_eq!(gpu.counters(), before, "{name}, step {step}: objects were created or dropped");
        }
    }
    let tags: Vec<u64> = evaluations.iter().map(|evaluation| evaluation.tag).collect();
    assert_eq!(tags, [schedule.evaluation_at], "evaluations that arrived without waiting");
    block_on(trainer.wait()).expect("the device");
    finished.extend(trainer.finished_steps().expect("states"));
    for (number, FinishedStep { step, state, .. }) in (1..).zip(&finished) {
        assert_eq!(*step, number, "results must come in order, each once");
        assert!(state.loss.is_finite() && state.step as u64 == number, "step {number}: {state:?}");
    }
    assert_eq!(finished.len() as u64, schedule.steps);
    let counters = counters.expect("two steps");
    println!("{}: after each of the steps 2 to {}: {counters:?}", setup.name, schedule.steps);
    // Counters that are not built into wgpu would all be 0.
    assert!(counters.pipelines > 10 && counters.bind_groups > 50 && counters.buffers > 10, "{counters:?}");
    assert!(counters.buffer_bytes as u64 > trainer.persistent_bytes() + trainer.pool_bytes(), "{counters:?}");
    look(&trainer);
    Observed { lags, finished }
}

#[test]
fn nothing_is_created_and_nothing_waited_for_after_the_second_step() {
    let _alone = alone();
    let mut setup = Setup::new("steady", "").with(&["--train_dataset.eval_fraction=0.3"]);
    setup.gpu_options.ahead = Some(3); // as on a GPU
    let schedule = Schedule { steps: 100, evaluation_at: 40, checkpoint_at: 70 };
    let Observed { lags, .. } = observe(&setup, &setup.gpu(), &schedule, |_| ());
    let late = lags.iter().filter(|&&lag| lag > 0).count() as u64;
    let most = lags.iter().max().expect("steps");
    let mean = lags.iter().sum::<u64>() as f64 / schedule.steps as f64;
    println!("results came {mean:.2} steps late on average, at most {most}");
    // A host that waits for results has each of them at once.
    assert!(late >= schedule.steps / 2, "only {late} of {} results were not waited for", schedule.steps);
    assert!(*most <= MOST_STEPS_LATE, "results are up to {most} steps late");
}

/// After 20 steps the submissions of a step are timed, and programs cut by what they took, while the host runs ahead.
#[test]
fn measuring_submissions_again_creates_nothing() {
    let _alone = alone();
    let mut setup = Setup::new("measured", "").with(&["--train_dataset.eval_fraction=0.3"]);
    setup.gpu_options.ahead = Some(3);
    setup.gpu_options.submission_time = Some(Duration::from_millis(5));
    let schedule = Schedule { steps: 40, evaluation_at: 12, checkpoint_at: 35 };
    let Observed { lags, .. } = observe(&setup, &setup.gpu(), &schedule, |trainer| {
        assert_eq!(trainer.cuts(), (2, 2), "the first replay, and after 20 steps");
    });
    // The steps that were timed and those around them are as late as the others.
    let most = lags.iter().max().expect("steps");
    assert!(lags[18..26].iter().any(|&lag| lag > 0) && *most <= MOST_STEPS_LATE, "{lags:?}");
}

/// With grouped products launched indirectly, and with capacities that change from step to step.
#[test]
fn a_mixture_creates_nothing_after_the_second_step() {
    let _alone = alone();
    let grouped = "expert_num: 6, num_experts_chosen: 2, use_gmm: True, balance_via_topk_bias: True, \
                   topk_bias_update_rate: 0.01, aux_loss_types: [expert], aux_loss_factors: [0.01], \
                   shared_expert_num: 1";
    let hot = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.2, enable_cold_hot_expert: True, \
               hot_expert_num: 2, cold_token_percent: 0.5, update_step: 100, routing_policy: TopkRouterV1";
    let setups = [
        Setup::experts("grouped", grouped, "mtp_depth: 1, mtp_loss_factor: 0.3"),
        Setup::experts("hot", hot, ""),
        Setup::experts_of("GPT2Config", "hot experts of gpt2", hot, ""),
    ];
    for setup in setups {
        let setup = setup.with(&["--train_dataset.eval_fraction=0.3"]);
        let schedule = Schedule { steps: 30, evaluation_at: 12, checkpoint_at: 21 };
        let Observed { finished, .. } = observe(&setup, &setup.gpu(), &schedule, |trainer| {
            let launches = &trainer.recordings().micro_step().dispatches;
            let indirect = launches.iter().filter(|launch| launch.arguments.is_some()).count();
            // Two products in each layer with experts, forward and back to the rows.
            let layers = trainer.recordings().tensors.model.experts.expect("experts").layers().len();
            assert_eq!(indirect, 4 * layers, "{}: indirect launches of {}", setup.name, launches.len());
        });
        assert!(finished.iter().all(|step| step.loads.is_some()), "{}: no loads", setup.name);
    }
}

/// Norms and scores that are due first when everything has been created.
#[test]
fn monitors_create_nothing_after_the_second_step() {
    let _alone = alone();
    let monitor = "--monitor_config={monitor_on: True, step_interval: 3, local_norm_format: log, optimizer_state_format: log, \
                   weight_state_format: log, local_loss_format: log, max_attention_logit_format: log}";
    let setup = Setup::new("watched", "").with(&["--train_dataset.eval_fraction=0.3", monitor]);
    let schedule = Schedule { steps: 30, evaluation_at: 12, checkpoint_at: 21 };
    let Observed { finished, .. } = observe(&setup, &setup.gpu(), &schedule, |_| ());
    assert!(finished.iter().all(|step| !step.watched.gradients.is_empty()));
}

/// Staging buffers of exchanges are as many as there were, and mapped again in time.
#[test]
fn ranks_create_nothing_after_the_second_step() {
    let _alone = alone();
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, shared_expert_num: 1";
    let flags = [
        "--use_parallel=True",
        "--parallel_config={data_parallel: 2, expert_parallel: 2}",
        "--parallel.enable_parallel_optimizer=True",
        "--parallel.parallel_optimizer_config.gradient_accumulation_shard=True",
    ];
    let setup = Setup::experts("ranks", routing, "").with(&flags);
    on_ranks(2, |ranks| {
        let plan = setup.plan_on_rank(ranks.rank(), 2);
        let data = plan.load_data().expect("data");
        let length = RunLength::new(&plan, data.train.steps_per_epoch());
        let gpu = setup.gpu_for(&plan);
        let mut trainer = block_on(Trainer::on_rank(&gpu, &plan, &length, ranks)).expect("a trainer");
        let mut counters: Option<GpuCounters> = None;
        for step in 1..=12 {
            let first = (step - 1) * plan.settings.runner.gradient_accumulation_steps as u64;
            block_on(trainer.step(step, &data.train, first)).expect("a step");
            trainer.finished_steps().expect("states");
            if step == 2 {
                block_on(trainer.wait()).expect("the device");
                counters = Some(gpu.counters());
            }
            if let Some(before) = counters {
                assert_eq!(gpu.counters(), before, "step {step}: objects were created or dropped");
            }
        }
    });
}

/// Profiled steps create buffers, and drop them; the steps around them create nothing, and their results are the same.
#[test]
fn profiled_steps_leave_nothing_behind() {
    let _alone = alone();
    let setup = Setup::new("profiled", "");
    let gpu = setup.gpu();
    let losses = |profiled: std::ops::Range<u64>| {
        let (plan, data, length) = setup.data();
        let mut trainer = new_trainer(&gpu, &plan, &length);
        let mut profile = Profile::new(&gpu, trainer.recordings());
        let (mut losses, mut counters) = (Vec::new(), None);
        for step in 1..=8 {
            let first = (step - 1) * plan.settings.runner.gradient_accumulation_steps as u64;
            if profiled.contains(&step) {
                profile = block_on(trainer.profiled_step(step, &data.train, first, profile)).expect("a step");
            } else {
                block_on(trainer.step(step, &data.train, first)).expect("a step");
            }
            block_on(trainer.wait()).expect("the device");
            losses.extend(trainer.finished_steps().expect("states").iter().map(|of| of.state.loss.to_bits()));
            if step == 2 {
                counters = Some(gpu.counters());
            }
            if let Some(before) = counters {
                assert_eq!(gpu.counters(), before, "step {step}: objects were created or dropped");
            }
        }
        assert_eq!(profile.steps, profiled.end - profiled.start);
        losses
    };
    assert_eq!(losses(4..6), losses(9..9));
}

//! Loss scales that adapt, steps without an update, and runs that halt.
//!
//! An infinity in the gradient of any parameter leaves weights, moments, biases and capacities as they were; a
//! resumed run continues the loss scale exactly; a halted or skipped step changes no weight.

use crate::runs::{
    FolderRun, Setup, Trained, Weights, metrics, new_trainer, newest_checkpoint, router_states, set_gradient,
    tensors,
};
use gristmill::ops::step_state::{HALTED, SKIPPED};
use gristmill::train::Trainer;
use gristmill::train::arenas::Arenas;
use pollster::block_on;
use reference::loss_scale::Adaptive;
use std::sync::Arc;

/// From 2^64 with windows of 2 to 5 steps.
const ADAPTIVE: &str = "--runner_wrapper.scale_sense={type: AdaptiveLossScaleUpdateCell, loss_scale_value: 1.8446744073709552e+19, \
                        scale_window: 2, max_scale_window: 5, min_scale_window: 2}";

/// Weights so large that gradients times the largest scales overflow in some steps.
const LARGE: &str = "--model.model_config.init_method_std=1000.0";

/// Weights and moments.
fn everything(trainer: &Trainer<'_>) -> [Weights; 3] {
    let arenas: [fn(&Arenas) -> &_; 3] =
        [|arenas| &arenas.weights, |arenas| &arenas.first_moments, |arenas| &arenas.second_moments];
    arenas.map(|arena| tensors(trainer, arena))
}

/// An infinity in the gradient of any parameter is caught; that step leaves everything as it was but the scale and the
/// number of steps.
fn an_infinity_is_caught(setup: &Setup) {
    let (plan, data, length) = setup.data();
    let gpu = setup.gpu();
    let mut trainer = new_trainer(&gpu, &plan, &length);
    block_on(trainer.step(1, &data.train, 0)).expect("a step");
    block_on(trainer.step(2, &data.train, 2)).expect("a step");
    block_on(trainer.wait()).expect("the device");
    let sound = trainer.finished_steps().expect("states").pop().expect("the second step").state;
    assert_eq!((sound.global_step, sound.is_overflow), (2, 0));
    let before = everything(&trainer);
    let routers = router_states(&trainer);
    let mut scale = sound.loss_scale;
    for parameter in 0..trainer.recordings().layout.parameters.len() {
        let name = trainer.recordings().layout.parameters[parameter].0.path.clone();
        let step = 3 + parameter as u64;
        block_on(trainer.micro_steps(&data.train, 4)).expect("gradients");
        set_gradient(&trainer, parameter, f32::INFINITY);
        block_on(trainer.update(step)).expect("an update");
        block_on(trainer.wait()).expect("the device");
        let finished = trainer.finished_steps().expect("states").pop().expect("the step");
        let state = finished.state;
        assert_eq!((state.is_overflow, state.global_step), (1, 2), "{}: {name}", setup.name);
        assert_eq!(state.loss_scale, scale, "{}: {name}: the scale that the step used", setup.name);
        scale = finished.scaler.expect("a scale that adapts").loss_scale;
        assert_eq!(scale, (state.loss_scale / 2.0).max(1.0), "{}: {name}", setup.name);
        assert!(everything(&trainer) == before, "{}: an infinity for {name} changes a tensor", setup.name);
        assert!(
            router_states(&trainer) == routers,
            "{}: an infinity for {name} changes a router",
            setup.name
        );
    }
    block_on(trainer.step(99, &data.train, 4)).expect("a step");
    block_on(trainer.wait()).expect("the device");
    let state = trainer.finished_steps().expect("states").pop().expect("the step").state;
    assert_eq!(
        (state.is_overflow, state.global_step),
        (0, 3),
        "{}: the gradients are clean again",
        setup.name
    );
    assert_ne!(everything(&trainer)[0], before[0], "{}: and the weights move", setup.name);
}

#[test]
fn an_infinity_in_any_gradient_is_caught_and_changes_nothing() {
    let dynamic = "--runner_wrapper.scale_sense={type: DynamicLossScaleUpdateCell, loss_scale_value: 1048576, scale_window: 50}";
    an_infinity_is_caught(&Setup::new("dense", "").with(&[dynamic]));
    an_infinity_is_caught(&Setup::gpt2("muon", "").with(&[dynamic, "--optimizer={type: Muon}"]));
    let routing = "expert_num: 5, num_experts_chosen: 2, capacity_factor: 1.2, routing_policy: TopkRouterV1, balance_via_topk_bias: True, \
                   topk_bias_update_rate: 0.01, enable_cold_hot_expert: True, hot_expert_num: 2, cold_token_percent: 0.5, \
                   update_step: 1";
    an_infinity_is_caught(&Setup::experts("mixture", routing, "").with(&[dynamic]));
}

/// The scales of a run are those of the reference for the steps that overflowed, and a resumed run goes on exactly.
#[test]
fn a_resumed_run_continues_the_scale_exactly() {
    let run = |stops: &[u64]| {
        let callbacks = "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 1000}]";
        let run = FolderRun::new(Setup::new("scaled", "").wide().with(&[ADAPTIVE, LARGE, callbacks]));
        stops.iter().for_each(|&stop| {
            run.train(stop);
        });
        let mut left = run.left();
        // The norm of an overflow is not finite, so it is null in the file and NaN here, which equals nothing.
        left.metrics.iter_mut().filter(|step| step.overflow).for_each(|step| step.global_norm = 0.0);
        left
    };
    let want = run(&[40]);
    let mut scale = Adaptive::new(2f64.powi(64), 2.0, &[2, 3, 4, 5], 0);
    let mut overflows = 0;
    for step in &want.metrics {
        println!("step {}: scale {:e}, overflow {}", step.step, step.loss_scale, step.overflow);
        assert_eq!(step.loss_scale, scale.scale.scale, "step {}", step.step);
        scale.update(step.overflow);
        let shown = [step.loss_scale_window, step.loss_scale_increases, step.loss_scale_decreases];
        let want = [scale.scale.window, scale.increases, scale.decreases].map(|number| Some(number as u32));
        assert_eq!(shown, want, "step {}", step.step);
        assert_eq!(step.loss_scale_windows, (step.step == 1).then(|| vec![2, 3, 4, 5]), "step {}", step.step);
        overflows += u64::from(step.overflow);
    }
    assert!((4..30).contains(&overflows), "{overflows} steps of 40 overflowed");
    assert_eq!(want.metrics[39].global_step, 40 - overflows);
    let state: serde_json::Value =
        serde_json::from_slice(&want.checkpoint["trainer_state.json"]).expect("a state");
    assert_eq!(state["loss_scale"], scale.scale.scale);
    assert_eq!(state["scaler"]["step"], 41);
    run(&[7, 13, 26, 40]).assert_equals("a scale that adapts, four parts", &want);
}

#[test]
fn a_dynamic_scale_is_an_adaptive_one_while_the_window_does_not_change() {
    let train = |cell: &str| {
        let scale =
            format!("--runner_wrapper.scale_sense={{type: {cell}, loss_scale_value: 1024, scale_window: 2}}");
        Setup::new("cells", "").with(&[&scale]).train(5)
    };
    let dynamic = train("DynamicLossScaleUpdateCell");
    let adaptive = train("AdaptiveLossScaleUpdateCell, max_scale_window: 9, min_scale_window: 2");
    assert!(dynamic == adaptive, "the runs differ");
    let scales: Vec<f32> = dynamic.states.iter().map(|state| state.loss_scale).collect();
    assert_eq!(scales, [1024.0, 1024.0, 2048.0, 2048.0, 4096.0]);
    // Powers of two change no bit of what is learned.
    let fixed = Setup::new("cells", "").train(5);
    assert!(fixed.weights == dynamic.weights, "the scale changes the weights");
}

fn norms(trained: &Trained) -> Vec<f32> {
    trained.states.iter().map(|state| state.grad_norm).collect()
}

#[test]
fn steps_at_or_over_the_threshold_are_skipped() {
    let plain = Setup::new("spikes", "").wide().train(6);
    let third = norms(&plain)[2];
    let skip = |threshold: f64, steps| {
        let threshold = format!("--runner_wrapper.global_norm_spike_threshold={threshold}");
        let setup = Setup::new("spikes", "").wide();
        setup.with(&["--use_skip_data_by_global_norm=True", &threshold]).train(steps)
    };
    // At the threshold a step is skipped, too.
    let skipped = skip(third.into(), 6);
    let mut global_step = 0;
    for state in &skipped.states {
        let spikes = state.grad_norm >= third;
        assert_eq!(state.halt, if spikes { SKIPPED } else { 0 }, "norm {} of {third}", state.grad_norm);
        global_step += u32::from(!spikes);
        assert_eq!((state.global_step, state.is_overflow), (global_step, 0));
    }
    assert!((1..6).contains(&global_step), "{global_step} updates in 6 steps");
    let none = skip(1e-6, 2);
    assert_eq!(none.weights, Setup::new("spikes", "").wide().initial_weights(), "no step was made");
    let all = skip(1e6, 6);
    assert!(all.states == plain.states && all.weights == plain.weights, "a threshold that nothing reaches");
}

fn fails(run: &FolderRun, stop_step: u64) -> String {
    let config = run.setup.write(run.home.path());
    let arguments = run.arguments(stop_step);
    let ended = gristmill::train::run(&config, &arguments, Arc::default());
    let line = block_on(ended).expect_err("the run ends with an error").to_string();
    println!("{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

#[test]
fn too_many_spikes_in_a_row_end_the_run() {
    let skips = "--runner_wrapper={use_skip_data_by_global_norm: True, global_norm_spike_threshold: 1.e-6}";
    let run = FolderRun::new(
        Setup::new("spikes", "").with(&[skips, "--monitor_config.global_norm_spike_count_threshold=4"]),
    );
    let line = fails(&run, 20);
    assert!(line.starts_with("training stopped because steps 1 to 4 had a gradient norm of "), "{line}");
    let steps = metrics(&run.folder());
    assert!(steps.iter().all(|step| step.is_skip == Some(true) && step.global_step == 0), "{steps:?}");
}

/// The second step makes the weights so large that the loss of the third is not finite.
const DIVERGES: &str = "--lr_schedule={type: ConstantWarmUpLR, learning_rate: 1.e+16, warmup_steps: 2}";

#[test]
fn a_loss_that_is_not_finite_halts_the_run() {
    let setup = |name| Setup::new(name, "").with(&[DIVERGES, "--check_for_nan_in_loss_and_grad=True"]);
    let (two, five) = (setup("halts").train(2), setup("halts").train(5));
    let halts: Vec<u32> = five.states.iter().map(|state| state.halt).collect();
    assert_eq!(halts, [0, 0, HALTED, HALTED, HALTED]);
    assert!(five.states[2..].iter().all(|state| state.global_step == 2), "{:?}", five.states);
    assert!(two.weights == five.weights, "the weights of the bad step and later ones");

    let callbacks = "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 1}]";
    let run = FolderRun::new(setup("halts").with(&[callbacks]));
    let line = fails(&run, 60);
    assert!(line.starts_with("training stopped because the loss of step 3 is NaN and "), "{line}");
    assert!(line.contains("start again from the checkpoint of step 2 with load_checkpoint"), "{line}");
    assert_eq!(newest_checkpoint(&run.folder()).map(|(step, _)| step), Some(2));
}

#[test]
fn sums_of_squares_of_all_parameters_are_the_norm_squared() {
    let norms = "--runner_wrapper={local_norm: True, scale_sense: 1024.0}";
    let frozen = "--model.model_config.freeze=['layers.0.feed_forward']";
    let run = FolderRun::new(Setup::new("local norms", "").with(&[norms, frozen]));
    run.train(2);
    for step in metrics(&run.folder()) {
        let squares = step.local_norm.expect("the norms");
        let (sum, zeros) =
            (squares.iter().sum::<f32>(), squares.iter().filter(|square| **square == 0.0).count());
        let error = (sum.sqrt() - step.global_norm).abs() / step.global_norm;
        assert!(error <= 1e-5, "{sum} is not the square of {}", step.global_norm);
        assert_eq!(zeros, 2, "of the frozen ones: {squares:?}");
    }
    let plain = FolderRun::new(
        Setup::new("local norms", "").with(&["--runner_wrapper={scale_sense: 1024.0}", frozen]),
    );
    let without = metrics(&plain.train(2).folder());
    assert!(without.iter().all(|step| step.local_norm.is_none()));
    let losses = |run: &FolderRun| metrics(&run.folder()).iter().map(|step| step.loss).collect::<Vec<_>>();
    assert_eq!(losses(&run), losses(&plain));
}

#[test]
fn a_scale_that_no_run_can_have_is_refused() {
    let dynamic = "--runner_wrapper.scale_sense={type: DynamicLossScaleUpdateCell, loss_scale_value: 1024}";
    let callbacks = "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 1000}]";
    let run = FolderRun::new(Setup::new("damaged", "").with(&[dynamic, callbacks]));
    let (_, checkpoint) = newest_checkpoint(&run.train(2).folder()).expect("a checkpoint");
    let path = checkpoint.join("trainer_state.json");
    let state = std::fs::read_to_string(&path).expect("a state");
    std::fs::write(&path, state.replace("\"index\": 0", "\"index\": 1")).expect("a file");
    let line = fails(&run, 4);
    assert!(line.contains("is damaged: its loss scale cannot be at window 1 of 1; "), "{line}");
}

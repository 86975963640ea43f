//! Mixtures make nothing new once under way, indirect launches included, and take the memory that was foretold.

mod mixtures;
mod runs;

use gristmill::device::GpuCounters;
use gristmill::train::Trainer;
use gristmill::train::forecast::Forecast;
use mixtures::experts;
use pollster::block_on;
use runs::Setup;

const STEPS: u64 = 30;
const EVALUATION_AT: u64 = 12;
const CHECKPOINT_AT: u64 = 21;

/// What memory is foretold may be off by this much.
const ALLOWED: f64 = 0.05;

/// Grouped, and its products dispatched indirectly; with a shared expert and all that a step does for balance.
fn grouped() -> Setup {
    let routing = "expert_num: 6, num_experts_chosen: 2, use_gmm: True, balance_via_topk_bias: True, \
                   topk_bias_update_rate: 0.01, aux_loss_types: [expert], aux_loss_factors: [0.01], \
                   shared_expert_num: 1";
    experts("grouped", routing, "mtp_depth: 1, mtp_loss_factor: 0.3")
}

/// Slots that change from step to step.
fn slots() -> Setup {
    let routing = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.2, enable_cold_hot_expert: True, \
                   hot_expert_num: 2, cold_token_percent: 0.5, update_step: 100, routing_policy: TopkRouterV1";
    experts("slots", routing, "")
}

#[test]
fn nothing_is_made_after_the_second_step() {
    for setup in [grouped(), slots()] {
        let setup = setup.with(&["--train_dataset.eval_fraction=0.3"]);
        let (plan, data, length) = setup.data();
        let eval = data.eval.as_ref().expect("evaluation data");
        let gpu = setup.gpu();
        let folder = tempfile::tempdir().expect("a folder");
        let mut trainer = block_on(Trainer::new(&gpu, &plan, &length)).unwrap_or_else(|e| panic!("{e}"));
        let launches = &trainer.recordings().micro_step.dispatches;
        let indirect = launches.iter().filter(|launch| launch.arguments.is_some()).count();
        // Two products of each layer with experts, forward and back to the rows.
        let layers = trainer.recordings().experts.expect("experts").layers().len();
        assert_eq!(indirect, 4 * layers, "{}: indirect launches of {}", setup.name, launches.len());
        let mut at_start: Option<GpuCounters> = None;
        let mut finished = Vec::new();
        for step in 1..=STEPS {
            block_on(trainer.step(step, &data.train, 2 * (step - 1))).expect("a step");
            if step == EVALUATION_AT {
                let evaluation = trainer.evaluate(step, eval, eval.micro_steps_per_epoch(), |_| Ok(()));
                block_on(evaluation).expect("an evaluation");
            }
            if step == CHECKPOINT_AT {
                mixtures::save(&trainer, step, folder.path());
            }
            finished.extend(trainer.finished_steps().expect("states"));
            if step == 2 {
                // wgpu drops what is no longer used when it is polled.
                block_on(trainer.wait()).expect("the device");
                at_start = Some(gpu.counters());
            }
            if let Some(before) = at_start {
                assert_eq!(
                    gpu.counters(),
                    before,
                    "{}, step {step}: something was made or dropped",
                    setup.name
                );
            }
        }
        block_on(trainer.wait()).expect("the device");
        finished.extend(trainer.finished_steps().expect("states"));
        assert_eq!(finished.len() as u64, STEPS);
        assert!(finished.iter().all(|step| step.state.loss.is_finite() && step.mixture.is_some()));
        let before = at_start.expect("step 2 is done");
        println!(
            "{}, {indirect} indirect launches: after each of the steps 2 to {STEPS}: {before:?}",
            setup.name
        );
        assert!(before.pipelines > 10 && before.bind_groups > 50 && before.buffers > 10, "{before:?}");
    }
}

#[test]
fn the_memory_foretold_is_the_memory_taken() {
    let wide = ["--model.model_config.hidden_size=128", "--batch_size=5"];
    for setup in [grouped(), slots().with(&wide)] {
        let (plan, data, length) = setup.data();
        let gpu = setup.gpu();
        let before = gpu.counters().buffer_bytes;
        let mut trainer = block_on(Trainer::new(&gpu, &plan, &length)).unwrap_or_else(|e| panic!("{e}"));
        block_on(trainer.step(1, &data.train, 0)).expect("a step");
        block_on(trainer.wait()).expect("the device");
        let taken = (gpu.counters().buffer_bytes - before) as f64;
        let foretold = Forecast::new(trainer.recordings()).bytes();
        let error = (foretold as f64 - taken).abs() / taken;
        println!("{}: {foretold} foretold, {taken} taken, {:.2} % off", setup.name, 100.0 * error);
        assert!(error <= ALLOWED, "{}: {foretold} foretold, {taken} taken", setup.name);
    }
}

//! A mixture under a small binding limit, its experts in several buffers, is the mixture in one.

mod mixtures;
mod runs;

use gristmill::train::Trainer;
use mixtures::experts;
use pollster::block_on;
use runs::{Setup, Weights, relative_distance, tensors};

/// Losses and gradients must agree this closely: only the order of sums differs.
const ALLOWED: f64 = 1e-5;

const LIMIT: u64 = 1 << 20;

struct Step {
    losses: Vec<f32>,
    gradients: Weights,
    /// The segments of the largest arena.
    segments: usize,
}

/// Gradients of the first step, and the losses of four.
fn steps(setup: &Setup) -> Step {
    let (plan, data, length) = setup.data();
    let gpu = setup.gpu();
    let mut trainer = block_on(Trainer::new(&gpu, &plan, &length)).unwrap_or_else(|e| panic!("{e}"));
    block_on(trainer.micro_steps(&data.train, 0)).expect("gradients");
    let gradients = tensors(&trainer, |arenas| &arenas.gradients);
    let mut states = Vec::new();
    for step in 1..=4 {
        block_on(trainer.step(step, &data.train, 2 * (step - 1))).expect("a step");
        states.extend(trainer.finished_steps().expect("states"));
    }
    block_on(trainer.wait()).expect("the device");
    states.extend(trainer.finished_steps().expect("states"));
    let segments = trainer.recordings().layout.segments.len();
    Step { losses: states.iter().map(|finished| finished.state.loss).collect(), gradients, segments }
}

/// Gate and up of 8 experts are 8·2·300·64 elements, 1.2 MiB; both layers' experts are 3.5 MiB.
#[test]
fn a_binding_limit_of_one_mebibyte_changes_no_number() {
    for dispatch in ["use_gmm: True", "capacity_factor: 1.2"] {
        let setup = |limit| {
            let routing = format!("expert_num: 8, num_experts_chosen: 2, {dispatch}");
            let mut setup = experts("segments", &routing, "").with(&[
                "--model.model_config.hidden_size=64",
                "--moe_config.moe_intermediate_size=300",
                "--lr_schedule.warmup_steps=0",
            ]);
            setup.gpu_options.binding_bytes = limit;
            setup
        };
        let (whole, split) = (steps(&setup(None)), steps(&setup(Some(LIMIT))));
        assert!(split.segments > whole.segments, "{} segments under the limit", split.segments);
        let gradients = relative_distance(&split.gradients, &whole.gradients);
        println!("{dispatch}: {} segments, gradients off by {gradients:.1e}", split.segments);
        assert!(gradients <= ALLOWED, "{dispatch}: gradients differ by {gradients:.2e} in norm");
        assert_eq!((split.losses.len(), whole.losses.len()), (4, 4));
        for (step, (a, b)) in split.losses.iter().zip(&whole.losses).enumerate() {
            let loss = f64::from((a - b) / b).abs();
            assert!(loss <= ALLOWED, "{dispatch}: losses of step {}: {a} and {b}", step + 1);
        }
    }
}

//! Runs on several ranks against the run of one.

use crate::runs::{Setup, Trained, relative_distance};

/// Relative error allowed between a run on several ranks and that of one.
const ALLOWED: f64 = 1e-6;

/// Trains ten steps on `size` ranks and on one, which accumulates the micro-batches of all.
fn equals_one_rank(setup: &Setup, size: usize, shards: bool) {
    let plan = |rank| {
        let mut plan = setup.plan();
        plan.settings.runner.gradient_accumulation_steps = 4 / size;
        (plan.rank, plan.world, plan.shards_optimizer) = (rank, size, shards);
        plan
    };
    let mut alone = plan(0);
    (alone.world, alone.settings.runner.gradient_accumulation_steps) = (1, 4);
    let one = setup.train_plan(&alone, None, 10);
    for (rank, of_rank) in setup.train_on_ranks(size, 10, plan).iter().enumerate() {
        compare(setup.name, rank, of_rank, &one);
    }
}

fn compare(name: &str, rank: usize, got: &Trained, want: &Trained) {
    let relative = |got: f32, want: f32| (f64::from(got) - f64::from(want)).abs() / f64::from(want);
    for (step, (got, want)) in got.states.iter().zip(&want.states).enumerate() {
        let (loss, norm) = (relative(got.loss, want.loss), relative(got.grad_norm, want.grad_norm));
        println!(
            "{name}, rank {rank}, step {step}: loss {:.6}, {loss:.1e} apart; norm {norm:.1e} apart",
            got.loss
        );
        assert!(
            loss <= ALLOWED && norm <= 10.0 * ALLOWED,
            "{name}, rank {rank}, step {step}: {loss:e}, {norm:e}"
        );
    }
    let distance = relative_distance(&got.weights, &want.weights);
    println!("{name}, rank {rank}: weights {distance:.1e} apart");
    assert!(distance <= 10.0 * ALLOWED, "{name}, rank {rank}: the weights differ by {distance:e}");
}

#[test]
fn data_parallel_equals_one_rank() {
    equals_one_rank(&Setup::new("llama", ""), 2, false);
    equals_one_rank(&Setup::new("llama", ""), 4, false);
}

#[test]
fn sharded_optimizer_equals_one_rank() {
    equals_one_rank(&Setup::new("llama", ""), 2, true);
}

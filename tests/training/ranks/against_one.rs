//! Runs on several ranks against the run of one.

use crate::runs::{Setup, Trained, Weights, relative_distance};
use gristmill::ranks::Layout;
use gristmill::settings::{Sharded, Sharding};

/// Relative error allowed between a run on several ranks and that of one.
const ALLOWED: f64 = 1e-6;

/// Trains ten steps on `size` ranks and on one, which accumulates the micro-batches of all.
fn equals_one_rank(setup: &Setup, size: usize, expert: usize, sharding: Sharding) {
    let plan = |rank| {
        let mut plan = setup.plan();
        plan.settings.runner.gradient_accumulation_steps = 4 / size;
        plan.layout = Layout { rank, data: size, expert, ..Layout::one() };
        plan.sharding = sharding;
        plan
    };
    let mut alone = plan(0);
    (alone.layout, alone.sharding) = (Layout::one(), Sharding::NONE);
    alone.settings.runner.gradient_accumulation_steps = 4;
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
    let held = got.weights.keys();
    let want: Weights = held.map(|name| (name.clone(), want.weights[name].clone())).collect();
    let distance = relative_distance(&got.weights, &want);
    println!("{name}, rank {rank}: weights {distance:.1e} apart");
    assert!(distance <= 10.0 * ALLOWED, "{name}, rank {rank}: the weights differ by {distance:e}");
}

/// Moments and master weights on `ranks` ranks (ZeRO-1).
fn optimizer(ranks: usize) -> Sharding {
    Sharding { what: Sharded::Optimizer, ranks, gathers_again: false }
}

/// The gradients of a step too (ZeRO-2).
fn gradients(ranks: usize) -> Sharding {
    Sharding { what: Sharded::Gradients, ..optimizer(ranks) }
}

/// And the weights.
fn weights(ranks: usize) -> Sharding {
    Sharding { gathers_again: true, ..gradients(ranks) }
}

#[test]
fn data_parallel_equals_one_rank() {
    equals_one_rank(&Setup::new("llama", ""), 2, 1, Sharding::NONE);
    equals_one_rank(&Setup::new("llama", ""), 4, 1, Sharding::NONE);
}

#[test]
fn a_sharded_optimizer_equals_one_rank() {
    equals_one_rank(&Setup::new("llama", ""), 2, 1, optimizer(2));
    equals_one_rank(&Setup::new("llama", ""), 4, 1, optimizer(2));
}

#[test]
fn sharded_gradients_equal_one_rank() {
    equals_one_rank(&Setup::new("llama", ""), 2, 1, gradients(2));
    equals_one_rank(&Setup::new("llama", ""), 4, 1, gradients(2));
}

#[test]
fn weights_gathered_again_equal_one_rank() {
    equals_one_rank(&Setup::new("llama", ""), 2, 1, weights(2));
}

#[test]
fn spread_experts_equal_one_rank() {
    let dropless = Setup::experts("dropless", "expert_num: 4, num_experts_chosen: 2, use_gmm: True", "");
    equals_one_rank(&dropless, 2, 2, Sharding::NONE);
    equals_one_rank(&dropless, 4, 2, optimizer(4));
    let capacity = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.0, shared_expert_num: 1, \
                    aux_loss_types: [expert], aux_loss_factors: [0.01]";
    equals_one_rank(&Setup::experts("capacity", capacity, ""), 4, 4, Sharding::NONE);
}

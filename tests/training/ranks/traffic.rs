//! What is planned to be sent in a step is what a transport counts.

use crate::runs::{Counting, Setup};
use gristmill::ranks::{RankLayout, Ranks, Transport, in_process};
use gristmill::settings::{Sharded, Sharding};
use gristmill::train::Trainer;
use gristmill::train::forecast::{Traffic, TrafficKind, traffic};
use gristmill::train::length::RunLength;
use pollster::block_on;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Relative error allowed to the bytes of rows where routers decide how many there are.
const ALLOWED_OF_ROWS: f64 = 0.25;

/// For each rank, what is planned by kind and what the transport counts in the second step and in the third.
fn counted(setup: &Setup, layout: RankLayout, sharding: Sharding) -> Vec<(Vec<Traffic>, [u64; 2])> {
    let of_rank = |rank: usize, ranks: Ranks, sent: &AtomicU64| {
        let mut plan = setup.plan();
        plan.layout = RankLayout { rank, ..layout };
        plan.sharding = sharding;
        let data = plan.load_data().expect("data");
        let length = RunLength::new(&plan, data.train.steps_per_epoch());
        let gpu = setup.gpu();
        let mut trainer = block_on(Trainer::on_rank(&gpu, &plan, &length, ranks)).expect("a trainer");
        let accumulation = plan.settings.runner.gradient_accumulation_steps as u64;
        let mut counts = Vec::new();
        // The first step also makes the copies of the initial weights.
        for step in 1..=3 {
            let before = sent.load(Ordering::SeqCst);
            block_on(trainer.step(step, &data.train, (step - 1) * accumulation)).expect("a step");
            counts.push(sent.load(Ordering::SeqCst) - before);
        }
        block_on(trainer.wait()).expect("the device");
        (traffic(trainer.recordings(), accumulation), [counts[1], counts[2]])
    };
    std::thread::scope(|scope| {
        let ends = in_process::connect(layout.world()).into_iter().enumerate();
        let threads: Vec<_> = ends
            .map(|(rank, inner)| {
                let of_rank = &of_rank;
                scope.spawn(move || {
                    let sent = Arc::new(AtomicU64::new(0));
                    let counting = Counting::new(inner, sent.clone());
                    let ranks = Ranks::start(move || Ok(Box::new(counting) as Box<dyn Transport>));
                    of_rank(rank, ranks.expect("ranks"), &sent)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank that ends well")).collect()
    })
}

fn is_rows(traffic: &&Traffic) -> bool {
    matches!(traffic.kind, TrafficKind::RowsToExperts | TrafficKind::RowsFromExperts)
}

#[track_caller]
fn assert_exact(name: &str, setup: &Setup, size: usize, expert: usize, sharding: Sharding) {
    assert_exact_on(name, setup, RankLayout { data: size, expert, ..RankLayout::one() }, sharding);
}

#[track_caller]
fn assert_exact_on(name: &str, setup: &Setup, layout: RankLayout, sharding: Sharding) {
    let size = layout.world();
    for (rank, (planned, counted)) in counted(setup, layout, sharding).into_iter().enumerate() {
        let sum: u64 = planned.iter().map(|kind| kind.bytes).sum();
        println!("{name}, rank {rank} of {size}: planned {sum}, counted {counted:?}; {planned:?}");
        assert_eq!(counted, [sum; 2], "{name}, rank {rank} of {size}: {planned:?}");
    }
}

fn sharing(what: Sharded, ranks: usize) -> Sharding {
    Sharding { what, ranks, gathers_again: false }
}

#[test]
fn the_bytes_of_a_step_are_those_that_a_transport_counts() {
    let dense = Setup::new("dense", "");
    assert_exact("data", &dense, 2, 1, Sharding::NONE);
    assert_exact("data", &dense, 4, 1, Sharding::NONE);
    assert_exact("ZeRO-1", &dense, 4, 1, sharing(Sharded::Optimizer, 4));
    assert_exact("ZeRO-1 in blocks", &dense, 4, 1, sharing(Sharded::Optimizer, 2));
    assert_exact("ZeRO-2", &dense, 4, 1, sharing(Sharded::Gradients, 4));
    let again = Sharding { gathers_again: true, ..sharing(Sharded::Optimizer, 2) };
    assert_exact("weights gathered again", &dense, 2, 1, again);
    let half = Setup::new("half", "").with(&["--model.model_config.compute_dtype=bfloat16"]);
    let divided = RankLayout { data: 2, model: 2, ..RankLayout::one() };
    assert_exact_on("matrices", &dense, divided, Sharding::NONE);
    let all = RankLayout { shares_tokens: true, shares_vocabulary: true, ..divided };
    assert_exact_on("matrices and tokens", &dense, all, sharing(Sharded::Optimizer, 2));
    assert_exact("copies", &half, 2, 1, sharing(Sharded::Optimizer, 2));
    let capacity =
        Setup::experts("capacity", "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.0", "");
    assert_exact("capacities", &capacity, 4, 2, sharing(Sharded::Optimizer, 4));
}

/// How many rows go, routers decide: all else is exact.
#[test]
fn rows_of_experts_are_planned_as_if_chosen_equally_often() {
    let dropless = Setup::experts("dropless", "expert_num: 4, num_experts_chosen: 2, use_gmm: True", "");
    let ranks = counted(&dropless, RankLayout { data: 2, expert: 2, ..RankLayout::one() }, Sharding::NONE);
    let sum = |planned: &[Traffic], of_rows: bool| -> u64 {
        planned.iter().filter(|kind| is_rows(kind) == of_rows).map(|kind| kind.bytes).sum()
    };
    let others: u64 = ranks.iter().map(|(planned, _)| sum(planned, false)).sum();
    let rows: u64 = ranks.iter().map(|(planned, _)| sum(planned, true)).sum();
    let counted: u64 = ranks.iter().map(|(_, counted)| counted[1]).sum();
    let error = (counted - others) as f64 / rows as f64 - 1.0;
    println!("rows: planned {rows}, counted {}, {:+.1} %", counted - others, 100.0 * error);
    assert!(error.abs() <= ALLOWED_OF_ROWS, "rows: planned {rows}, counted {}", counted - others);
}

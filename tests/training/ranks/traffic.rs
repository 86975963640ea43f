//! What is planned to be sent in a step is what a transport counts.

use crate::runs::{Setup, on_counting_ranks};
use gristmill::perf::forecast::{Traffic, TrafficKind, traffic};
use gristmill::ranks::{RankLayout, Ranks};
use gristmill::settings::{RunPlan, Sharded, Sharding};
use gristmill::train::Trainer;
use gristmill::train::length::RunLength;
use pollster::block_on;
use std::sync::atomic::{AtomicU64, Ordering};

/// Relative error allowed to the bytes of rows where routers decide how many there are.
const ALLOWED_OF_ROWS: f64 = 0.25;

/// The same of ranks that share a batch.
fn counted(setup: &Setup, size: usize, expert: usize, sharding: Sharding) -> Vec<(Vec<Traffic>, [u64; 2])> {
    let plan = |rank| {
        let layout = RankLayout { rank, data: size, expert, ..RankLayout::one() };
        RunPlan { layout, sharding, ..setup.plan() }
    };
    counted_on(setup, size, &plan)
}

/// For each rank of a `plan`, what is planned by kind and what the transport counts in the second step and in the
/// third.
fn counted_on(
    setup: &Setup,
    size: usize,
    plan: &(dyn Fn(usize) -> RunPlan + Sync),
) -> Vec<(Vec<Traffic>, [u64; 2])> {
    let of_rank = |ranks: Ranks, sent: &AtomicU64| {
        let plan = plan(ranks.rank());
        let data = plan.load_data().expect("data");
        let length = RunLength::new(&plan, data.train.steps_per_epoch());
        let gpu = setup.gpu_for(&plan);
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
    on_counting_ranks(size, of_rank)
}

fn is_rows(traffic: &&Traffic) -> bool {
    matches!(traffic.kind, TrafficKind::RowsToExperts | TrafficKind::RowsFromExperts)
}

#[track_caller]
fn assert_exact(name: &str, setup: &Setup, size: usize, expert: usize, sharding: Sharding) {
    assert_counted(name, counted(setup, size, expert, sharding));
}

#[track_caller]
fn assert_counted(name: &str, ranks: Vec<(Vec<Traffic>, [u64; 2])>) {
    let size = ranks.len();
    for (rank, (planned, counted)) in ranks.into_iter().enumerate() {
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
    assert_exact("copies", &half, 2, 1, sharing(Sharded::Optimizer, 2));
    let capacity =
        Setup::experts("capacity", "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.0", "");
    assert_exact("capacities", &capacity, 4, 2, sharing(Sharded::Optimizer, 4));
}

/// Sums of products, rows of tokens, what is found in parts of a row of logits, gradients of what several ranks hold,
/// and the directions of Muon.
#[test]
fn the_bytes_of_divided_matrices_are_those_that_a_transport_counts() {
    let keys =
        ["--use_parallel=True", "--parallel_config.model_parallel=2", "--recompute_config.recompute=True"];
    let tokens = ["--parallel_config.use_seq_parallel=True", "--recompute_config.mp_comm_recompute=False"];
    let all = ["--parallel_config.vocab_emb_dp=False", "--parallel_config.data_parallel=2", tokens[0]];
    let slices = ["--recompute_config.recompute_slice_activation=True"];
    let stages = ["--parallel_config.pipeline_stage=2", "--parallel_config.micro_batch_num=2", tokens[0]];
    let muon = ["--optimizer={type: Muon}", "--parallel.enable_parallel_optimizer=True", all[1]];
    for (size, more) in
        [(2, &[][..]), (2, &tokens), (4, &all), (2, &slices), (4, &stages), (2, &muon[..1]), (4, &muon)]
    {
        let setup = Setup::new("divided", "n_kv_heads: 2").with(&keys).with(more);
        assert_counted(
            &format!("{more:?}"),
            counted_on(&setup, size, &|rank| setup.plan_on_rank(rank, size)),
        );
    }
}

/// Rows between stages, sums of what both ends hold, and the norm over all.
#[test]
fn the_bytes_of_stages_are_those_that_a_transport_counts() {
    let tied = "tie_word_embeddings: True, num_layers: 4, compute_dtype: bfloat16";
    let stages =
        ["--use_parallel=True", "--parallel_config.pipeline_stage=2", "--parallel_config.micro_batch_num=4"];
    let chunks =
        ["--parallel_config.pp_interleave_num=2", "--parallel.pipeline_config.pipeline_interleave=True"];
    let shared = ["--parallel_config.data_parallel=2", "--parallel.enable_parallel_optimizer=True"];
    for (size, keys) in [(2, &[][..]), (2, &chunks), (4, &shared)] {
        let setup = Setup::new("stages", tied).with(&stages).with(keys);
        assert_counted(
            &format!("{keys:?}"),
            counted_on(&setup, size, &|rank| setup.plan_on_rank(rank, size)),
        );
    }
}

/// How many rows go, routers decide: all else is exact.
#[test]
fn rows_of_experts_are_planned_as_if_chosen_equally_often() {
    let dropless = Setup::experts("dropless", "expert_num: 4, num_experts_chosen: 2, use_gmm: True", "");
    let ranks = counted(&dropless, 2, 2, Sharding::NONE);
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

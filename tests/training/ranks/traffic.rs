//! The rows of experts that a step is planned to send, and those that a transport counts. Everything else that ranks
//! send is compared exactly in `layouts.rs`.

use crate::runs::{Setup, on_counting_ranks};
use gristmill::perf::forecast::{Traffic, TrafficKind, traffic};
use gristmill::ranks::{RankLayout, Ranks};
use gristmill::settings::{RunPlan, Sharding};
use gristmill::train::Trainer;
use gristmill::train::length::RunLength;
use pollster::block_on;
use std::sync::atomic::{AtomicU64, Ordering};

/// Relative error allowed to the bytes of rows where routers decide how many there are.
const ALLOWED_OF_ROWS: f64 = 0.25;

/// For each of `size` ranks that spread experts over all, the traffic that is planned and the bytes that the transport
/// counts in the third step.
fn counted(setup: &Setup, size: usize) -> Vec<(Vec<Traffic>, u64)> {
    let of_rank = |ranks: Ranks, sent: &AtomicU64| {
        let layout = RankLayout { rank: ranks.rank(), data: size, expert: size, ..RankLayout::one() };
        let plan = RunPlan { layout, sharding: Sharding::NONE, ..setup.plan() };
        let data = plan.load_data().expect("data");
        let length = RunLength::new(&plan, data.train.steps_per_epoch());
        let gpu = setup.gpu_for(&plan);
        let mut trainer = block_on(Trainer::on_rank(&gpu, &plan, &length, ranks)).expect("a trainer");
        let accumulation = plan.settings.runner.gradient_accumulation_steps as u64;
        let mut before = 0;
        for step in 1..=3 {
            before = sent.load(Ordering::SeqCst);
            block_on(trainer.step(step, &data.train, (step - 1) * accumulation)).expect("a step");
        }
        block_on(trainer.wait()).expect("the device");
        (traffic(trainer.recordings(), accumulation), sent.load(Ordering::SeqCst) - before)
    };
    on_counting_ranks(size, of_rank)
}

fn is_rows(traffic: &&Traffic) -> bool {
    matches!(traffic.kind, TrafficKind::RowsToExperts | TrafficKind::RowsFromExperts)
}

/// How many rows go, routers decide: all else is exact.
#[test]
fn rows_of_experts_are_planned_as_if_chosen_equally_often() {
    let dropless = Setup::experts("dropless", "expert_num: 4, num_experts_chosen: 2, use_gmm: True", "");
    let ranks = counted(&dropless, 2);
    let sum = |planned: &[Traffic], of_rows: bool| -> u64 {
        planned.iter().filter(|kind| is_rows(kind) == of_rows).map(|kind| kind.bytes).sum()
    };
    let others: u64 = ranks.iter().map(|(planned, _)| sum(planned, false)).sum();
    let rows: u64 = ranks.iter().map(|(planned, _)| sum(planned, true)).sum();
    let counted: u64 = ranks.iter().map(|(_, counted)| counted).sum();
    let error = (counted - others) as f64 / rows as f64 - 1.0;
    println!("rows: planned {rows}, counted {}, {:+.1} %", counted - others, 100.0 * error);
    assert!(error.abs() <= ALLOWED_OF_ROWS, "rows: planned {rows}, counted {}", counted - others);
}

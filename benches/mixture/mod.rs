//! Benchmark rows of the mixture-of-experts kernels.

use super::row::{D, N, REPEATS, Work, gpu, is_wanted, prepare, replay, row};
use super::unfused;
use criterion::Criterion;
use gristmill::device::{Gpu, Job, PreparedJob};
use gristmill::element::Element::{F32, U32};
use gristmill::ops::balance::{Balance, BalanceGradient, balance};
use gristmill::ops::expert_scale;
use gristmill::ops::grouped_matmul::{
    grouped_matmul, grouped_matmul_backward, grouped_matmul_backward_weight,
};
use gristmill::ops::hot_copies::{HomeRange, Slots, hot_copies, hot_copies_backward};
use gristmill::ops::hot_experts::HotLast;
use gristmill::ops::matmul::{Epilogue, Layout, matmul};
use gristmill::ops::permute::{self, HotAndCold, Placement, PlacementConfig, RowAllocation};
use gristmill::ops::route::{
    ExpertGroups, GateNorm, GroupScore, RouterConfig, RouterOutput, Score, route, route_backward,
};
use gristmill::ops::row_gate;
use gristmill::ops::step_state::StepState;
use gristmill::ops::tally::tally_columns;
use gristmill::ops::work_list::WorkList;
use pollster::block_on;
use std::cell::Cell;
use std::time::Instant;

/// The rank of adapters.
const RANK: u32 = 16;

/// Grouped products of 1024 rows, 128 -> 256 columns, against plain products with the same number of FLOPs.
pub fn grouped(c: &mut Criterion) {
    let gpu = gpu();
    let (cols, out) = (D, 2 * D);
    let flops = || Work::Flops(2.0 * N as f64 * cols as f64 * out as f64);
    let balanced = |experts: u32| vec![N / experts; experts as usize];
    // Three fifths of the rows on one expert, the rest on the other seven.
    let crowded: Vec<u32> = [614, 59, 59, 59, 59, 58, 58, 58].into();
    let plain = |row: &mut Job| {
        let (x, w, y) = (row.tensor(N, cols, F32), row.tensor(out, cols, F32), row.tensor(N, out, F32));
        matmul(&mut row.rec, Layout::Nt, x, w, y, Epilogue::default());
        flops()
    };
    let plain_weight = |row: &mut Job| {
        let (x, dy, dw) = (row.tensor(N, cols, F32), row.tensor(N, out, F32), row.tensor(out, cols, F32));
        matmul(&mut row.rec, Layout::Tn, dy, x, dw, Epilogue { accumulate: true, ..Default::default() });
        flops()
    };
    let one_by_one = |experts: u32| {
        move |row: &mut Job| {
            let (x, y) = (row.tensor(N, cols, F32), row.tensor(N, out, F32));
            let stack = row.tensor(experts * out, cols, F32);
            let rows = N / experts;
            for expert in 0..experts {
                let (x, y) = (x.rows(expert * rows, rows), y.rows(expert * rows, rows));
                let w = stack.rows(expert * out, out);
                matmul(&mut row.rec, Layout::Nt, x, w, y, Epilogue::default());
            }
            flops()
        }
    };
    let of_size = |sizes: Vec<u32>, layout: Layout, [cols, out]: [u32; 2], accumulate: bool| {
        let experts = sizes.len() as u32;
        // One work list for all dispatches of the row, as for all products of a layer.
        let list: Cell<Option<WorkList>> = Cell::new(None);
        move |row: &mut Job| {
            let work = list.get().unwrap_or_else(|| {
                let ends = sizes.iter().scan(0, |sum, size| {
                    *sum += size;
                    Some(*sum)
                });
                let offsets = row.integers(&[0].into_iter().chain(ends).collect::<Vec<u32>>());
                WorkList::new(&mut row.rec, offsets, N)
            });
            list.set(Some(work));
            let (x, y) = (row.tensor(N, cols, F32), row.tensor(N, out, F32));
            let stack = [row.tensor(experts * out, cols, F32)];
            match layout {
                Layout::Nt => {
                    let into = Epilogue { accumulate, ..Default::default() };
                    grouped_matmul(&mut row.rec, x, &stack, &work, y, into);
                }
                Layout::Nn => grouped_matmul_backward(&mut row.rec, y, &stack, &work, x, Epilogue::default()),
                Layout::Tn => grouped_matmul_backward_weight(&mut row.rec, y, x, &work, &stack),
            }
            Work::Flops(2.0 * N as f64 * cols as f64 * out as f64)
        }
    };
    let by_list = |sizes: Vec<u32>, layout: Layout| of_size(sizes, layout, [cols, out], false);
    // The products of adapters: with A, with B, which is added, and the gradients of both.
    let (a, b) = ([cols, RANK], [RANK, out]);
    row(c, &gpu, "grouped, plain matmul of as many FLOPs", plain);
    row(c, &gpu, "grouped, 8 experts", by_list(balanced(8), Layout::Nt));
    row(c, &gpu, "grouped, 8 experts, 60 % of the rows on one", by_list(crowded.clone(), Layout::Nt));
    row(c, &gpu, "grouped, 8 experts, dx", by_list(balanced(8), Layout::Nn));
    row(c, &gpu, "grouped, plain dw of as many FLOPs", plain_weight);
    row(c, &gpu, "grouped, 8 experts, dw", by_list(balanced(8), Layout::Tn));
    row(c, &gpu, "grouped, 8 experts, A of an adapter", of_size(balanced(8), Layout::Nt, a, false));
    row(c, &gpu, "grouped, 8 experts, B of an adapter, added", of_size(balanced(8), Layout::Nt, b, true));
    row(c, &gpu, "grouped, 8 experts, dA of an adapter", of_size(balanced(8), Layout::Tn, a, true));
    row(c, &gpu, "grouped, 8 experts, dB of an adapter", of_size(balanced(8), Layout::Tn, b, true));
    row(c, &gpu, "grouped, 64 experts", by_list(balanced(64), Layout::Nt));
    row(c, &gpu, "grouped, 64 experts, one dispatch each", one_by_one(64));
    // The same cases, interleaved, so that other load on the machine affects all of them equally.
    if is_wanted(&gpu, "grouped, in turns") {
        let all = [
            ("plain", prepare(&gpu, plain)),
            ("8 experts", prepare(&gpu, by_list(balanced(8), Layout::Nt))),
            ("8 experts, 60 % on one", prepare(&gpu, by_list(crowded.clone(), Layout::Nt))),
            ("8 experts, dx", prepare(&gpu, by_list(balanced(8), Layout::Nn))),
            ("plain dw", prepare(&gpu, plain_weight)),
            ("8 experts, dw", prepare(&gpu, by_list(balanced(8), Layout::Tn))),
            ("8 experts, 60 % on one, dw", prepare(&gpu, by_list(crowded, Layout::Tn))),
            ("8 experts, A of an adapter", prepare(&gpu, of_size(balanced(8), Layout::Nt, a, false))),
            ("8 experts, B of an adapter", prepare(&gpu, of_size(balanced(8), Layout::Nt, b, true))),
            ("8 experts, dA of an adapter", prepare(&gpu, of_size(balanced(8), Layout::Tn, a, true))),
            ("8 experts, dB of an adapter", prepare(&gpu, of_size(balanced(8), Layout::Tn, b, true))),
            ("64 experts", prepare(&gpu, by_list(balanced(64), Layout::Nt))),
            ("64 dispatches", prepare(&gpu, one_by_one(64))),
        ];
        in_turns(&gpu, &all);
    }
}

/// Replays the cases in turn; prints the best and median time of each, and the median ratio to the first case of its
/// round.
fn in_turns(gpu: &Gpu, all: &[(&str, (PreparedJob<'_>, Work))]) {
    const ROUNDS: usize = 60;
    let rounds: Vec<Vec<f64>> = (0..ROUNDS)
        .map(|_| {
            let time = |(_, (ready, _)): &(&str, (PreparedJob<'_>, Work))| {
                let start = Instant::now();
                replay(ready);
                block_on(gpu.wait()).expect("the device works");
                start.elapsed().as_secs_f64() / f64::from(REPEATS)
            };
            all.iter().map(time).collect()
        })
        .collect();
    for (number, (name, _)) in all.iter().enumerate() {
        let sorted = |value: &dyn Fn(&Vec<f64>) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let (times, ratios) = (sorted(&|round| round[number]), sorted(&|round| round[number] / round[0]));
        println!(
            "in turns, {name}: best {:.3} ms, median {:.3} ms, {:.2} times the first",
            times[0] * 1e3,
            times[ROUNDS / 2] * 1e3,
            ratios[ROUNDS / 2]
        );
    }
}

/// The sort for three sizes, and permute and combine for N tokens that choose 2 of 8 experts.
pub fn permutations(c: &mut Criterion) {
    let gpu = gpu();
    for (tokens, chosen, experts) in [(N, 2, 8), (4096, 8, 256), (1 << 17, 8, 64)] {
        row(c, &gpu, &format!("place {tokens} x {chosen} of {experts}"), |row| {
            placed(row, tokens, chosen, experts);
            Work::Bytes(4.0 * 3.0 * f64::from(tokens * chosen))
        });
    }
    for (name, is_backward) in
        [("copies of 2 of 8 experts", false), ("copies of 2 of 8 experts, backward", true)]
    {
        row(c, &gpu, name, |row| copies(row, is_backward));
    }
    row(c, &gpu, "place, permute and combine, forward, fused", permute_and_combine);
    row(c, &gpu, "place, permute and combine, backward, fused", permute_and_combine_backward);
}

/// Permute and combine beside their compositions from simple kernels, on a device that has those.
pub fn compositions(c: &mut Criterion, gpu: &Gpu) {
    row(c, gpu, "place, permute and combine, forward, checked", permute_and_combine);
    row(c, gpu, "place, permute and combine, forward, composed", |row| {
        let placement = placed(row, N, 2, 8);
        let (x, y, gates) = (row.tensor(N, D, F32), row.tensor(N, D, F32), row.tensor(N, 2, F32));
        let rows = row.tensor(2 * N, D, F32);
        unfused::permute::permute(&mut row.rec, &placement, x, rows);
        unfused::permute::combine(&mut row.rec, &placement, rows, gates, Some(x), y);
        Work::Bytes(4.0 * 7.0 * f64::from(N * D))
    });
    row(c, gpu, "place, permute and combine, backward, checked", permute_and_combine_backward);
    row(c, gpu, "place, permute and combine, backward, composed", |row| {
        let placement = placed(row, N, 2, 8);
        let (dx, dy) = (row.tensor(N, D, F32), row.tensor(N, D, F32));
        let [gates, d_gates] = [0; 2].map(|_| row.tensor(N, 2, F32));
        let [rows, d_rows] = [0; 2].map(|_| row.tensor(2 * N, D, F32));
        let saved = permute::CombineSaved { rows, gates };
        unfused::permute::combine_backward(&mut row.rec, &placement, &saved, dy, d_rows, d_gates);
        unfused::permute::permute_backward(&mut row.rec, &placement, d_rows, dx, true);
        Work::Bytes(4.0 * 10.0 * f64::from(N * D))
    });
}

fn placed(row: &mut Job, tokens: u32, chosen: u32, experts: u32) -> Placement {
    let allocation = RowAllocation::Dropless { safe_tokens: false };
    let routes = PlacementConfig { tokens, chosen, experts, allocation };
    let ids: Vec<u32> =
        (0..routes.choices()).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) % experts).collect();
    let ids = row.integers(&ids);
    permute::place(&mut row.rec, &routes, ids, None)
}

/// Copies of matrices (2 D, D) of the first two of eight experts, or their gradients on the way back: read and written,
/// and read where they are added.
fn copies(row: &mut Job, is_backward: bool) -> Work {
    let two = HotAndCold { hot: 2, capacity: N, cold_capacity: N / 2 };
    let capacities = row.integers(&two.initial(8));
    let (stack, matrices) = (row.tensor(1, 8 * 2 * D * D, F32), row.tensor(2 * 2 * D, D, F32));
    let last = HotLast::new(&mut row.rec, capacities, &two);
    let home = HomeRange { elements: stack, start: 0, first_expert: 0 };
    let slots = Slots { matrices, first: 0, count: 2 };
    let moved = 4.0 * 2.0 * 2.0 * f64::from(D * D);
    if is_backward {
        hot_copies_backward(&mut row.rec, &slots, &last, &home);
        return Work::Bytes(3.0 * moved);
    }
    hot_copies(&mut row.rec, &home, &last, &slots);
    Work::Bytes(2.0 * moved)
}

fn permute_and_combine(row: &mut Job) -> Work {
    let placement = placed(row, N, 2, 8);
    let (x, y, gates) = (row.tensor(N, D, F32), row.tensor(N, D, F32), row.tensor(N, 2, F32));
    let rows = row.tensor(2 * N, D, F32);
    permute::permute(&mut row.rec, &placement, x, rows);
    permute::combine(&mut row.rec, &placement, rows, gates, Some(x), y);
    Work::Bytes(4.0 * 7.0 * f64::from(N * D))
}

fn permute_and_combine_backward(row: &mut Job) -> Work {
    let placement = placed(row, N, 2, 8);
    let (dx, dy) = (row.tensor(N, D, F32), row.tensor(N, D, F32));
    let [gates, d_gates] = [0; 2].map(|_| row.tensor(N, 2, F32));
    let [rows, d_rows] = [0; 2].map(|_| row.tensor(2 * N, D, F32));
    let saved = permute::CombineSaved { rows, gates };
    permute::combine_backward(&mut row.rec, &placement, &saved, dy, d_rows, d_gates);
    permute::permute_backward(&mut row.rec, &placement, d_rows, dx, true);
    Work::Bytes(4.0 * 10.0 * f64::from(N * D))
}

/// Tensors in place of the outputs of a router.
fn given(row: &mut Job, shape: &RouterConfig) -> RouterOutput {
    RouterOutput {
        ids: row.tensor(1, N * shape.chosen, U32),
        gates: row.tensor(N, shape.chosen, F32),
        scores: row.tensor(N, shape.experts, F32),
        statistics: row.tensor(N, 4, F32),
        unbiased: None,
    }
}

/// Routing and balance losses, for a small router and one as in DeepSeek-V3; and the gate of a shared expert.
pub fn routing(c: &mut Criterion) {
    let gpu = gpu();
    let small = RouterConfig {
        experts: 8,
        chosen: 2,
        score: Score::Softmax,
        groups: None,
        norm: Some(GateNorm::SUM),
        scaling: 1.0,
    };
    let limited = Some(ExpertGroups { count: 8, chosen: 4, score: GroupScore::BestTwo });
    let wide = RouterConfig { experts: 64, chosen: 8, score: Score::Sigmoid, groups: limited, ..small };
    let losses = Balance { expert: 0.01, sequence: 0.0, z: 0.001, tokens: 128, accumulation: 1 };
    let mixer = RouterConfig { experts: 16, score: Score::SparseMixer { jitter: 0.01 }, norm: None, ..small };
    for (name, shape, has_bias) in [
        ("2 of 8", small, false),
        ("8 of 64, sigmoid, groups, bias", wide, true),
        ("2 of 16, SparseMixer", mixer, false),
    ] {
        let bytes = |tensors: f64| Work::Bytes(4.0 * tensors * N as f64 * f64::from(shape.experts));
        row(c, &gpu, &format!("route {name}"), |row| {
            let (logits, bias) = (row.tensor(N, shape.experts, F32), row.tensor(1, shape.experts, F32));
            let routed = RouterOutput::new(&mut row.rec, &shape, N, false);
            route(&mut row.rec, &shape, logits, has_bias.then_some(bias), &routed);
            bytes(2.0)
        });
        row(c, &gpu, &format!("route {name}, backward with losses"), |row| {
            let [logits, d_logits] = [0; 2].map(|_| row.tensor(N, shape.experts, F32));
            let (step, d_gates) = (row.state(StepState::default()), row.tensor(N, shape.chosen, F32));
            let d_scores = Some(row.tensor(N / 128, shape.experts, F32));
            let routed = given(row, &shape);
            let gradient = BalanceGradient { balance: losses, d_scores, step };
            let (d_gates, losses) = (Some(d_gates), Some(&gradient));
            route_backward(&mut row.rec, &shape, &routed, logits, d_gates, losses, d_logits);
            bytes(2.0)
        });
        row(c, &gpu, &format!("balance losses {name}"), |row| {
            let routed = given(row, &shape);
            let tally = row.tensor(1, tally_columns(shape.experts), U32);
            balance(&mut row.rec, &shape, &losses, &routed, Some(tally));
            bytes(1.0)
        });
    }
    row(c, &gpu, "row_gate backward", |row| {
        let [x, dy, dx] = [0; 3].map(|_| row.tensor(N, D, F32));
        let [g, dg] = [0; 2].map(|_| row.tensor(N, 1, F32));
        row_gate::row_gate_backward(&mut row.rec, x, g, dy, dx, false, dg);
        Work::Bytes(4.0 * 3.0 * N as f64 * D as f64)
    });
    row(c, &gpu, "expert_scale gradient", |row| {
        let [gates, d_scaled] = [0; 2].map(|_| row.tensor(N, 8, F32));
        let ids = row.tensor(1, N * 8, U32);
        let d_scale = row.tensor(1, 128, F32);
        expert_scale::expert_scale_gradient(&mut row.rec, gates, ids, d_scaled, d_scale);
        Work::Bytes(4.0 * 128.0 * N as f64 * 8.0)
    });
}

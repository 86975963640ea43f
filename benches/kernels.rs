//! Kernel microbenchmarks: one row each, GFLOP/s or GB/s from closed formulas.
//!
//! `cargo bench --bench kernels [-- FILTER]`; `TIER=portable` forces a tier; `HISTORY=1` appends to benches/history.csv.
//! A row replays its recording, which holds the kernel REPEATS times, and divides: launching costs a software adapter
//! more than a small kernel does. Where a kernel is fused, the row below it is its composition from separate kernels.

mod common;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gristmill::device::{Buffers, Gpu, GpuOptions, Guard, Prepared};
use gristmill::element::Element::{self, Bf16, F32};
use gristmill::kernels::Tier;
use gristmill::ops::attention::{Attention, attention, attention_backward};
use gristmill::ops::balance::{Balance, BalanceGradient, balance};
use gristmill::ops::dropout::{Dropout, dropout};
use gristmill::ops::gelu::{self, Gelu};
use gristmill::ops::grad_norm::StepTensors;
use gristmill::ops::grouped_matmul::{
    grouped_matmul, grouped_matmul_backward, grouped_matmul_backward_weight,
};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::linear_cross_entropy::{LinearCrossEntropy, linear_cross_entropy};
use gristmill::ops::matmul::{Epilogue, Layout, matmul};
use gristmill::ops::permute::{self, Routes, Rule};
use gristmill::ops::rope::Rope;
use gristmill::ops::route::{GroupScore, Groups, Route, Routed, Score, route, route_backward};
use gristmill::ops::tally::tally_columns;
use gristmill::ops::work_list::WorkList;
use gristmill::ops::{
    adamw, add, decode, embedding, layer_norm, muon, rms_norm, rope, row_gate, swiglu, unfused,
};
use gristmill::record::{BufferId, Persistents, Recorder, Tensor};
use pollster::block_on;
use std::cell::Cell;
use std::time::{Duration, Instant};

const REPEATS: u32 = 8;

/// Tokens and width of the reference model of the comparison table: `256 128 4 4 384 128 8`.
const N: u32 = 1024;
const D: u32 = 128;
const F: u32 = 384;
const LAYOUT: HeadLayout = HeadLayout { heads: 4, kv_heads: 4, head_dim: 32, value_dim: 32 };

/// What one launch of a row does.
enum Work {
    /// Floating-point operations.
    Flops(f64),
    /// Bytes read and written, each once.
    Bytes(f64),
}

/// A row being set up: tensors and the recording they are used in.
struct Row {
    persistents: Persistents,
    contents: Vec<(Tensor, Vec<u32>)>,
    rec: Recorder,
}

impl Row {
    fn tensor(&mut self, rows: u32, cols: u32, element: Element) -> Tensor {
        self.persistents.tensor("bench", rows, cols, element)
    }

    fn integers(&mut self, values: &[u32]) -> Tensor {
        let tensor = self.tensor(1, values.len() as u32, F32);
        self.contents.push((tensor, values.to_vec()));
        tensor
    }
}

struct Ready {
    prepared: Prepared,
    _buffers: Buffers,
}

fn gpu() -> Gpu {
    let tier = std::env::var("TIER").ok().map(|name| Tier::named(&name).expect("TIER names a tier"));
    let options = GpuOptions { tier, ..GpuOptions::default() };
    block_on(Gpu::request(&options)).unwrap_or_else(|error| panic!("{error}"))
}

/// Whether the command line's filter, if it is plain text, leaves this row in: others are not even compiled.
fn is_wanted(gpu: &Gpu, name: &str) -> bool {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let name = format!("{name}/{}", gpu.capabilities().tier.name());
    filter.is_none_or(|filter| filter.contains(['^', '$', '*', '[', '(', '|']) || name.contains(&filter))
}

/// Records `build` REPEATS times and prepares it.
fn prepare(gpu: &Gpu, build: impl Fn(&mut Row) -> Work) -> (Ready, Work) {
    let (persistents, contents) = (Persistents::new(), Vec::new());
    let mut row = Row { persistents, contents, rec: Recorder::new("bench", gpu.capabilities()) };
    let mut work = Work::Bytes(0.0);
    for _ in 0..REPEATS {
        work = build(&mut row);
    }
    let buffers = block_on(gpu.make_persistent(&row.persistents)).expect("buffers");
    for (tensor, values) in &row.contents {
        let BufferId::Persistent(id) = tensor.buffer else { continue };
        gpu.write(&buffers, id, 0, bytemuck::cast_slice(values));
    }
    let recording = row.rec.finish();
    let prepared = block_on(gpu.prepare(&[&recording], &buffers, Guard::Off)).expect("a recording");
    (Ready { prepared, _buffers: buffers }, work)
}

fn replay(gpu: &Gpu, ready: &Ready) {
    let mut encoder = gpu.encoder();
    block_on(encoder.replay(&ready.prepared.programs[0])).expect("the device works");
    block_on(encoder.submit()).expect("the device works");
}

fn row(c: &mut Criterion, gpu: &Gpu, name: &str, build: impl Fn(&mut Row) -> Work) {
    if !is_wanted(gpu, name) {
        return;
    }
    let (ready, work) = prepare(gpu, build);
    let mut best = Duration::MAX;
    let mut group = c.benchmark_group(name);
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    group.throughput(match work {
        Work::Flops(flops) => Throughput::Elements(flops as u64),
        Work::Bytes(bytes) => Throughput::Bytes(bytes as u64),
    });
    group.bench_function(gpu.capabilities().tier.name(), |bencher| {
        bencher.iter_custom(|iterations| {
            let rounds = iterations.div_ceil(REPEATS as u64);
            let start = Instant::now();
            for _ in 0..rounds {
                replay(gpu, &ready);
            }
            block_on(gpu.wait()).expect("the device works");
            let one = start.elapsed().div_f64((rounds * REPEATS as u64) as f64);
            best = best.min(one);
            one.mul_f64(iterations as f64)
        });
    });
    group.finish();
    if best < Duration::MAX {
        let (rate, unit) = match work {
            Work::Flops(flops) => (flops / best.as_secs_f64() / 1e9, "GFLOP/s"),
            Work::Bytes(bytes) => (bytes / best.as_secs_f64() / 1e9, "GB/s"),
        };
        println!("{name}: best {:.3} ms, {rate:.2} {unit}", best.as_secs_f64() * 1e3);
        common::append_history(gpu, name, unit, rate);
    }
}

fn products(c: &mut Criterion) {
    let gpu = gpu();
    for element in [F32, Bf16] {
        for (layout, m, n, k) in [
            (Layout::Nt, 512, 512, 512),
            (Layout::Nt, N, 2 * F, D),
            (Layout::Nn, N, D, 2 * F),
            (Layout::Tn, 2 * F, D, N),
        ] {
            row(c, &gpu, &format!("matmul {layout:?} {m}x{n}x{k} {}", element.name()), |row| {
                let (a, b) = match layout {
                    Layout::Nt => (row.tensor(m, k, element), row.tensor(n, k, element)),
                    Layout::Nn => (row.tensor(m, k, element), row.tensor(k, n, element)),
                    Layout::Tn => (row.tensor(k, m, element), row.tensor(k, n, element)),
                };
                let y = row.tensor(m, n, element);
                matmul(&mut row.rec, layout, a, b, y, Epilogue::default());
                Work::Flops(2.0 * m as f64 * n as f64 * k as f64)
            });
        }
    }
    let flops = 2.0 * N as f64 * D as f64 * D as f64;
    row(c, &gpu, "matmul + residual, fused", |row| {
        let (x, w, r, y) =
            (row.tensor(N, D, F32), row.tensor(D, D, F32), row.tensor(N, D, F32), row.tensor(N, D, F32));
        let epilogue = Epilogue { residual: Some(r), ..Default::default() };
        matmul(&mut row.rec, Layout::Nt, x, w, y, epilogue);
        Work::Flops(flops)
    });
    row(c, &gpu, "matmul + residual, composed", |row| {
        let (x, w, r, y) =
            (row.tensor(N, D, F32), row.tensor(D, D, F32), row.tensor(N, D, F32), row.tensor(N, D, F32));
        matmul(&mut row.rec, Layout::Nt, x, w, y, Epilogue::default());
        add::add(&mut row.rec, r, y, 1.0, true);
        Work::Flops(flops)
    });
}

/// Rows of a mixture of experts, 1024 of them, 128 -> 256: grouped against plain products of as many FLOPs.
fn grouped(c: &mut Criterion) {
    let gpu = gpu();
    let (cols, out) = (D, 2 * D);
    let flops = || Work::Flops(2.0 * N as f64 * cols as f64 * out as f64);
    let balanced = |experts: u32| vec![N / experts; experts as usize];
    // Three fifths of the rows on one expert, the rest on the other seven.
    let crowded: Vec<u32> = [614, 59, 59, 59, 59, 58, 58, 58].into();
    let plain = |row: &mut Row| {
        let (x, w, y) = (row.tensor(N, cols, F32), row.tensor(out, cols, F32), row.tensor(N, out, F32));
        matmul(&mut row.rec, Layout::Nt, x, w, y, Epilogue::default());
        flops()
    };
    let plain_weight = |row: &mut Row| {
        let (x, dy, dw) = (row.tensor(N, cols, F32), row.tensor(N, out, F32), row.tensor(out, cols, F32));
        matmul(&mut row.rec, Layout::Tn, dy, x, dw, Epilogue { accumulate: true, ..Default::default() });
        flops()
    };
    let one_by_one = |experts: u32| {
        move |row: &mut Row| {
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
    let by_list = |sizes: Vec<u32>, layout: Layout| {
        let experts = sizes.len() as u32;
        // A layer's products share one list, and so do the launches of a row.
        let list: Cell<Option<WorkList>> = Cell::new(None);
        move |row: &mut Row| {
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
                Layout::Nt => grouped_matmul(&mut row.rec, x, &stack, &work, y),
                Layout::Nn => grouped_matmul_backward(&mut row.rec, y, &stack, &work, x, false),
                Layout::Tn => grouped_matmul_backward_weight(&mut row.rec, y, x, &work, &stack),
            }
            flops()
        }
    };
    row(c, &gpu, "grouped, plain matmul of as many FLOPs", plain);
    row(c, &gpu, "grouped, 8 experts", by_list(balanced(8), Layout::Nt));
    row(c, &gpu, "grouped, 8 experts, 60 % of the rows on one", by_list(crowded.clone(), Layout::Nt));
    row(c, &gpu, "grouped, 8 experts, dx", by_list(balanced(8), Layout::Nn));
    row(c, &gpu, "grouped, plain dw of as many FLOPs", plain_weight);
    row(c, &gpu, "grouped, 8 experts, dw", by_list(balanced(8), Layout::Tn));
    row(c, &gpu, "grouped, 64 experts", by_list(balanced(64), Layout::Nt));
    row(c, &gpu, "grouped, 64 experts, one dispatch each", one_by_one(64));
    // The same rows in turns, so that what else the machine does slows all of them alike.
    if is_wanted(&gpu, "grouped, in turns") {
        let all = [
            ("plain", prepare(&gpu, plain)),
            ("8 experts", prepare(&gpu, by_list(balanced(8), Layout::Nt))),
            ("8 experts, 60 % on one", prepare(&gpu, by_list(crowded.clone(), Layout::Nt))),
            ("8 experts, dx", prepare(&gpu, by_list(balanced(8), Layout::Nn))),
            ("plain dw", prepare(&gpu, plain_weight)),
            ("8 experts, dw", prepare(&gpu, by_list(balanced(8), Layout::Tn))),
            ("8 experts, 60 % on one, dw", prepare(&gpu, by_list(crowded, Layout::Tn))),
            ("64 experts", prepare(&gpu, by_list(balanced(64), Layout::Nt))),
            ("64 dispatches", prepare(&gpu, one_by_one(64))),
        ];
        in_turns(&gpu, &all);
    }
}

/// Replays each in turn and prints its best and median time, and the median of its ratio to the first one's beside it.
fn in_turns(gpu: &Gpu, all: &[(&str, (Ready, Work))]) {
    const ROUNDS: usize = 60;
    let rounds: Vec<Vec<f64>> = (0..ROUNDS)
        .map(|_| {
            let time = |(_, (ready, _)): &(&str, (Ready, Work))| {
                let start = Instant::now();
                replay(gpu, ready);
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

fn elementwise(c: &mut Criterion) {
    let gpu = gpu();
    let bytes = |tensors: f64, cols: u32| Work::Bytes(4.0 * tensors * N as f64 * cols as f64);
    row(c, &gpu, "rms_norm", |row| {
        let (x, w, y, rstd) =
            (row.tensor(N, D, F32), row.tensor(1, D, F32), row.tensor(N, D, F32), row.tensor(1, N, F32));
        rms_norm::rms_norm(&mut row.rec, x, w, y, rstd, 1e-5);
        bytes(2.0, D)
    });
    row(c, &gpu, "rms_norm backward onto a residual, fused", |row| {
        let saved = rms_norm::Saved {
            x: row.tensor(N, D, F32),
            w: row.tensor(1, D, F32),
            rstd: row.tensor(1, N, F32),
        };
        let (dy, dx) = (row.tensor(N, D, F32), row.tensor(N, D, F32));
        rms_norm::rms_norm_backward(&mut row.rec, &saved, dy, dx, true);
        bytes(4.0, D)
    });
    row(c, &gpu, "rms_norm backward onto a residual, composed", |row| {
        let saved = rms_norm::Saved {
            x: row.tensor(N, D, F32),
            w: row.tensor(1, D, F32),
            rstd: row.tensor(1, N, F32),
        };
        let (dy, dx, sum) = (row.tensor(N, D, F32), row.tensor(N, D, F32), row.tensor(N, D, F32));
        rms_norm::rms_norm_backward(&mut row.rec, &saved, dy, dx, false);
        add::add(&mut row.rec, dx, sum, 1.0, true);
        bytes(4.0, D)
    });
    row(c, &gpu, "layer_norm", |row| {
        let saved = layer_norm_saved(row);
        let (b, y) = (row.tensor(1, D, F32), row.tensor(N, D, F32));
        layer_norm::layer_norm(&mut row.rec, &saved, b, y, 1e-5);
        bytes(2.0, D)
    });
    row(c, &gpu, "layer_norm backward onto a residual, fused", |row| {
        let saved = layer_norm_saved(row);
        let (dy, dx) = (row.tensor(N, D, F32), row.tensor(N, D, F32));
        layer_norm::layer_norm_backward(&mut row.rec, &saved, dy, dx, true);
        bytes(4.0, D)
    });
    row(c, &gpu, "layer_norm backward onto a residual, composed", |row| {
        let saved = layer_norm_saved(row);
        let (dy, dx, sum) = (row.tensor(N, D, F32), row.tensor(N, D, F32), row.tensor(N, D, F32));
        layer_norm::layer_norm_backward(&mut row.rec, &saved, dy, dx, false);
        add::add(&mut row.rec, dx, sum, 1.0, true);
        bytes(4.0, D)
    });
    row(c, &gpu, "layer_norm backward of weight and bias", |row| {
        let saved = layer_norm_saved(row);
        let (dy, dw, db) = (row.tensor(N, D, F32), row.tensor(1, D, F32), row.tensor(1, D, F32));
        layer_norm::layer_norm_backward_weight(&mut row.rec, &saved, dy, dw, db);
        bytes(2.0, D)
    });
    for (name, kind) in [("gelu, exact", Gelu::Exact), ("gelu, tanh", Gelu::Tanh)] {
        row(c, &gpu, name, |row| {
            let (x, y) = (row.tensor(N, F, F32), row.tensor(N, F, F32));
            gelu::gelu(&mut row.rec, x, y, kind);
            bytes(2.0, F)
        });
        row(c, &gpu, &format!("{name}, backward"), |row| {
            let (x, dy, dx) = (row.tensor(N, F, F32), row.tensor(N, F, F32), row.tensor(N, F, F32));
            gelu::gelu_backward(&mut row.rec, x, dy, dx, kind);
            bytes(3.0, F)
        });
    }
    row(c, &gpu, "rope, q and k", |row| {
        let (qkv, positions) = (row.tensor(N, LAYOUT.cols(), F32), row.tensor(1, N, F32));
        let cos_sin = row.tensor(128, 32, F32);
        let settings = Rope { rotary_dim: 32, theta: 10000.0, is_interleaved: false };
        rope::rope(&mut row.rec, qkv, positions, LAYOUT, &settings, cos_sin);
        bytes(2.0, 2 * D)
    });
    row(c, &gpu, "rope, q and k, composed", |row| {
        let [x, y] = [0; 2].map(|_| row.tensor(N, 2 * D, F32));
        let [cos, sin] = [0; 2].map(|_| row.tensor(128, 32, F32));
        unfused::rope(&mut row.rec, x, cos, sin, 32, y);
        bytes(2.0, 2 * D)
    });
    row(c, &gpu, "swiglu", |row| {
        let (gate_up, y) = (row.tensor(N, 2 * F, F32), row.tensor(N, F, F32));
        swiglu::swiglu(&mut row.rec, gate_up, y);
        bytes(3.0, F)
    });
    row(c, &gpu, "swiglu, composed", |row| {
        let (gate_up, y) = (row.tensor(N, 2 * F, F32), row.tensor(N, F, F32));
        unfused::swiglu(&mut row.rec, gate_up, y);
        bytes(3.0, F)
    });
    row(c, &gpu, "swiglu backward", |row| {
        let (gate_up, dy, gradient) =
            (row.tensor(N, 2 * F, F32), row.tensor(N, F, F32), row.tensor(N, 2 * F, F32));
        swiglu::swiglu_backward(&mut row.rec, gate_up, dy, gradient);
        bytes(5.0, F)
    });
    row(c, &gpu, "embedding", |row| {
        let (ids, table, y) = (row.tensor(1, N, F32), row.tensor(256, D, F32), row.tensor(N, D, F32));
        embedding::embedding(&mut row.rec, ids, &[table], y);
        bytes(2.0, D)
    });
    row(c, &gpu, "dropout", |row| {
        let (x, y, state) = (row.tensor(N, D, F32), row.tensor(N, D, F32), row.tensor(1, 4, F32));
        let place = Dropout { probability: 0.1, seed: 1, op: 0, state };
        dropout(&mut row.rec, x, None, y, false, &place);
        bytes(2.0, D)
    });
    row(c, &gpu, "adamw, 1 Mi parameters", |row| {
        let [weights, gradients, first_moments, second_moments] = [0; 4].map(|_| row.tensor(1, 1 << 20, F32));
        let segment = adamw::Segment { weights, gradients, first_moments, second_moments };
        let [state, loss, schedule] = [12, 8, 4].map(|cols| row.tensor(1, cols, F32));
        let settings = adamw::AdamW {
            decay: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            corrects_epsilon: false,
            rate_column: 0,
        };
        adamw::adamw(&mut row.rec, &segment, &StepTensors { state, loss, schedule }, &settings);
        Work::Bytes(4.0 * 7.0 * (1 << 20) as f64)
    });
    row(c, &gpu, "muon 128 x 384, 5 steps", |row| {
        let [weights, gradients, moments] = [0; 3].map(|_| row.tensor(D, F, F32));
        let [state, loss, schedule] = [12, 8, 4].map(|cols| row.tensor(1, cols, F32));
        let settings =
            muon::Muon { momentum: 0.95, is_nesterov: true, steps: 5, rms: 0.2, decay: 0.1, rate_column: 0 };
        let matrix = muon::Matrix { weights, gradients, moments };
        muon::muon(&mut row.rec, &matrix, &StepTensors { state, loss, schedule }, &settings);
        // A step is three products: of x with itself, of the result with itself, of the polynomial with x.
        let (short, long) = (D as f64, F as f64);
        Work::Flops(5.0 * 2.0 * short * short * (2.0 * long + short))
    });
}

fn layer_norm_saved(row: &mut Row) -> layer_norm::Saved {
    let [mean, rstd] = [0; 2].map(|_| row.tensor(1, N, F32));
    layer_norm::Saved { x: row.tensor(N, D, F32), w: row.tensor(1, D, F32), mean, rstd }
}

fn attentions(c: &mut Criterion) {
    let gpu = gpu();
    for (tokens, window, dropped) in
        [(128, None, 0.0), (1024, None, 0.0), (1024, Some(128), 0.0), (1024, None, 0.1)]
    {
        let shape = Attention { layout: LAYOUT, tokens, is_causal: true, scale: 0.18, window, dropout: None };
        // Two products of head_dim per query, key and head; query i of T sees min(i, window) keys.
        let keys = f64::from(window.unwrap_or(tokens));
        let product = 2.0 * 128.0 * N as f64 * (keys - keys * (keys - 1.0) / (2.0 * f64::from(tokens)));
        let with_mask = |row: &mut Row| {
            let place = Dropout { probability: dropped, seed: 1, op: 0, state: row.tensor(1, 4, F32) };
            Attention { dropout: (dropped > 0.0).then_some(place), ..shape }
        };
        let mut name = format!("T={tokens}");
        name += &window.map_or(String::new(), |window| format!(" window={window}"));
        name += if dropped > 0.0 { " dropout" } else { "" };
        row(c, &gpu, &format!("attention {name}"), |row| {
            let (qkv, y, lse) =
                (row.tensor(N, LAYOUT.cols(), F32), row.tensor(N, D, F32), row.tensor(N, 4, F32));
            let shape = with_mask(row);
            attention(&mut row.rec, qkv, y, lse, None, &shape);
            Work::Flops(2.0 * product)
        });
        if window.is_none() && dropped == 0.0 {
            row(c, &gpu, &format!("attention {name}, composed"), |row| {
                let (qkv, y) = (row.tensor(N, LAYOUT.cols(), F32), row.tensor(N, D, F32));
                unfused::attention(&mut row.rec, qkv, y, &shape);
                Work::Flops(2.0 * product)
            });
        }
        row(c, &gpu, &format!("attention backward {name}"), |row| {
            let (qkv, y, dy) =
                (row.tensor(N, LAYOUT.cols(), F32), row.tensor(N, D, F32), row.tensor(N, D, F32));
            let (lse, dqkv) = (row.tensor(N, 4, F32), row.tensor(N, LAYOUT.cols(), F32));
            let shape = with_mask(row);
            attention_backward(&mut row.rec, qkv, y, dy, lse, dqkv, None, &shape);
            Work::Flops(5.0 * product)
        });
    }
}

fn decoding(c: &mut Criterion) {
    let gpu = gpu();
    for (sequences, tokens) in [(1, 1024), (8, 1024)] {
        let shape = decode::Decode { layout: LAYOUT, tokens, scale: 0.18, window: None };
        row(c, &gpu, &format!("decode B={sequences} T={tokens}"), |row| {
            let (qkv, y) = (row.tensor(sequences, LAYOUT.cols(), F32), row.tensor(sequences, D, F32));
            let cache = row.tensor(sequences * tokens, shape.cache_cols(), F32);
            let positions = row.integers(&vec![tokens - 1; sequences as usize]);
            decode::decode(&mut row.rec, qkv, positions, cache, y, &shape);
            Work::Bytes(4.0 * (sequences * tokens * shape.cache_cols()) as f64)
        });
    }
}

/// N tokens choose 2 of 8 experts; the last row is the sort alone where there is much to sort.
fn permutations(c: &mut Criterion) {
    let gpu = gpu();
    let routes = |tokens, chosen, experts, is_fused| {
        let rule = Rule::Dropless { safe_tokens: false };
        Routes { tokens, chosen, experts, rule, is_fused }
    };
    let placed = |row: &mut Row, routes: Routes| {
        let ids: Vec<u32> =
            (0..routes.choices()).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) % routes.experts).collect();
        let ids = row.integers(&ids);
        permute::place(&mut row.rec, &routes, ids, None)
    };
    for (tokens, chosen, experts) in [(N, 2, 8), (4096, 8, 256), (1 << 17, 8, 64)] {
        row(c, &gpu, &format!("place {tokens} x {chosen} of {experts}"), |row| {
            placed(row, routes(tokens, chosen, experts, true));
            Work::Bytes(4.0 * 3.0 * f64::from(tokens * chosen))
        });
    }
    for (is_fused, name) in [(true, "fused"), (false, "composed")] {
        row(c, &gpu, &format!("place, permute and combine, forward, {name}"), |row| {
            let placement = placed(row, routes(N, 2, 8, is_fused));
            let (x, y, gates) = (row.tensor(N, D, F32), row.tensor(N, D, F32), row.tensor(N, 2, F32));
            let rows = row.tensor(2 * N, D, F32);
            permute::permute(&mut row.rec, &placement, x, rows);
            permute::combine(&mut row.rec, &placement, rows, gates, Some(x), y);
            Work::Bytes(4.0 * 7.0 * f64::from(N * D))
        });
        row(c, &gpu, &format!("place, permute and combine, backward, {name}"), |row| {
            let placement = placed(row, routes(N, 2, 8, is_fused));
            let (dx, dy) = (row.tensor(N, D, F32), row.tensor(N, D, F32));
            let [gates, d_gates] = [0; 2].map(|_| row.tensor(N, 2, F32));
            let [rows, d_rows] = [0; 2].map(|_| row.tensor(2 * N, D, F32));
            let saved = permute::Saved { rows, gates };
            permute::combine_backward(&mut row.rec, &placement, &saved, dy, d_rows, d_gates);
            permute::permute_backward(&mut row.rec, &placement, d_rows, dx, true);
            Work::Bytes(4.0 * 10.0 * f64::from(N * D))
        });
    }
}

fn losses(c: &mut Criterion) {
    let gpu = gpu();
    for vocab in [256, 8192] {
        row(c, &gpu, &format!("linear_cross_entropy V={vocab}"), |row| {
            let (h, head, dh) = (row.tensor(N, D, F32), row.tensor(vocab, D, F32), row.tensor(N, D, F32));
            let dhead = row.tensor(vocab, D, F32);
            let (targets, step, loss) =
                (row.tensor(1, N, F32), row.tensor(1, 12, F32), row.tensor(1, 8, F32));
            let op = LinearCrossEntropy {
                h,
                head: &[head],
                targets,
                ignore: u32::MAX,
                step,
                loss,
                accumulation: 1,
            };
            linear_cross_entropy(&mut row.rec, &op, dh, Some(&[dhead]));
            Work::Flops(6.0 * N as f64 * D as f64 * vocab as f64)
        });
    }
}

/// A small router and one of DeepSeek-V3's kind.
fn routing(c: &mut Criterion) {
    let gpu = gpu();
    let small =
        Route { experts: 8, chosen: 2, score: Score::Softmax, groups: None, norm_top_k: true, scaling: 1.0 };
    let limited = Some(Groups { count: 8, chosen: 4, score: GroupScore::BestTwo });
    let wide = Route { experts: 64, chosen: 8, score: Score::Sigmoid, groups: limited, ..small };
    let losses = Balance { expert: 0.01, sequence: 0.0, z: 0.001, tokens: 128, accumulation: 1 };
    for (name, shape, has_bias) in [("2 of 8", small, false), ("8 of 64, sigmoid, groups, bias", wide, true)]
    {
        let bytes = |tensors: f64| Work::Bytes(4.0 * tensors * N as f64 * f64::from(shape.experts));
        row(c, &gpu, &format!("route {name}"), |row| {
            let (logits, bias) = (row.tensor(N, shape.experts, F32), row.tensor(1, shape.experts, F32));
            let routed = Routed::new(&mut row.rec, &shape, N, false);
            route(&mut row.rec, &shape, logits, has_bias.then_some(bias), &routed);
            bytes(2.0)
        });
        row(c, &gpu, &format!("route {name}, backward with losses"), |row| {
            let [logits, d_logits] = [0; 2].map(|_| row.tensor(N, shape.experts, F32));
            let (step, d_gates) = (row.tensor(1, 12, F32), row.tensor(N, shape.chosen, F32));
            let pull = Some(row.tensor(N / 128, shape.experts, F32));
            let routed = Routed {
                ids: row.tensor(1, N * shape.chosen, F32),
                gates: row.tensor(N, shape.chosen, F32),
                scores: row.tensor(N, shape.experts, F32),
                statistics: row.tensor(N, 4, F32),
                unbiased: None,
            };
            let gradient = BalanceGradient { balance: losses, pull, step };
            let (given, losses) = (Some(d_gates), Some(&gradient));
            route_backward(&mut row.rec, &shape, &routed, logits, given, losses, d_logits);
            bytes(2.0)
        });
        row(c, &gpu, &format!("balance losses {name}"), |row| {
            let routed = Routed {
                ids: row.tensor(1, N * shape.chosen, F32),
                gates: row.tensor(N, shape.chosen, F32),
                scores: row.tensor(N, shape.experts, F32),
                statistics: row.tensor(N, 4, F32),
                unbiased: None,
            };
            let tally = row.tensor(1, tally_columns(shape.experts), F32);
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
}

criterion_group!(benches, products, elementwise, attentions, decoding, losses, routing);
criterion_group!(benches, products, elementwise, attentions, decoding, permutations, losses);
criterion_group!(benches, products, grouped, elementwise, attentions, decoding, losses);
criterion_main!(benches);

//! Grouped products in the middle of a graph: an expert's whole feed-forward network against a loop over experts, rows
//! of zeros, frozen stacks, stacks over the binding limit, and replay.

use crate::grouped::starts;
use crate::lab::{Bits, Case, allowed, check, sum};
use crate::packed::split_gate_up;
use ::reference::grouped_matmul as reference;
use ::reference::swiglu;
use gristmill::device::{Gpu, GpuOptions, Guard};
use gristmill::element::Element::{F32, U32};
use gristmill::element::stride_of;
use gristmill::model::arena::{Arena, ArenaLayout};
use gristmill::model::parameters::{Gpt, Role, Spec};
use gristmill::ops::add::add;
use gristmill::ops::grouped_matmul::{grouped_matmul, grouped_matmul_backward_weight};
use gristmill::ops::matmul::Epilogue;
use gristmill::ops::swiglu::{Gate, gate_up_cols};
use gristmill::ops::work_list::WorkList;
use gristmill::record::{Persistents, Recorder, Tensor};
use gristmill::settings::RunConfig;
use gristmill::tape::{Parameter, Tape};
use pollster::block_on;
use std::path::Path;

/// The parameter that is resized to a stack of experts.
const STACK: &str = "layers.0.attention.wo";

/// Rows of each expert.
const SIZES: [usize; 5] = [3, 0, 17, 1, 12];
/// Width.
const D: usize = 20;
/// Inner width.
const F: usize = 13;

/// The results of the experts' networks, forward and backward.
struct Layers {
    y: Tensor,
    dx: Tensor,
    d_gate_up: Tensor,
    d_down: Tensor,
}

/// The operands of a case, without rows of zeros.
struct Numbers {
    x: Vec<f64>,
    dy: Vec<f64>,
    dx0: Vec<f64>,
    gate_up: Vec<f64>,
    down: Vec<f64>,
    d_gate_up: Vec<f64>,
    d_down: Vec<f64>,
}

impl Numbers {
    fn new(case: &mut Case) -> Self {
        let rows: usize = SIZES.iter().sum();
        let wide = gate_up_cols(F as u32) as usize;
        let mut normal =
            |count: usize| -> Vec<f64> { (0..count).map(|_| (case.normal() as f32) as f64).collect() };
        let (x, dy, dx0) = (normal(rows * D), normal(rows * D), normal(rows * D));
        let (mut gate_up, down) = (normal(SIZES.len() * wide * D), normal(SIZES.len() * D * F));
        for (row, values) in gate_up.chunks_mut(D).enumerate() {
            if row % (wide / 2) >= F {
                values.fill(0.0); // the pads of gate and up
            }
        }
        let (d_gate_up, d_down) = (normal(gate_up.len()), normal(down.len()));
        Self { x, dy, dx0, gate_up, down, d_gate_up, d_down }
    }

    /// The rows of `values`, each group followed by `zeros` rows of zeros.
    fn with_zeros(values: &[f64], zeros: usize) -> Vec<f64> {
        let mut rows = values.chunks(D);
        let mut all = Vec::new();
        for size in SIZES {
            all.extend(rows.by_ref().take(size).flatten());
            all.resize(all.len() + zeros * D, 0.0);
        }
        all
    }

    /// Records the networks, forward and backward, with `zeros` rows of zeros at the end of each group.
    fn record(&self, case: &mut Case, zeros: usize) -> Layers {
        let starts = starts(&SIZES.map(|size| (size + zeros) as u32));
        let rows = starts[SIZES.len()];
        let offsets = case.integers(&starts);
        let input = |case: &mut Case, values: &[f64]| {
            case.input_of(&Self::with_zeros(values, zeros), rows, D as u32, F32).tensor
        };
        let (x, dy, dx0) = (input(case, &self.x), input(case, &self.dy), input(case, &self.dx0));
        let parameter = |case: &mut Case, weight: &[f64], gradient: &[f64], cols: usize| {
            let rows = (weight.len() / cols) as u32;
            let [weight, gradient] =
                [weight, gradient].map(|values| case.input_of(values, rows, cols as u32, F32).tensor);
            Parameter { weight: vec![weight], gradient: Some(vec![gradient]) }
        };
        let gate_up = parameter(case, &self.gate_up, &self.d_gate_up, D);
        let down = parameter(case, &self.down, &self.d_down, F);
        let (y_out, dx_out) = (case.output(rows, D as u32, F32), case.output(rows, D as u32, F32));
        let mut tape = Tape::new(&mut case.rec);
        let work = WorkList::new(tape.rec, offsets, rows);
        let leaf = tape.leaf(x, true);
        tape.give(leaf, dx0);
        let both = tape.grouped_linear(leaf, &gate_up, None, &work);
        let inner = tape.swiglu(both, F as u32, Gate::Silu);
        let y = tape.grouped_linear(inner, &down, None, &work);
        add(tape.rec, y.tensor, y_out, 1.0, false);
        tape.give(y, dy);
        tape.backward();
        let dx = tape.gradient(leaf).expect("x needs a gradient");
        add(tape.rec, dx, dx_out, 1.0, false);
        let gradient = |parameter: &Parameter| parameter.gradient().expect("it trains");
        Layers { y: y_out, dx: dx_out, d_gate_up: gradient(&gate_up), d_down: gradient(&down) }
    }
}

#[test]
fn an_expert_s_network_is_a_loop_over_experts() {
    check("grouped gate_up, swiglu, down", |case| {
        let numbers = Numbers::new(case);
        let layers = numbers.record(case, 0);
        let wide = gate_up_cols(F as u32) as usize;
        let starts: Vec<usize> =
            starts(&SIZES.map(|size| size as u32)).into_iter().map(|start| start as usize).collect();

        let both = reference::grouped_matmul(&numbers.x, &numbers.gate_up, &starts, wide, D);
        let [gate, up] = split_gate_up(&both, F as u32);
        let inner = swiglu::swiglu(&gate, &up);
        let y = reference::grouped_matmul(&inner, &numbers.down, &starts, D, F);
        let (d_inner, d_down) =
            reference::grouped_matmul_backward(&inner, &numbers.down, &starts, &numbers.dy, D, F);
        let (d_gate, d_up) = swiglu::swiglu_backward(&gate, &up, &d_inner);
        let mut d_both = vec![0.0; both.len()];
        for (row, values) in d_both.chunks_mut(wide).enumerate() {
            values[..F].copy_from_slice(&d_gate[row * F..][..F]);
            values[wide / 2..wide / 2 + F].copy_from_slice(&d_up[row * F..][..F]);
        }
        let (dx, d_gate_up) =
            reference::grouped_matmul_backward(&numbers.x, &numbers.gate_up, &starts, &d_both, wide, D);

        // The products of the chain, one after the other.
        let allowed = 4.0 * allowed(F32, (2 * D + wide + F) as u32 + 17);
        case.expect("y", layers.y, y, allowed);
        case.expect("dx", layers.dx, sum(&dx, &numbers.dx0), allowed);
        case.expect("d_gate_up", layers.d_gate_up, sum(&d_gate_up, &numbers.d_gate_up), allowed);
        case.expect("d_down", layers.d_down, sum(&d_down, &numbers.d_down), allowed);
    });
}

/// A row of zeros at the end of each group changes no bit of the results.
#[test]
fn rows_of_zeros_change_nothing() {
    check("grouped with a row of zeros an expert", |case| {
        let numbers = Numbers::new(case);
        let bits = Bits::default();
        for zeros in [0, 1] {
            let Layers { y, dx, d_gate_up, d_down } = numbers.record(case, zeros);
            for (name, rows) in [("y", y), ("dx", dx)] {
                bits.expect_part(case, name, rows, move |words| without_zeros(words, zeros));
            }
            bits.expect(case, "d_gate_up", d_gate_up);
            bits.expect(case, "d_down", d_down);
        }
    });
}

/// The words of all rows except the rows of zeros, which must be zero.
fn without_zeros(words: &[u32], zeros: usize) -> Vec<u32> {
    let mut rows = words.chunks(stride_of(D as u32) as usize);
    let mut kept = Vec::new();
    for size in SIZES {
        kept.extend(rows.by_ref().take(size).flatten());
        let of_zeros: Vec<u32> = rows.by_ref().take(zeros).flatten().copied().collect();
        assert!(of_zeros.iter().all(|&word| word == 0), "a row of zeros became {of_zeros:?}");
    }
    kept
}

/// Rows of which the last go to other matrices than the first, each part in its place of one result.
#[test]
fn rows_that_part_are_joined_again() {
    check("grouped, in two parts", |case| {
        let (x, dy) = (case.input(9, 8, F32), case.input(9, 12, F32));
        let stacks = [2, 1].map(|experts| case.input(experts * 12, 8, F32));
        let gradients = [2, 1].map(|experts| case.input(experts * 12, 8, F32));
        let offsets = [&[0u32, 2, 5][..], &[0, 4]].map(|offsets| case.integers(offsets));
        let (y_out, dx_out) = (case.output(9, 12, F32), case.output(9, 8, F32));
        let parameters = [0, 1]
            .map(|i| Parameter { weight: vec![stacks[i].tensor], gradient: Some(vec![gradients[i].tensor]) });
        let mut tape = Tape::new(&mut case.rec);
        let work = [(0, 5), (1, 4)].map(|(i, rows): (usize, u32)| WorkList::new(tape.rec, offsets[i], rows));
        let leaf = tape.leaf(x.tensor, true);
        let [first, second] = tape.split_rows(leaf, 5);
        let whole = tape.rec.tensor("y", 9, 12, F32);
        let second =
            tape.grouped_linear_part(second, &parameters[1], None, true, &work[1], Some(whole.rows(5, 4)));
        let first =
            tape.grouped_linear_part(first, &parameters[0], None, true, &work[0], Some(whole.rows(0, 5)));
        let y = tape.join_rows(whole, [first, second]);
        add(tape.rec, y.tensor, y_out, 1.0, false);
        tape.give(y, dy.tensor);
        tape.backward();
        let dx = tape.gradient(leaf).expect("x needs a gradient");
        add(tape.rec, dx, dx_out, 1.0, false);

        let all = [&stacks[0].values[..], &stacks[1].values].concat();
        let starts = [0, 2, 5, 9];
        let want = reference::grouped_matmul(&x.values, &all, &starts, 12, 8);
        let (dx, d_all) = reference::grouped_matmul_backward(&x.values, &all, &starts, &dy.values, 12, 8);
        case.expect("y", y_out, want, allowed(F32, 8));
        case.expect("dx", dx_out, dx, allowed(F32, 12));
        for (i, part) in [&d_all[..2 * 96], &d_all[2 * 96..]].into_iter().enumerate() {
            let want = sum(part, &gradients[i].values);
            case.expect(&format!("gradient {i}"), gradients[i].tensor, want, allowed(F32, 6));
        }
    });
}

#[test]
fn a_frozen_stack_gets_no_gradient() {
    check("grouped, frozen", |case| {
        let offsets = case.integers(&[0, 5, 9]);
        let (x, stack, dy) = (case.input(9, 8, F32), case.input(2 * 12, 8, F32), case.input(9, 12, F32));
        let want =
            reference::grouped_matmul_backward(&x.values, &stack.values, &[0, 5, 9], &dy.values, 12, 8).0;
        let out = case.output(9, 8, F32);
        let frozen = Parameter { weight: vec![stack.tensor], gradient: None };
        let mut tape = Tape::new(&mut case.rec);
        let work = WorkList::new(tape.rec, offsets, 9);
        let leaf = tape.leaf(x.tensor, true);
        let y = tape.grouped_linear(leaf, &frozen, None, &work);
        tape.give(y, dy.tensor);
        tape.backward();
        let dx = tape.gradient(leaf).expect("x needs a gradient");
        add(tape.rec, dx, out, 1.0, false);
        case.expect("dx", out, want, allowed(F32, 12));
    });
}

const MODEL: &str = "
model: { model_config: { vocab_size: 40, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 8, seq_length: 8 } }
train_dataset: { data_loader: { type: CargoRegistryDataLoader } }
lr_schedule: { learning_rate: 1.0e-3 }
";

/// Eight experts of (201, 256); five of them fit into a binding of 1 MiB.
#[test]
fn a_stack_over_the_binding_limit_is_split_between_experts() {
    const EXPERTS: usize = 8;
    let (out, cols) = (201, 256);
    let config = RunConfig::parse(MODEL, Path::new("model.yaml"), &[]).expect("a configuration");
    let model = config.plan.model;
    let starts: Vec<u32> = vec![0, 9, 9, 26, 30, 31, 33, 50, 58];
    let offsets_usize: Vec<usize> = starts.iter().map(|&start| start as usize).collect();
    check("grouped under 1 MiB a binding", |case| {
        let capabilities = case.rec.capabilities().with_binding_bytes(1 << 20);
        case.rec = Recorder::new("case", capabilities);
        let layout = |role| {
            let resize = |spec: Spec| match spec.path == STACK {
                true => Spec { role, rows: EXPERTS * out, cols, ..spec },
                false => spec,
            };
            ArenaLayout::new(Gpt::describe(&model).into_iter().map(resize).collect(), &capabilities.limits)
        };
        assert!(layout(Role::Matrix).is_err(), "a stack that may not be split was accepted");
        let layout = layout(Role::ExpertStack { experts: EXPERTS }).expect("it fits in parts");
        let (_, places) = layout.find(STACK);
        assert_eq!(places.iter().map(|part| part.rows).collect::<Vec<_>>(), [5 * out, 3 * out]);

        let values: Vec<f64> =
            (0..EXPERTS * out * cols).map(|_| (0.1 * case.normal() as f32) as f64).collect();
        let arenas = case.persistent(
            |persistents| ["weights", "gradients"].map(|name| layout.arena(persistents, name, |_| Some(F32))),
            |[weights, _]| (whole(weights, &layout, places[0].segment), segment(&layout, 0, &values)),
        );
        let second = whole(&arenas[0], &layout, places[1].segment);
        case.persistent(|_| (), |_| (second, segment(&layout, 1, &values)));
        let stack = &layout.parameter(STACK, &arenas[0], Some(&arenas[1]));
        assert_eq!(stack.weight.len(), 2);

        let offsets = case.integers(&starts);
        let (x, dy) = (case.input(58, cols as u32, F32), case.input(58, out as u32, F32));
        let want = reference::grouped_matmul(&x.values, &values, &offsets_usize, out, cols);
        let (want_dx, want_dw) =
            reference::grouped_matmul_backward(&x.values, &values, &offsets_usize, &dy.values, out, cols);
        let (y_out, dx_out) = (case.output(58, out as u32, F32), case.output(58, cols as u32, F32));
        let mut tape = Tape::new(&mut case.rec);
        let work = WorkList::new(tape.rec, offsets, 58);
        let leaf = tape.leaf(x.tensor, true);
        let y = tape.grouped_linear(leaf, stack, None, &work);
        add(tape.rec, y.tensor, y_out, 1.0, false);
        tape.give(y, dy.tensor);
        tape.backward();
        let dx = tape.gradient(leaf).expect("x needs a gradient");
        add(tape.rec, dx, dx_out, 1.0, false);
        case.expect("y", y_out, want, allowed(F32, cols as u32));
        case.expect("dx", dx_out, want_dx, allowed(F32, out as u32));
        let gradients = stack.gradient.clone().expect("it trains");
        let mut first = 0;
        for part in gradients {
            let copy = case.output(part.rows, part.cols, F32);
            add(&mut case.rec, part, copy, 1.0, false);
            let count = (part.rows * part.cols) as usize;
            case.expect("dw", copy, want_dw[first..first + count].to_vec(), allowed(F32, 17));
            first += count;
        }
    });
}

/// A whole segment as one flat row.
fn whole(arena: &Arena, layout: &ArenaLayout, segment: usize) -> Tensor {
    arena.range(segment, 0..layout.segments[segment].elements)
}

/// A segment that holds the values of one part of the stack.
fn segment(layout: &ArenaLayout, part: usize, values: &[f64]) -> Vec<f32> {
    let (spec, places) = layout.find(STACK);
    let place = &places[part];
    let mut all = vec![0.0; layout.segments[place.segment].elements as usize];
    for (at, value) in all[place.offset as usize..].iter_mut().zip(&values[place.first_row * spec.cols..]) {
        *at = *value as f32;
    }
    all
}

/// Replay creates nothing, and the buffer of a grid lives until the last launch that reads it.
#[test]
fn an_indirect_launch_replays() {
    let gpu = block_on(Gpu::request(&GpuOptions::default())).unwrap_or_else(|e| panic!("{e}"));
    let mut persistents = Persistents::new();
    let offsets = persistents.tensor("offsets", 1, 3, U32);
    let mut tensor = |rows, cols| persistents.tensor("x", rows, cols, F32);
    let (x, stack, y, gradient) = (tensor(50, 8), tensor(24, 8), tensor(50, 12), tensor(24, 8));
    let mut rec = Recorder::new("case", gpu.capabilities());
    let work = WorkList::new(&mut rec, offsets, 50);
    grouped_matmul(&mut rec, x, &[stack], &work, y, Epilogue::default());
    grouped_matmul_backward_weight(&mut rec, y, x, &work, &[gradient]);
    let recording = rec.finish();
    let lifetimes: Vec<_> =
        recording.transients.iter().map(|t| (t.label.as_str(), t.first, t.last)).collect();
    assert_eq!(lifetimes, [("tiles", 0, 1), ("grids", 0, 1)]);
    let listing = recording.listing();
    let lines: Vec<&str> = listing.lines().collect();
    assert!(lines[1].contains("at most [1, ") && !lines[0].contains("at most"), "{listing}");

    let buffers = block_on(gpu.make_persistent(&persistents)).expect("buffers");
    let prepared = block_on(gpu.prepare(&[&recording], &buffers, Guard::Off)).expect("a recording");
    let replay = || {
        let mut encoder = gpu.encoder();
        block_on(encoder.replay(&prepared.programs[0])).expect("a replay");
        block_on(encoder.submit()).expect("a submission");
        block_on(gpu.wait()).expect("the device");
        gpu.counters()
    };
    let before = replay(); // with no rows at all: the offsets are zero
    assert_eq!([replay(), replay()], [before; 2], "replay creates or drops objects");
}

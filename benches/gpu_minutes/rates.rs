//! Products over shapes, types and splits, and attention over lengths.

use super::Context;
use gristmill::device::Job;
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::kernels::{Capabilities, Units};
use gristmill::ops::attention::{Attention, AttentionTensors, attention, attention_backward};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::matmul::{Epilogue, Layout, Problem, matmul, plan};
use gristmill::record::Tensor;

/// Layout, rows, columns and length of the sums.
type Shape = (Layout, u32, u32, u32);

/// Squares, and GPT-2's with 4,096 tokens: forward, gradients of inputs, and those of weights.
const SHAPES: [Shape; 8] = [
    (Layout::Nt, 1024, 1024, 1024),
    (Layout::Nt, 4096, 4096, 4096),
    (Layout::Nt, 4096, 2304, 768),
    (Layout::Nt, 4096, 768, 3072),
    (Layout::Nn, 4096, 768, 2304),
    (Layout::Nn, 1024, 768, 50304),
    (Layout::Tn, 2304, 768, 4096),
    (Layout::Tn, 768, 768, 4096),
];

const SMALL_SHAPES: [Shape; 3] =
    [(Layout::Nt, 72, 130, 40), (Layout::Nn, 64, 68, 72), (Layout::Tn, 40, 36, 1032)];

/// Numbers of units for which products are divided beside the GPU's own.
const OTHER_UNITS: [u32; 3] = [1, 64, 512];

pub fn products(context: &Context) {
    let shapes: &[Shape] = if context.is_small { &SMALL_SHAPES } else { &SHAPES };
    let capabilities = context.gpu.capabilities();
    for element in [F32, F16, Bf16] {
        for shape in shapes {
            product(context, *shape, element, capabilities);
        }
    }
    println!("the same, divided for other units than {}", capabilities.units.count);
    for shape in shapes {
        for count in OTHER_UNITS {
            let units = Units { count, ..capabilities.units };
            product(context, *shape, F32, capabilities.with_units(units));
        }
    }
}

/// A whole number from -2 to 2.
fn number(i: u32) -> f32 {
    (i.wrapping_mul(2_654_435_761) >> 16) as f32 % 5.0 - 2.0
}

/// Prints the rate of a product, some of whose results are compared with sums on the host.
fn product(context: &Context, (layout, m, n, k): Shape, element: Element, capabilities: Capabilities) {
    let mut job = Job::new("product", capabilities);
    let [(a_rows, a_cols), (b_rows, b_cols)] = match layout {
        Layout::Nt => [(m, k), (n, k)],
        Layout::Nn => [(m, k), (k, n)],
        Layout::Tn => [(k, m), (k, n)],
    };
    let numbers = |rows: u32, cols: u32| (0..rows * cols).map(number).collect::<Vec<f32>>();
    let (a_values, b_values) = (numbers(a_rows, a_cols), numbers(b_rows, b_cols));
    let a = job.input_of(&a_values, a_rows, a_cols, element);
    let b = job.input_of(&b_values, b_rows, b_cols, element);
    let y = job.tensor(m, n, element);
    matmul(&mut job.rec, layout, a, b, y, Epilogue::default());
    let (seconds, values) = context.time(job, &[y]);
    let at = |values: &[f32], cols: u32, row: u32, col: u32| f64::from(values[(row * cols + col) as usize]);
    for (row, col) in [(0, 0), (0, n - 1), (m - 1, 0), (m - 1, n - 1), (m / 3, n / 2)] {
        let term = |i: u32| {
            let a = if layout == Layout::Tn { at(&a_values, m, i, row) } else { at(&a_values, k, row, i) };
            a * if layout == Layout::Nt { at(&b_values, k, col, i) } else { at(&b_values, n, i, col) }
        };
        let want: f64 = (0..k).map(term).sum();
        let got = at(&values[0], n, row, col);
        let allowed = if element == F32 { 0.0 } else { want.abs() / 128.0 };
        assert!((got - want).abs() <= allowed, "{layout:?} {m}x{n}x{k}: {got} at {row}, {col}, not {want}");
    }
    let flops = 2.0 * f64::from(m) * f64::from(n) * f64::from(k) / seconds;
    let plan = plan(Problem { layout, m, n, k }, element, capabilities);
    let of_peak = if element == F32 { context.of_peak(flops) } else { String::new() };
    println!(
        "{layout:?} {m}x{n}x{k} {}: {:.3} ms, {:.3} TFLOP/s{of_peak}, grid {:?}, {} units",
        element.name(),
        1e3 * seconds,
        flops / 1e12,
        plan.grid,
        capabilities.units.count
    );
}

/// Heads of one sequence, as GPT-2 has them.
const LAYOUT: HeadLayout = HeadLayout { heads: 12, kv_heads: 12, head_dim: 64, value_dim: 64 };

pub fn attentions(context: &Context) {
    let lengths: &[u32] = if context.is_small { &[96, 192] } else { &[512, 1024, 2048, 4096, 8192] };
    let layout = match context.is_small || context.gpu.report().is_software {
        true => HeadLayout { heads: 1, kv_heads: 1, ..LAYOUT },
        false => LAYOUT,
    };
    println!("causal, f32, one sequence, {} heads of {}", layout.heads, layout.head_dim);
    println!("tokens  forward ms  GFLOP/s  backward ms  GFLOP/s  MiB of buffers");
    for tokens in lengths {
        attention_of(context, *tokens, layout);
    }
}

fn attention_of(context: &Context, tokens: u32, layout: HeadLayout) {
    let shape = Attention {
        layout,
        tokens,
        is_causal: true,
        scale: 0.125,
        soft_cap: None,
        window: None,
        has_alibi: false,
        head_range: None,
        dropout: None,
    };
    let before = context.gpu.counters().buffer_bytes;
    let mut job = context.job();
    let values: Vec<f32> = (0..tokens * layout.cols()).map(|i| 0.5 * number(i)).collect();
    let qkv = job.input(&values, tokens, layout.cols());
    let (out, lse) = (job.output(tokens, layout.out_cols()), job.output(tokens, layout.heads));
    let (dout, dqkv) = (
        job.input(&vec![1.0; (tokens * layout.out_cols()) as usize], tokens, layout.out_cols()),
        job.output(tokens, layout.cols()),
    );
    let tensors = AttentionTensors::new(qkv, out, lse);
    attention(&mut job.rec, &tensors, &shape);
    attention_backward(&mut job.rec, &tensors, dout, dqkv, &shape);
    let prepared = context.prepare(job);
    let times = context.launch_seconds(&prepared);
    context.wait(pollster::block_on(context.gpu.wait())); // frees what wgpu keeps of uploads and timestamps
    let bytes = context.gpu.counters().buffer_bytes - before;
    let values_of = |tensor: Tensor| pollster::block_on(prepared.values(&tensor)).expect("its values");
    // The first token sees itself alone, and the gradients of values add up to those of the results.
    let (first, start) = (&values_of(out)[..64], (layout.v_start()) as usize);
    assert_eq!(first, &values[start..start + 64], "the first token's result is not its value");
    let sum: f64 = values_of(dqkv).chunks(layout.cols() as usize).map(|row| f64::from(row[start])).sum();
    assert!((sum / f64::from(tokens) - 1.0).abs() < 1e-3, "gradients of values add up to {sum}");
    let (forward, backward) = (times[0], times[1..].iter().sum::<f64>());
    // A multiply-add of each query with each key that it sees, for each column.
    let product = f64::from(tokens) * f64::from(tokens + 1) * f64::from(layout.heads * layout.head_dim);
    println!(
        "{tokens:6} {:11.2} {:8.1} {:12.2} {:8.1} {:15.1}",
        1e3 * forward,
        2.0 * product / forward / 1e9,
        1e3 * backward,
        5.0 * product / backward / 1e9,
        bytes as f64 / 1048576.0
    );
}

//! Unfused compositions of the fused kernels, with a pass over memory for each operator: the other side of rows of the
//! kernel benchmarks. `tests/kernels/unfused.rs` holds their results against those of the fused kernels.
//!
//! Their shaders are files of a user, as far as the crate is concerned, and run with bounds checks. So does the side
//! that they are compared with ([`gpu`]).

pub mod permute;

use gristmill::device::{Gpu, GpuOptions};
use gristmill::element::{Element, stride_of};
use gristmill::kernels::{Condition, Kernel, Sources, Tier};
use gristmill::ops::add::add;
use gristmill::ops::attention::Attention;
use gristmill::ops::causal_conv::{CausalConv, ConvForm, causal_conv};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::matmul::{Epilogue, Layout, matmul};
use gristmill::record::{Recorder, Tensor, fold_grid};

/// A device with these shaders, which runs all kernels with bounds checks.
pub fn gpu(tier: Option<Tier>) -> Gpu {
    let sources = Sources::default().with("unfused/operators", include_str!("operators.wgsl"));
    let sources = sources.and_then(|sources| sources.with("unfused/permute", include_str!("permute.wgsl")));
    let sources = sources.expect("paths of their own");
    let options = GpuOptions { tier, sources, checked_shaders: true, ..GpuOptions::default() };
    pollster::block_on(Gpu::request(&options)).unwrap_or_else(|error| panic!("{error}"))
}

gristmill::params! {
    struct Params {
        rows: u32,
        columns4: u32,
        x_offset: u32,
        x_stride: u32,
        y_offset: u32,
        y_stride: u32,
        factor_rows: u32,
        factor_columns4: u32,
        half4: u32,
        scale: f32,
    }
}

/// out (N, F) = silu(gate) · up from packed `gate_up`: the activation, then the product.
#[track_caller]
pub fn swiglu(rec: &mut Recorder, gate_up: Tensor, out: Tensor) {
    let (gate, up) = (gate_up.columns(0, out.cols), gate_up.columns(stride_of(out.cols), out.cols));
    let activated = rec.tensor("silu", out.rows, out.cols, out.element);
    elementwise(rec, "silu", gate, None, activated, 0);
    elementwise(rec, "multiply", up, Some(activated), out, 0);
}

/// y (N, C) of a convolution `w` (W, C) between gates, x = [b | c | v] (N, 3 C): b · v, its sums, and c times these.
#[track_caller]
pub fn gated_conv(rec: &mut Recorder, x: Tensor, w: Tensor, y: Tensor) {
    let [b, c, v] = [0, 1, 2].map(|part| x.columns(part * y.cols, y.cols));
    let [input, sums] = [0; 2].map(|_| rec.tensor("sums", y.rows, y.cols, y.element));
    elementwise(rec, "multiply", v, Some(b), input, 0);
    let conv = CausalConv { tokens: y.rows, documents: None, form: ConvForm::Plain };
    causal_conv(rec, input, w, sums, &conv);
    elementwise(rec, "multiply", c, Some(sums), y, 0);
}

/// out (N, heads · head_dim) = x · cos + rotate_half(x) · sin: four passes, with `cos` and `sin` (T, head_dim) of every
/// element of a head, N a multiple of T. `x` and `out` must be in different buffers.
#[track_caller]
pub fn rope(rec: &mut Recorder, x: Tensor, cos: Tensor, sin: Tensor, head_dim: u32, out: Tensor) {
    assert!(
        head_dim.is_multiple_of(8),
        "rotate_half needs a head_dim that is a multiple of 8, not {head_dim}"
    );
    let rotated = rec.tensor("rotated", x.rows, x.cols, x.element);
    let turned = rec.tensor("turned", x.rows, x.cols, x.element);
    elementwise(rec, "rotate_half", x, None, rotated, head_dim / 8);
    elementwise(rec, "multiply", rotated, Some(sin), turned, 0);
    elementwise(rec, "multiply", x, Some(cos), out, 0);
    add(rec, turned, out, 1.0, true);
}

/// out (N, heads · value_dim) by the matrix of scores of each head of each sequence: product, softmax, product.
#[track_caller]
pub fn attention(rec: &mut Recorder, qkv: Tensor, out: Tensor, shape: &Attention) {
    assert!(
        shape.is_causal && shape.window.is_none() && shape.soft_cap.is_none() && !shape.has_alibi,
        "only causal attention without a window, a soft cap and ALiBi has an unfused version"
    );
    let Attention { tokens, scale, .. } = *shape;
    let HeadLayout { heads, head_dim, value_dim, .. } = shape.layout;
    for first in (0..qkv.rows).step_by(tokens as usize) {
        for head in 0..heads {
            let (rows, kv_head) = (qkv.rows(first, tokens), head / shape.layout.group());
            let q = rows.columns(head * head_dim, head_dim);
            let k = rows.columns(shape.layout.k_start() + kv_head * head_dim, head_dim);
            let v = rows.columns(shape.layout.v_start() + kv_head * value_dim, value_dim);
            let scores = rec.tensor("scores", tokens, tokens, qkv.element);
            matmul(rec, Layout::Nt, q, k, scores, Epilogue::default());
            softmax(rec, scores, scale);
            let out = out.rows(first, tokens).columns(head * value_dim, value_dim);
            matmul(rec, Layout::Nn, scores, v, out, Epilogue::default());
        }
    }
}

fn softmax(rec: &mut Recorder, scores: Tensor, scale: f32) {
    let (kernel, grid) = per_row(rec, "unfused/operators", "softmax", scores.element, scores.rows);
    let params = Params { scale, ..params(scores, scores) };
    rec.dispatch(kernel, &[scores.bind("y", scores.element)], &params, grid);
}

#[track_caller]
fn elementwise(
    rec: &mut Recorder,
    entry: &'static str,
    x: Tensor,
    factors: Option<Tensor>,
    y: Tensor,
    half4: u32,
) {
    assert!(
        (x.rows, x.cols, x.element) == (y.rows, y.cols, y.element),
        "{entry} needs tensors of one shape and element type"
    );
    let params = Params {
        factor_rows: factors.map_or(0, |factors| factors.rows),
        factor_columns4: factors.map_or(0, |factors| factors.stride4()),
        half4,
        ..params(x, y)
    };
    let items = u64::from(x.rows) * u64::from(params.columns4);
    let kernel = Kernel::new("unfused/operators", entry, x.element).constant("LANES", 64);
    let mut bindings = vec![x.bind_with_offset("x", x.element), y.bind_with_offset("y", x.element)];
    bindings.extend(factors.map(|factors| factors.bind("factors", x.element)));
    rec.dispatch(kernel, &bindings, &params, fold_grid(items.div_ceil(64)));
}

/// A kernel over rows, and its grid: one workgroup per row, or one invocation on the software tier.
fn per_row(
    rec: &Recorder,
    file: &'static str,
    entry: &'static str,
    element: Element,
    rows: u32,
) -> (Kernel, [u32; 3]) {
    let kernel = Kernel::new(file, entry, element);
    match rec.capabilities().tier {
        Tier::Software => (kernel.constant("LANES", 16), fold_grid(u64::from(rows.div_ceil(16)))),
        Tier::Portable | Tier::Matrix => {
            (kernel.constant("LANES", 128).condition(Condition::SharedTile, true), fold_grid(u64::from(rows)))
        }
    }
}

fn params(x: Tensor, y: Tensor) -> Params {
    Params {
        rows: y.rows,
        columns4: y.cols.div_ceil(4),
        x_offset: x.offset4(),
        x_stride: x.stride4(),
        y_offset: y.offset4(),
        y_stride: y.stride4(),
        factor_rows: 0,
        factor_columns4: 0,
        half4: 0,
        scale: 0.0,
    }
}

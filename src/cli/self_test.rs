//! `doctor`'s self-test: the kernels that a training step is made of, forward and backward, held against their f64 references.
//!
//! The tests of the repository ask much more of them. This is for adapters that those have never seen.

mod bench;
mod experts;

use self::bench::Bench;
use crate::device::Gpu;
use crate::error::Result;
use crate::kernels::Tier;
use crate::ops::attention::{Attention, attention, attention_backward};
use crate::ops::gelu::{self, Gelu};
use crate::ops::heads::HeadLayout;
use crate::ops::linear_cross_entropy::{LinearCrossEntropy, linear_cross_entropy};
use crate::ops::matmul::{Epilogue, Layout, matmul};
use crate::ops::{layer_norm, rms_norm, swiglu};
use crate::reference;
use crate::train::state::StepState;

/// How far a kernel is from its reference: the largest difference, relative to the result's root mean square.
pub struct Outcome {
    /// Which kernel.
    pub kernel: &'static str,
    /// Its error.
    pub error: f64,
}

/// Sums of a few hundred f32 products lose this much at most; a wrong kernel is wrong by far more.
pub const ALLOWED: f64 = 1e-4;

/// Tokens, width and vocabulary: odd, and more than one tile of each.
const N: u32 = 130;
const D: u32 = 200;
const V: u32 = 139;
const LAYOUT: HeadLayout = HeadLayout { heads: 4, kv_heads: 2, head_dim: 32, value_dim: 32 };

const EPSILON: f32 = 1e-5;

/// Runs the kernels of `tier` on `gpu`.
///
/// # Errors
/// A device that fails.
pub async fn self_test(gpu: &Gpu, tier: Tier) -> Result<Vec<Outcome>> {
    let mut bench = Bench::new(gpu, tier);
    products(&mut bench);
    norms(&mut bench);
    activations(&mut bench);
    attentions(&mut bench);
    loss(&mut bench);
    experts::experts(&mut bench);
    bench.run().await
}

/// A linear layer's three products: forward, and the gradients of its input and of its weight.
fn products(bench: &mut Bench<'_>) {
    let (x, w) = (bench.input(N, D), bench.input(D, D));
    let [nt, nn, tn] = [(N, D), (N, D), (D, D)].map(|(rows, cols)| bench.output(rows, cols));
    matmul(&mut bench.rec, Layout::Nt, x.0, w.0, nt, Epilogue::default());
    matmul(&mut bench.rec, Layout::Nn, x.0, w.0, nn, Epilogue::default());
    matmul(&mut bench.rec, Layout::Tn, x.0, x.0, tn, Epilogue::default());
    let (n, d) = (N as usize, D as usize);
    bench.expect("matmul x Wᵀ", nt, reference::matmul::matmul_nt(&x.1, &w.1, n, d, d));
    bench.expect("matmul dy W", nn, reference::matmul::matmul_nn(&x.1, &w.1, n, d, d));
    bench.expect("matmul dyᵀ x", tn, reference::matmul::matmul_tn(&x.1, &x.1, d, d, n));
}

fn norms(bench: &mut Bench<'_>) {
    let ((x, x_values), (dy, dy_values)) = (bench.input(N, D), bench.input(N, D));
    let ((w, w_values), (b, b_values)) = (bench.input(1, D), bench.input(1, D));
    let [y, dx] = [(); 2].map(|()| bench.output(N, D));
    let (rstd, dw) = (bench.output(1, N), bench.output(1, D));
    rms_norm::rms_norm(&mut bench.rec, x, w, y, rstd, EPSILON);
    let saved = rms_norm::RmsNormSaved { x, w, rstd };
    rms_norm::rms_norm_backward(&mut bench.rec, &saved, dy, dx, false);
    rms_norm::rms_norm_backward_weight(&mut bench.rec, &saved, dy, dw);
    let (cols, eps) = (D as usize, f64::from(EPSILON));
    let (want_dx, want_dw) =
        reference::rms_norm::rms_norm_backward(&x_values, &w_values, &dy_values, cols, eps);
    bench.expect("rms_norm", y, reference::rms_norm::rms_norm(&x_values, &w_values, cols, eps));
    bench.expect("rms_norm dx", dx, want_dx);
    bench.expect("rms_norm dw", dw, want_dw);

    let [y, dx] = [(); 2].map(|()| bench.output(N, D));
    let [mean, rstd] = [(); 2].map(|()| bench.output(1, N));
    let [dw, db] = [(); 2].map(|()| bench.output(1, D));
    let saved = layer_norm::LayerNormSaved { x, w, mean, rstd };
    layer_norm::layer_norm(&mut bench.rec, &saved, b, y, EPSILON);
    layer_norm::layer_norm_backward(&mut bench.rec, &saved, dy, dx, false);
    layer_norm::layer_norm_backward_weight(&mut bench.rec, &saved, dy, dw, db);
    let wanted = reference::layer_norm::layer_norm_backward(&x_values, &w_values, &dy_values, cols, eps);
    let want = reference::layer_norm::layer_norm(&x_values, &w_values, &b_values, cols, eps);
    bench.expect("layer_norm", y, want);
    bench.expect("layer_norm dx", dx, wanted.0);
    bench.expect("layer_norm dw", dw, wanted.1);
    bench.expect("layer_norm db", db, wanted.2);
}

fn activations(bench: &mut Bench<'_>) {
    let ((x, x_values), (dy, dy_values)) = (bench.input(N, D), bench.input(N, D));
    let [y, dx] = [(); 2].map(|()| bench.output(N, D));
    gelu::gelu(&mut bench.rec, x, y, Gelu::Tanh);
    gelu::gelu_backward(&mut bench.rec, x, dy, dx, Gelu::Tanh);
    let kind = reference::gelu::Gelu::Tanh;
    bench.expect("gelu", y, reference::gelu::gelu(&x_values, kind));
    bench.expect("gelu dx", dx, reference::gelu::gelu_backward(&x_values, &dy_values, kind));

    // A row of x is a gate and what it lets through.
    let (dout, dout_values) = bench.input(N, D / 2);
    let (out, d_gate_up) = (bench.output(N, D / 2), bench.output(N, D));
    swiglu::swiglu(&mut bench.rec, x, out);
    swiglu::swiglu_backward(&mut bench.rec, x, dout, d_gate_up);
    let (gate, up) = (columns(&x_values, D, 0, D / 2), columns(&x_values, D, D / 2, D / 2));
    let (d_gate, d_up) = reference::swiglu::swiglu_backward(&gate, &up, &dout_values);
    bench.expect("swiglu", out, reference::swiglu::swiglu(&gate, &up));
    bench.expect("swiglu dx", d_gate_up, beside(&[(&d_gate, D / 2), (&d_up, D / 2)]));
}

fn attentions(bench: &mut Bench<'_>) {
    let (qkv, values) = bench.input(N, LAYOUT.cols());
    let (dout, dout_values) = bench.input(N, LAYOUT.out_cols());
    let (out, lse) = (bench.output(N, LAYOUT.out_cols()), bench.output(N, LAYOUT.heads));
    let dqkv = bench.output(N, LAYOUT.cols());
    let shape =
        Attention { layout: LAYOUT, tokens: N, is_causal: true, scale: 0.2, window: None, dropout: None };
    attention(&mut bench.rec, qkv, out, lse, None, &shape);
    attention_backward(&mut bench.rec, qkv, out, dout, lse, dqkv, None, &shape);
    let sizes = reference::attention::Attention {
        tokens: N as usize,
        heads: LAYOUT.heads as usize,
        kv_heads: LAYOUT.kv_heads as usize,
        head_dim: LAYOUT.head_dim as usize,
        value_dim: LAYOUT.value_dim as usize,
        causal: true,
        window: None,
        starts: None,
        factors: None,
        scale: f64::from(shape.scale),
    };
    let part = |first, count| columns(&values, LAYOUT.cols(), first, count);
    let (q_cols, k_cols, v_cols) = (LAYOUT.q_cols(), LAYOUT.k_cols(), LAYOUT.v_cols());
    let (q, k, v) = (part(0, q_cols), part(LAYOUT.k_start(), k_cols), part(LAYOUT.v_start(), v_cols));
    let (want, _) = reference::attention::attention(&q, &k, &v, &sizes);
    let (dq, dk, dv) = reference::attention::attention_backward(&q, &k, &v, &dout_values, &sizes);
    bench.expect("attention", out, want);
    bench.expect("attention dqkv", dqkv, beside(&[(&dq, q_cols), (&dk, k_cols), (&dv, v_cols)]));
}

/// The head and the cross-entropy, whose forward pass leaves no result but the loss.
fn loss(bench: &mut Bench<'_>) {
    let ((h, h_values), (head, head_values)) = (bench.input(N, D), bench.input(V, D));
    let (dh, dhead, loss) = (bench.output(N, D), bench.output(V, D), bench.output(1, 8));
    let targets: Vec<u32> = (0..N).map(|token| token * 37 % V).collect();
    let ignore = targets[5];
    let ids = bench.holding(1, N, targets.iter().map(|&id| f32::from_bits(id)).collect());
    let state = StepState { loss_scale: 1.0, ..StepState::default() };
    let words: Vec<f32> = bytemuck::pod_collect_to_vec(bytemuck::bytes_of(&state));
    let step = bench.holding(1, words.len() as u32, words);
    let op = LinearCrossEntropy {
        h,
        head: &[head],
        targets: ids,
        ignore,
        step,
        loss,
        accumulation: 1,
        factor: 1.0,
    };
    linear_cross_entropy(&mut bench.rec, &op, dh, Some(&[dhead]));
    let count = targets.iter().filter(|&&target| target != ignore).count();
    let want = reference::linear_cross_entropy::linear_cross_entropy(
        &h_values,
        &head_values,
        &targets,
        ignore,
        1.0 / count as f64,
    );
    bench.expect("cross_entropy dh", dh, want.dh);
    bench.expect("cross_entropy dw", dhead, want.dw);
}

/// Columns `first..first + count` of rows of `cols` values.
fn columns(values: &[f64], cols: u32, first: u32, count: u32) -> Vec<f64> {
    let rows = values.chunks(cols as usize);
    rows.flat_map(|row| row[first as usize..(first + count) as usize].to_vec()).collect()
}

/// Rows of several parts, each with so many columns, beside each other.
fn beside(parts: &[(&[f64], u32)]) -> Vec<f64> {
    let row = |row: usize| {
        let of =
            move |&(values, cols): &(&[f64], u32)| values[row * cols as usize..][..cols as usize].to_vec();
        parts.iter().flat_map(of).collect::<Vec<f64>>()
    };
    (0..N as usize).flat_map(row).collect()
}

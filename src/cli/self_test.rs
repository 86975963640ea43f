//! `doctor`'s self-test: compares the kernels of a training step, forward and backward, with their f64 references.
//!
//! The repository's tests are much stricter. The self-test is for adapters they have never run on.

mod experts;
mod harness;
mod tiles;

use self::harness::Harness;
use crate::device::Gpu;
use crate::error::Result;
use crate::kernels::Tier;
use crate::ops::attention::{Attention, attention, attention_backward};
use crate::ops::gelu::{self, Gelu};
use crate::ops::heads::HeadLayout;
use crate::ops::linear_cross_entropy::{HeadGradient, LinearCrossEntropy, linear_cross_entropy};
use crate::ops::matmul::{Epilogue, Layout, matmul};
use crate::ops::step_state::{LossState, StepState};
use crate::ops::{layer_norm, rms_norm, swiglu};
use crate::reference;

/// How much a kernel's result differs from its reference.
pub struct Outcome {
    /// Label of the result: the kernel, and which gradient it is.
    pub kernel: &'static str,
    /// Largest absolute difference over the root mean square of the reference.
    pub error: f64,
}

/// Largest error that passes. A sum of a few hundred f32 products stays below it; a wrong kernel is far above.
pub const ALLOWED: f64 = 1e-4;

/// Number of tokens, width and vocabulary: not multiples of a tile, and more than one tile each.
const N: u32 = 130;
const D: u32 = 200;
const V: u32 = 139;
const LAYOUT: HeadLayout = HeadLayout { heads: 4, kv_heads: 2, head_dim: 32, value_dim: 32 };

const EPSILON: f32 = 1e-5;

/// Runs the kernels of `tier` on `gpu`.
///
/// # Errors
/// If the device fails.
pub async fn self_test(gpu: &Gpu, tier: Tier) -> Result<Vec<Outcome>> {
    let mut harness = Harness::new(gpu, tier);
    products(&mut harness, [N, D, D], ["matmul x Wᵀ", "matmul dy W", "matmul dyᵀ x"]);
    norms(&mut harness);
    activations(&mut harness);
    attentions(&mut harness, LAYOUT, ["attention", "attention dqkv"]);
    loss(&mut harness);
    experts::experts(&mut harness);
    tiles::tiles(&mut harness);
    harness.run().await
}

/// A product (m, n) over k in each layout: the forward pass of a linear layer, and the gradients of its input and of its weight.
fn products(harness: &mut Harness<'_>, [m, n, k]: [u32; 3], labels: [&'static str; 3]) {
    for (layout, label) in [Layout::Nt, Layout::Nn, Layout::Tn].into_iter().zip(labels) {
        let a = if layout == Layout::Tn { harness.input(k, m) } else { harness.input(m, k) };
        let b = if layout == Layout::Nt { harness.input(n, k) } else { harness.input(k, n) };
        let y = harness.output(m, n);
        matmul(&mut harness.job.rec, layout, a.0, b.0, y, Epilogue::default());
        let reference = match layout {
            Layout::Nt => reference::matmul::matmul_nt,
            Layout::Nn => reference::matmul::matmul_nn,
            Layout::Tn => reference::matmul::matmul_tn,
        };
        harness.expect(label, y, reference(&a.1, &b.1, m as usize, n as usize, k as usize));
    }
}

fn norms(harness: &mut Harness<'_>) {
    let ((x, x_values), (dy, dy_values)) = (harness.input(N, D), harness.input(N, D));
    let ((w, w_values), (b, b_values)) = (harness.input(1, D), harness.input(1, D));
    let [y, dx] = [(); 2].map(|()| harness.output(N, D));
    let (rstd, dw) = (harness.output(1, N), harness.output(1, D));
    rms_norm::rms_norm(&mut harness.job.rec, x, w, y, rstd, EPSILON);
    let saved = rms_norm::RmsNormSaved { x, w, rstd };
    rms_norm::rms_norm_backward(&mut harness.job.rec, &saved, dy, dx, false);
    rms_norm::rms_norm_backward_weight(&mut harness.job.rec, &saved, dy, dw);
    let (cols, eps) = (D as usize, f64::from(EPSILON));
    let (want_dx, want_dw) =
        reference::rms_norm::rms_norm_backward(&x_values, &w_values, &dy_values, cols, eps);
    harness.expect("rms_norm", y, reference::rms_norm::rms_norm(&x_values, &w_values, cols, eps));
    harness.expect("rms_norm dx", dx, want_dx);
    harness.expect("rms_norm dw", dw, want_dw);

    let [y, dx] = [(); 2].map(|()| harness.output(N, D));
    let [mean, rstd] = [(); 2].map(|()| harness.output(1, N));
    let [dw, db] = [(); 2].map(|()| harness.output(1, D));
    let saved = layer_norm::LayerNormSaved { x, w, mean, rstd };
    layer_norm::layer_norm(&mut harness.job.rec, &saved, b, y, EPSILON);
    layer_norm::layer_norm_backward(&mut harness.job.rec, &saved, dy, dx, false);
    layer_norm::layer_norm_backward_weight(&mut harness.job.rec, &saved, dy, dw, db);
    let gradients = reference::layer_norm::layer_norm_backward(&x_values, &w_values, &dy_values, cols, eps);
    let want = reference::layer_norm::layer_norm(&x_values, &w_values, &b_values, cols, eps);
    harness.expect("layer_norm", y, want);
    harness.expect("layer_norm dx", dx, gradients.0);
    harness.expect("layer_norm dw", dw, gradients.1);
    harness.expect("layer_norm db", db, gradients.2);
}

fn activations(harness: &mut Harness<'_>) {
    let ((x, x_values), (dy, dy_values)) = (harness.input(N, D), harness.input(N, D));
    let [y, dx] = [(); 2].map(|()| harness.output(N, D));
    gelu::gelu(&mut harness.job.rec, x, y, Gelu::Tanh);
    gelu::gelu_backward(&mut harness.job.rec, x, dy, dx, Gelu::Tanh);
    let kind = reference::gelu::Gelu::Tanh;
    harness.expect("gelu", y, reference::gelu::gelu(&x_values, kind));
    harness.expect("gelu dx", dx, reference::gelu::gelu_backward(&x_values, &dy_values, kind));

    // A row of x is a gate and the values it scales.
    let (dout, dout_values) = harness.input(N, D / 2);
    let (out, d_gate_up) = (harness.output(N, D / 2), harness.output(N, D));
    swiglu::swiglu(&mut harness.job.rec, x, out);
    swiglu::swiglu_backward(&mut harness.job.rec, x, dout, d_gate_up);
    let (gate, up) = (columns(&x_values, D, 0, D / 2), columns(&x_values, D, D / 2, D / 2));
    let (d_gate, d_up) = reference::swiglu::swiglu_backward(&gate, &up, &dout_values);
    harness.expect("swiglu", out, reference::swiglu::swiglu(&gate, &up));
    harness.expect("swiglu dx", d_gate_up, concatenate(&[(&d_gate, D / 2), (&d_up, D / 2)]));
}

/// Causal attention and its gradients.
fn attentions(harness: &mut Harness<'_>, layout: HeadLayout, labels: [&'static str; 2]) {
    let (qkv, values) = harness.input(N, layout.cols());
    let (dout, dout_values) = harness.input(N, layout.out_cols());
    let (out, lse) = (harness.output(N, layout.out_cols()), harness.output(N, layout.heads));
    let dqkv = harness.output(N, layout.cols());
    let shape = Attention {
        layout,
        tokens: N,
        is_causal: true,
        scale: 0.2,
        window: None,
        has_alibi: false,
        dropout: None,
    };
    attention(&mut harness.job.rec, qkv, out, lse, None, &shape);
    attention_backward(&mut harness.job.rec, qkv, out, dout, lse, dqkv, None, &shape);
    let sizes = reference::attention::Attention {
        tokens: N as usize,
        heads: layout.heads as usize,
        kv_heads: layout.kv_heads as usize,
        head_dim: layout.head_dim as usize,
        value_dim: layout.value_dim as usize,
        causal: true,
        window: None,
        starts: None,
        factors: None,
        alibi: false,
        scale: f64::from(shape.scale),
    };
    let part = |first, count| columns(&values, layout.cols(), first, count);
    let (q_cols, k_cols, v_cols) = (layout.q_cols(), layout.k_cols(), layout.v_cols());
    let (q, k, v) = (part(0, q_cols), part(layout.k_start(), k_cols), part(layout.v_start(), v_cols));
    let (want, _) = reference::attention::attention(&q, &k, &v, &sizes);
    let (dq, dk, dv) = reference::attention::attention_backward(&q, &k, &v, &dout_values, &sizes);
    harness.expect(labels[0], out, want);
    harness.expect(labels[1], dqkv, concatenate(&[(&dq, q_cols), (&dk, k_cols), (&dv, v_cols)]));
}

/// The head and the cross-entropy: their gradients, since forward computes nothing but the loss.
fn loss(harness: &mut Harness<'_>) {
    let ((h, h_values), (head, head_values)) = (harness.input(N, D), harness.input(V, D));
    let (dh, dhead) = (harness.output(N, D), harness.output(V, D));
    let loss = harness.job.state(LossState::default());
    let targets: Vec<u32> = (0..N).map(|token| token * 37 % V).collect();
    let ignore = targets[5];
    let ids = harness.job.integers(&targets);
    let step = harness.job.state(StepState { loss_scale: 1.0, ..StepState::default() });
    let op = LinearCrossEntropy {
        h,
        head: &[head],
        targets: ids,
        ignore,
        step,
        loss,
        correct: None,
        accumulation: 1,
        factor: 1.0,
        is_per_token: false,
    };
    linear_cross_entropy(
        &mut harness.job.rec,
        &op,
        dh,
        Some(HeadGradient { parts: &[dhead], accumulate: true }),
    );
    let count = targets.iter().filter(|&&target| target != ignore).count();
    let want = reference::linear_cross_entropy::linear_cross_entropy(
        &h_values,
        &head_values,
        &targets,
        ignore,
        1.0 / count as f64,
    );
    harness.expect("cross_entropy dh", dh, want.dh);
    harness.expect("cross_entropy dw", dhead, want.dw);
}

/// Columns `first..first + count` of a matrix with `cols` columns.
fn columns(values: &[f64], cols: u32, first: u32, count: u32) -> Vec<f64> {
    let rows = values.chunks(cols as usize);
    rows.flat_map(|row| row[first as usize..(first + count) as usize].to_vec()).collect()
}

/// Matrices of N rows, each given with its number of columns, concatenated column-wise.
fn concatenate(parts: &[(&[f64], u32)]) -> Vec<f64> {
    let row = |row: usize| {
        let of =
            move |&(values, cols): &(&[f64], u32)| values[row * cols as usize..][..cols as usize].to_vec();
        parts.iter().flat_map(of).collect::<Vec<f64>>()
    };
    (0..N as usize).flat_map(row).collect()
}

//! Kernel microbenchmarks: one row each, GFLOP/s or GB/s from closed formulas.
//!
//! `cargo bench --bench kernels [-- FILTER]`; `TIER=portable` forces a tier; `HISTORY=1` appends to
//! benches/history.csv. A row replays a recording with REPEATS copies of the kernel and divides the time by REPEATS,
//! because on a software adapter a submission costs more than a small kernel. Rows that are compared with a composition
//! of unfused kernels run with bounds checks on both sides.

mod common;
mod mixture;
mod row;
mod unfused;

use criterion::{Criterion, criterion_group, criterion_main};
use gristmill::device::Job;
use gristmill::element::Element::{Bf16, F16, F32, Int8, Nf4, U32};
use gristmill::ops::attention::{Attention, AttentionTensors, Sinks, attention, attention_backward};
use gristmill::ops::causal_conv::{CausalConv, ConvForm};
use gristmill::ops::clip;
use gristmill::ops::column_scale::{ColumnFactors, Terms, column_scale, column_scale_backward_weight};
use gristmill::ops::dropout::{Dropout, DropoutState, dropout};
use gristmill::ops::gated_delta_rule::{
    CHUNK, DeltaInputs, GatedDeltaRule, gated_delta_rule, gated_delta_rule_backward, gated_delta_rule_step,
};
use gristmill::ops::gelu::{self, Gelu};
use gristmill::ops::grad_norm::{StepRules, StepTensors, grad_norm};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::latent_heads::{self, Angles, LatentHeads, LatentParts};
use gristmill::ops::layer_norm::LayerNorm;
use gristmill::ops::linear_cross_entropy::{
    CrossEntropy, HeadGradient, OutputProjection, linear_cross_entropy,
};
use gristmill::ops::matmul::{Epilogue, Layout, matmul};
use gristmill::ops::preference::{PairLoss, Preference};
use gristmill::ops::rms_norm::RmsNorm;
use gristmill::ops::rope::Rope;
use gristmill::ops::rounding::Rounding;
use gristmill::ops::row_squares::{LowRankFactors, row_squares};
use gristmill::ops::step_state::{LossState, PreferenceState, StepState};
use gristmill::ops::swiglu::Gate;
use gristmill::ops::xielu::{self, Xielu};
use gristmill::ops::{
    adamw, add, cast, causal_conv, decode, embedding, fingerprint, l2_norm, largest, layer_norm, max_logit,
    muon, qk_layer_norm, rms_norm, rope, sgd, squares, swiglu,
};
use row::{D, F, N, Work, gpu, row, tier};

const LAYOUT: HeadLayout = HeadLayout { heads: 4, kv_heads: 4, head_dim: 32, value_dim: 32 };

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
    for weights in [Nf4, Int8] {
        for (layout, n, k) in [(Layout::Nt, 2 * F, D), (Layout::Nn, D, 2 * F)] {
            let name = format!("matmul {layout:?} {N}x{n}x{k} f32, weights in {}", weights.name());
            row(c, &gpu, &name, |row| {
                let [rows, cols] = if layout == Layout::Nt { [n, k] } else { [k, n] };
                let (x, w, y) =
                    (row.tensor(N, k, F32), row.tensor(rows, cols, weights), row.tensor(N, n, F32));
                matmul(&mut row.rec, layout, x, w, y, Epilogue::default());
                Work::Flops(2.0 * N as f64 * n as f64 * k as f64)
            });
        }
    }
    for weights in [F32, Bf16, Nf4, Int8] {
        for m in [1, 4] {
            row(c, &gpu, &format!("matmul of {m} rows, as in decoding, {}", weights.name()), |row| {
                let element = if weights.is_quantised() { F32 } else { weights };
                let (x, w, y) = (
                    row.tensor(m, 512, element),
                    row.tensor(3072, 512, weights),
                    row.tensor(m, 3072, element),
                );
                matmul(&mut row.rec, Layout::Nt, x, w, y, Epilogue::default());
                Work::Bytes(weights.bytes_of(3072 * 512) as f64)
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

fn elementwise(c: &mut Criterion) {
    let gpu = gpu();
    let bytes = |tensors: f64, cols: u32| Work::Bytes(4.0 * tensors * N as f64 * cols as f64);
    for (name, form) in [("causal_conv", ConvForm::Plain), ("causal_conv with SiLU", ConvForm::Silu)] {
        let conv = CausalConv { tokens: N, documents: None, form };
        row(c, &gpu, name, |row| {
            let ([x, y], w) = ([0; 2].map(|_| row.tensor(N, D, F32)), row.tensor(4, D, F32));
            causal_conv::causal_conv(&mut row.rec, x, w, y, &conv);
            bytes(2.0, D)
        });
        row(c, &gpu, &format!("{name} backward"), |row| {
            let ([x, dy, dx], w) = ([0; 3].map(|_| row.tensor(N, D, F32)), row.tensor(4, D, F32));
            let dw = row.tensor(1, 4 * D, F32);
            causal_conv::causal_conv_slopes(&mut row.rec, x, w, dy, None, &conv);
            causal_conv::causal_conv_backward_weight(&mut row.rec, x, w, dy, dw, &conv);
            causal_conv::causal_conv_backward(&mut row.rec, w, dy, dx, false, &conv);
            bytes(if form == ConvForm::Silu { 7.0 } else { 4.0 }, D)
        });
    }
    let conv = CausalConv { tokens: N, documents: None, form: ConvForm::Gated };
    row(c, &gpu, "causal_conv with gates", |row| {
        let (x, y, w) = (row.tensor(N, 3 * D, F32), row.tensor(N, D, F32), row.tensor(3, D, F32));
        causal_conv::causal_conv(&mut row.rec, x, w, y, &conv);
        bytes(4.0, D)
    });
    row(c, &gpu, "causal_conv with gates backward", |row| {
        let ([x, dx], dy) = ([0; 2].map(|_| row.tensor(N, 3 * D, F32)), row.tensor(N, D, F32));
        let (w, dw) = (row.tensor(3, D, F32), row.tensor(1, 3 * D, F32));
        causal_conv::causal_conv_slopes(&mut row.rec, x, w, dy, Some(dx), &conv);
        causal_conv::causal_conv_backward_weight(&mut row.rec, x, w, dy, dw, &conv);
        causal_conv::gated_conv_backward(&mut row.rec, x, w, dy, dx, &conv);
        bytes(14.0, D)
    });
    row(c, &gpu, "rms_norm", |row| {
        let (x, w, y, rstd) =
            (row.tensor(N, D, F32), row.tensor(1, D, F32), row.tensor(N, D, F32), row.tensor(1, N, F32));
        rms_norm::rms_norm(&mut row.rec, x, w, y, rstd, RmsNorm::new(1e-5));
        bytes(2.0, D)
    });
    row(c, &gpu, "rms_norm backward onto a residual, fused", |row| {
        let saved = rms_norm::RmsNormSaved {
            x: row.tensor(N, D, F32),
            w: row.tensor(1, D, F32),
            rstd: row.tensor(1, N, F32),
        };
        let (dy, dx) = (row.tensor(N, D, F32), row.tensor(N, D, F32));
        rms_norm::rms_norm_backward(&mut row.rec, &saved, RmsNorm::new(1e-5), dy, dx, true);
        bytes(4.0, D)
    });
    row(c, &gpu, "rms_norm backward onto a residual, composed", |row| {
        let saved = rms_norm::RmsNormSaved {
            x: row.tensor(N, D, F32),
            w: row.tensor(1, D, F32),
            rstd: row.tensor(1, N, F32),
        };
        let (dy, dx, sum) = (row.tensor(N, D, F32), row.tensor(N, D, F32), row.tensor(N, D, F32));
        rms_norm::rms_norm_backward(&mut row.rec, &saved, RmsNorm::new(1e-5), dy, dx, false);
        add::add(&mut row.rec, dx, sum, 1.0, true);
        bytes(4.0, D)
    });
    row(c, &gpu, "layer_norm", |row| {
        let saved = layer_norm_saved(row);
        let (b, y) = (row.tensor(1, D, F32), row.tensor(N, D, F32));
        layer_norm::layer_norm(&mut row.rec, &saved, Some(b), y, LayerNorm::new(1e-5));
        bytes(2.0, D)
    });
    row(c, &gpu, "layer_norm backward onto a residual, fused", |row| {
        let saved = layer_norm_saved(row);
        let (dy, dx) = (row.tensor(N, D, F32), row.tensor(N, D, F32));
        layer_norm::layer_norm_backward(&mut row.rec, &saved, LayerNorm::new(1e-5), dy, dx, true);
        bytes(4.0, D)
    });
    row(c, &gpu, "layer_norm backward onto a residual, composed", |row| {
        let saved = layer_norm_saved(row);
        let (dy, dx, sum) = (row.tensor(N, D, F32), row.tensor(N, D, F32), row.tensor(N, D, F32));
        layer_norm::layer_norm_backward(&mut row.rec, &saved, LayerNorm::new(1e-5), dy, dx, false);
        add::add(&mut row.rec, dx, sum, 1.0, true);
        bytes(4.0, D)
    });
    // Heads 32 wide of q and k, and v, which is copied.
    row(c, &gpu, "qk_layer_norm", |row| {
        let layout = HeadLayout { heads: 4, kv_heads: 2, head_dim: 32, value_dim: 32 };
        let [x, y] = [0; 2].map(|_| row.tensor(N, layout.cols(), F32));
        let [weights, biases] = [0; 2].map(|_| [0; 2].map(|_| row.tensor(1, 32, F32)));
        let [mean, rstd] = [0; 2].map(|_| row.tensor(N, 6, F32));
        let saved = qk_layer_norm::QkLayerNormSaved { x, weights, mean, rstd };
        qk_layer_norm::qk_layer_norm(&mut row.rec, &saved, Some(biases), y, &layout, LayerNorm::new(1e-5));
        bytes(2.0, layout.cols())
    });
    row(c, &gpu, "layer_norm backward of weight and bias", |row| {
        let saved = layer_norm_saved(row);
        let (dy, dw, db) = (row.tensor(N, D, F32), row.tensor(1, D, F32), row.tensor(1, D, F32));
        layer_norm::layer_norm_backward_weight(&mut row.rec, &saved, dy, dw, Some(db));
        bytes(2.0, D)
    });
    for (name, kind) in [
        ("gelu, exact", Gelu::Exact),
        ("gelu, tanh", Gelu::Tanh),
        ("gelu, fast", Gelu::Fast),
        ("relu, squared", Gelu::ReluSquared),
    ] {
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
    row(c, &gpu, "clip", |row| {
        let (x, y) = (row.tensor(N, F, F32), row.tensor(N, F, F32));
        clip::clip(&mut row.rec, x, y, 8.0);
        bytes(2.0, F)
    });
    row(c, &gpu, "clip, backward", |row| {
        let (x, dy) = (row.tensor(N, F, F32), row.tensor(N, F, F32));
        clip::clip_backward(&mut row.rec, x, dy, 8.0);
        bytes(3.0, F)
    });
    let numbers = |row: &mut Job| Xielu { alphas: row.tensor(1, 2, F32), constants: row.tensor(1, 2, F32) };
    row(c, &gpu, "xielu", |row| {
        let (x, y, numbers) = (row.tensor(N, F, F32), row.tensor(N, F, F32), numbers(row));
        xielu::xielu(&mut row.rec, x, numbers, y);
        bytes(2.0, F)
    });
    row(c, &gpu, "xielu, backward", |row| {
        let [x, dy, dx] = [0; 3].map(|_| row.tensor(N, F, F32));
        let numbers = numbers(row);
        xielu::xielu_backward(&mut row.rec, x, numbers, dy, dx);
        bytes(3.0, F)
    });
    row(c, &gpu, "xielu, backward of its numbers", |row| {
        let (x, dy, gradient) = (row.tensor(N, F, F32), row.tensor(N, F, F32), row.tensor(1, 2, F32));
        let numbers = numbers(row);
        xielu::xielu_backward_weight(&mut row.rec, x, numbers, dy, gradient);
        bytes(2.0, F)
    });
    // Each element of the heads is read once and written once; what all heads share is read from the cache.
    let heads = LatentHeads { heads: 4, nope_dim: 32, rope_dim: 16, is_interleaved: true, value_dim: 32 };
    let angles =
        |row: &mut Job| Angles { positions: row.tensor(1, N, U32), cos_sin: row.tensor(128, 16, F32) };
    row(c, &gpu, "latent_heads", |row| {
        let angles = angles(row);
        let mut tensor = |cols| row.tensor(N, cols, F32);
        let parts = LatentParts { q: tensor(192), kv: tensor(256), k_rope: tensor(16) };
        let qkv = tensor(heads.layout().cols());
        latent_heads::latent_heads(&mut row.rec, &parts, &angles, qkv, &heads);
        bytes(1.0, 192 + 256 + 16 + heads.layout().cols())
    });
    row(c, &gpu, "latent_heads backward", |row| {
        let angles = angles(row);
        let mut tensor = |cols| row.tensor(N, cols, F32);
        let (dqkv, dq, dkv, dk_rope) = (tensor(heads.layout().cols()), tensor(192), tensor(256), tensor(16));
        latent_heads::latent_heads_backward_q(&mut row.rec, dqkv, &angles, dq, false, &heads);
        latent_heads::latent_heads_backward_kv(&mut row.rec, dqkv, &angles, dkv, false, &heads);
        latent_heads::latent_heads_backward_rope(&mut row.rec, dqkv, &angles, dk_rope, false, &heads);
        bytes(1.0, 192 + 256 + 16 + heads.layout().cols())
    });
    row(c, &gpu, "rope, q and k", |row| {
        rotation(row);
        bytes(2.0, 2 * D)
    });
    row(c, &gpu, "swiglu", |row| {
        let (gate_up, y) = (row.tensor(N, 2 * F, F32), row.tensor(N, F, F32));
        swiglu::swiglu(&mut row.rec, gate_up, y, Gate::Silu);
        bytes(3.0, F)
    });
    row(c, &gpu, "swiglu backward", |row| {
        let (gate_up, dy, gradient) =
            (row.tensor(N, 2 * F, F32), row.tensor(N, F, F32), row.tensor(N, 2 * F, F32));
        swiglu::swiglu_backward(&mut row.rec, gate_up, dy, gradient, Gate::Silu);
        bytes(5.0, F)
    });
    row(c, &gpu, "embedding", |row| {
        let (ids, table, y) = (row.tensor(1, N, U32), row.tensor(256, D, F32), row.tensor(N, D, F32));
        embedding::embedding(&mut row.rec, ids, &[table], None, y);
        bytes(2.0, D)
    });
    row(c, &gpu, "dropout", |row| {
        let (x, y, state) =
            (row.tensor(N, D, F32), row.tensor(N, D, F32), row.state(DropoutState::default()));
        let place = Dropout { probability: 0.1, seed: 1, site: 0, state, part: None };
        dropout(&mut row.rec, x, None, y, false, &place);
        bytes(2.0, D)
    });
    row(c, &gpu, "adamw, 1 Mi parameters", |row| {
        let [weights, gradients, first_moments, second_moments] = [0; 4].map(|_| row.tensor(1, 1 << 20, F32));
        let segment = adamw::AdamWTensors { weights, gradients, first_moments, second_moments };
        let step = step_tensors(row);
        let settings = adamw::AdamW {
            decay: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            corrects_epsilon: false,
            rate_column: 0,
            rounding: Rounding::default(),
        };
        adamw::adamw(&mut row.rec, &segment, &step, &settings);
        Work::Bytes(4.0 * 7.0 * (1 << 20) as f64)
    });
    row(c, &gpu, "sgd, 1 Mi parameters", |row| {
        let [weights, gradients, moments] = [0; 3].map(|_| row.tensor(1, 1 << 20, F32));
        let step = step_tensors(row);
        let settings = sgd::Sgd {
            decay: 0.1,
            momentum: 0.9,
            dampening: 0.0,
            is_nesterov: false,
            rate_column: 0,
            rounding: Rounding::default(),
        };
        let segment = sgd::SgdTensors { weights, gradients, moments };
        sgd::sgd(&mut row.rec, &segment, &step, &settings);
        Work::Bytes(4.0 * 5.0 * (1 << 20) as f64)
    });
    row(c, &gpu, "grad_norm, 1 Mi gradients", |row| {
        let (gradients, step) = (row.tensor(1, 1 << 20, F32), step_tensors(row));
        grad_norm(&mut row.rec, &[gradients], &step, &StepRules::default());
        Work::Bytes(4.0 * (1 << 20) as f64)
    });
    for element in [Bf16, F16] {
        row(c, &gpu, &format!("cast of 1 Mi elements to {}", element.name()), |row| {
            let (from, to) = (row.tensor(1024, 1024, F32), row.tensor(1024, 1024, element));
            cast::cast(&mut row.rec, from, to);
            Work::Bytes(6.0 * (1 << 20) as f64)
        });
    }
    row(c, &gpu, "muon 128 x 384, 5 steps", |row| {
        let [weights, gradients, moments] = [0; 3].map(|_| row.tensor(D, F, F32));
        let step = step_tensors(row);
        let settings = muon::Muon {
            momentum: 0.95,
            is_nesterov: true,
            steps: 5,
            rms: 0.2,
            decay: 0.1,
            rate_column: 0,
            rounding: Rounding::default(),
        };
        let matrix = muon::Matrix { weights, gradients, moments };
        muon::muon(&mut row.rec, &matrix, &step, &settings);
        // Three products per Newton-Schulz step: x xᵀ, its square, and the polynomial times x.
        let (short, long) = (D as f64, F as f64);
        Work::Flops(5.0 * 2.0 * short * short * (2.0 * long + short))
    });
}

/// Rotates q and k of all tokens.
fn rotation(row: &mut Job) {
    let (qkv, positions) = (row.tensor(N, LAYOUT.cols(), F32), row.tensor(1, N, U32));
    let cos_sin = row.tensor(128, 32, F32);
    let settings = Rope { rotary_dim: 32, theta: 10000.0, is_interleaved: false };
    rope::rope(&mut row.rec, qkv, positions, LAYOUT, &settings, cos_sin);
}

fn step_tensors(row: &mut Job) -> StepTensors {
    let (state, loss) = (row.state(StepState::default()), row.state(LossState::default()));
    StepTensors { state, loss, schedule: row.tensor(1, 4, F32) }
}

fn layer_norm_saved(row: &mut Job) -> layer_norm::LayerNormSaved {
    let [mean, rstd] = [0; 2].map(|_| row.tensor(1, N, F32));
    layer_norm::LayerNormSaved { x: row.tensor(N, D, F32), w: row.tensor(1, D, F32), mean, rstd }
}

/// Causal attention, and the FLOPs of one product over head_dim, for each query, key and head; query i of T sees min(i,
/// window) keys.
fn causal(tokens: u32, window: Option<u32>) -> (Attention, f64) {
    let shape = Attention {
        layout: LAYOUT,
        tokens,
        is_causal: true,
        scale: 0.18,
        soft_cap: None,
        window,
        has_alibi: false,
        head_range: None,
        dropout: None,
    };
    let keys = f64::from(window.unwrap_or(tokens));
    (shape, 2.0 * 128.0 * N as f64 * (keys - keys * (keys - 1.0) / (2.0 * f64::from(tokens))))
}

fn attentions(c: &mut Criterion) {
    let gpu = gpu();
    for (tokens, window, dropped, has_sinks) in [
        (128, None, 0.0, false),
        (1024, None, 0.0, false),
        (1024, Some(128), 0.0, false),
        (1024, None, 0.1, false),
        (1024, Some(128), 0.0, true),
    ] {
        let (shape, product) = causal(tokens, window);
        let with_mask = |row: &mut Job| {
            let state = row.state(DropoutState::default());
            let place = Dropout { probability: dropped, seed: 1, site: 0, state, part: None };
            Attention { dropout: (dropped > 0.0).then_some(place), ..shape }
        };
        let sinks = |row: &mut Job| {
            let (logits, gradient) = (row.tensor(1, LAYOUT.heads, F32), row.tensor(1, LAYOUT.heads, F32));
            has_sinks.then_some(Sinks { logits, gradient: Some(gradient) })
        };
        let mut name = format!("T={tokens}");
        name += &window.map_or(String::new(), |window| format!(" window={window}"));
        name += if dropped > 0.0 { " dropout" } else { "" };
        name += if has_sinks { " sinks" } else { "" };
        row(c, &gpu, &format!("attention {name}"), |row| {
            let (qkv, y, lse) =
                (row.tensor(N, LAYOUT.cols(), F32), row.tensor(N, D, F32), row.tensor(N, 4, F32));
            let (shape, sinks) = (with_mask(row), sinks(row));
            let tensors = AttentionTensors { sinks, ..AttentionTensors::new(qkv, y, lse) };
            attention(&mut row.rec, &tensors, &shape);
            Work::Flops(2.0 * product)
        });
        row(c, &gpu, &format!("attention backward {name}"), |row| {
            let (qkv, y, dy) =
                (row.tensor(N, LAYOUT.cols(), F32), row.tensor(N, D, F32), row.tensor(N, D, F32));
            let (lse, dqkv) = (row.tensor(N, 4, F32), row.tensor(N, LAYOUT.cols(), F32));
            let (shape, sinks) = (with_mask(row), sinks(row));
            let tensors = AttentionTensors { sinks, ..AttentionTensors::new(qkv, y, lse) };
            attention_backward(&mut row.rec, &tensors, dy, dqkv, &shape);
            Work::Flops(5.0 * product)
        });
    }
}

/// The gated delta rule of one sequence beside attention of as many tokens and heads, which it replaces.
fn delta_rules(c: &mut Criterion) {
    let gpu = gpu();
    let inputs = |row: &mut Job, tokens| {
        let (qk, v) = (row.tensor(tokens, 2 * D, F32), row.tensor(tokens, D, F32));
        DeltaInputs { qk, v, gates: row.tensor(tokens, 8, F32) }
    };
    let shape = |tokens| GatedDeltaRule {
        tokens,
        heads: 4,
        key_heads: 4,
        key_dim: 32,
        value_dim: 32,
        scale: 0.18,
        documents: None,
    };
    for tokens in [512, 2048, 8192] {
        // Multiply-adds of all tokens with states, and with the tokens of their chunks.
        let (state, chunk) = (f64::from(tokens) * 4.0 * 32.0 * 32.0, f64::from(tokens * CHUNK) * 4.0 * 32.0);
        row(c, &gpu, &format!("gated_delta_rule T={tokens}"), |row| {
            let (inputs, out) = (inputs(row, tokens), row.tensor(tokens, D, F32));
            gated_delta_rule(&mut row.rec, &inputs, out, None, &shape(tokens));
            Work::Flops(2.0 * (3.0 * state + 4.0 * chunk))
        });
        row(c, &gpu, &format!("gated_delta_rule backward T={tokens}"), |row| {
            let (given, dout) = (inputs(row, tokens), row.tensor(tokens, D, F32));
            let gradients = inputs(row, tokens);
            gated_delta_rule_backward(&mut row.rec, &given, dout, &gradients, &shape(tokens));
            Work::Flops(2.0 * (8.0 * state + 11.0 * chunk))
        });
        let (attended, product) = causal(tokens, None);
        row(c, &gpu, &format!("attention beside gated_delta_rule T={tokens}"), |row| {
            let (qkv, y, lse) = (
                row.tensor(tokens, LAYOUT.cols(), F32),
                row.tensor(tokens, D, F32),
                row.tensor(tokens, 4, F32),
            );
            attention(&mut row.rec, &AttentionTensors::new(qkv, y, lse), &attended);
            Work::Flops(2.0 * product * f64::from(tokens) / N as f64)
        });
    }
    row(c, &gpu, "gated_delta_rule step B=8", |row| {
        let (inputs, state, out) = (inputs(row, 8), row.tensor(8 * 4 * 32, 32, F32), row.tensor(8, D, F32));
        gated_delta_rule_step(&mut row.rec, &inputs, state, out, &shape(1));
        Work::Bytes(8.0 * 8.0 * 4.0 * 32.0 * 32.0)
    });
}

/// Fused kernels beside compositions of unfused ones, all with bounds checks.
fn compositions(c: &mut Criterion) {
    let gpu = unfused::gpu(tier());
    let bytes = |tensors: f64, cols: u32| Work::Bytes(4.0 * tensors * N as f64 * cols as f64);
    row(c, &gpu, "rope, q and k, checked", |row| {
        rotation(row);
        bytes(2.0, 2 * D)
    });
    row(c, &gpu, "rope, q and k, composed", |row| {
        let [x, y] = [0; 2].map(|_| row.tensor(N, 2 * D, F32));
        let [cos, sin] = [0; 2].map(|_| row.tensor(128, 32, F32));
        unfused::rope(&mut row.rec, x, cos, sin, 32, y);
        bytes(2.0, 2 * D)
    });
    let checked = |rec: &mut _, gate_up, y| swiglu::swiglu(rec, gate_up, y, Gate::Silu);
    for (name, swiglu) in [("checked", checked as fn(&mut _, _, _)), ("composed", unfused::swiglu)] {
        row(c, &gpu, &format!("swiglu, {name}"), |row| {
            let (gate_up, y) = (row.tensor(N, 2 * F, F32), row.tensor(N, F, F32));
            swiglu(&mut row.rec, gate_up, y);
            bytes(3.0, F)
        });
    }
    let checked = |rec: &mut _, x, w, y| {
        let conv = CausalConv { tokens: N, documents: None, form: ConvForm::Gated };
        causal_conv::causal_conv(rec, x, w, y, &conv);
    };
    for (name, conv) in [("checked", checked as fn(&mut _, _, _, _)), ("composed", unfused::gated_conv)] {
        row(c, &gpu, &format!("causal_conv with gates, {name}"), |row| {
            let (x, y, w) = (row.tensor(N, 3 * D, F32), row.tensor(N, D, F32), row.tensor(3, D, F32));
            conv(&mut row.rec, x, w, y);
            bytes(4.0, D)
        });
    }
    for tokens in [128, 1024] {
        let (shape, product) = causal(tokens, None);
        row(c, &gpu, &format!("attention T={tokens}, checked"), |row| {
            let (qkv, y, lse) =
                (row.tensor(N, LAYOUT.cols(), F32), row.tensor(N, D, F32), row.tensor(N, 4, F32));
            attention(&mut row.rec, &AttentionTensors::new(qkv, y, lse), &shape);
            Work::Flops(2.0 * product)
        });
        row(c, &gpu, &format!("attention T={tokens}, composed"), |row| {
            let (qkv, y) = (row.tensor(N, LAYOUT.cols(), F32), row.tensor(N, D, F32));
            unfused::attention(&mut row.rec, qkv, y, &shape);
            Work::Flops(2.0 * product)
        });
    }
    mixture::compositions(c, &gpu);
}

fn decoding(c: &mut Criterion) {
    let gpu = gpu();
    for (sequences, tokens, window) in [(1, 1024, None), (8, 1024, None), (8, 8192, Some(1024))] {
        let rows = window.unwrap_or(tokens); // of a ring
        let shape =
            decode::Decode { layout: LAYOUT, tokens, scale: 0.18, soft_cap: None, window, has_alibi: false };
        let ring = window.map_or(String::new(), |window| format!(" in a ring of {window}"));
        row(c, &gpu, &format!("decode B={sequences} T={tokens}{ring}"), |row| {
            let (qkv, out) = (row.tensor(sequences, LAYOUT.cols(), F32), row.tensor(sequences, D, F32));
            let cache = row.tensor(sequences * rows, shape.cache_cols(), F32);
            let positions = row.integers(&vec![tokens - 1; sequences as usize]);
            let tensors = decode::DecodeTensors { qkv, positions, cache, rope: None, sinks: None, out };
            decode::decode(&mut row.rec, &tensors, &shape);
            Work::Bytes(4.0 * (sequences * rows * shape.cache_cols()) as f64)
        });
    }
}

/// What `monitor_config` computes of a weight, and what ranks compare of theirs.
fn monitors(c: &mut Criterion) {
    let gpu = gpu();
    row(c, &gpu, "fingerprint V=8192", |row| {
        let (x, sums) = (row.tensor(1, 8192 * D, F32), row.tensor(1, 2, U32));
        fingerprint::fingerprint(&mut row.rec, x, 0, sums, 0);
        Work::Bytes(4.0 * 8192.0 * D as f64)
    });
    row(c, &gpu, "squares V=8192", |row| {
        let (x, sums) = (row.tensor(1, 8192 * D, F32), row.tensor(1, 4, F32));
        squares::squares(&mut row.rec, &[x], sums, 0);
        Work::Bytes(4.0 * 8192.0 * D as f64)
    });
    row(c, &gpu, "largest V=8192", |row| {
        let x = row.tensor(8192, D, Bf16);
        largest::largest(&mut row.rec, x, None);
        Work::Bytes(2.0 * 8192.0 * D as f64)
    });
    for weights in [F32, Nf4] {
        row(c, &gpu, &format!("row_squares 16 {weights:?}"), |row| {
            let element = F32;
            let (w, squares) = (row.tensor(F, D, weights), row.tensor(1, F, F32));
            let (a, b) = (row.tensor(16, D, element), row.tensor(F, 16, element));
            let added = LowRankFactors { a, b, factor: 2.0 };
            row_squares(&mut row.rec, w, Some(added), squares);
            Work::Flops(2.0 * 17.0 * f64::from(F) * D as f64)
        });
    }
    row(c, &gpu, "column_scale", |row| {
        let [x, residual, y] = [0; 3].map(|_| row.tensor(N, D, F32));
        let [magnitudes, squares] = [0; 2].map(|_| row.tensor(1, D, F32));
        let of = ColumnFactors { magnitudes, squares: Some(squares) };
        column_scale(&mut row.rec, x, of, Terms { residual: Some(residual), ..Terms::default() }, y);
        Work::Bytes(12.0 * N as f64 * D as f64)
    });
    row(c, &gpu, "column_scale_backward_weight", |row| {
        let [x, dy] = [0; 2].map(|_| row.tensor(N, D, F32));
        let [magnitudes, squares, gradient] = [0; 3].map(|_| row.tensor(1, D, F32));
        let of = ColumnFactors { magnitudes, squares: Some(squares) };
        column_scale_backward_weight(&mut row.rec, x, dy, of, None, gradient);
        Work::Bytes(8.0 * N as f64 * D as f64)
    });
    row(c, &gpu, "max_logit 16 heads", |row| {
        let (logits, largest) = (row.tensor(8192, 16, F32), row.tensor(1, 16, U32));
        max_logit::max_logit(&mut row.rec, logits, largest, 0);
        Work::Bytes(4.0 * 8192.0 * 16.0)
    });
}

fn losses(c: &mut Criterion) {
    let gpu = gpu();
    row(c, &gpu, "l2_norm V=8192", |row| {
        let (x, y) = (row.tensor(8192, D, F32), row.tensor(8192, D, F32));
        l2_norm::l2_norm(&mut row.rec, x, y, 1e-5);
        Work::Bytes(8.0 * 8192.0 * D as f64)
    });
    row(c, &gpu, "l2_norm_backward V=8192", |row| {
        let [x, dy, dx] = [0; 3].map(|_| row.tensor(8192, D, F32));
        l2_norm::l2_norm_backward(&mut row.rec, x, dy, dx, 1e-5);
        Work::Bytes(16.0 * 8192.0 * D as f64)
    });
    for vocab in [256, 8192] {
        row(c, &gpu, &format!("linear_cross_entropy V={vocab}"), |row| {
            let (h, head, dh) = (row.tensor(N, D, F32), row.tensor(vocab, D, F32), row.tensor(N, D, F32));
            let dhead = row.tensor(vocab, D, F32);
            let (targets, step, loss) =
                (row.tensor(1, N, U32), row.state(StepState::default()), row.state(LossState::default()));
            let loss = CrossEntropy::new(targets, step, loss);
            let op =
                OutputProjection { h, head: &[head], bias: None, factor: None, soft_cap: None, ranks: None };
            linear_cross_entropy(
                &mut row.rec,
                &op,
                &loss,
                dh,
                Some(HeadGradient { parts: &[dhead], accumulate: true }),
            );
            Work::Flops(6.0 * N as f64 * D as f64 * vocab as f64)
        });
    }
    // Logits twice, and the gradient of the hidden states alone, as under adapters.
    row(c, &gpu, "linear_cross_entropy of pairs V=8192", |row| {
        let (h, head, dh) = (row.tensor(N, D, F32), row.tensor(8192, D, F32), row.tensor(N, D, F32));
        let preference = Preference {
            loss: PairLoss::Dpo { beta: 0.1, label_smoothing: 0.0 },
            pairs: row.tensor(1, N, U32),
            reference: Some(row.tensor(1, N, F32)),
            state: row.state(PreferenceState::default()),
        };
        let (targets, step, loss) =
            (row.tensor(1, N, U32), row.state(StepState::default()), row.state(LossState::default()));
        let loss = CrossEntropy { preference: Some(preference), ..CrossEntropy::new(targets, step, loss) };
        let op = OutputProjection { h, head: &[head], bias: None, factor: None, soft_cap: None, ranks: None };
        linear_cross_entropy(&mut row.rec, &op, &loss, dh, None);
        Work::Flops(6.0 * N as f64 * D as f64 * 8192.0)
    });
}

criterion_group!(
    benches,
    products,
    mixture::grouped,
    elementwise,
    attentions,
    delta_rules,
    compositions,
    decoding,
    mixture::permutations,
    mixture::routing,
    monitors,
    losses
);
criterion_main!(benches);

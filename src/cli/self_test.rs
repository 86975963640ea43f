//! `doctor`'s self-test: the kernels of a training step, forward and backward, on the same inputs on both tiers.
//!
//! Where a few lines of plain arithmetic give the exact result, the kernels must produce it: products and sums of whole
//! numbers, which are exact in f32, rows that only move, experts chosen by whole numbers, activations. For all others
//! the tiers, whose kernels divide the work differently, must agree. The repository's tests are much stricter. The
//! self-test is for adapters that these tests have never run on.

mod experts;
mod harness;
mod products;
mod tiles;

use self::harness::{Computed, Harness};
use crate::device::Gpu;
use crate::error::Result;
use crate::kernels::Tier;
use crate::ops::attention::{Attention, AttentionTensors, attention, attention_backward};
use crate::ops::gelu::{self, Gelu};
use crate::ops::heads::HeadLayout;
use crate::ops::layer_norm::LayerNorm;
use crate::ops::linear_cross_entropy::{CrossEntropy, HeadGradient, OutputProjection, linear_cross_entropy};
use crate::ops::rms_norm::RmsNorm;
use crate::ops::step_state::{LossState, StepState};
use crate::ops::swiglu::Gate;
use crate::ops::{layer_norm, rms_norm, swiglu};
use std::f64::consts::PI;

/// Results that were all compared with the same reference.
pub struct Tested {
    /// The tier whose results were compared with known ones; without it the tiers were compared with each other.
    pub tier: Option<Tier>,
    /// How each result compared.
    pub outcomes: Vec<Outcome>,
}

/// The difference between a kernel's result and its reference.
pub struct Outcome {
    /// Label of the result: the kernel, and for gradients which one it is.
    pub kernel: &'static str,
    /// Largest absolute difference, divided by the root mean square of the reference.
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

/// Runs the kernels of both tiers on `gpu`.
///
/// # Errors
/// The device fails.
pub async fn self_test(gpu: &Gpu) -> Result<Vec<Tested>> {
    let [one, other] = Tier::EVERYWHERE;
    Ok(judge(&[run(gpu, one).await?, run(gpu, other).await?]))
}

async fn run(gpu: &Gpu, tier: Tier) -> Result<(Tier, Vec<Computed>)> {
    let mut harness = Harness::new(gpu, tier);
    record(&mut harness);
    Ok((tier, harness.run().await?))
}

/// Compares each tier's results with known ones, and for all other results the tiers with each other.
fn judge([one, other]: &[(Tier, Vec<Computed>); 2]) -> Vec<Tested> {
    let outcome = |got: &Computed, want: &[f64]| Outcome {
        kernel: got.kernel,
        error: relative_error(&got.values, want),
    };
    let against_known = |(tier, results): &(Tier, Vec<Computed>)| {
        let outcomes = results.iter().filter_map(|result| Some(outcome(result, result.known.as_ref()?)));
        Tested { tier: Some(*tier), outcomes: outcomes.collect() }
    };
    let unknown = one.1.iter().zip(&other.1).filter(|(one, _)| one.known.is_none());
    let between = unknown.map(|(one, other)| outcome(other, &one.values)).collect();
    vec![against_known(one), against_known(other), Tested { tier: None, outcomes: between }]
}

/// The largest absolute difference, divided by the root mean square of `want`; infinite if a value is NaN, or if all of
/// `want` is 0, for example because no kernel has written it.
fn relative_error(got: &[f64], want: &[f64]) -> f64 {
    let rms = (want.iter().map(|w| w * w).sum::<f64>() / want.len() as f64).sqrt();
    let errors = got.iter().zip(want).map(|(g, w)| (g - w).abs() / rms);
    errors.map(|error| if error.is_nan() { f64::INFINITY } else { error }).fold(0.0, f64::max)
}

/// Records all kernels that are tested.
fn record(harness: &mut Harness<'_>) {
    products::products(harness, [N, D, D], ["matmul x Wᵀ", "matmul dy W", "matmul dyᵀ x"]);
    norms(harness);
    activations(harness);
    attentions(harness, LAYOUT, ["attention", "attention dqkv"]);
    loss(harness);
    experts::experts(harness);
    tiles::tiles(harness);
}

fn norms(harness: &mut Harness<'_>) {
    let (x, (dy, dy_values)) = (harness.input(N, D), harness.whole(N, D));
    let [w, b] = [(); 2].map(|()| harness.input(1, D));
    let [y, dx] = [(); 2].map(|()| harness.output(N, D));
    let (rstd, dw) = (harness.output(1, N), harness.output(1, D));
    let norm = RmsNorm::new(EPSILON);
    rms_norm::rms_norm(&mut harness.job.rec, x, w, y, rstd, norm);
    let saved = rms_norm::RmsNormSaved { x, w, rstd };
    rms_norm::rms_norm_backward(&mut harness.job.rec, &saved, norm, dy, dx, false);
    rms_norm::rms_norm_backward_weight(&mut harness.job.rec, &saved, norm, dy, dw);
    harness.compare("rms_norm", y);
    harness.compare("rms_norm dx", dx);
    harness.compare("rms_norm dw", dw);

    let [y, dx] = [(); 2].map(|()| harness.output(N, D));
    let [mean, rstd] = [(); 2].map(|()| harness.output(1, N));
    let [dw, db] = [(); 2].map(|()| harness.output(1, D));
    let saved = layer_norm::LayerNormSaved { x, w, mean, rstd };
    let norm = LayerNorm::new(EPSILON);
    layer_norm::layer_norm(&mut harness.job.rec, &saved, Some(b), y, norm);
    layer_norm::layer_norm_backward(&mut harness.job.rec, &saved, norm, dy, dx, false);
    layer_norm::layer_norm_backward_weight(&mut harness.job.rec, &saved, dy, dw, Some(db));
    harness.compare("layer_norm", y);
    harness.compare("layer_norm dx", dx);
    harness.compare("layer_norm dw", dw);
    // The gradient of a bias is a sum over rows.
    let column = |col: usize| dy_values.iter().skip(col).step_by(D as usize).sum::<i32>();
    harness.expect("layer_norm db", db, (0..D as usize).map(column).collect());
}

/// The tiers compute these in the same way, by one shader, so the results are compared with the formulas.
fn activations(harness: &mut Harness<'_>) {
    let gelu = |x: f64| 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh());
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let slope = |f: &dyn Fn(f64) -> f64, x: f64| (f(x + 1e-5) - f(x - 1e-5)) / 2e-5;

    let ((x, x_values), (dy, dy_values)) = (harness.whole(N, D), harness.whole(N, D));
    let [y, dx] = [(); 2].map(|()| harness.output(N, D));
    gelu::gelu(&mut harness.job.rec, x, y, Gelu::Tanh);
    gelu::gelu_backward(&mut harness.job.rec, x, dy, dx, Gelu::Tanh);
    harness.expect("gelu", y, x_values.iter().map(|x| gelu((*x).into())).collect());
    let dx_value = |(x, dy): (&i32, &i32)| f64::from(*dy) * slope(&gelu, (*x).into());
    harness.expect("gelu dx", dx, x_values.iter().zip(&dy_values).map(dx_value).collect());

    // A row of x is a gate, followed by the values that it scales.
    let (dout, dout_values) = harness.whole(N, D / 2);
    let (out, d_gate_up) = (harness.output(N, D / 2), harness.output(N, D));
    swiglu::swiglu(&mut harness.job.rec, x, out, Gate::Silu);
    swiglu::swiglu_backward(&mut harness.job.rec, x, dout, d_gate_up, Gate::Silu);
    let (mut want, mut want_dx) = (Vec::new(), Vec::new());
    for (x, dout) in x_values.chunks(D as usize).zip(dout_values.chunks(D as usize / 2)) {
        let (gate, up) = x.split_at(dout.len());
        let each =
            || gate.iter().zip(up).zip(dout).map(|((g, u), d)| [g, u, d].map(|value| f64::from(*value)));
        want.extend(each().map(|[gate, up, _]| silu(gate) * up));
        want_dx.extend(each().map(|[gate, up, dout]| dout * up * slope(&silu, gate)));
        want_dx.extend(each().map(|[gate, _, dout]| dout * silu(gate)));
    }
    harness.expect("swiglu", out, want);
    harness.expect("swiglu dx", d_gate_up, want_dx);
}

/// Causal attention and its gradients.
fn attentions(harness: &mut Harness<'_>, layout: HeadLayout, labels: [&'static str; 2]) {
    let (qkv, dout) = (harness.input(N, layout.cols()), harness.input(N, layout.out_cols()));
    let (out, lse) = (harness.output(N, layout.out_cols()), harness.output(N, layout.heads));
    let dqkv = harness.output(N, layout.cols());
    let shape = Attention {
        layout,
        tokens: N,
        is_causal: true,
        scale: 0.2,
        soft_cap: None,
        window: None,
        has_alibi: false,
        head_range: None,
        dropout: None,
    };
    attention(&mut harness.job.rec, &AttentionTensors::new(qkv, out, lse), &shape);
    attention_backward(&mut harness.job.rec, &AttentionTensors::new(qkv, out, lse), dout, dqkv, &shape);
    harness.compare(labels[0], out);
    harness.compare(labels[1], dqkv);
}

/// The head and the cross-entropy: only their gradients, since forward computes nothing but the loss.
fn loss(harness: &mut Harness<'_>) {
    let (h, head) = (harness.input(N, D), harness.input(V, D));
    let (dh, dhead) = (harness.output(N, D), harness.output(V, D));
    let loss = harness.job.state(LossState::default());
    let targets: Vec<u32> = (0..N).map(|token| token * 37 % V).collect();
    let ids = harness.job.integers(&targets);
    let step = harness.job.state(StepState { loss_scale: 1.0, ..StepState::default() });
    let loss = CrossEntropy { ignore: targets[5], ..CrossEntropy::new(ids, step, loss) };
    let op = OutputProjection { h, head: &[head], bias: None, factor: None, soft_cap: None, ranks: None };
    let gradient = HeadGradient { parts: &[dhead], accumulate: true };
    linear_cross_entropy(&mut harness.job.rec, &op, &loss, dh, Some(gradient));
    harness.compare("cross_entropy dh", dh);
    harness.compare("cross_entropy dw", dhead);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two tiers' results for a product, whose result is known, and for a norm.
    fn computed() -> [(Tier, Vec<Computed>); 2] {
        let product = || Computed { kernel: "matmul", values: vec![3.0, -4.0], known: Some(vec![3.0, -4.0]) };
        let norm = |values| Computed { kernel: "rms_norm", values, known: None };
        let near = vec![0.5, -0.500_001];
        [
            (Tier::Software, vec![product(), norm(vec![0.5, -0.5])]),
            (Tier::Portable, vec![product(), norm(near)]),
        ]
    }

    fn errors(computed: &[(Tier, Vec<Computed>); 2]) -> Vec<(Option<Tier>, &'static str, f64)> {
        let of = |tested: Tested| tested.outcomes.into_iter().map(move |o| (tested.tier, o.kernel, o.error));
        judge(computed).into_iter().flat_map(of).collect()
    }

    fn faults(computed: &[(Tier, Vec<Computed>); 2]) -> Vec<(Option<Tier>, &'static str)> {
        let wrong = errors(computed).into_iter().filter(|(_, _, error)| *error > ALLOWED);
        wrong.map(|(tier, kernel, _)| (tier, kernel)).collect()
    }

    #[test]
    fn each_result_is_compared_once() {
        let compared = errors(&computed());
        assert_eq!(compared.len(), 3);
        assert_eq!(
            compared[..2].iter().map(|(tier, ..)| *tier).collect::<Vec<_>>(),
            Tier::EVERYWHERE.map(Some)
        );
        assert!((1e-6..3e-6).contains(&compared[2].2), "{compared:?}");
        assert!(faults(&computed()).is_empty());
    }

    #[test]
    fn a_wrong_result_is_found_in_one_tier_or_in_both_alike() {
        let (wrong, not_a_number) = (vec![3.0, -3.0], vec![3.0, f64::NAN]);
        for values in [wrong, not_a_number, vec![0.0; 2]] {
            let mut one = computed();
            one[1].1[0].values = values.clone();
            assert_eq!(faults(&one), [(Some(Tier::Portable), "matmul")]);
            one[0].1[0].values = values;
            assert_eq!(faults(&one), [(Some(Tier::Software), "matmul"), (Some(Tier::Portable), "matmul")]);
        }
    }

    #[test]
    fn tiers_that_disagree_are_found_and_so_are_results_that_nobody_wrote() {
        for tier in 0..2 {
            for values in [vec![0.5, -0.6], vec![f64::NAN, -0.5], vec![f64::INFINITY, -0.5], vec![0.0; 2]] {
                let mut one = computed();
                one[tier].1[1].values = values;
                assert_eq!(faults(&one), [(None, "rms_norm")]);
            }
        }
        let mut unwritten = computed();
        unwritten.iter_mut().for_each(|(_, results)| results[1].values = vec![0.0; 2]);
        assert_eq!(faults(&unwritten), [(None, "rms_norm")]);
    }
}

//! A layer's linear attention, as in Qwen3-Next and Qwen3.5: projections, a short convolution, the gated delta rule over
//! queries and keys of length 1, a gated norm of each head, and the output projection.

use super::causal_conv::{CausalConv, causal_conv, causal_conv_backward};
use super::gated_delta_rule::{self as rule, GatedDeltaRule, Inputs, gated_delta_rule};
use super::l2_norm::{l2_norm, l2_norm_backward};
use super::matmul::{linear, linear_backward};
use super::rms_norm::{rms_norm, rms_norm_backward};
use super::storage::Storage;
use super::swiglu::{swiglu, swiglu_backward};
use super::vector::add;

/// Added to the square of a query's or a key's length.
const UNIT_EPSILON: f64 = 1e-6;

/// Shapes of the layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearAttention<'a> {
    /// D, width of the layer's input and output.
    pub hidden_size: usize,
    /// Shapes of the rule.
    pub rule: GatedDeltaRule<'a>,
    /// W, tokens that the convolution sees.
    pub conv_width: usize,
    /// Added to the mean square of a head in its norm.
    pub epsilon: f64,
    /// What activations and their gradients are rounded to; strengths and decays are not.
    pub storage: Storage,
}

/// The weights of the layer, or their gradients. With C = 2 key_heads·K + heads·V:
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Queries, keys and values (C, D).
    pub qkv: Vec<f64>,
    /// The gate of the norm (heads·V, D).
    pub z: Vec<f64>,
    /// The logits of the strengths (heads, D).
    pub b: Vec<f64>,
    /// What the decays are made of (heads, D).
    pub a: Vec<f64>,
    /// The convolution of each channel (C, W).
    pub conv: Vec<f64>,
    /// The logarithms of the decays' factors (heads).
    pub a_log: Vec<f64>,
    /// (heads), added to a.
    pub bias: Vec<f64>,
    /// The norm of each head (V).
    pub norm: Vec<f64>,
    /// The output projection (D, heads·V).
    pub out: Vec<f64>,
}

/// Everything that the backward pass reads, for N tokens.
struct Activations {
    /// (N, C), before the convolution, after it, and after SiLU.
    qkv: Vec<f64>,
    convolved: Vec<f64>,
    active: Vec<f64>,
    /// (N, key_heads·K) each, of length 1.
    q: Vec<f64>,
    k: Vec<f64>,
    /// (N, heads·V)
    v: Vec<f64>,
    z: Vec<f64>,
    /// (N, heads)
    a: Vec<f64>,
    beta: Vec<f64>,
    log_decay: Vec<f64>,
    /// (N, heads·V): the result of the rule, and its norm.
    attended: Vec<f64>,
    normed: Vec<f64>,
    /// (N, heads·V), the input of the output projection.
    gated: Vec<f64>,
}

/// y (N, D) of x (N, D), N = B·T tokens.
#[track_caller]
pub fn linear_attention(x: &[f64], weights: &Weights, shape: &LinearAttention) -> Vec<f64> {
    let rows = x.len() / shape.hidden_size;
    let gated = shape.activations(x, weights).gated;
    linear(&gated, &weights.out, None, rows, shape.hidden_size, shape.values())
}

/// (dx (N, D), the gradients of the weights) of [`linear_attention`], given dy (N, D).
#[track_caller]
pub fn linear_attention_backward(
    x: &[f64],
    weights: &Weights,
    dy: &[f64],
    shape: &LinearAttention,
) -> (Vec<f64>, Weights) {
    let (rows, width) = (x.len() / shape.hidden_size, shape.hidden_size);
    let (keys, values, heads) = (shape.keys(), shape.values(), shape.rule.heads);
    let store = |values| shape.storage.store(values);
    let at = shape.activations(x, weights);
    let (d_gated, out, _) = linear_backward(&at.gated, &weights.out, dy, rows, width, values);
    let (dz, d_normed) = swiglu_backward(&at.z, &at.normed, &store(d_gated));
    let (d_attended, norm) =
        rms_norm_backward(&at.attended, &weights.norm, &d_normed, shape.rule.value_dim, shape.epsilon);
    let gradients = rule::gated_delta_rule_backward(&at.inputs(), &store(d_attended), &shape.rule);
    let [da, a_log, bias] =
        rule::log_decay_backward(&at.a, &weights.a_log, &weights.bias, &gradients.log_decay);
    let db: Vec<f64> =
        at.beta.iter().zip(&gradients.beta).map(|(beta, dbeta)| dbeta * beta * (1.0 - beta)).collect();
    let of_unit = |first: usize, dy: &[f64]| {
        let x = columns(&at.active, shape.channels(), first, keys);
        store(l2_norm_backward(&x, dy, shape.rule.key_dim, UNIT_EPSILON))
    };
    let [dq, dk, dv] = [gradients.q, gradients.k, gradients.v].map(store);
    let (dq, dk) = (of_unit(0, &dq), of_unit(keys, &dk));
    let d_active: Vec<f64> = (0..rows)
        .flat_map(|row| {
            let parts = [(&dq, keys), (&dk, keys), (&dv, values)];
            parts.map(|(part, cols)| part[row * cols..(row + 1) * cols].to_vec()).concat()
        })
        .collect();
    let (d_convolved, _) = swiglu_backward(&at.convolved, &vec![1.0; at.convolved.len()], &d_active);
    let (d_qkv, conv) = causal_conv_backward(&at.qkv, &weights.conv, &store(d_convolved), &shape.conv());
    let [d_qkv, dz, db, da] = [d_qkv, dz, db, da].map(store);
    let back = |w: &[f64], dy: &[f64], cols: usize| linear_backward(x, w, dy, rows, cols, width);
    let (of_qkv, qkv, _) = back(&weights.qkv, &d_qkv, shape.channels());
    let (of_z, z, _) = back(&weights.z, &dz, values);
    let (of_b, b, _) = back(&weights.b, &db, heads);
    let (of_a, a, _) = back(&weights.a, &da, heads);
    let dx = add(&add(&of_qkv, &of_z), &add(&of_b, &of_a));
    (dx, Weights { qkv, z, b, a, conv, a_log, bias, norm, out })
}

impl LinearAttention<'_> {
    /// Columns of all queries, and of all keys.
    fn keys(&self) -> usize {
        self.rule.key_heads * self.rule.key_dim
    }

    /// Columns of all values.
    fn values(&self) -> usize {
        self.rule.heads * self.rule.value_dim
    }

    /// C.
    fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    fn conv(&self) -> CausalConv<'_> {
        CausalConv {
            tokens: self.rule.tokens,
            channels: self.channels(),
            width: self.conv_width,
            starts: self.rule.starts,
        }
    }

    #[track_caller]
    fn activations(&self, x: &[f64], weights: &Weights) -> Activations {
        let (rows, width) = (x.len() / self.hidden_size, self.hidden_size);
        let (keys, values, heads) = (self.keys(), self.values(), self.rule.heads);
        let store = |values| self.storage.store(values);
        let project = |w: &[f64], cols: usize| store(linear(x, w, None, rows, cols, width));
        let qkv = project(&weights.qkv, self.channels());
        let convolved = causal_conv(&qkv, &weights.conv, &self.conv());
        let active = store(swiglu(&convolved, &vec![1.0; convolved.len()]));
        let unit = |first: usize| {
            store(l2_norm(&columns(&active, self.channels(), first, keys), self.rule.key_dim, UNIT_EPSILON))
        };
        let (q, k) = (unit(0), unit(keys));
        let v = columns(&active, self.channels(), 2 * keys, values);
        let a = project(&weights.a, heads);
        let beta: Vec<f64> =
            project(&weights.b, heads).into_iter().map(|b| 1.0 / (1.0 + (-b).exp())).collect();
        let log_decay = rule::log_decay(&a, &weights.a_log, &weights.bias);
        let inputs = Inputs { q: &q, k: &k, v: &v, log_decay: &log_decay, beta: &beta };
        let attended = store(gated_delta_rule(&inputs, &self.rule));
        let normed = rms_norm(&attended, &weights.norm, self.rule.value_dim, self.epsilon);
        let z = project(&weights.z, values);
        let gated = store(swiglu(&z, &normed));
        Activations { qkv, convolved, active, q, k, v, z, a, beta, log_decay, attended, normed, gated }
    }
}

impl Activations {
    fn inputs(&self) -> Inputs<'_> {
        let Self { q, k, v, log_decay, beta, .. } = self;
        Inputs { q, k, v, log_decay, beta }
    }
}

/// `count` columns from `first` on, of rows of `cols`.
fn columns(values: &[f64], cols: usize, first: usize, count: usize) -> Vec<f64> {
    values.chunks_exact(cols).flat_map(|row| row[first..first + count].to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{assert_close, assert_gradient};
    use crate::random::Random;
    use crate::vector::dot;

    const SMALL: LinearAttention = LinearAttention {
        hidden_size: 4,
        rule: GatedDeltaRule {
            tokens: 5,
            heads: 2,
            key_heads: 1,
            key_dim: 3,
            value_dim: 2,
            scale: 0.577_350_269_189_625_8,
            starts: None,
        },
        conv_width: 4,
        epsilon: 1e-6,
        storage: Storage::Exact,
    };

    /// The weights, each of `of` their number and size.
    fn weights(mut of: impl FnMut(usize, usize) -> Vec<f64>) -> Weights {
        Weights {
            qkv: of(0, 10 * 4),
            z: of(1, 4 * 4),
            b: of(2, 2 * 4),
            a: of(3, 2 * 4),
            conv: of(4, 10 * 4),
            a_log: of(5, 2),
            bias: of(6, 2),
            norm: of(7, 2),
            out: of(8, 4 * 4),
        }
    }

    fn fields(weights: &mut Weights) -> [(&'static str, &mut Vec<f64>); 9] {
        let Weights { qkv, z, b, a, conv, a_log, bias, norm, out } = weights;
        [
            ("qkv", qkv),
            ("z", z),
            ("b", b),
            ("a", a),
            ("conv", conv),
            ("a_log", a_log),
            ("bias", bias),
            ("norm", norm),
            ("out", out),
        ]
    }

    /// What transformers 5.23 computes in f32 for a Qwen3.5 layer of these sines and cosines.
    #[test]
    fn the_numbers_of_qwen3_5() {
        let waves = |f: fn(f64) -> f64, count: usize, step: f64| -> Vec<f64> {
            (0..count).map(|i| f(step * i as f64)).collect()
        };
        let weights = weights(|number, count| match number {
            0 => waves(f64::sin, count, 0.7),
            1 => waves(f64::sin, count, 1.1),
            2 => waves(f64::sin, count, 0.5),
            3 => waves(f64::sin, count, 1.3),
            4 => waves(f64::cos, count, 1.1),
            5 => vec![0.2, -0.5],
            6 => vec![0.3, -0.1],
            7 => vec![0.8, 1.2],
            _ => waves(f64::sin, count, 0.9),
        });
        let want = [
            [1.0646776, -0.73323667, 0.25039473, 0.28414953],
            [0.12373906, -0.242607, 0.31138062, -0.31585947],
            [-1.28770924, 0.90757519, -0.34004205, -0.29770404],
            [-1.22231317, 1.32306838, -1.15063226, 0.74060988],
            [-0.27486616, 0.42482334, -0.48706165, 0.44872978],
        ];
        let y = linear_attention(&waves(f64::cos, 20, 0.3), &weights, &SMALL);
        assert_close("y", &y, want.as_flattened(), 1e-6);
    }

    #[test]
    fn backward_is_the_gradient() {
        let starts = [0, 0, 2, 2, 4, 0, 1, 1, 1, 1];
        for shape in
            [SMALL, LinearAttention { rule: GatedDeltaRule { starts: Some(&starts), ..SMALL.rule }, ..SMALL }]
        {
            let mut random = Random::new(36);
            let given = weights(|_, count| random.normal(count));
            let [x, dy] = [0; 2].map(|_| random.normal(10 * 4));
            let (dx, mut gradients) = linear_attention_backward(&x, &given, &dy, &shape);
            assert_gradient("dx", &dx, &x, |x| dot(&linear_attention(x, &given, &shape), &dy));
            for (number, (name, gradient)) in fields(&mut gradients).into_iter().enumerate() {
                let mut moved = given.clone();
                let at = fields(&mut moved)[number].1.clone();
                assert_gradient(name, gradient, &at, |weight| {
                    *fields(&mut moved)[number].1 = weight.to_vec();
                    dot(&linear_attention(&x, &moved, &shape), &dy)
                });
            }
        }
    }
}

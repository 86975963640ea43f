//! The gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464): linear attention whose state forgets, and
//! whose writes replace what the state already holds under a key. Token by token; nothing is done in chunks.

use std::ops::Range;

use super::vector::{add_scaled, assert_len, dot, rows_of};

/// Shapes of the rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedDeltaRule<'a> {
    /// T, tokens per sequence; a state does not cross sequences.
    pub tokens: usize,
    /// Value heads H, each of which has a state.
    pub heads: usize,
    /// Heads of queries and keys, a divisor of H: value head h uses key head h / (heads / key_heads).
    pub key_heads: usize,
    /// K, elements of a query and of a key.
    pub key_dim: usize,
    /// V, elements of a value.
    pub value_dim: usize,
    /// Factor of the queries, usually 1/√key_dim.
    pub scale: f64,
    /// (B·T): for each token the index, within its sequence, of the first token of its document, before which the state
    /// is zero; `None`: each sequence is one document.
    pub starts: Option<&'a [usize]>,
}

/// What a token does to the states, and what it asks them.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Queries (B·T, key_heads·K).
    pub q: &'a [f64],
    /// Keys (B·T, key_heads·K).
    pub k: &'a [f64],
    /// Values (B·T, heads·V).
    pub v: &'a [f64],
    /// Logarithms of the share of the state that stays (B·T, heads).
    pub log_decay: &'a [f64],
    /// Strengths of the writes (B·T, heads).
    pub beta: &'a [f64],
}

/// The gradients of [`Inputs`], in the same shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// Of the queries.
    pub q: Vec<f64>,
    /// Of the keys.
    pub k: Vec<f64>,
    /// Of the values.
    pub v: Vec<f64>,
    /// Of the logarithms of the decay.
    pub log_decay: Vec<f64>,
    /// Of the strengths.
    pub beta: Vec<f64>,
}

/// out (B·T, heads·V). B is inferred from the length of q.
///
/// Each value head has a state S (K, V), zero at the start of a document. A token with g = log_decay
/// - lets it decay: S ← e^g·S,
/// - writes what the state does not hold yet: S ← S + k·dᵀ with d = β·(v − Sᵀk),
/// - and reads: out = scale·Sᵀq.
#[track_caller]
pub fn gated_delta_rule(inputs: &Inputs, shape: &GatedDeltaRule) -> Vec<f64> {
    let rows = shape.rows(inputs);
    let mut out = Vec::with_capacity(rows * shape.heads * shape.value_dim);
    let mut states = vec![0.0; shape.heads * shape.key_dim * shape.value_dim];
    for row in 0..rows {
        if shape.is_start(row) {
            states.fill(0.0);
        }
        for (head, state) in states.chunks_exact_mut(shape.key_dim * shape.value_dim).enumerate() {
            shape.write(inputs, row, head, state);
            out.extend(shape.read(inputs, row, head, state));
        }
    }
    out
}

/// The gradients of [`gated_delta_rule`], given dout (B·T, heads·V).
///
/// dS is the gradient of the state after a token, from the last token of a document to its first: with S' = e^g·S of the
/// token before, dS += scale·q·doutᵀ, dq = scale·S·dout; dd = dSᵀk, dk = dS·d; dβ = dd·(v − S'ᵀk), dv = β·dd; dS' = dS −
/// β·k·ddᵀ, dk −= β·S'·dd; dg = ⟨dS', S'⟩ and dS of the token before = e^g·dS'. Heads that share a key add up.
#[track_caller]
pub fn gated_delta_rule_backward(inputs: &Inputs, dout: &[f64], shape: &GatedDeltaRule) -> Gradients {
    let rows = shape.rows(inputs);
    assert_len("dout", dout, rows * shape.heads * shape.value_dim);
    let zeros = |values: &[f64]| vec![0.0; values.len()];
    let mut gradients = Gradients {
        q: zeros(inputs.q),
        k: zeros(inputs.k),
        v: zeros(inputs.v),
        log_decay: zeros(inputs.log_decay),
        beta: zeros(inputs.beta),
    };
    for head in 0..shape.heads {
        let decayed = shape.decayed_states(inputs, head);
        let mut dstate = vec![0.0; shape.key_dim * shape.value_dim];
        for row in (0..rows).rev() {
            shape.step_backward(inputs, dout, (row, head), &decayed[row], &mut dstate, &mut gradients);
            if shape.is_start(row) {
                dstate.fill(0.0);
            }
        }
    }
    gradients
}

impl GatedDeltaRule<'_> {
    /// B·T, after checking all lengths.
    #[track_caller]
    fn rows(&self, inputs: &Inputs) -> usize {
        let Self { tokens, heads, key_heads, key_dim, value_dim, .. } = *self;
        assert!(key_heads > 0 && heads.is_multiple_of(key_heads), "{key_heads} should divide heads {heads}.");
        let rows = tokens * rows_of("q", inputs.q, tokens * key_heads * key_dim);
        assert_len("k", inputs.k, rows * key_heads * key_dim);
        assert_len("v", inputs.v, rows * heads * value_dim);
        assert_len("log_decay", inputs.log_decay, rows * heads);
        assert_len("beta", inputs.beta, rows * heads);
        assert!(self.starts.is_none_or(|starts| starts.len() == rows), "starts should have {rows} entries.");
        rows
    }

    /// Whether the token in `row` is the first of its document.
    fn is_start(&self, row: usize) -> bool {
        row % self.tokens == self.starts.map_or(0, |starts| starts[row])
    }

    /// Decay and write of one token in the state (K, V) of `head`.
    fn write(&self, inputs: &Inputs, row: usize, head: usize, state: &mut [f64]) {
        let decay = inputs.log_decay[row * self.heads + head].exp();
        state.iter_mut().for_each(|value| *value *= decay);
        let key = &inputs.k[self.key(row, head)];
        let written = self.written(inputs, row, head, state);
        for (state, key) in state.chunks_exact_mut(self.value_dim).zip(key) {
            add_scaled(state, *key, &written);
        }
    }

    /// d (V) = β·(v − Sᵀk) of the decayed state.
    fn written(&self, inputs: &Inputs, row: usize, head: usize, decayed: &[f64]) -> Vec<f64> {
        let beta = inputs.beta[row * self.heads + head];
        let missing = self.missing(inputs, row, head, decayed);
        missing.iter().map(|missing| beta * missing).collect()
    }

    /// v − Sᵀk of the decayed state: (V).
    fn missing(&self, inputs: &Inputs, row: usize, head: usize, decayed: &[f64]) -> Vec<f64> {
        let mut missing = inputs.v[self.value(row, head)].to_vec();
        for (state, key) in decayed.chunks_exact(self.value_dim).zip(&inputs.k[self.key(row, head)]) {
            add_scaled(&mut missing, -key, state);
        }
        missing
    }

    /// scale·Sᵀq: (V).
    fn read(&self, inputs: &Inputs, row: usize, head: usize, state: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; self.value_dim];
        for (state, query) in state.chunks_exact(self.value_dim).zip(&inputs.q[self.key(row, head)]) {
            add_scaled(&mut out, self.scale * query, state);
        }
        out
    }

    /// S' of every token: the state of `head` after its decay, before its write.
    fn decayed_states(&self, inputs: &Inputs, head: usize) -> Vec<Vec<f64>> {
        let mut state = vec![0.0; self.key_dim * self.value_dim];
        let decayed = |row: usize| {
            if self.is_start(row) {
                state.fill(0.0);
            }
            let decay = inputs.log_decay[row * self.heads + head].exp();
            let decayed: Vec<f64> = state.iter().map(|value| decay * value).collect();
            self.write(inputs, row, head, &mut state);
            decayed
        };
        (0..self.rows(inputs)).map(decayed).collect()
    }

    /// Adds the gradients of one token and head; `dstate` is dS of this token before, and of the token before it
    /// afterwards.
    fn step_backward(
        &self,
        inputs: &Inputs,
        dout: &[f64],
        (row, head): (usize, usize),
        decayed: &[f64],
        dstate: &mut [f64],
        gradients: &mut Gradients,
    ) {
        let (scalar, key, value) = (row * self.heads + head, self.key(row, head), self.value(row, head));
        let (q, k) = (&inputs.q[key.clone()], &inputs.k[key.clone()]);
        let (beta, dout) = (inputs.beta[scalar], &dout[value.clone()]);
        let written = self.written(inputs, row, head, decayed);
        let (dq, dk) = (&mut gradients.q[key.clone()], &mut gradients.k[key]);

        let mut dwritten = vec![0.0; self.value_dim];
        for (i, dstate) in dstate.chunks_exact_mut(self.value_dim).enumerate() {
            let decayed = &decayed[slot(i, self.value_dim)];
            dq[i] += self.scale * (dot(decayed, dout) + k[i] * dot(&written, dout));
            add_scaled(dstate, self.scale * q[i], dout);
            dk[i] += dot(dstate, &written);
            add_scaled(&mut dwritten, k[i], dstate);
        }
        gradients.beta[scalar] += dot(&dwritten, &self.missing(inputs, row, head, decayed));
        add_scaled(&mut gradients.v[value], beta, &dwritten);
        for (i, dstate) in dstate.chunks_exact_mut(self.value_dim).enumerate() {
            let decayed = &decayed[slot(i, self.value_dim)];
            dk[i] -= beta * dot(decayed, &dwritten);
            add_scaled(dstate, -beta * k[i], &dwritten);
        }
        gradients.log_decay[scalar] += dot(dstate, decayed);
        let decay = inputs.log_decay[scalar].exp();
        dstate.iter_mut().for_each(|value| *value *= decay);
    }

    /// Range in q and k of the vector of `row` that value head `head` uses.
    fn key(&self, row: usize, head: usize) -> Range<usize> {
        slot(row * self.key_heads + head / (self.heads / self.key_heads), self.key_dim)
    }

    /// Range in v and out of `head`.
    fn value(&self, row: usize, head: usize) -> Range<usize> {
        slot(row * self.heads + head, self.value_dim)
    }
}

/// Range of vector `index` among vectors of `width` elements.
fn slot(index: usize, width: usize) -> Range<usize> {
    index * width..(index + 1) * width
}

/// log_decay (N, H) = −e^a_log · softplus(a + bias), with softplus(x) = log(1 + e^x): a (N, H) of a projection, a_log and
/// bias (H) learned.
#[track_caller]
pub fn log_decay(a: &[f64], a_log: &[f64], bias: &[f64]) -> Vec<f64> {
    rows_of("a", a, a_log.len());
    assert_len("bias", bias, a_log.len());
    let heads = a_log.len();
    a.iter().enumerate().map(|(i, a)| -a_log[i % heads].exp() * softplus(a + bias[i % heads])).collect()
}

/// (da (N, H), da_log (H), dbias (H)) of [`log_decay`], given dy (N, H): with x = a + bias, da = −dy·e^a_log·σ(x); dbias
/// is its sum over rows, da_log that of dy·log_decay.
#[track_caller]
pub fn log_decay_backward(a: &[f64], a_log: &[f64], bias: &[f64], dy: &[f64]) -> [Vec<f64>; 3] {
    assert_len("dy", dy, a.len());
    let (heads, values) = (a_log.len(), log_decay(a, a_log, bias));
    let [mut da_log, mut dbias] = [0; 2].map(|_| vec![0.0; heads]);
    let gradient = |(i, a): (usize, &f64)| {
        let head = i % heads;
        let da = -dy[i] * a_log[head].exp() / (1.0 + (-a - bias[head]).exp());
        da_log[head] += dy[i] * values[i];
        dbias[head] += da;
        da
    };
    let da = a.iter().enumerate().map(gradient).collect();
    [da, da_log, dbias]
}

/// log(1 + e^x), without overflow.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{assert_close, assert_gradient};
    use crate::l2_norm::l2_norm;
    use crate::random::Random;

    const SMALL: GatedDeltaRule = GatedDeltaRule {
        tokens: 5,
        heads: 4,
        key_heads: 2,
        key_dim: 3,
        value_dim: 2,
        scale: 0.7,
        starts: None,
    };

    /// Random inputs of `sequences` sequences, as models have them: keys of length 1, decays below 0, strengths in 0..1.
    fn inputs(shape: &GatedDeltaRule, sequences: usize) -> [Vec<f64>; 5] {
        let mut random = Random::new(31);
        let rows = sequences * shape.tokens;
        let keys = rows * shape.key_heads * shape.key_dim;
        let [q, k] = [0; 2].map(|_| l2_norm(&random.normal(keys), shape.key_dim, 1e-6));
        let v = random.normal(rows * shape.heads * shape.value_dim);
        let scalars = rows * shape.heads;
        let decays = random.normal(scalars).into_iter().map(|x| -0.3 * x * x).collect();
        let strengths = random.normal(scalars).into_iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
        [q, k, v, decays, strengths]
    }

    fn of([q, k, v, log_decay, beta]: &[Vec<f64>; 5]) -> Inputs<'_> {
        Inputs { q, k, v, log_decay, beta }
    }

    /// What transformers 5.23 computes for Qwen3.5 in f32, in chunks of 64 and of 2, of these sines and cosines.
    #[test]
    fn the_numbers_of_qwen3_5() {
        let of = |f: fn(f64) -> f64, count: usize, step: f64| -> Vec<f64> {
            (0..count).map(|i| f(step * i as f64)).collect()
        };
        let shape = GatedDeltaRule { heads: 2, key_heads: 1, scale: 1.0 / 3.0_f64.sqrt(), ..SMALL };
        let log_decay = log_decay(&of(f64::cos, 10, 1.3), &[0.2, -0.5], &[0.3, -0.1]);
        let inputs = Inputs {
            q: &l2_norm(&of(f64::sin, 15, 0.7), 3, 1e-6),
            k: &l2_norm(&of(f64::cos, 15, 1.1), 3, 1e-6),
            v: &of(f64::sin, 20, 0.9),
            log_decay: &log_decay,
            beta: &of(|x| 1.0 / (1.0 + (-x.sin()).exp()), 10, 0.5),
        };
        let want = [
            [0.0, -0.04435766, -0.06811810, -0.02989412],
            [0.17314851, 0.42414847, 0.39689243, 0.02856856],
            [-0.09244596, -0.12857801, -0.10095102, 0.03260488],
            [-0.19189288, -0.15318161, -0.00225486, 0.14950788],
            [0.25739390, 0.15933701, -0.00729034, -0.22524205],
        ];
        assert_close("out", &gated_delta_rule(&inputs, &shape), want.as_flattened(), 1e-6);
    }

    /// With strength 1 and without decay a token reads its own value under its own key, whatever was there.
    #[test]
    fn a_write_replaces_what_its_key_holds() {
        let shape = GatedDeltaRule { scale: 1.0, ..SMALL };
        let [_, k, v, decays, strengths] = inputs(&shape, 2);
        let inputs = [k.clone(), k, v.clone(), vec![0.0; decays.len()], vec![1.0; strengths.len()]];
        // Keys are of length 1 up to the epsilon of their norm.
        assert_close("out", &gated_delta_rule(&of(&inputs), &shape), &v, 1e-5);
    }

    /// The state after t tokens is a sum of outer products where keys are orthogonal, with the decays since each write.
    #[test]
    fn orthogonal_keys_are_decaying_linear_attention() {
        let shape = GatedDeltaRule { tokens: 3, heads: 1, key_heads: 1, key_dim: 3, value_dim: 1, ..SMALL };
        let k = vec![1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
        let inputs = [vec![1.0; 9], k, vec![2.0, 3.0, 5.0], vec![-0.1, -0.2, -0.4], vec![0.5, 1.0, 0.25]];
        let second = (-0.2_f64).exp() + 3.0;
        let third = (-0.4_f64).exp() * second + 1.25;
        let want = [1.0, second, third].map(|value| 0.7 * value);
        assert_close("out", &gated_delta_rule(&of(&inputs), &shape), &want, 1e-14);
    }

    /// Documents in one sequence are as sequences of their own, forward and backward.
    #[test]
    fn documents_have_their_own_states() {
        let alone = GatedDeltaRule { tokens: 3, ..SMALL };
        let packed = GatedDeltaRule { tokens: 6, starts: Some(&[0, 0, 0, 3, 3, 3]), ..SMALL };
        let inputs = inputs(&alone, 2);
        let dout = Random::new(32).normal(6 * 4 * 2);
        assert_eq!(gated_delta_rule(&of(&inputs), &packed), gated_delta_rule(&of(&inputs), &alone));
        let backward = |shape| gated_delta_rule_backward(&of(&inputs), &dout, shape);
        assert_eq!(backward(&packed), backward(&alone));
    }

    #[test]
    fn backward_is_the_gradient() {
        let starts = [0, 0, 2, 2, 4, 0, 1, 1, 1, 1];
        for shape in [
            SMALL,
            GatedDeltaRule { starts: Some(&starts), ..SMALL },
            GatedDeltaRule { heads: 3, key_heads: 3, key_dim: 2, value_dim: 5, ..SMALL },
            GatedDeltaRule { tokens: 1, heads: 1, key_heads: 1, ..SMALL },
        ] {
            let inputs = inputs(&shape, 2);
            let dout = Random::new(33).normal(inputs[2].len());
            let got = gated_delta_rule_backward(&of(&inputs), &dout, &shape);
            let got = [got.q, got.k, got.v, got.log_decay, got.beta];
            for (i, name) in ["dq", "dk", "dv", "dlog_decay", "dbeta"].into_iter().enumerate() {
                let f = |x: &[f64]| {
                    let mut moved = inputs.clone();
                    moved[i] = x.to_vec();
                    dot(&gated_delta_rule(&of(&moved), &shape), &dout)
                };
                if shape.tokens == 1 && name == "dlog_decay" {
                    assert!(got[i].iter().all(|value| *value == 0.0), "nothing decays yet");
                } else {
                    assert_gradient(name, &got[i], &inputs[i], f);
                }
            }
        }
    }

    #[test]
    fn decay_and_its_backward() {
        let mut random = Random::new(34);
        let [a, a_log, bias, dy] = [15, 3, 3, 15].map(|count| random.normal(count));
        let f = |a: &[f64], a_log: &[f64], bias: &[f64]| dot(&log_decay(a, a_log, bias), &dy);
        let [da, da_log, dbias] = log_decay_backward(&a, &a_log, &bias, &dy);
        assert_gradient("da", &da, &a, |a| f(a, &a_log, &bias));
        assert_gradient("da_log", &da_log, &a_log, |a_log| f(&a, a_log, &bias));
        assert_gradient("dbias", &dbias, &bias, |bias| f(&a, &a_log, bias));
        assert_eq!(log_decay(&[1000.0, -1000.0], &[0.0, 0.0], &[0.0, 0.0]), [-1000.0, 0.0]);
    }
}

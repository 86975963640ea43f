//! Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762) with grouped queries (Ainslie et al.
//! 2023, arXiv:2305.13245). Whole rows of scores are computed; nothing is tiled.

mod saved;

pub use saved::{FromSaved, attention_backward_from_saved};

use std::ops::Range;

use super::soft_cap::{soft_cap_slope, soft_capped};
use super::softmax::softmax;
use super::vector::{add_scaled, assert_len, dot, rows_of};

/// Shapes and masking of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention<'a> {
    /// T, tokens per sequence; attention does not cross sequences.
    pub tokens: usize,
    /// Query heads H.
    pub heads: usize,
    /// Key and value heads, a divisor of H: query head h uses key and value head h / (heads / kv_heads).
    pub kv_heads: usize,
    /// Elements of a query and of a key.
    pub head_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Causal mask: a query sees its own token and earlier ones.
    pub causal: bool,
    /// Factor of the scores, usually 1/√head_dim.
    pub scale: f64,
    /// Soft cap of the scaled scores; `None`: none.
    pub soft_cap: Option<f64>,
    /// Sliding window: a query sees this many tokens, its own included; `None`: unlimited. Causal attention only.
    pub window: Option<usize>,
    /// (B·T): for each token the index, within its sequence, of the first token of its document, before which it sees
    /// nothing; `None`: each sequence is one document. Causal attention only.
    pub starts: Option<&'a [usize]>,
    /// Dropout: factors of the weights after the softmax, (B·T, heads, T) by query, head and index of the key in its
    /// sequence; `None`: no dropout.
    pub factors: Option<&'a [f64]>,
    /// ALiBi: the score of query i and key j loses [`alibi_slope`] · (i - j). Causal attention only.
    pub alibi: bool,
    /// Sinks (heads): a logit of each head beside the scores in the softmax, without a value; `None`: none.
    pub sinks: Option<&'a [f64]>,
}

/// ALiBi's slope of head `head` of `heads` (Press et al. 2022, arXiv:2108.12409, section 3): the h-th of P = 2^i heads,
/// counted from 1, has 2^(-8 h / P). Where `heads` is no power of two, the first P, the largest power of two below,
/// have these, and the others every second slope of 2 P heads, from the first on (from the code published with it).
pub fn alibi_slope(head: usize, heads: usize) -> f64 {
    let power = 1 << heads.ilog2();
    let exponent = |h: usize, heads: usize| -8.0 * h as f64 / heads as f64;
    if head < power {
        exponent(head + 1, power).exp2()
    } else {
        exponent(2 * (head - power) + 1, 2 * power).exp2()
    }
}

/// (out (B·T, heads·value_dim), lse (B·T, heads)) from q (B·T, heads·head_dim), k (B·T, kv_heads·head_dim)
/// and v (B·T, kv_heads·value_dim). B is inferred from the length of q.
///
/// For each head: sⱼ = scale·q·kⱼ, or its soft cap, over the visible tokens j, p = softmax(s), out = Σⱼ pⱼ·vⱼ and
/// lse = log Σⱼ e^sⱼ; with dropout out = Σⱼ mⱼ·pⱼ·vⱼ. A sink is one more term of the softmax and of lse (Xiao et al.
/// 2023, arXiv:2309.17453; as OpenAI's gpt-oss has it).
#[track_caller]
pub fn attention(q: &[f64], k: &[f64], v: &[f64], shape: &Attention) -> (Vec<f64>, Vec<f64>) {
    let rows = shape.rows(q, k, v);
    let mut out = vec![0.0; rows * shape.heads * shape.value_dim];
    let mut lse = Vec::with_capacity(rows * shape.heads);
    for row in 0..rows {
        for head in 0..shape.heads {
            let (p, row_lse) = shape.probabilities(q, k, row, head);
            lse.push(row_lse);
            for (j, &p) in shape.visible(row).zip(&p) {
                let weight = p * shape.factor(row, head, j);
                add_scaled(&mut out[shape.output(row, head)], weight, &v[shape.value(j, head)]);
            }
        }
    }
    (out, lse)
}

/// (dq, dk, dv) of [`attention`], in the shapes of q, k and v, given dout (B·T, heads·value_dim).
///
/// With p as in the forward pass (and mⱼ = 1 without dropout), dpⱼ = mⱼ·dout·vⱼ and delta = Σⱼ pⱼ·dpⱼ: dsⱼ = pⱼ·(dpⱼ −
/// delta), times the derivative of a soft cap, dq = scale·Σⱼ dsⱼ·kⱼ, dkⱼ = scale·Σ dsⱼ·q and dvⱼ = Σ mⱼ·pⱼ·dout, the last two over all queries and heads
/// that use the key.
#[track_caller]
pub fn attention_backward(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    dout: &[f64],
    shape: &Attention,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let rows = shape.rows(q, k, v);
    assert_len("dout", dout, rows * shape.heads * shape.value_dim);
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    for row in 0..rows {
        for head in 0..shape.heads {
            let (p, _) = shape.probabilities(q, k, row, head);
            let dout = &dout[shape.output(row, head)];
            let dp = |j| shape.factor(row, head, j) * dot(dout, &v[shape.value(j, head)]);
            let dp: Vec<f64> = shape.visible(row).map(dp).collect();
            let delta = dot(&p, &dp);
            for (j, (p, dp)) in shape.visible(row).zip(p.iter().zip(&dp)) {
                let (query, key) = (shape.query(row, head), shape.key(j, head));
                let product = shape.scale * dot(&q[query.clone()], &k[key.clone()]);
                let ds = p * (dp - delta) * soft_cap_slope(product, shape.soft_cap);
                add_scaled(&mut dq[query.clone()], shape.scale * ds, &k[key.clone()]);
                add_scaled(&mut dk[key], shape.scale * ds, &q[query]);
                add_scaled(&mut dv[shape.value(j, head)], p * shape.factor(row, head, j), dout);
            }
        }
    }
    (dq, dk, dv)
}

/// The gradient (heads) of the sinks of [`attention`], given dout (B·T, heads·value_dim).
///
/// The share of a head's sink in the softmax of a query is p, and ∂pⱼ/∂sink = −pⱼ·p: −Σ p·Σⱼ pⱼ·dpⱼ over all queries.
#[track_caller]
pub fn sinks_backward(q: &[f64], k: &[f64], v: &[f64], dout: &[f64], shape: &Attention) -> Vec<f64> {
    let sinks = shape.sinks.expect("attention with sinks");
    let mut dsinks = vec![0.0; shape.heads];
    for row in 0..shape.rows(q, k, v) {
        for head in 0..shape.heads {
            let (p, lse) = shape.probabilities(q, k, row, head);
            let dout = &dout[shape.output(row, head)];
            let dp = |j| shape.factor(row, head, j) * dot(dout, &v[shape.value(j, head)]);
            let delta: f64 = shape.visible(row).zip(&p).map(|(j, p)| p * dp(j)).sum();
            dsinks[head] -= (sinks[head] - lse).exp() * delta;
        }
    }
    dsinks
}

impl Attention<'_> {
    /// B·T, after checking all lengths.
    #[track_caller]
    fn rows(&self, q: &[f64], k: &[f64], v: &[f64]) -> usize {
        let Self { tokens, heads, kv_heads, head_dim, value_dim, .. } = *self;
        assert!(kv_heads > 0, "attention should have at least one key and value head.");
        assert!(heads.is_multiple_of(kv_heads), "kv_heads {kv_heads} should divide heads {heads}.");
        let rows = tokens * rows_of("q", q, tokens * heads * head_dim);
        assert_len("k", k, rows * kv_heads * head_dim);
        assert_len("v", v, rows * kv_heads * value_dim);
        let weights = rows * heads * tokens;
        assert!(self.factors.is_none_or(|f| f.len() == weights), "factors should have {weights} entries.");
        assert!(self.starts.is_none_or(|starts| starts.len() == rows), "starts should have {rows} entries.");
        rows
    }

    /// The rows that the query in `row` sees.
    fn visible(&self, row: usize) -> Range<usize> {
        let first = row - row % self.tokens;
        if !self.causal {
            return first..first + self.tokens;
        }
        let document = self.starts.map_or(first, |starts| first + starts[row]);
        let window = self.window.map_or(first, |window| (row + 1).saturating_sub(window));
        document.max(window).max(first)..row + 1
    }

    /// Dropout factor of the weight of key `j` for the query in `row`.
    fn factor(&self, row: usize, head: usize, j: usize) -> f64 {
        self.factors.map_or(1.0, |factors| factors[(row * self.heads + head) * self.tokens + j % self.tokens])
    }

    /// ALiBi's term of the score of key `j` for the query in `row`.
    fn bias(&self, row: usize, head: usize, j: usize) -> f64 {
        if self.alibi { -alibi_slope(head, self.heads) * (row - j) as f64 } else { 0.0 }
    }

    /// Softmax of the scores of one query over its visible rows, and their log-sum-exp, both with the sink.
    pub(super) fn probabilities(&self, q: &[f64], k: &[f64], row: usize, head: usize) -> (Vec<f64>, f64) {
        let query = &q[self.query(row, head)];
        let score = |j| {
            let product = self.scale * dot(query, &k[self.key(j, head)]);
            soft_capped(product, self.soft_cap) + self.bias(row, head, j)
        };
        let scores = self.visible(row).map(score);
        let mut p: Vec<f64> = scores.chain(self.sinks.map(|sinks| sinks[head])).collect();
        let lse = softmax(&mut p);
        p.truncate(self.visible(row).len());
        (p, lse)
    }

    /// Range in q of query head `head` of `row`.
    fn query(&self, row: usize, head: usize) -> Range<usize> {
        slot(row * self.heads + head, self.head_dim)
    }

    /// Range in k of the key of `row` that query head `head` uses.
    fn key(&self, row: usize, head: usize) -> Range<usize> {
        slot(row * self.kv_heads + self.kv_head(head), self.head_dim)
    }

    /// Range in v of the value of `row` that query head `head` uses.
    fn value(&self, row: usize, head: usize) -> Range<usize> {
        slot(row * self.kv_heads + self.kv_head(head), self.value_dim)
    }

    /// Range in the output of query head `head` of `row`.
    fn output(&self, row: usize, head: usize) -> Range<usize> {
        slot(row * self.heads + head, self.value_dim)
    }

    fn kv_head(&self, head: usize) -> usize {
        head / (self.heads / self.kv_heads)
    }
}

/// Range of vector `index` among vectors of `width` elements.
fn slot(index: usize, width: usize) -> Range<usize> {
    index * width..(index + 1) * width
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{assert_close, assert_gradient};
    use crate::random::Random;

    const CAUSAL: Attention = Attention {
        tokens: 5,
        heads: 4,
        kv_heads: 2,
        head_dim: 3,
        value_dim: 5,
        causal: true,
        scale: 0.7,
        soft_cap: None,
        window: None,
        starts: None,
        factors: None,
        alibi: false,
        sinks: None,
    };
    /// Documents of 1, 3 and 1 tokens, then of 4 and 1.
    const STARTS: [usize; 10] = [0, 1, 1, 1, 4, 0, 0, 0, 0, 4];
    /// Two of every three weights, multiplied by 1.5.
    const FACTORS: [f64; 200] = {
        let mut factors = [1.5; 200];
        let mut i = 0;
        while i < 200 {
            factors[i] = 0.0;
            i += 3;
        }
        factors
    };
    const SINKS: [f64; 4] = [-0.5, 1.0, 0.25, 3.0];
    const CASES: [Attention; 15] = [
        CAUSAL,
        Attention { causal: false, ..CAUSAL },
        Attention { heads: 3, kv_heads: 3, head_dim: 7, value_dim: 1, ..CAUSAL },
        Attention { tokens: 1, heads: 3, kv_heads: 1, ..CAUSAL },
        Attention { window: Some(2), ..CAUSAL },
        Attention { starts: Some(&STARTS), ..CAUSAL },
        Attention { window: Some(2), starts: Some(&STARTS), ..CAUSAL },
        Attention { factors: Some(&FACTORS), ..CAUSAL },
        Attention { factors: Some(&FACTORS), causal: false, ..CAUSAL },
        Attention { alibi: true, ..CAUSAL },
        Attention { soft_cap: Some(1.5), ..CAUSAL },
        Attention { soft_cap: Some(0.5), alibi: true, causal: true, factors: Some(&FACTORS), ..CAUSAL },
        Attention { heads: 3, kv_heads: 1, alibi: true, window: Some(2), starts: Some(&STARTS), ..CAUSAL },
        Attention { sinks: Some(&SINKS), ..CAUSAL },
        Attention {
            sinks: Some(&SINKS),
            soft_cap: Some(1.5),
            window: Some(2),
            factors: Some(&FACTORS),
            starts: Some(&STARTS),
            ..CAUSAL
        },
    ];

    /// q, k, v and dout of `batch` sequences.
    fn data(batch: usize, shape: &Attention) -> [Vec<f64>; 4] {
        let (rows, mut random) = (batch * shape.tokens, Random::new(51));
        [
            random.normal(rows * shape.heads * shape.head_dim),
            random.normal(rows * shape.kv_heads * shape.head_dim),
            random.normal(rows * shape.kv_heads * shape.value_dim),
            random.normal(rows * shape.heads * shape.value_dim),
        ]
    }

    #[test]
    fn the_gradient_from_exact_saved_values_is_the_gradient() {
        for shape in &CASES {
            let [q, k, v, dout] = data(2, shape);
            let (out, lse) = attention(&q, &k, &v, shape);
            let saved = attention_backward_from_saved([&q, &k, &v], [&out, &lse], &dout, shape);
            let (dq, dk, dv) = attention_backward(&q, &k, &v, &dout, shape);
            for (i, want) in [dq, dk, dv].iter().enumerate() {
                assert_close("gradient", &saved.gradients[i], want, 1e-12);
                let sizes = saved.gradients[i].iter().zip(&saved.weighted[i]).zip(&saved.terms[i]);
                assert!({ sizes }.all(|((x, sum), terms)| x.abs() <= sum * (1.0 + 1e-12) && sum <= terms));
            }
        }
    }

    #[test]
    fn two_tokens_by_hand() {
        // Scores of the second token: 0.5·2·1 = 1 and 0.5·2·3 = 3. The first sees only itself.
        let shape = Attention {
            tokens: 2,
            heads: 1,
            kv_heads: 1,
            head_dim: 1,
            value_dim: 1,
            causal: true,
            scale: 0.5,
            soft_cap: None,
            window: None,
            starts: None,
            factors: None,
            alibi: false,
            sinks: None,
        };
        let (out, lse) = attention(&[4.0, 2.0], &[1.0, 3.0], &[10.0, 20.0], &shape);
        let (a, b) = (1.0_f64.exp(), 3.0_f64.exp());
        assert_close("out", &out, &[10.0, (10.0 * a + 20.0 * b) / (a + b)], 1e-15);
        assert_close("lse", &lse, &[2.0, (a + b).ln()], 1e-15);
    }

    /// A sink takes its share of the weights and gives nothing: of scores 1 and 3 beside a sink of 2.
    #[test]
    fn a_sink_by_hand() {
        let shape = Attention {
            tokens: 2,
            heads: 1,
            kv_heads: 1,
            head_dim: 1,
            value_dim: 1,
            scale: 0.5,
            sinks: Some(&[2.0]),
            ..CAUSAL
        };
        let (out, lse) = attention(&[4.0, 2.0], &[1.0, 3.0], &[10.0, 20.0], &shape);
        let (a, b, sink) = (1.0_f64.exp(), 3.0_f64.exp(), 2.0_f64.exp());
        assert_close("out", &out, &[5.0, (10.0 * a + 20.0 * b) / (a + b + sink)], 1e-15);
        assert_close("lse", &lse, &[(2.0 * sink).ln(), (a + b + sink).ln()], 1e-15);
    }

    /// The slopes that the published code gives for 4 and 6 heads.
    #[test]
    fn alibi_slopes_are_the_published_ones() {
        let slopes = |heads| (0..heads).map(|head| alibi_slope(head, heads)).collect::<Vec<_>>();
        assert_eq!(slopes(1), [1.0 / 256.0]);
        assert_eq!(slopes(4), [0.25, 0.0625, 0.015625, 0.00390625]);
        assert_eq!(slopes(6), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]);
        let of_12 = slopes(12);
        assert_eq!(of_12[..8], slopes(8));
        assert_eq!(of_12[8..], [slopes(16)[0], slopes(16)[2], slopes(16)[4], slopes(16)[6]]);
    }

    /// Adding a constant to all scores of a query changes nothing, so slope · j, as Bloom has it, is the same as -slope
    /// · (i - j); and only distances count, so a document's place in its window does not matter.
    #[test]
    fn alibi_lowers_scores_by_distance() {
        let shape =
            Attention { tokens: 2, heads: 2, kv_heads: 2, head_dim: 1, value_dim: 1, alibi: true, ..CAUSAL };
        let (out, _) = attention(&[0.0; 4], &[0.0; 4], &[4.0, 4.0, 8.0, 8.0], &shape);
        let mean = |slope: f64| (4.0 * (-slope).exp() + 8.0) / ((-slope).exp() + 1.0);
        assert_close("out", &out, &[4.0, 4.0, mean(1.0 / 16.0), mean(1.0 / 256.0)], 1e-15);
    }

    #[test]
    fn grouped_queries_equal_repeated_keys_and_values() {
        let [q, k, v, _] = data(2, &CAUSAL);
        let repeat = |x: &[f64], width: usize| -> Vec<f64> {
            x.chunks_exact(width).flat_map(|head| [head, head].concat()).collect()
        };
        let full = Attention { kv_heads: CAUSAL.heads, ..CAUSAL };
        let expected = attention(&q, &repeat(&k, CAUSAL.head_dim), &repeat(&v, CAUSAL.value_dim), &full);
        assert_eq!(attention(&q, &k, &v, &CAUSAL), expected);
    }

    #[test]
    fn later_tokens_and_other_sequences_are_invisible() {
        let [q, mut k, v, _] = data(2, &CAUSAL);
        let (before, _) = attention(&q, &k, &v, &CAUSAL);
        k[CAUSAL.key(3, 0)].fill(9.0);
        let (after, _) = attention(&q, &k, &v, &CAUSAL);
        let changed: Vec<usize> =
            (0..10).filter(|&row| before[CAUSAL.output(row, 0)] != after[CAUSAL.output(row, 0)]).collect();
        assert_eq!(changed, [3, 4]);
    }

    #[test]
    fn a_window_and_documents_mask_earlier_tokens() {
        let seen = |shape: Attention| -> Vec<Vec<usize>> {
            (0..10).map(|row| shape.visible(row).collect()).collect()
        };
        assert_eq!(seen(Attention { window: Some(5), ..CAUSAL }), seen(CAUSAL));
        let windowed = seen(Attention { window: Some(2), ..CAUSAL });
        assert_eq!(
            windowed[..7],
            [vec![0], vec![0, 1], vec![1, 2], vec![2, 3], vec![3, 4], vec![5], vec![5, 6]]
        );
        let packed = seen(Attention { starts: Some(&STARTS), ..CAUSAL });
        assert_eq!(packed[..6], [vec![0], vec![1], vec![1, 2], vec![1, 2, 3], vec![4], vec![5]]);
        assert_eq!(packed[9], [9]);
    }

    #[test]
    fn backward_is_the_gradient() {
        for shape in &CASES {
            let [q, k, v, dout] = data(2, shape);
            let f = |q: &[f64], k: &[f64], v: &[f64]| dot(&attention(q, k, v, shape).0, &dout);
            let (dq, dk, dv) = attention_backward(&q, &k, &v, &dout, shape);
            // With a single token the softmax is 1 whatever the score, so q and k have no gradient.
            if shape.tokens > 1 {
                assert_gradient("dq", &dq, &q, |q| f(q, &k, &v));
                assert_gradient("dk", &dk, &k, |k| f(&q, k, &v));
            } else {
                assert!(dq.iter().chain(&dk).all(|d| d.abs() < 1e-14));
            }
            assert_gradient("dv", &dv, &v, |v| f(&q, &k, v));
            if let Some(sinks) = shape.sinks {
                let dsinks = sinks_backward(&q, &k, &v, &dout, shape);
                assert_gradient("dsinks", &dsinks, sinks, |sinks| {
                    dot(&attention(&q, &k, &v, &Attention { sinks: Some(sinks), ..*shape }).0, &dout)
                });
            }
        }
    }

    #[test]
    #[should_panic(expected = "kv_heads 2 should divide heads 3.")]
    fn refuses_uneven_groups() {
        attention(&[], &[], &[], &Attention { heads: 3, ..CAUSAL });
    }
}

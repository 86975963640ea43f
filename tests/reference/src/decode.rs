//! Attention of one new token over cached keys and values: the last row of [`attention`](super::attention).

use super::soft_cap::soft_capped;

/// Shape and scale of one head.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Elements of a query and of a key.
    pub head_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Factor of the scores.
    pub scale: f64,
    /// Soft cap of the scaled scores; `None`: none.
    pub soft_cap: Option<f64>,
    /// ALiBi's slope of the head, see [`alibi_slope`](super::attention::alibi_slope); 0: none.
    pub slope: f64,
    /// The head's sink, one more logit in the softmax; `None`: none.
    pub sink: Option<f64>,
}

/// softmax(cap(scale · q kᵀ) - slope · distance) v (value_dim), where the last key has distance 0 and the sink is in
/// the softmax, of `query` (head_dim) over `keys` (S, head_dim) and `values` (S, value_dim).
pub fn decode(query: &[f64], keys: &[f64], values: &[f64], head: &Head) -> Vec<f64> {
    let dot = |key: &[f64]| head.scale * query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>();
    let last = keys.len() / head.head_dim - 1;
    let score = |(i, key)| soft_capped(dot(key), head.soft_cap) - head.slope * (last - i) as f64;
    let scores: Vec<f64> = keys.chunks(head.head_dim).enumerate().map(score).collect();
    let top = scores.iter().copied().chain(head.sink).fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
    let total: f64 = weights.iter().copied().chain(head.sink.map(|sink| (sink - top).exp())).sum();
    let column = |c: usize| {
        let rows = values.chunks(head.value_dim).zip(&weights);
        rows.map(|(row, weight)| weight * row[c]).sum::<f64>() / total
    };
    (0..head.value_dim).map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scores 0 and ln 3: weights a quarter and three quarters.
    #[test]
    fn two_keys_by_hand() {
        let head =
            Head { head_dim: 1, value_dim: 2, scale: 3f64.ln(), soft_cap: None, slope: 0.0, sink: None };
        let out = decode(&[1.0], &[0.0, 1.0], &[4.0, 8.0, 0.0, 4.0], &head);
        assert!((out[0] - 1.0).abs() < 1e-12 && (out[1] - 5.0).abs() < 1e-12, "{out:?}");
        // A sink with as much weight as both.
        let head = Head { sink: Some(4f64.ln()), ..head };
        let out = decode(&[1.0], &[0.0, 1.0], &[4.0, 8.0, 0.0, 4.0], &head);
        assert!((out[0] - 0.5).abs() < 1e-12 && (out[1] - 2.5).abs() < 1e-12, "{out:?}");
    }
}

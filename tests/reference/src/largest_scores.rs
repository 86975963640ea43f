//! The largest score of each query of an attention.

use super::attention::Attention;

/// For each query (B·T, heads) the largest score among the keys that it sees: sⱼ of
/// [`attention`](super::attention::attention), from its probability and the log-sum-exp; the sink if that is larger.
pub fn largest_scores(q: &[f64], k: &[f64], shape: &Attention) -> Vec<f64> {
    let rows = q.len() / (shape.heads * shape.head_dim);
    let of_query = |row: usize, head: usize| {
        let (p, lse) = shape.probabilities(q, k, row, head);
        let largest = lse + p.into_iter().fold(0.0, f64::max).ln();
        shape.sinks.map_or(largest, |sinks| largest.max(sinks[head]))
    };
    (0..rows)
        .flat_map(|row| (0..shape.heads).map(move |head| (row, head)))
        .map(|(row, head)| of_query(row, head))
        .collect()
}

/// The largest of each head, of the scores of all queries.
pub fn by_head(scores: &[f64], heads: usize) -> Vec<f64> {
    let of_head =
        |head: usize| scores.iter().skip(head).step_by(heads).copied().fold(f64::NEG_INFINITY, f64::max);
    (0..heads).map(of_head).collect()
}

#[test]
fn scores_by_hand() {
    let shape = Attention {
        tokens: 2,
        heads: 2,
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
    // Queries of two heads in each row; keys 1 and -3.
    let scores = largest_scores(&[2.0, -2.0, 4.0, -4.0], &[1.0, -3.0], &shape);
    let want = [1.0, -1.0, 2.0, 6.0];
    scores.iter().zip(want).for_each(|(got, want)| assert!((got - want).abs() < 1e-12, "{scores:?}"));
    assert_eq!(by_head(&want, 2), [2.0, 6.0]);
}

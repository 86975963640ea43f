//! A gate per row, as the shared expert of Qwen2-MoE has one.

use super::vector::{assert_len, dot, rows_of};

/// y = x·σ(g), row by row, with σ(g) = 1 / (1 + e^−g): x (N, D), g (N) -> y (N, D).
///
/// # Examples
///
/// ```
/// use reference::row_gate::row_gate;
///
/// assert_eq!(row_gate(&[2.0, 4.0, 6.0, 8.0], &[0.0, 1e3]), [1.0, 2.0, 6.0, 8.0]);
/// ```
#[track_caller]
pub fn row_gate(x: &[f64], g: &[f64]) -> Vec<f64> {
    let cols = rows_of("the transpose of x", x, g.len());
    x.iter().enumerate().map(|(i, x)| x * sigmoid(g[i / cols])).collect()
}

/// (dx (N, D), dg (N)) of [`row_gate`], given dy (N, D): dx = dy·σ(g), dg = σ(g)·(1 − σ(g))·Σ dy·x.
#[track_caller]
pub fn row_gate_backward(x: &[f64], g: &[f64], dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
    assert_len("dy", dy, x.len());
    let cols = rows_of("the transpose of x", x, g.len());
    let slope = |((x, dy), g): ((&[f64], &[f64]), &f64)| {
        let s = sigmoid(*g);
        s * (1.0 - s) * dot(x, dy)
    };
    let dg = x.chunks_exact(cols).zip(dy.chunks_exact(cols)).zip(g).map(slope).collect();
    (row_gate(dy, g), dg)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_gradient;
    use crate::random::Random;

    #[test]
    fn backward_is_the_gradient() {
        for (rows, cols) in [(1, 1), (5, 3), (31, 33)] {
            let mut random = Random::new(93);
            let (x, g, dy) = (random.normal(rows * cols), random.normal(rows), random.normal(rows * cols));
            let (dx, dg) = row_gate_backward(&x, &g, &dy);
            assert_gradient("dx", &dx, &x, |x| dot(&row_gate(x, &g), &dy));
            assert_gradient("dg", &dg, &g, |g| dot(&row_gate(&x, g), &dy));
        }
    }
}

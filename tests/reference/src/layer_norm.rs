//! Layer normalisation (Ba, Kiros and Hinton 2016, arXiv:1607.06450).

use super::vector::{add_scaled, assert_len, dot, rows_of};

/// y = (x − mean(x)) / √(var(x) + eps) · w + b, row by row: x (rows, cols), w and b (cols) -> y (rows, cols).
///
/// # Examples
///
/// ```
/// use reference::layer_norm::layer_norm;
///
/// // The mean is 4 and the standard deviation 3; the weight doubles the second element, the bias raises the first.
/// assert_eq!(layer_norm(&[1.0, 7.0], &[1.0, 2.0], &[5.0, 0.0], 2, 0.0), [4.0, 2.0]);
/// ```
#[track_caller]
pub fn layer_norm(x: &[f64], w: &[f64], b: &[f64], cols: usize, eps: f64) -> Vec<f64> {
    rows_of("x", x, cols);
    assert_len("w", w, cols);
    assert_len("b", b, cols);
    let mut y = Vec::with_capacity(x.len());
    for x in x.chunks_exact(cols) {
        let (normed, _) = normalised(x, eps);
        y.extend(normed.iter().zip(w).zip(b).map(|((x, w), b)| x * w + b));
    }
    y
}

/// (dx (rows, cols), dw (cols), db (cols)) of [`layer_norm`], given dy (rows, cols).
///
/// With x̂ = (x − mean(x)) / √(var(x) + eps) and g = dy·w: dx = (g − mean(g) − x̂·mean(g·x̂)) / √(var(x) + eps),
/// dw = Σ over rows of dy·x̂, db = Σ over rows of dy.
#[track_caller]
pub fn layer_norm_backward(
    x: &[f64],
    w: &[f64],
    dy: &[f64],
    cols: usize,
    eps: f64,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    rows_of("x", x, cols);
    assert_len("w", w, cols);
    assert_len("dy", dy, x.len());
    let mut dx = Vec::with_capacity(x.len());
    let (mut dw, mut db) = (vec![0.0; cols], vec![0.0; cols]);
    for (x, dy) in x.chunks_exact(cols).zip(dy.chunks_exact(cols)) {
        let (normed, deviation) = normalised(x, eps);
        let mut g: Vec<f64> = dy.iter().zip(w).map(|(dy, w)| dy * w).collect();
        let mean = g.iter().sum::<f64>() / cols as f64;
        let projection = dot(&g, &normed) / cols as f64;
        add_scaled(&mut g, -projection, &normed);
        dx.extend(g.iter().map(|g| (g - mean) / deviation));
        for ((dw, dy), normed) in dw.iter_mut().zip(dy).zip(&normed) {
            *dw += dy * normed;
        }
        add_scaled(&mut db, 1.0, dy);
    }
    (dx, dw, db)
}

/// x̂ of one row, and the √(var(x) + eps) it was divided by.
fn normalised(x: &[f64], eps: f64) -> (Vec<f64>, f64) {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let centred: Vec<f64> = x.iter().map(|x| x - mean).collect();
    let deviation = (dot(&centred, &centred) / x.len() as f64 + eps).sqrt();
    (centred.iter().map(|x| x / deviation).collect(), deviation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_gradient;
    use crate::random::Random;

    #[test]
    fn rows_have_mean_zero_and_variance_one() {
        let y = layer_norm(&Random::new(25).normal(3 * 31), &[1.0; 31], &[0.0; 31], 31, 0.0);
        for y in y.chunks_exact(31) {
            assert!(y.iter().sum::<f64>().abs() < 1e-13);
            assert!((dot(y, y) / 31.0 - 1.0).abs() < 1e-14);
        }
    }

    #[test]
    fn a_constant_row_becomes_the_bias() {
        assert_eq!(layer_norm(&[7.0; 3], &[2.0; 3], &[1.0, 2.0, 3.0], 3, 1e-6), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn backward_is_the_gradient() {
        for (rows, cols, eps) in [(4, 7, 1e-6), (3, 33, 1e-5), (2, 5, 1.0), (6, 2, 0.5)] {
            let mut random = Random::new(26);
            let (x, w, b) = (random.normal(rows * cols), random.normal(cols), random.normal(cols));
            let dy = random.normal(rows * cols);
            let f = |x: &[f64], w: &[f64], b: &[f64]| dot(&layer_norm(x, w, b, cols, eps), &dy);
            let (dx, dw, db) = layer_norm_backward(&x, &w, &dy, cols, eps);
            assert_gradient("dx", &dx, &x, |x| f(x, &w, &b));
            assert_gradient("dw", &dw, &w, |w| f(&x, w, &b));
            assert_gradient("db", &db, &b, |b| f(&x, &w, b));
        }
    }
}

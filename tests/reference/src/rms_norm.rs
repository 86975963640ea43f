//! Root mean square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467).

use super::vector::{add_scaled, assert_len, dot, rows_of};

/// y = x / √(mean(x²) + eps) · w, row by row: x (rows, cols), w (cols) -> y (rows, cols).
///
/// # Examples
///
/// ```
/// use reference::rms_norm::rms_norm;
///
/// // mean(1², 7²) = 25, so both are divided by 5; the weight doubles the second.
/// assert_eq!(rms_norm(&[1.0, 7.0], &[1.0, 2.0], 2, 0.0), [0.2, 2.8]);
/// ```
#[track_caller]
pub fn rms_norm(x: &[f64], w: &[f64], cols: usize, eps: f64) -> Vec<f64> {
    rows_of("x", x, cols);
    assert_len("w", w, cols);
    let mut y = Vec::with_capacity(x.len());
    for x in x.chunks_exact(cols) {
        let rms = root_mean_square(x, eps);
        y.extend(x.iter().zip(w).map(|(x, w)| x / rms * w));
    }
    y
}

/// (dx (rows, cols), dw (cols)) of [`rms_norm`], given dy (rows, cols).
///
/// With x̂ = x / √(mean(x²) + eps) and g = dy·w: dx = (g − x̂·mean(g·x̂)) / √(mean(x²) + eps), and
/// dw = Σ over rows of dy·x̂.
#[track_caller]
pub fn rms_norm_backward(x: &[f64], w: &[f64], dy: &[f64], cols: usize, eps: f64) -> (Vec<f64>, Vec<f64>) {
    rows_of("x", x, cols);
    assert_len("w", w, cols);
    assert_len("dy", dy, x.len());
    let mut dx = Vec::with_capacity(x.len());
    let mut dw = vec![0.0; cols];
    for (x, dy) in x.chunks_exact(cols).zip(dy.chunks_exact(cols)) {
        let rms = root_mean_square(x, eps);
        let normed: Vec<f64> = x.iter().map(|x| x / rms).collect();
        let mut g: Vec<f64> = dy.iter().zip(w).map(|(dy, w)| dy * w).collect();
        let mean = dot(&g, &normed) / cols as f64;
        add_scaled(&mut g, -mean, &normed);
        dx.extend(g.iter().map(|g| g / rms));
        for ((dw, dy), normed) in dw.iter_mut().zip(dy).zip(&normed) {
            *dw += dy * normed;
        }
    }
    (dx, dw)
}

/// √(mean(x²) + eps) of one row.
fn root_mean_square(x: &[f64], eps: f64) -> f64 {
    (dot(x, x) / x.len() as f64 + eps).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_gradient;
    use crate::random::Random;

    #[test]
    fn rows_have_unit_mean_square() {
        let y = rms_norm(&Random::new(21).normal(3 * 31), &[1.0; 31], 31, 0.0);
        for y in y.chunks_exact(31) {
            assert!((dot(y, y) / 31.0 - 1.0).abs() < 1e-14);
        }
    }

    #[test]
    fn a_zero_row_stays_zero() {
        assert_eq!(rms_norm(&[0.0; 3], &[1.0; 3], 3, 1e-6), [0.0; 3]);
    }

    #[test]
    fn backward_is_the_gradient() {
        for (rows, cols, eps) in [(1, 1, 0.5), (4, 7, 1e-6), (3, 33, 1e-5), (2, 5, 1.0)] {
            let mut random = Random::new(22);
            let (x, w, dy) = (random.normal(rows * cols), random.normal(cols), random.normal(rows * cols));
            let f = |x: &[f64], w: &[f64]| dot(&rms_norm(x, w, cols, eps), &dy);
            let (dx, dw) = rms_norm_backward(&x, &w, &dy, cols, eps);
            assert_gradient("dx", &dx, &x, |x| f(x, &w));
            assert_gradient("dw", &dw, &w, |w| f(&x, w));
        }
    }
}

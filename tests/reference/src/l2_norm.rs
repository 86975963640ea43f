//! Rows divided by their length, as those of the head of Baichuan 2 (Yang et al. 2023, arXiv:2309.10305, section 2.3).

use super::vector::{add_scaled, assert_len, dot, rows_of};

/// y = x / √(Σ x² + eps), row by row: x (rows, cols) -> y (rows, cols).
///
/// # Examples
///
/// ```
/// use reference::l2_norm::l2_norm;
///
/// assert_eq!(l2_norm(&[3.0, 4.0, 0.0, 2.0], 2, 0.0), [0.6, 0.8, 0.0, 1.0]);
/// ```
#[track_caller]
pub fn l2_norm(x: &[f64], cols: usize, eps: f64) -> Vec<f64> {
    rows_of("x", x, cols);
    x.chunks_exact(cols).flat_map(|x| x.iter().map(move |value| value / length(x, eps))).collect()
}

/// dx (rows, cols) of [`l2_norm`], given dy (rows, cols): with y = x / √(Σ x² + eps), dx = (dy − y·(dy·y)) / √(Σ x² +
/// eps).
#[track_caller]
pub fn l2_norm_backward(x: &[f64], dy: &[f64], cols: usize, eps: f64) -> Vec<f64> {
    rows_of("x", x, cols);
    assert_len("dy", dy, x.len());
    let mut dx = Vec::with_capacity(x.len());
    for (x, dy) in x.chunks_exact(cols).zip(dy.chunks_exact(cols)) {
        let length = length(x, eps);
        let y: Vec<f64> = x.iter().map(|x| x / length).collect();
        let mut gradient = dy.to_vec();
        add_scaled(&mut gradient, -dot(dy, &y), &y);
        dx.extend(gradient.iter().map(|gradient| gradient / length));
    }
    dx
}

/// √(Σ x² + eps) of one row.
fn length(x: &[f64], eps: f64) -> f64 {
    (dot(x, x) + eps).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_gradient;
    use crate::random::Random;

    #[test]
    fn backward_is_the_gradient() {
        for (rows, cols, eps) in [(1, 1, 0.5), (4, 7, 1e-5), (3, 33, 0.0)] {
            let mut random = Random::new(23);
            let (x, dy) = (random.normal(rows * cols), random.normal(rows * cols));
            let dx = l2_norm_backward(&x, &dy, cols, eps);
            assert_gradient("dx", &dx, &x, |x| dot(&l2_norm(x, cols, eps), &dy));
        }
    }
}

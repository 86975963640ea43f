//! Matrix products and linear layers.
//!
//! The suffix gives the storage of the left and the right operand: `n` as is, `t` transposed. The result is always (m,
//! n), and k is the length of the reduction.

use super::vector::{add_scaled, assert_len, dot};

/// y = a·bᵀ: a (m, k), b (n, k) -> y (m, n). The forward pass of a linear layer with weight (out, in).
#[track_caller]
pub fn matmul_nt(a: &[f64], b: &[f64], m: usize, n: usize, k: usize) -> Vec<f64> {
    assert_len("a", a, m * k);
    assert_len("b", b, n * k);
    let mut y = Vec::with_capacity(m * n);
    for i in 0..m {
        y.extend((0..n).map(|j| dot(&a[i * k..][..k], &b[j * k..][..k])));
    }
    y
}

/// y = a·b: a (m, k), b (k, n) -> y (m, n).
#[track_caller]
pub fn matmul_nn(a: &[f64], b: &[f64], m: usize, n: usize, k: usize) -> Vec<f64> {
    assert_len("a", a, m * k);
    assert_len("b", b, k * n);
    let mut y = vec![0.0; m * n];
    for i in 0..m {
        for l in 0..k {
            add_scaled(&mut y[i * n..][..n], a[i * k + l], &b[l * n..][..n]);
        }
    }
    y
}

/// y = aᵀ·b: a (k, m), b (k, n) -> y (m, n). The weight gradient of a linear layer, which sums over rows.
#[track_caller]
pub fn matmul_tn(a: &[f64], b: &[f64], m: usize, n: usize, k: usize) -> Vec<f64> {
    assert_len("a", a, k * m);
    assert_len("b", b, k * n);
    let mut y = vec![0.0; m * n];
    for l in 0..k {
        for i in 0..m {
            add_scaled(&mut y[i * n..][..n], a[l * m + i], &b[l * n..][..n]);
        }
    }
    y
}

/// y = x·wᵀ + bias: x (m, k), w (n, k), bias (n) -> y (m, n).
#[track_caller]
pub fn linear(x: &[f64], w: &[f64], bias: Option<&[f64]>, m: usize, n: usize, k: usize) -> Vec<f64> {
    let mut y = matmul_nt(x, w, m, n, k);
    if let Some(bias) = bias {
        assert_len("bias", bias, n);
        for row in 0..m {
            add_scaled(&mut y[row * n..][..n], 1.0, bias);
        }
    }
    y
}

/// (dx (m, k), dw (n, k), dbias (n)) of [`linear`], given dy (m, n).
///
/// dx = dy·w, dw = dyᵀ·x, dbias = Σ over rows of dy.
#[track_caller]
pub fn linear_backward(
    x: &[f64],
    w: &[f64],
    dy: &[f64],
    m: usize,
    n: usize,
    k: usize,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let dx = matmul_nn(dy, w, m, k, n);
    let dw = matmul_tn(dy, x, n, k, m);
    let mut dbias = vec![0.0; n];
    for row in 0..m {
        add_scaled(&mut dbias, 1.0, &dy[row * n..][..n]);
    }
    (dx, dw, dbias)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{assert_close, assert_gradient};
    use crate::random::Random;

    /// The (columns, rows) transpose of x (rows, columns).
    fn transpose(x: &[f64], rows: usize, cols: usize) -> Vec<f64> {
        (0..cols * rows).map(|i| x[(i % rows) * cols + i / rows]).collect()
    }

    #[test]
    fn small_product_by_hand() {
        // [1 2 3; 4 5 6] · [1 0 2]ᵀ, [0 1 1]ᵀ
        let y = matmul_nt(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[1.0, 0.0, 2.0, 0.0, 1.0, 1.0], 2, 2, 3);
        assert_eq!(y, [7.0, 5.0, 16.0, 11.0]);
    }

    #[test]
    fn the_three_forms_agree() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (31, 1, 9), (4, 6, 0)] {
            let mut random = Random::new(11);
            let (a, b) = (random.normal(m * k), random.normal(n * k));
            let y = matmul_nt(&a, &b, m, n, k);
            let (at, bt) = (transpose(&a, m, k), transpose(&b, n, k));
            assert_close("nn", &matmul_nn(&a, &bt, m, n, k), &y, 1e-14);
            assert_close("tn", &matmul_tn(&at, &bt, m, n, k), &y, 1e-14);
        }
    }

    #[test]
    fn linear_backward_is_the_gradient() {
        let (m, n, k) = (5, 3, 7);
        let mut random = Random::new(12);
        let (x, w, bias) = (random.normal(m * k), random.normal(n * k), random.normal(n));
        let dy = random.normal(m * n);
        let f = |x: &[f64], w: &[f64], bias: &[f64]| dot(&linear(x, w, Some(bias), m, n, k), &dy);
        let (dx, dw, dbias) = linear_backward(&x, &w, &dy, m, n, k);
        assert_gradient("dx", &dx, &x, |x| f(x, &w, &bias));
        assert_gradient("dw", &dw, &w, |w| f(&x, w, &bias));
        assert_gradient("dbias", &dbias, &bias, |bias| f(&x, &w, bias));
    }

    #[test]
    #[should_panic(expected = "b should hold 12 values, but holds 11.")]
    fn refuses_a_wrong_shape() {
        matmul_nt(&[0.0; 6], &[0.0; 11], 2, 4, 3);
    }
}

//! Muon: orthogonalised momentum (Jordan et al. 2024), with updates scaled as in Liu et al. 2025, arXiv:2502.16982.

use super::matmul::{matmul_nn, matmul_nt};
use super::vector::{assert_len, dot};

/// The hyperparameters of one Muon step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Muon {
    /// Learning rate.
    pub lr: f64,
    /// μ, decay of the momentum per step.
    pub momentum: f64,
    /// Nesterov momentum: the update uses g + μ·m instead of m.
    pub nesterov: bool,
    /// Number of Newton-Schulz steps.
    pub steps: u32,
    /// RMS of an update at learning rate 1.
    pub rms: f64,
    /// Decoupled weight decay, per unit of learning rate.
    pub weight_decay: f64,
}

/// The coefficients of the published Newton-Schulz iteration.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.775, 2.0315];

/// One step on the matrix p (rows, cols), given its gradient g and momentum m. Updates p and m.
///
/// m ← μ·m + g, u = g + μ·m with Nesterov momentum and u = m without, and
/// p ← p·(1 − lr·weight_decay) − lr·rms·√max(rows, cols)·[`orthogonalise`]\(u).
#[track_caller]
pub fn muon(settings: &Muon, p: &mut [f64], g: &[f64], m: &mut [f64], rows: usize, cols: usize) {
    let Muon { lr, momentum, nesterov, steps, rms, weight_decay } = *settings;
    assert_len("p", p, rows * cols);
    assert_len("g", g, rows * cols);
    assert_len("m", m, rows * cols);
    for (m, g) in m.iter_mut().zip(g) {
        *m = momentum * *m + g;
    }
    let ahead = |(m, g): (&f64, &f64)| if nesterov { g + momentum * m } else { *m };
    let direction: Vec<f64> = m.iter().zip(g).map(ahead).collect();
    let update = orthogonalise(&direction, rows, cols, steps);
    let scale = rms * (rows.max(cols) as f64).sqrt();
    for (p, update) in p.iter_mut().zip(update) {
        *p = *p * (1.0 - lr * weight_decay) - lr * scale * update;
    }
}

/// x (rows, cols) with its singular values moved close to 1 and its singular vectors kept: x / (‖x‖ + 1e-7), then
/// `steps` times x ← a·x + (b·x·xᵀ + c·(x·xᵀ)²)·x, on the transpose if rows > cols.
#[track_caller]
pub fn orthogonalise(x: &[f64], rows: usize, cols: usize, steps: u32) -> Vec<f64> {
    assert_len("x", x, rows * cols);
    if rows > cols {
        return transpose(&orthogonalise(&transpose(x, rows, cols), cols, rows, steps), cols, rows);
    }
    let norm = dot(x, x).sqrt() + 1e-7;
    let mut x: Vec<f64> = x.iter().map(|x| x / norm).collect();
    let [a, b, c] = COEFFICIENTS;
    for _ in 0..steps {
        let gram = matmul_nt(&x, &x, rows, rows, cols);
        let square = matmul_nn(&gram, &gram, rows, rows, rows);
        let both: Vec<f64> = gram.iter().zip(&square).map(|(g, s)| b * g + c * s).collect();
        let product = matmul_nn(&both, &x, rows, cols, rows);
        x = x.iter().zip(&product).map(|(x, p)| a * x + p).collect();
    }
    x
}

fn transpose(x: &[f64], rows: usize, cols: usize) -> Vec<f64> {
    (0..cols * rows).map(|i| x[(i % rows) * cols + i / rows]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_close;
    use crate::random::Random;

    /// The published polynomial on one singular value.
    fn scalar(mut s: f64, steps: u32) -> f64 {
        let [a, b, c] = COEFFICIENTS;
        for _ in 0..steps {
            s = a * s + b * s.powi(3) + c * s.powi(5);
        }
        s
    }

    /// Singular values of x (rows, cols), rows ≤ cols: roots of the eigenvalues of x·xᵀ, by Jacobi rotations.
    fn singular_values(x: &[f64], rows: usize, cols: usize) -> Vec<f64> {
        let mut s = matmul_nt(x, x, rows, rows, cols);
        for _ in 0..30 {
            for p in 0..rows {
                for q in p + 1..rows {
                    let theta = 0.5 * (2.0 * s[p * rows + q]).atan2(s[q * rows + q] - s[p * rows + p]);
                    let (sin, cos) = theta.sin_cos();
                    for k in 0..rows {
                        let (a, b) = (s[k * rows + p], s[k * rows + q]);
                        (s[k * rows + p], s[k * rows + q]) = (cos * a - sin * b, sin * a + cos * b);
                    }
                    for k in 0..rows {
                        let (a, b) = (s[p * rows + k], s[q * rows + k]);
                        (s[p * rows + k], s[q * rows + k]) = (cos * a - sin * b, sin * a + cos * b);
                    }
                }
            }
        }
        let mut values: Vec<f64> = (0..rows).map(|i| s[i * rows + i].max(0.0).sqrt()).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    #[test]
    fn singular_values_follow_the_polynomial_towards_1() {
        for (rows, cols) in [(8, 24), (24, 8), (12, 13)] {
            let x = Random::new(7).normal(rows * cols);
            let (short, long) = (rows.min(cols), rows.max(cols));
            let wide = |x: &[f64]| if rows > cols { transpose(x, rows, cols) } else { x.to_vec() };
            let norm = dot(&x, &x).sqrt() + 1e-7;
            let mut want: Vec<f64> =
                singular_values(&wide(&x), short, long).iter().map(|s| scalar(s / norm, 5)).collect();
            want.sort_by(f64::total_cmp);
            let found = singular_values(&wide(&orthogonalise(&x, rows, cols, 5)), short, long);
            assert_close("singular values", &found, &want, 1e-9);
            let outside = found.iter().filter(|s| !(0.65..1.25).contains(*s)).count();
            assert!(outside <= usize::from(short + 1 == long), "{rows} x {cols}: {found:?}");
        }
    }

    #[test]
    fn orthogonalisation_commutes_with_the_transpose() {
        let x = Random::new(8).normal(5 * 9);
        let there = orthogonalise(&x, 5, 9, 5);
        let back = orthogonalise(&transpose(&x, 5, 9), 9, 5, 5);
        assert_close("transposed", &back, &transpose(&there, 5, 9), 1e-14);
    }

    #[test]
    fn one_number_by_hand() {
        // A single number becomes its sign times the polynomial at 1.
        let settings = Muon { lr: 0.1, momentum: 0.5, nesterov: true, steps: 1, rms: 0.2, weight_decay: 0.3 };
        let (mut p, mut m) = (vec![2.0], vec![4.0]);
        muon(&settings, &mut p, &[-3.0], &mut m, 1, 1);
        assert_eq!(m, [-1.0]);
        let one: f64 = 3.4445 - 4.775 + 2.0315;
        assert_close("p", &p, &[2.0 * 0.97 + 0.1 * 0.2 * one], 1e-6);
        // Without Nesterov momentum u = 0.5 · 6 - 2 = 1, opposite to the gradient.
        let (mut p, mut m) = (vec![2.0], vec![6.0]);
        muon(&Muon { nesterov: false, ..settings }, &mut p, &[-2.0], &mut m, 1, 1);
        assert_close("p", &p, &[2.0 * 0.97 - 0.1 * 0.2 * one], 1e-6);
    }
}

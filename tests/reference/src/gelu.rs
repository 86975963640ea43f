//! The activation of GPT-2's feed-forward network (Hendrycks and Gimpel 2016, arXiv:1606.08415), and rectified units.

use std::f64::consts::{FRAC_1_PI, TAU};

use super::vector::assert_len;

/// Which form of Φ is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// The normal CDF: Φ(x) = (1 + erf(x/√2)) / 2.
    Exact,
    /// Φ(x) ≈ (1 + tanh(√(2/π)·(x + 0.044715·x³))) / 2.
    Tanh,
    /// Φ(x) ≈ 1 / (1 + e^(−1.702·x)).
    Fast,
    /// ReLU: Φ(x) is 0 up to 0, and 1 above.
    Relu,
    /// Its square: Φ(x) = max(x, 0).
    ReluSquared,
}

/// y = x·Φ(x), element by element.
pub fn gelu(x: &[f64], kind: Gelu) -> Vec<f64> {
    x.iter().map(|x| x * kind.distribution(*x).0).collect()
}

/// dx of [`gelu`], given dy: dy·(Φ(x) + x·Φ′(x)).
#[track_caller]
pub fn gelu_backward(x: &[f64], dy: &[f64], kind: Gelu) -> Vec<f64> {
    assert_len("dy", dy, x.len());
    let gradient = |(x, dy): (&f64, &f64)| {
        let (value, slope) = kind.distribution(*x);
        // The slope underflows to zero long before x overflows, but 0·∞ would be NaN.
        dy * (value + if slope == 0.0 { 0.0 } else { x * slope })
    };
    x.iter().zip(dy).map(gradient).collect()
}

impl Gelu {
    /// (Φ(x), Φ′(x)).
    fn distribution(self, x: f64) -> (f64, f64) {
        match self {
            Self::Exact => (normal_distribution(x), density(x)),
            Self::Tanh => {
                let c = (2.0 * FRAC_1_PI).sqrt();
                // (1 + tanh u) / 2 = 1 / (1 + e^−2u), without cancellation where tanh u is close to −1.
                let e = (-2.0 * c * (x + 0.044715 * x.powi(3))).exp();
                let value = 1.0 / (1.0 + e);
                // Φ′ = 2·u′·Φ·(1 − Φ)
                let slope = 2.0 * c * (1.0 + 3.0 * 0.044715 * x * x) * value * (1.0 - value);
                (value, if slope.is_nan() { 0.0 } else { slope })
            }
            Self::Fast => {
                let value = 1.0 / (1.0 + (-1.702 * x).exp());
                (value, 1.702 * value * (1.0 - value))
            }
            Self::Relu => (if x > 0.0 { 1.0 } else { 0.0 }, 0.0),
            Self::ReluSquared => (x.max(0.0), if x > 0.0 { 1.0 } else { 0.0 }),
        }
    }
}

/// The standard normal density.
fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / TAU.sqrt()
}

/// Φ(x). Near 0 by its series, ½ + φ(x)·(x + x³/3 + x⁵/(3·5) + …), and in the tails by the continued fraction
/// Φ(−z) = φ(z)/(z + 1/(z + 2/(z + 3/(z + …)))) (Abramowitz and Stegun, 26.2.11 and 26.2.14).
fn normal_distribution(x: f64) -> f64 {
    let z = x.abs();
    if z < 3.0 {
        let (mut sum, mut term, mut n) = (0.0, x, 1.0);
        while sum + term != sum {
            sum += term;
            n += 2.0;
            term *= x * x / n;
        }
        return 0.5 + density(x) * sum;
    }
    let fraction = (1..=200).rev().fold(z, |below, n| z + f64::from(n) / below);
    let tail = density(z) / fraction;
    if x < 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{assert_close, assert_gradient};
    use crate::random::Random;
    use crate::vector::dot;

    /// Φ from tables (Abramowitz and Stegun, table 26.1; the last from erfc(5/√2)/2).
    #[test]
    fn the_normal_distribution_is_that_of_the_tables() {
        let x = [0.0, 1.0, 2.0, 3.0, -1.0, -5.0];
        let table =
            [0.5, 0.841344746068543, 0.977249868051821, 0.998650101968370, 0.158655253931457, 2.866515719e-7];
        for (x, table) in x.into_iter().zip(table) {
            assert_close("Φ", &[normal_distribution(x)], &[table], 1e-9);
        }
        // Both formulas agree where they meet.
        for z in [3.0f64, -3.0] {
            let (inside, outside) = (normal_distribution(z * (1.0 - 1e-13)), normal_distribution(z));
            assert!((inside / outside - 1.0).abs() < 1e-11);
        }
    }

    /// PyTorch's values in f64, two forms at x = −2, −0.5, 1 and 3.
    #[test]
    fn the_published_values() {
        let x = [-2.0, -0.5, 1.0, 3.0];
        let exact = [-0.0455002638963584, -0.1542687693629934, 0.8413447460685429, 2.99595030590511];
        assert_close("exact", &gelu(&x, Gelu::Exact), &exact, 1e-12);
        let tanh = [-0.0454023059, -0.1542859902, 0.8411919906, 2.9963626079];
        assert_close("tanh", &gelu(&x, Gelu::Tanh), &tanh, 1e-9);
        // Of x / (1 + e^(−1.702 x)), by Python.
        let fast = [-0.06434137685579186, -0.1496115633936199, 0.8457957659328212, 2.981928690292214];
        assert_close("fast", &gelu(&x, Gelu::Fast), &fast, 1e-12);
        assert_eq!(gelu(&x, Gelu::Relu), [0.0, 0.0, 1.0, 3.0]);
        assert_eq!(gelu(&x, Gelu::ReluSquared), [0.0, 0.0, 1.0, 9.0]);
    }

    #[test]
    fn the_forms_differ_by_less_than_a_thousandth() {
        let x: Vec<f64> = (-600..600).map(|i| f64::from(i) / 100.0).collect();
        let pairs = gelu(&x, Gelu::Exact).into_iter().zip(gelu(&x, Gelu::Tanh));
        let largest = pairs.map(|(exact, tanh)| (exact - tanh).abs()).fold(0.0, f64::max);
        assert!((1e-4..1e-3).contains(&largest), "{largest}");
    }

    #[test]
    fn the_ends_are_zero_and_the_identity() {
        for kind in [Gelu::Exact, Gelu::Tanh, Gelu::Fast, Gelu::Relu] {
            assert_eq!(gelu(&[-1e30, 0.0, 1e30], kind), [0.0, 0.0, 1e30]);
            assert_eq!(gelu_backward(&[-1e30, 1e30], &[1.0, 1.0], kind), [0.0, 1.0]);
        }
    }

    #[test]
    fn backward_is_the_gradient() {
        for kind in [Gelu::Exact, Gelu::Tanh, Gelu::Fast, Gelu::Relu, Gelu::ReluSquared] {
            let mut random = Random::new(45);
            let x: Vec<f64> = random.normal(257).into_iter().map(|x| 2.0 * x).collect();
            let dy = random.normal(257);
            assert_gradient("dx", &gelu_backward(&x, &dy, kind), &x, |x| dot(&gelu(x, kind), &dy));
        }
    }
}

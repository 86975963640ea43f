//! Soft caps of attention scores and of logits (Gemma 2 2024, arXiv:2408.00118, section 2).

/// cap·tanh(x / cap), whose absolute value stays below `cap`; x itself without a cap.
pub fn soft_capped(x: f64, cap: Option<f64>) -> f64 {
    cap.map_or(x, |cap| cap * (x / cap).tanh())
}

/// The derivative of [`soft_capped`] at x: 1 − tanh(x / cap)², or 1 without a cap.
pub fn soft_cap_slope(x: f64, cap: Option<f64>) -> f64 {
    cap.map_or(1.0, |cap| 1.0 - (x / cap).tanh().powi(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_gradient;

    #[test]
    fn values_by_hand() {
        assert_eq!((soft_capped(7.0, None), soft_cap_slope(7.0, None)), (7.0, 1.0));
        assert_eq!((soft_capped(1e4, Some(30.0)), soft_cap_slope(1e4, Some(30.0))), (30.0, 0.0));
        // tanh(ln 3) = (9 - 1) / (9 + 1)
        let x = 2.0 * 3f64.ln();
        assert!((soft_capped(x, Some(2.0)) - 1.6).abs() < 1e-15);
        assert!((soft_cap_slope(x, Some(2.0)) - 0.36).abs() < 1e-15);
    }

    #[test]
    fn the_slope_is_the_gradient() {
        let x = [-40.0, -3.0, -0.1, 0.0, 0.5, 2.0, 11.0];
        let of = |x: &[f64]| x.iter().map(|x| soft_capped(*x, Some(5.0))).sum();
        let slopes = x.map(|x| soft_cap_slope(x, Some(5.0)));
        assert_gradient("x", &slopes, &x, of);
    }
}

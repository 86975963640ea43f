//! Assertions of the tests: a gradient is close, in norm, to the finite difference.

use super::finite_difference::gradient;
use super::vector::{add_scaled, assert_len, dot};

/// Panics unless `analytic` is the gradient of `f` at `x` to 1e-6 of its norm.
#[track_caller]
pub(super) fn assert_gradient(name: &str, analytic: &[f64], x: &[f64], f: impl FnMut(&[f64]) -> f64) {
    assert_close(name, analytic, &gradient(f, x), 1e-6);
}

/// Panics unless ‖actual − expected‖ ≤ tolerance·‖expected‖; prints the fraction of the tolerance that was used.
#[track_caller]
pub(super) fn assert_close(name: &str, actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_len(name, actual, expected.len());
    let mut difference = actual.to_vec();
    add_scaled(&mut difference, -1.0, expected);
    let error = dot(&difference, &difference).sqrt();
    let allowed = tolerance * dot(expected, expected).sqrt();
    println!("{name}: {:.3} % of the allowed error", 100.0 * error / allowed);
    // `<=` is false for NaN, so a NaN on either side fails.
    assert!(error <= allowed, "{name} is off by {error:.3e} where {allowed:.3e} is allowed.");
}

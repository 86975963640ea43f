//! Assertions of the tests: a gradient is close, in norm, to the finite difference.

use super::finite_difference::gradient;
use super::random::Random;
use super::vector::{add_scaled, assert_len, dot};

/// Panics unless `analytic` is the gradient of `f` at `x` to 1e-6 of its norm.
#[track_caller]
pub(super) fn assert_gradient(name: &str, analytic: &[f64], x: &[f64], f: impl FnMut(&[f64]) -> f64) {
    assert_close(name, analytic, &gradient(f, x), 1e-6);
}

/// Panics unless `analytic` is the gradient of `f` at `x` along four random directions, to 1e-6 of the norm of the
/// slopes. A wrong gradient has wrong slopes in nearly all directions, and `f` is called 16 times however long x is.
#[track_caller]
pub(super) fn assert_slopes(name: &str, analytic: &[f64], x: &[f64], mut f: impl FnMut(&[f64]) -> f64) {
    const DIRECTIONS: usize = 4;
    assert_len(name, analytic, x.len());
    let rms = (dot(x, x) / x.len().max(1) as f64).sqrt();
    let unit = if rms > 0.0 { rms } else { 1.0 };
    let mut random = Random::new(7);
    let slopes = (0..DIRECTIONS).map(|_| {
        let direction: Vec<f64> = random.normal(x.len()).into_iter().map(|x| unit * x.signum()).collect();
        let along = |t: &[f64]| {
            let mut moved = x.to_vec();
            add_scaled(&mut moved, t[0], &direction);
            f(&moved)
        };
        (dot(analytic, &direction), gradient(along, &[0.0])[0])
    });
    let (analytic, numerical): (Vec<f64>, Vec<f64>) = slopes.unzip();
    assert_close(name, &analytic, &numerical, 1e-6);
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

#[test]
#[should_panic(expected = "cubes is off")]
fn one_wrong_element_has_wrong_slopes() {
    let x = Random::new(1).normal(40);
    let mut gradient: Vec<f64> = x.iter().map(|x| 3.0 * x * x).collect();
    let cubes = |x: &[f64]| x.iter().map(|x| x * x * x).sum();
    assert_slopes("right", &gradient, &x, cubes);
    gradient[17] += 1e-4;
    assert_slopes("cubes", &gradient, &x, cubes);
}

//! Numerical gradients, against which every backward pass of this module is tested.

use super::vector::dot;

/// The gradient of `f` at `x`, by central differences; `f` is called four times per element.
///
/// The five-point formula (Abramowitz and Stegun, table 25.2) with a step h of 1e-4 of the magnitude of x:
///
/// ∂f/∂xᵢ = (8·(f(xᵢ+h) − f(xᵢ−h)) − (f(xᵢ+2h) − f(xᵢ−2h))) / 12h + O(h⁴)
///
/// The two-point formula reaches about 1e-10 at best, where its truncation and rounding errors balance. Here truncation
/// is below 1e-16 in units of the fifth derivative, and the rounding of f divided by h remains. For smooth functions
/// whose gradient is not much smaller than their value the result is accurate to 1e-8, usually to 1e-10.
///
/// # Examples
///
/// ```
/// use reference::finite_difference::gradient;
///
/// let product = |x: &[f64]| x[0] * x[1];
/// let slope = gradient(product, &[3.0, 5.0]);
/// assert!((slope[0] - 5.0).abs() < 1e-9 && (slope[1] - 3.0).abs() < 1e-9);
/// ```
pub fn gradient(mut f: impl FnMut(&[f64]) -> f64, x: &[f64]) -> Vec<f64> {
    let rms = (dot(x, x) / x.len().max(1) as f64).sqrt();
    let mut moved = x.to_vec();
    (0..x.len())
        .map(|i| {
            // Small elements use the RMS of x as their magnitude: a step of their own size would drown in rounding.
            let magnitude = x[i].abs().max(rms);
            let h = if magnitude > 0.0 { 1e-4 * magnitude } else { 1e-4 };
            let mut at = |offset: f64| {
                moved[i] = x[i] + offset;
                f(&moved)
            };
            let near = at(h) - at(-h);
            let far = at(2.0 * h) - at(-2.0 * h);
            moved[i] = x[i];
            (8.0 * near - far) / (12.0 * h)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_close;

    #[test]
    fn is_accurate_to_1e_8_at_any_magnitude() {
        for magnitude in [1e-3, 1.0, 1e3] {
            let x: Vec<f64> = [0.5, -1.25, 2.0, 0.0].iter().map(|x| x * magnitude).collect();
            let f =
                |x: &[f64]| (x[0] / magnitude).exp() * (x[1] / magnitude).sin() + x[2] * x[2] + x[3] * x[0];
            let (a, b) = (x[0] / magnitude, x[1] / magnitude);
            let exact =
                [a.exp() * b.sin() / magnitude + x[3], a.exp() * b.cos() / magnitude, 2.0 * x[2], x[0]];
            assert_close(&format!("magnitude {magnitude}"), &gradient(f, &x), &exact, 1e-8);
        }
    }

    #[test]
    fn accepts_zero_and_an_empty_vector() {
        assert_close("at zero", &gradient(|x| x[0].sin() + 2.0 * x[1], &[0.0, 0.0]), &[1.0, 2.0], 1e-10);
        assert!(gradient(|_| 1.0, &[]).is_empty());
    }
}

//! The global gradient norm and the clipping coefficient (Pascanu et al. 2013, arXiv:1211.5063).

use super::vector::dot;

/// √(Σ over tensors of Σ g²): the norm of all gradients as one vector.
pub fn grad_norm<'a>(grads: impl Iterator<Item = &'a [f64]>) -> f64 {
    grads.map(|g| dot(g, g)).sum::<f64>().sqrt()
}

/// min(1, max_norm / (norm + 1e-6)), the factor of all gradients, as in PyTorch's `clip_grad_norm_`.
///
/// MindFormers differs below the threshold: with d = max(norm, max_norm) it multiplies by
/// max_norm / (d + 1e-6), so gradients that need no clipping shrink by max_norm / (max_norm + 1e-6), 0.999999
/// for 1. Here they are unchanged. A NaN norm gives a NaN coefficient, so that bad gradients stay visible.
#[track_caller]
pub fn clip_coefficient(norm: f64, max_norm: f64) -> f64 {
    assert!(max_norm > 0.0, "max_norm should be positive, but is {max_norm}.");
    let coefficient = max_norm / (norm + 1e-6);
    // `f64::min` would return 1 for NaN.
    if coefficient > 1.0 { 1.0 } else { coefficient }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_one_vector() {
        let grads: [&[f64]; 3] = [&[2.0, 3.0], &[], &[6.0]];
        assert_eq!(grad_norm(grads.into_iter()), 7.0);
    }

    #[test]
    fn clips_above_the_threshold_only() {
        assert_eq!(clip_coefficient(0.5, 1.0), 1.0);
        assert_eq!(clip_coefficient(0.0, 1.0), 1.0);
        assert!((4.0 * clip_coefficient(4.0, 1.0) - 1.0).abs() < 1e-6);
        // At the threshold the 1e-6 takes effect.
        assert_eq!(clip_coefficient(1.0, 1.0), 1.0 / 1.000001);
        assert_eq!(clip_coefficient(f64::INFINITY, 1.0), 0.0);
        assert!(clip_coefficient(f64::NAN, 1.0).is_nan());
    }
}

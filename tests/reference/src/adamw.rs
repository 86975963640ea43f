//! Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv:1711.05101).

use super::vector::assert_len;

/// The hyperparameters of one AdamW step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment per step.
    pub beta1: f64,
    /// Decay of the second moment per step.
    pub beta2: f64,
    /// ε, added to √v̂ outside the root.
    pub eps: f64,
    /// Decoupled weight decay, per unit of learning rate.
    pub weight_decay: f64,
    /// How the bias of the moments towards 0 is corrected.
    pub correction: Correction,
}

/// The correction of the bias that the moments have from starting at 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Correction {
    /// m̂ / (√v̂ + eps), as published.
    Published,
    /// m / (√v + eps): no correction.
    Absent,
    /// m̂ / ((√v + eps) / √(1−β₂ᵗ)): eps is scaled by the correction too.
    WithEps,
}

/// Step `step` (counted from 1) on parameters p, given gradients g and moments m and v, all of one length. Updates p,
/// m, v.
///
/// m ← β₁·m + (1−β₁)·g, v ← β₂·v + (1−β₂)·g², m̂ = m / (1−β₁ᵗ), v̂ = v / (1−β₂ᵗ), and
/// p ← p·(1 − lr·weight_decay) − lr·m̂ / (√v̂ + eps), or the variant that `correction` selects.
#[track_caller]
pub fn adamw(settings: &AdamW, step: u32, p: &mut [f64], g: &[f64], m: &mut [f64], v: &mut [f64]) {
    let AdamW { lr, beta1, beta2, eps, weight_decay, correction } = *settings;
    assert!(step > 0, "AdamW steps are counted from 1.");
    assert_len("g", g, p.len());
    assert_len("m", m, p.len());
    assert_len("v", v, p.len());
    let t = f64::from(step);
    let (correction1, correction2) = (1.0 - beta1.powf(t), 1.0 - beta2.powf(t));
    for (((p, g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
        *m = beta1 * *m + (1.0 - beta1) * g;
        *v = beta2 * *v + (1.0 - beta2) * g * g;
        let update = match correction {
            Correction::Published => *m / correction1 / ((*v / correction2).sqrt() + eps),
            Correction::Absent => *m / (v.sqrt() + eps),
            Correction::WithEps => *m / correction1 / ((v.sqrt() + eps) / correction2.sqrt()),
        };
        *p = *p * (1.0 - lr * weight_decay) - lr * update;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_close;

    const SETTINGS: AdamW = AdamW {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.0,
        correction: Correction::Published,
    };

    #[test]
    fn the_first_step_has_the_size_of_the_learning_rate() {
        let (mut p, mut m, mut v) = (vec![1.0, 1.0, 1.0], vec![0.0; 3], vec![0.0; 3]);
        adamw(&SETTINGS, 1, &mut p, &[5.0, -1e-3, 0.0], &mut m, &mut v);
        assert_close("p", &p, &[0.9, 1.1, 1.0], 1e-5);
        assert_close("m", &m, &[0.5, -1e-4, 0.0], 1e-12);
        assert_close("v", &v, &[0.025, 1e-9, 0.0], 1e-12);
    }

    #[test]
    fn decay_acts_on_the_parameter_and_not_on_the_moments() {
        let (mut p, mut m, mut v) = (vec![2.0], vec![0.0], vec![0.0]);
        adamw(&AdamW { weight_decay: 0.5, ..SETTINGS }, 1, &mut p, &[0.0], &mut m, &mut v);
        assert_eq!((p[0], m[0], v[0]), (2.0 * 0.95, 0.0, 0.0));
    }

    #[test]
    fn two_steps_by_hand() {
        // m̂ = (0.9·0.1·g₁ + 0.1·g₂) / 0.19 and v̂ likewise with 0.999.
        let (mut p, mut m, mut v) = (vec![0.0], vec![0.0], vec![0.0]);
        adamw(&SETTINGS, 1, &mut p, &[1.0], &mut m, &mut v);
        adamw(&SETTINGS, 2, &mut p, &[-3.0], &mut m, &mut v);
        let m_hat = (0.09 - 0.3) / 0.19;
        let v_hat: f64 = (0.999 * 0.001 + 0.009) / (1.0 - 0.998001);
        assert_close("p", &p, &[-0.1 - 0.1 * m_hat / v_hat.sqrt()], 1e-7);
    }

    #[test]
    fn variations_by_hand() {
        // After the first step on g = 2: m = 0.2, v = 0.004, √v = 0.0632…
        let first = |correction, eps, weight_decay| {
            let (mut p, mut m, mut v) = (vec![1.0], vec![0.0], vec![0.0]);
            let settings = AdamW { correction, eps, weight_decay, ..SETTINGS };
            adamw(&settings, 1, &mut p, &[2.0], &mut m, &mut v);
            p[0]
        };
        let root = 0.004f64.sqrt();
        let near = |found: f64, want: f64| assert!((found - want).abs() < 1e-13, "{found}, not {want}");
        near(first(Correction::Published, 0.5, 0.0), 1.0 - 0.1 * 2.0 / 2.5);
        near(first(Correction::Absent, 0.5, 0.0), 1.0 - 0.1 * 0.2 / (root + 0.5));
        near(first(Correction::Absent, 0.5, 0.3), 0.97 - 0.1 * 0.2 / (root + 0.5));
        near(first(Correction::WithEps, 0.5, 0.0), 1.0 - 0.1 * 2.0 / (2.0 + 0.5 / 0.001f64.sqrt()));
    }
}

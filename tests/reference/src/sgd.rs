//! Stochastic gradient descent with momentum, as in PyTorch and MindSpore.

use super::vector::assert_len;

/// The hyperparameters of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f64,
    /// μ, decay of the momentum per step.
    pub momentum: f64,
    /// How much less than 1 a gradient adds to the momentum; the first one adds 1.
    pub dampening: f64,
    /// Nesterov momentum: the update is g + μ·m instead of m.
    pub nesterov: bool,
    /// Weight decay, coupled: added to the gradient.
    pub weight_decay: f64,
}

/// Step `step` (counted from 1) on parameters p, given gradients g and momentum m, all of one length. Updates p and m.
///
/// g' = g + weight_decay·p, m ← μ·m + (1−dampening)·g' (in the first step m ← μ·m + g'), and p ← p − lr·m, or
/// p ← p − lr·(g' + μ·m) with Nesterov momentum.
#[track_caller]
pub fn sgd(settings: &Sgd, step: u32, p: &mut [f64], g: &[f64], m: &mut [f64]) {
    let Sgd { lr, momentum, dampening, nesterov, weight_decay } = *settings;
    assert!(step > 0, "SGD steps are counted from 1.");
    assert_len("g", g, p.len());
    assert_len("m", m, p.len());
    let share = if step == 1 { 1.0 } else { 1.0 - dampening };
    for ((p, g), m) in p.iter_mut().zip(g).zip(m) {
        let g = g + weight_decay * *p;
        *m = momentum * *m + share * g;
        *p -= lr * if nesterov { g + momentum * *m } else { *m };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_close;

    const PLAIN: Sgd = Sgd { lr: 0.1, momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 };

    fn steps(settings: &Sgd, gradients: &[f64]) -> (f64, f64) {
        let (mut p, mut m) = ([1.0], [0.0]);
        for (i, g) in gradients.iter().enumerate() {
            sgd(settings, i as u32 + 1, &mut p, &[*g], &mut m);
        }
        (p[0], m[0])
    }

    /// Two steps computed by hand from the documented formulas of PyTorch's SGD.
    #[test]
    fn two_steps_by_hand() {
        let cases = [
            (PLAIN, (1.0 - 0.1 * 2.0 - 0.1 * 3.0, 3.0)),
            (Sgd { momentum: 0.5, ..PLAIN }, (1.0 - 0.1 * 2.0 - 0.1 * 4.0, 4.0)),
            // The first gradient is not dampened: m is 2, then 0.5 · 2 + 0.75 · 3.
            (Sgd { momentum: 0.5, dampening: 0.25, ..PLAIN }, (1.0 - 0.1 * 2.0 - 0.1 * 3.25, 3.25)),
            // Updates of 2 + 0.5 · 2, then 3 + 0.5 · 4.
            (Sgd { momentum: 0.5, nesterov: true, ..PLAIN }, (1.0 - 0.1 * 3.0 - 0.1 * 5.0, 4.0)),
            // Gradients of 2 + 1, then 3 + 0.55; updates of 3 + 0.5 · 3, then 3.55 + 0.5 · 5.05.
            (
                Sgd { momentum: 0.5, nesterov: true, weight_decay: 1.0, ..PLAIN },
                (1.0 - 0.1 * 4.5 - 0.1 * 6.075, 5.05),
            ),
            // Gradients of 2 + 1, then 3 + 0.7.
            (Sgd { weight_decay: 1.0, ..PLAIN }, (1.0 - 0.1 * 3.0 - 0.1 * 3.7, 3.7)),
        ];
        for (settings, (p, m)) in cases {
            let found = steps(&settings, &[2.0, 3.0]);
            assert_close(&format!("{settings:?}"), &[found.0, found.1], &[p, m], 1e-12);
        }
    }
}

//! SparseMixer as the router of Phi-3.5-MoE has it (Liu et al. 2024, arXiv:2409.12136): the experts of the two largest
//! logits, each with its share among the experts near it.
//!
//! Expert e is near a chosen one c if (z_c − z_e) / max(|z_e|, z_c) ≤ 2 ε; the first choice is not near the second.
//! gate_c = e^z_c / Σ e^z over the experts near c. The choice, and which experts are near, have no gradient.

use super::vector::{assert_len, rows_of};

/// The number of choices of a token.
pub const CHOSEN: usize = 2;

/// The gates (N, 2) of the choices `ids` (N, 2) by logits (N, E).
#[track_caller]
pub fn gates(logits: &[f64], ids: &[u32], experts: usize, jitter: f64) -> Vec<f64> {
    let of_row = |(z, ids): (&[f64], &[u32])| {
        [0, 1].map(|choice| shares(z, ids, choice, jitter)[ids[choice] as usize])
    };
    rows(logits, ids, experts).flat_map(of_row).collect()
}

/// The gradient with respect to logits (N, E), given that with respect to the [`gates`] (N, 2).
///
/// With the shares p of the experts near choice c: dz = dg·p_c·([e = c] − p_e).
#[track_caller]
pub fn gates_backward(logits: &[f64], ids: &[u32], d_gates: &[f64], experts: usize, jitter: f64) -> Vec<f64> {
    assert_len("d_gates", d_gates, ids.len());
    let of_row = |((z, ids), dg): ((&[f64], &[u32]), &[f64])| {
        let mut dz = vec![0.0; experts];
        for (choice, dg) in dg.iter().enumerate() {
            let (p, own) = (shares(z, ids, choice, jitter), ids[choice] as usize);
            for (e, dz) in dz.iter_mut().enumerate() {
                *dz += dg * p[own] * (f64::from(u8::from(e == own)) - p[e]);
            }
        }
        dz
    };
    rows(logits, ids, experts).zip(d_gates.chunks_exact(CHOSEN)).flat_map(of_row).collect()
}

fn rows<'a>(
    logits: &'a [f64],
    ids: &'a [u32],
    experts: usize,
) -> impl Iterator<Item = (&'a [f64], &'a [u32])> {
    rows_of("logits", logits, experts);
    logits.chunks_exact(experts).zip(ids.chunks_exact(CHOSEN))
}

/// The shares (E) of a softmax over the experts near a choice; 0 for others.
fn shares(z: &[f64], ids: &[u32], choice: usize, jitter: f64) -> Vec<f64> {
    let chosen = z[ids[choice] as usize];
    let is_near = |e: usize| {
        let is_taken = choice == 1 && e == ids[0] as usize;
        !is_taken && chosen - z[e] <= 2.0 * jitter * z[e].abs().max(chosen)
    };
    let weight = |e: usize| if is_near(e) { (z[e] - chosen).exp() } else { 0.0 };
    let weights: Vec<f64> = (0..z.len()).map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{assert_close, assert_gradient};
    use crate::mixture::choose;
    use crate::random::Random;
    use crate::vector::dot;

    #[test]
    fn gates_by_hand() {
        // 1.9 is near 2 at 2 ε = 0.1, since 0.1 / 2 is below it; 1.5 is near neither.
        let z = [1.5, 2.0, 1.9, -3.0];
        let first = 1.0 / (1.0 + (-0.1f64).exp());
        assert_close("gates", &gates(&z, &[1, 2], 4, 0.05), &[first, 1.0], 1e-12);
        // |z| counts where it is larger: (2 - -3) / 3 is below 2 ε = 1.8, and so are all others.
        let all: f64 = z.iter().map(|z| (z - 2.0).exp()).sum();
        let others: f64 = [1.5, 1.9, -3.0].iter().map(|z| (z - 1.9f64).exp()).sum();
        assert_close("gates", &gates(&z, &[1, 2], 4, 0.9), &[1.0 / all, 1.0 / others], 1e-12);
        // Equal logits are near each other whatever the tolerance is, and so are negative ones.
        assert_close("ties", &gates(&[-1.0, -2.0, -1.0], &[0, 2], 3, 0.0), &[0.5, 1.0], 1e-12);
    }

    #[test]
    fn backward_is_the_gradient() {
        for jitter in [0.0, 0.1, 0.6] {
            let mut random = Random::new(23);
            let (logits, d_gates) = (random.normal(9 * 7), random.normal(9 * CHOSEN));
            let choices = logits.chunks_exact(7).flat_map(|z| choose(z, None, CHOSEN));
            let ids: Vec<u32> = choices.map(|id| id as u32).collect();
            let d_logits = gates_backward(&logits, &ids, &d_gates, 7, jitter);
            assert_eq!(jitter > 0.0, d_logits.iter().any(|d| *d != 0.0), "{jitter}");
            assert_gradient("d_logits", &d_logits, &logits, |z| dot(&gates(z, &ids, 7, jitter), &d_gates));
        }
    }
}

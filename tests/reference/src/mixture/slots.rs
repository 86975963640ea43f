//! Expert capacity: which choices are kept, and their gates.

use super::{Capacity, Hot, Mixture};
use crate::vector::{add_scaled, assert_len, dot};

/// ε of the normalisation of gates.
const EPSILON: f64 = 1e-9;

/// Slots per expert for `tokens` tokens with `chosen` choices each: ceil(chosen·tokens·factor / experts), at most
/// `tokens`.
///
/// # Examples
///
/// ```
/// use reference::mixture::capacity_slots;
///
/// assert_eq!(capacity_slots(2, 4096, 1.5, 8), 1536);
/// assert_eq!(capacity_slots(2, 4096, 1.1, 8), 1127);
/// assert_eq!(capacity_slots(4, 10, 1.5, 4), 10);
/// ```
pub fn capacity_slots(chosen: usize, tokens: usize, factor: f64, experts: usize) -> usize {
    let slots = ((chosen * tokens) as f64 * factor / experts as f64).ceil();
    (slots as usize).min(tokens)
}

/// Whether each choice (N, k) finds a slot at its expert.
pub(super) fn kept(mixture: &Mixture, ids: &[usize], hot: &[usize]) -> Vec<bool> {
    let Some(capacity) = mixture.capacity else { return vec![true; ids.len()] };
    let (k, tokens) = (mixture.chosen, ids.len() / mixture.chosen);
    let mut free = slots(mixture, &capacity, tokens, hot);
    let in_order: Vec<usize> = match capacity.is_token_major {
        true => (0..ids.len()).collect(),
        false => (0..k).flat_map(|j| (0..tokens).map(move |token| token * k + j)).collect(),
    };
    let mut kept = vec![false; ids.len()];
    for choice in in_order {
        let free = &mut free[ids[choice]];
        kept[choice] = *free > 0;
        *free = free.saturating_sub(1);
    }
    kept
}

/// Slots per expert, (E): a cold expert has a fraction of a hot one's, but at least one.
fn slots(mixture: &Mixture, capacity: &Capacity, tokens: usize, hot: &[usize]) -> Vec<usize> {
    let slots = capacity_slots(mixture.chosen, tokens, capacity.factor, mixture.experts);
    let cold_slots = match capacity.hot {
        Some(Hot { cold_token_share, .. }) => ((slots as f64 * cold_token_share) as usize).max(1),
        None => slots,
    };
    let of = |expert| if hot.contains(&expert) { slots } else { cold_slots };
    (0..mixture.experts).map(of).collect()
}

/// The gates (N, k) after dropping: zero where a choice was not `kept`, and with `renormalises` scaled to the sum of
/// all gates of the token.
pub(super) fn gates(mixture: &Mixture, gates: &[f64], kept: &[bool]) -> Vec<f64> {
    assert_len("kept", kept, gates.len());
    let rows = gates.chunks_exact(mixture.chosen).zip(kept.chunks_exact(mixture.chosen));
    let row = |(gates, kept): (&[f64], &[bool])| {
        let kept = masked(gates, kept);
        let [all, rest] = [gates, &kept].map(|gates| gates.iter().sum::<f64>());
        let scale = if mixture.renormalises() { all / (rest + EPSILON) } else { 1.0 };
        kept.into_iter().map(move |gate| gate * scale)
    };
    rows.flat_map(row).collect()
}

/// The gradient (N, k) of the gates before [`gates`], given that of those after it.
pub(super) fn gates_backward(mixture: &Mixture, gates: &[f64], kept: &[bool], dy: &[f64]) -> Vec<f64> {
    let k = mixture.chosen;
    let row = |token: usize| {
        let [g, d] = [gates, dy].map(|all| &all[token * k..][..k]);
        let kept = &kept[token * k..][..k];
        let mut dg = masked(d, kept);
        if mixture.renormalises() {
            // y = gᵢ·all / (rest + ε), with all = Σ g and rest the sum of those that were kept.
            let all: f64 = g.iter().sum();
            let rest = masked(g, kept).iter().sum::<f64>() + EPSILON;
            let mean = dot(&dg, g) / rest;
            dg.iter_mut().for_each(|d| *d *= all / rest);
            add_scaled(&mut dg, -mean * all / rest, &masked(&vec![1.0; k], kept));
            add_scaled(&mut dg, mean, &vec![1.0; k]);
        }
        dg
    };
    (0..gates.len() / k).flat_map(row).collect()
}

/// `values` where `kept`, zero elsewhere.
fn masked(values: &[f64], kept: &[bool]) -> Vec<f64> {
    values.iter().zip(kept).map(|(value, kept)| if *kept { *value } else { 0.0 }).collect()
}

impl Mixture {
    /// Whether the gates of kept choices are scaled to the sum of all.
    fn renormalises(&self) -> bool {
        self.capacity.is_some_and(|capacity| capacity.renormalises)
    }
}

//! Which choices find a slot where experts take a limited number of tokens, and what becomes of the gates.

use super::{Capacity, Hot, Mixture};
use crate::reference::vector::{add_scaled, assert_len, dot};

/// Added to the sum that gates are divided by.
const EPSILON: f64 = 1e-9;

/// Slots of an expert for `tokens` tokens of `chosen` choices: chosen·tokens·factor / experts, rounded up, at most one
/// for each token.
///
/// # Examples
///
/// ```
/// use gristmill::reference::mixture::capacity_slots;
///
/// assert_eq!(capacity_slots(2, 4096, 1.5, 8), 1536);
/// assert_eq!(capacity_slots(2, 4096, 1.1, 8), 1127);
/// assert_eq!(capacity_slots(4, 10, 1.5, 4), 10);
/// ```
pub fn capacity_slots(chosen: usize, tokens: usize, factor: f64, experts: usize) -> usize {
    let slots = ((chosen * tokens) as f64 * factor / experts as f64).ceil();
    (slots as usize).min(tokens)
}

/// Whether each of the choices (N, k) of an expert finds a slot.
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

/// Slots of each expert, (E): a cold one has a share of what a hot one has, but at least one.
fn slots(mixture: &Mixture, capacity: &Capacity, tokens: usize, hot: &[usize]) -> Vec<usize> {
    let slots = capacity_slots(mixture.chosen, tokens, capacity.factor, mixture.experts);
    let cold_slots = match capacity.hot {
        Some(Hot { cold_token_share, .. }) => ((slots as f64 * cold_token_share) as usize).max(1),
        None => slots,
    };
    let of = |expert| if hot.contains(&expert) { slots } else { cold_slots };
    (0..mixture.experts).map(of).collect()
}

/// What the output of each choice (N, k) is multiplied with: its gate where it was `kept`, scaled so that a token's sum is
/// what all its gates have, if the mixture says so.
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

/// The values that are kept, zero in the place of the others.
fn masked(values: &[f64], kept: &[bool]) -> Vec<f64> {
    values.iter().zip(kept).map(|(value, kept)| if *kept { *value } else { 0.0 }).collect()
}

impl Mixture {
    /// Whether what is kept makes up for what is dropped.
    fn renormalises(&self) -> bool {
        self.capacity.is_some_and(|capacity| capacity.renormalises)
    }
}

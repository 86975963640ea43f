//! The load-balancing losses and their gradients.
//!
//! f is an expert's fraction of the choices, made without the selection bias; p is its mean probability. Only p has a
//! gradient.

use super::{Choices, Losses, Mixture};
use crate::softmax::softmax;
use crate::vector::dot;

/// Choices per expert, (E).
pub(super) fn counts(ids: &[usize], experts: usize) -> Vec<usize> {
    let mut counts = vec![0; experts];
    ids.iter().for_each(|&expert| counts[expert] += 1);
    counts
}

/// The unweighted losses; zero where the factor is zero.
pub(super) fn losses(mixture: &Mixture, choices: &Choices, sequence_length: usize) -> Losses {
    let tokens = choices.ids.len() / mixture.chosen;
    let Losses { expert, sequence, z } = mixture.losses;
    let part = |factor: f64, loss: &dyn Fn() -> f64| if factor == 0.0 { 0.0 } else { loss() };
    Losses {
        expert: part(expert, &|| mean_balance(mixture, choices, tokens)),
        sequence: part(sequence, &|| mean_balance(mixture, choices, sequence_length)),
        z: part(z, &|| {
            let rows = choices.logits.chunks_exact(mixture.experts);
            rows.map(|logits| softmax(&mut logits.to_vec()).powi(2)).sum::<f64>() / tokens as f64
        }),
    }
}

/// seed·factors times the gradient of the expert and sequence losses with respect to the probabilities, (N, E).
pub(super) fn probabilities_backward(
    mixture: &Mixture,
    choices: &Choices,
    sequence_length: usize,
    seed: f64,
) -> Vec<f64> {
    let tokens = choices.ids.len() / mixture.chosen;
    let Losses { expert, sequence, .. } = mixture.losses;
    let whole = shares(mixture, choices, tokens);
    let each = shares(mixture, choices, sequence_length);
    let row = |token: usize| {
        let of_sequence = &each[token / sequence_length];
        // p is a mean over tokens, and the sequence loss a mean over sequences: both have the factor 1 / N.
        let scale = seed * mixture.experts as f64 / tokens as f64;
        let d = whole[0].iter().zip(of_sequence).map(move |(f, of)| scale * (expert * f + sequence * of));
        d.collect::<Vec<f64>>()
    };
    (0..tokens).flat_map(row).collect()
}

/// seed·factor times the gradient of the z loss with respect to the logits, (N, E).
pub(super) fn z_backward(mixture: &Mixture, choices: &Choices, seed: f64) -> Vec<f64> {
    let tokens = choices.ids.len() / mixture.chosen;
    let row = |logits: &[f64]| {
        let mut p = logits.to_vec();
        let scale = seed * mixture.losses.z * 2.0 * softmax(&mut p) / tokens as f64;
        p.into_iter().map(move |p| scale * p)
    };
    choices.logits.chunks_exact(mixture.experts).flat_map(row).collect()
}

/// The mean of E·Σ f·p over groups of `tokens` tokens.
fn mean_balance(mixture: &Mixture, choices: &Choices, tokens: usize) -> f64 {
    let shares = shares(mixture, choices, tokens);
    let groups = choices.probabilities.chunks_exact(tokens * mixture.experts);
    let balance = groups.zip(&shares).map(|(probabilities, f)| {
        let mut p = vec![0.0; mixture.experts];
        for (i, probability) in probabilities.iter().enumerate() {
            p[i % mixture.experts] += probability / tokens as f64;
        }
        mixture.experts as f64 * dot(f, &p)
    });
    balance.sum::<f64>() / shares.len() as f64
}

/// f (E) of each group of `tokens` tokens.
fn shares(mixture: &Mixture, choices: &Choices, tokens: usize) -> Vec<Vec<f64>> {
    let choices_of = tokens * mixture.chosen;
    let share = |ids: &[usize]| {
        counts(ids, mixture.experts).into_iter().map(|count| count as f64 / choices_of as f64).collect()
    };
    choices.unbiased.chunks_exact(choices_of).map(share).collect()
}

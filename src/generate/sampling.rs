//! Sampling of the next token from logits.

use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Sampling parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits: values below 1 sharpen the distribution; 0 is greedy.
    pub temperature: f64,
    /// Number of most likely tokens to sample from; 0: all.
    pub top_k: usize,
    /// Nucleus sampling: sample from the smallest set of most likely tokens with at least this total probability; 1:
    /// all (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019).
    pub top_p: f64,
    /// Logits of tokens that have occurred are divided by this if positive and multiplied by it if negative (Keskar et
    /// al., "CTRL", 2019, section 4.1); 1: no penalty.
    pub repetition_penalty: f64,
}

impl Default for Sampling {
    /// The unmodified distribution of the model.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 }
    }
}

impl Sampling {
    /// Always the most likely token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 };

    /// The first invalid parameter, if any: its name and what is expected.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        let Self { temperature, top_p, repetition_penalty, .. } = *self;
        match () {
            () if !(temperature.is_finite() && temperature >= 0.0) => {
                Some(("temperature", "a number of at least 0"))
            }
            () if !(top_p > 0.0 && top_p <= 1.0) => Some(("top_p", "a number above 0, at most 1")),
            () if !(repetition_penalty.is_finite() && repetition_penalty > 0.0) => {
                Some(("repetition_penalty", "a number above 0"))
            }
            () => None,
        }
    }

    /// The token at quantile `uniform`, in [0, 1), of the distribution over tokens ordered from most to least likely;
    /// ties go to the smaller token. `seen` holds the distinct tokens so far, a set, so that the cost of a draw does
    /// not grow with the length of the text. NaN logits are never drawn; if all are NaN, the result is token 0.
    pub fn choose(&self, logits: &[f32], seen: &BTreeSet<u32>, uniform: f64) -> u32 {
        let mut candidates = self.penalised(logits, seen);
        // Most likely first; a total order, so that the choice is the same on every machine.
        let likelier = |a: &(u32, f64), b: &(u32, f64)| {
            b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
        };
        if self.temperature == 0.0 {
            return candidates.into_iter().min_by(likelier).map_or(0, |(token, _)| token);
        }
        if self.top_k > 0 && self.top_k < candidates.len() {
            candidates.select_nth_unstable_by(self.top_k - 1, likelier);
            candidates.truncate(self.top_k);
        }
        candidates.sort_unstable_by(likelier);
        let weights = self.weights(&candidates);
        let mut rest = uniform * weights.iter().sum::<f64>();
        for (&(token, _), weight) in candidates.iter().zip(&weights) {
            rest -= weight;
            if rest < 0.0 {
                return token;
            }
        }
        candidates.get(weights.len().saturating_sub(1)).map_or(0, |(token, _)| *token) // `rest` is 0 up to rounding
    }

    fn penalised(&self, logits: &[f32], seen: &BTreeSet<u32>) -> Vec<(u32, f64)> {
        let mut logits: Vec<f64> = logits.iter().map(|&logit| logit as f64).collect();
        if self.repetition_penalty != 1.0 {
            for &token in seen {
                if let Some(logit) = logits.get_mut(token as usize) {
                    let factor =
                        if *logit > 0.0 { 1.0 / self.repetition_penalty } else { self.repetition_penalty };
                    *logit *= factor;
                }
            }
        }
        (0..).zip(logits).filter(|(_, logit)| !logit.is_nan()).collect()
    }

    /// Unnormalised probabilities of `candidates`, which are sorted from most likely, truncated to the nucleus of
    /// `top_p`.
    fn weights(&self, candidates: &[(u32, f64)]) -> Vec<f64> {
        let largest = candidates.first().map_or(0.0, |(_, logit)| *logit);
        let mut weights: Vec<f64> =
            candidates.iter().map(|(_, logit)| ((logit - largest) / self.temperature).exp()).collect();
        let wanted = self.top_p * weights.iter().sum::<f64>();
        if self.top_p < 1.0 {
            let mut sum = 0.0;
            // The token that crosses the limit is included, so at least one is kept.
            let kept = weights.iter().take_while(|&&weight| {
                let is_kept = sum < wanted;
                sum += weight;
                is_kept
            });
            let kept = kept.count().max(1);
            weights.truncate(kept);
        }
        weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probabilities 1/8, 1/2, 1/4, 1/8.
    fn logits() -> [f32; 4] {
        [1f32, 4.0, 2.0, 1.0].map(f32::ln)
    }

    fn set(tokens: &[u32]) -> BTreeSet<u32> {
        tokens.iter().copied().collect()
    }

    fn drawn(sampling: Sampling, seen: &[u32]) -> Vec<u32> {
        (0..16).map(|i| sampling.choose(&logits(), &set(seen), (i as f64 + 0.5) / 16.0)).collect()
    }

    #[test]
    fn choice_follows_the_distribution() {
        let all = drawn(Sampling::default(), &[]);
        assert_eq!(all, [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 3, 3], "most likely first");
        assert_eq!(drawn(Sampling::GREEDY, &[]), [1; 16]);
        // At temperature 1/2 the weights are squared: 16, 4, 1, 1 of 22.
        let cold = drawn(Sampling { temperature: 0.5, ..Sampling::default() }, &[]);
        assert_eq!(cold, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3]);
    }

    #[test]
    fn the_tail_is_cut() {
        let two = drawn(Sampling { top_k: 2, ..Sampling::default() }, &[]);
        assert_eq!(two, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
        // Half the probability is reached with the first token; a little more takes the second too.
        assert_eq!(drawn(Sampling { top_p: 0.5, ..Sampling::default() }, &[]), [1; 16]);
        assert_eq!(drawn(Sampling { top_p: 0.51, ..Sampling::default() }, &[]), two);
        assert_eq!(drawn(Sampling { top_p: 1e-9, ..Sampling::default() }, &[]), [1; 16]);
        assert_eq!(
            drawn(Sampling { top_k: 100, ..Sampling::default() }, &[]),
            drawn(Sampling::default(), &[])
        );
    }

    #[test]
    fn repetition_costs() {
        let penalty = Sampling { repetition_penalty: 1e3, ..Sampling::GREEDY };
        assert_eq!(penalty.choose(&[1.0, 4.0, 2.0], &set(&[1, 1]), 0.0), 2);
        // A negative logit becomes more negative.
        assert_eq!(penalty.choose(&[-1.0, -2.0], &set(&[0]), 0.0), 1);
        assert_eq!(penalty.choose(&[1.0], &set(&[7]), 0.0), 0, "a token outside the vocabulary is ignored");
    }

    #[test]
    fn ties_and_broken_logits() {
        assert_eq!(Sampling::GREEDY.choose(&[2.0, 3.0, 3.0], &set(&[]), 0.9), 1);
        assert_eq!(Sampling::GREEDY.choose(&[f32::NAN, 3.0], &set(&[]), 0.9), 1);
        assert_eq!(Sampling::default().choose(&[f32::NAN; 3], &set(&[]), 0.5), 0);
        let masked = [0.0, f32::MIN, f32::NEG_INFINITY];
        assert!((0..100).all(|i| Sampling::default().choose(&masked, &set(&[]), i as f64 / 100.0) == 0));
    }

    #[test]
    fn faults_are_named() {
        let fault = |sampling: Sampling| sampling.fault().map(|(name, _)| name);
        assert_eq!(fault(Sampling::default()), None);
        assert_eq!(fault(Sampling { temperature: -1.0, ..Sampling::GREEDY }), Some("temperature"));
        assert_eq!(fault(Sampling { top_p: 0.0, ..Sampling::GREEDY }), Some("top_p"));
        assert_eq!(
            fault(Sampling { repetition_penalty: f64::NAN, ..Sampling::GREEDY }),
            Some("repetition_penalty")
        );
    }
}

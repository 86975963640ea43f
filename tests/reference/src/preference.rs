//! Losses of pairs of answers, of which one is preferred, by the log-probabilities of both.

use super::vector::assert_len;

/// The loss of a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PairLoss {
    /// −(1 − ε) log σ(z) − ε log σ(−z) with z = β (log-ratio of the chosen answer − that of the rejected one).
    Dpo {
        /// β.
        beta: f64,
        /// ε.
        smoothing: f64,
    },
    /// (log-ratio per token of the chosen answer − that of the rejected one − 1 / (2 β))².
    Ipo {
        /// β.
        beta: f64,
    },
    /// −a of the chosen answer − β log σ(log odds of the chosen answer − those of the rejected one), of
    /// log-probabilities per token a, whose odds are e^a / (1 − e^a).
    Orpo {
        /// β.
        beta: f64,
    },
    /// As DPO, with z = β (a of the chosen answer − that of the rejected one) − γ.
    SimPo {
        /// β.
        beta: f64,
        /// γ.
        gamma: f64,
        /// ε.
        smoothing: f64,
    },
}

/// An answer: its log-probability, that under the reference, and its number of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// Log-probability.
    pub log_prob: f64,
    /// Log-probability under the reference.
    pub reference: f64,
    /// Number of tokens.
    pub tokens: f64,
}

impl PairLoss {
    /// The loss of a chosen and a rejected answer.
    ///
    /// # Examples
    ///
    /// ```
    /// use reference::preference::{Answer, PairLoss};
    ///
    /// let answer = Answer { log_prob: -3.0, reference: -3.0, tokens: 2.0 };
    /// let loss = PairLoss::Dpo { beta: 0.1, smoothing: 0.0 }.of([answer, answer]);
    /// assert!((loss - 2f64.ln()).abs() < 1e-15);
    /// ```
    pub fn of(self, [chosen, rejected]: [Answer; 2]) -> f64 {
        let ratio = |answer: Answer| answer.log_prob - answer.reference;
        let mean = |answer: Answer| answer.log_prob / answer.tokens;
        match self {
            Self::Dpo { beta, smoothing } => smoothed(beta * (ratio(chosen) - ratio(rejected)), smoothing),
            Self::Ipo { beta } => {
                let per_token = |answer: Answer| ratio(answer) / answer.tokens;
                (per_token(chosen) - per_token(rejected) - 0.5 / beta).powi(2)
            }
            Self::Orpo { beta } => {
                let log_odds = |answer| mean(answer) - (-mean(answer).exp()).ln_1p();
                -mean(chosen) - beta * log_sigmoid(log_odds(chosen) - log_odds(rejected))
            }
            Self::SimPo { beta, gamma, smoothing } => {
                smoothed(beta * (mean(chosen) - mean(rejected)) - gamma, smoothing)
            }
        }
    }

    /// The derivatives of the loss by both log-probabilities.
    pub fn slopes(self, [chosen, rejected]: [Answer; 2]) -> [f64; 2] {
        let ratio = |answer: Answer| answer.log_prob - answer.reference;
        let mean = |answer: Answer| answer.log_prob / answer.tokens;
        let tokens = [chosen.tokens, rejected.tokens];
        match self {
            Self::Dpo { beta, smoothing } => {
                let slope = beta * smoothed_slope(beta * (ratio(chosen) - ratio(rejected)), smoothing);
                [slope, -slope]
            }
            Self::Ipo { beta } => {
                let off = ratio(chosen) / tokens[0] - ratio(rejected) / tokens[1] - 0.5 / beta;
                [2.0 * off / tokens[0], -2.0 * off / tokens[1]]
            }
            Self::Orpo { beta } => {
                let misses = [chosen, rejected].map(|answer| 1.0 - mean(answer).exp());
                let log_odds = |answer| mean(answer) - (-mean(answer).exp()).ln_1p();
                let slope = beta * sigmoid(log_odds(rejected) - log_odds(chosen));
                [(-slope / misses[0] - 1.0) / tokens[0], slope / misses[1] / tokens[1]]
            }
            Self::SimPo { beta, gamma, smoothing } => {
                let slope = beta * smoothed_slope(beta * (mean(chosen) - mean(rejected)) - gamma, smoothing);
                [slope / tokens[0], -slope / tokens[1]]
            }
        }
    }

    /// The rewards of both answers: β times the log-ratio, or the log-probability per token where there is no
    /// reference.
    pub fn rewards(self, answers: [Answer; 2]) -> [f64; 2] {
        answers.map(|answer| match self {
            Self::Dpo { beta, .. } | Self::Ipo { beta } => beta * (answer.log_prob - answer.reference),
            Self::Orpo { beta } | Self::SimPo { beta, .. } => beta * answer.log_prob / answer.tokens,
        })
    }
}

/// The weight of each of `losses.len()` tokens' cross-entropy in the gradient of the sum of the losses of pairs:
/// `answers` are the tokens of each pair's chosen and rejected answer, `counts` says which tokens count, and
/// `references` are their log-probabilities under the reference. Also the answers themselves.
#[track_caller]
pub fn token_weights(
    loss: PairLoss,
    losses: &[f64],
    counts: &[bool],
    answers: &[[std::ops::Range<usize>; 2]],
    references: &[[f64; 2]],
) -> (Vec<f64>, Vec<[Answer; 2]>) {
    assert_len("references", references, answers.len());
    let mut weights = vec![0.0; losses.len()];
    let of_pair = |(ranges, references): (&[std::ops::Range<usize>; 2], &[f64; 2])| {
        [0, 1].map(|side| {
            let tokens = ranges[side].clone().filter(|token| counts[*token]);
            let log_prob = -tokens.clone().map(|token| losses[token]).sum::<f64>();
            Answer { log_prob, reference: references[side], tokens: tokens.count() as f64 }
        })
    };
    let found: Vec<[Answer; 2]> = answers.iter().zip(references).map(of_pair).collect();
    for (ranges, answers) in answers.iter().zip(&found) {
        for (range, slope) in ranges.iter().zip(loss.slopes(*answers)) {
            weights[range.clone()].fill(-slope);
        }
    }
    (weights, found)
}

fn smoothed(z: f64, smoothing: f64) -> f64 {
    -(1.0 - smoothing) * log_sigmoid(z) - smoothing * log_sigmoid(-z)
}

fn smoothed_slope(z: f64, smoothing: f64) -> f64 {
    smoothing * sigmoid(z) - (1.0 - smoothing) * sigmoid(-z)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// log σ(x).
fn log_sigmoid(x: f64) -> f64 {
    x.min(0.0) - (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_gradient;

    #[test]
    fn slopes_are_the_gradient() {
        let answer = |log_prob: f64, tokens: f64| Answer { log_prob, reference: 0.9 * log_prob, tokens };
        for loss in [
            PairLoss::Dpo { beta: 0.3, smoothing: 0.1 },
            PairLoss::Ipo { beta: 0.2 },
            PairLoss::Orpo { beta: 0.4 },
            PairLoss::SimPo { beta: 2.0, gamma: 0.7, smoothing: 0.05 },
        ] {
            for (chosen, rejected) in [(-4.0, -9.0), (-30.0, -7.0), (-0.5, -0.25)] {
                let answers = [answer(chosen, 5.0), answer(rejected, 3.0)];
                let at = |x: &[f64]| {
                    let [mut one, mut other] = answers;
                    (one.log_prob, other.log_prob) = (x[0], x[1]);
                    loss.of([one, other])
                };
                assert_gradient("slopes", &loss.slopes(answers), &[chosen, rejected], at);
            }
        }
    }
}

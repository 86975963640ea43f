//! Sampling of the next token from logits (Holtzman et al. 2019, arXiv:1904.09751; Keskar et al. 2019,
//! arXiv:1909.05858, section 4.1).

use std::cmp::Ordering;
use std::collections::BTreeSet;

/// How a token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits; 0 is greedy.
    pub temperature: f64,
    /// Number of most likely tokens to draw from, and those that tie with the last of them; 0: all.
    pub top_k: usize,
    /// Draws from the smallest set of most likely tokens with at least this total probability, and those that tie with
    /// the last of them; 1: all.
    pub top_p: f64,
    /// Logits of tokens that have occurred are divided by this if positive and multiplied by it if negative; 1:
    /// neither.
    pub repetition_penalty: f64,
}

/// The quantiles [low, high) at which `token` is drawn, where tokens are ordered from most to least likely, ties by
/// their number; `None` if it never is. `seen` holds the tokens that have occurred. NaN logits are never drawn; if all
/// are NaN, token 0 is.
pub fn quantiles(
    logits: &[f64],
    seen: &BTreeSet<usize>,
    sampling: &Sampling,
    token: usize,
) -> Option<[f64; 2]> {
    let penalised = |(token, &logit): (usize, &f64)| {
        let penalty = if seen.contains(&token) { sampling.repetition_penalty } else { 1.0 };
        (token, if logit > 0.0 { logit / penalty } else { logit * penalty })
    };
    let mut ordered: Vec<(usize, f64)> =
        logits.iter().enumerate().map(penalised).filter(|(_, logit)| !logit.is_nan()).collect();
    ordered.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0)));
    let Some(&(first, top)) = ordered.first() else {
        return (token == 0).then_some([0.0, 1.0]);
    };
    if sampling.temperature == 0.0 {
        return (token == first).then_some([0.0, 1.0]);
    }
    let keep = |ordered: &mut Vec<(usize, f64)>, count: usize| {
        if let Some(&(_, last)) = ordered.get(count.max(1) - 1) {
            ordered.retain(|(_, logit)| *logit >= last);
        }
    };
    if sampling.top_k > 0 {
        keep(&mut ordered, sampling.top_k);
    }
    let weight = |&(_, logit): &(usize, f64)| ((logit - top) / sampling.temperature).exp();
    let wanted = sampling.top_p * ordered.iter().map(weight).sum::<f64>();
    let mut sum = 0.0;
    let needed = ordered.iter().map(weight).take_while(|weight| {
        let is_needed = sum < wanted;
        sum += weight;
        is_needed
    });
    let needed = needed.count();
    if sampling.top_p < 1.0 {
        keep(&mut ordered, needed);
    }
    let total: f64 = ordered.iter().map(weight).sum();
    let place = ordered.iter().position(|(other, _)| *other == token)?;
    let low = ordered[..place].iter().map(weight).sum::<f64>() / total;
    Some([low, low + weight(&ordered[place]) / total])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 };

    /// Of the tokens with probabilities 1/8, 1/2, 1/4, 1/8.
    fn of_four(sampling: Sampling, seen: &[usize]) -> [Option<[f64; 2]>; 4] {
        let logits = [1f64, 4.0, 2.0, 1.0].map(f64::ln);
        let rounded = |[low, high]: [f64; 2]| [low, high].map(|quantile| (quantile * 1e9).round() / 1e9);
        [0, 1, 2, 3]
            .map(|token| quantiles(&logits, &seen.iter().copied().collect(), &sampling, token).map(rounded))
    }

    #[test]
    fn tokens_are_ordered_by_their_probability() {
        let all = [[0.75, 0.875], [0.0, 0.5], [0.5, 0.75], [0.875, 1.0]].map(Some);
        assert_eq!(of_four(ALL, &[]), all);
        let greedy = Sampling { temperature: 0.0, ..ALL };
        assert_eq!(of_four(greedy, &[]), [None, Some([0.0, 1.0]), None, None]);
        // At temperature 1/2 the weights are squared: 16, 4, 1, 1 of 22.
        let cold = of_four(Sampling { temperature: 0.5, ..ALL }, &[]);
        assert_eq!(cold[2], Some([0.727272727, 0.909090909]));
    }

    #[test]
    fn the_tail_is_cut() {
        let two = [None, Some([0.0, 0.666666667]), Some([0.666666667, 1.0]), None];
        assert_eq!(of_four(Sampling { top_k: 2, ..ALL }, &[]), two);
        // Half the probability is reached with the first token; a little more takes the second too.
        assert_eq!(of_four(Sampling { top_p: 0.5, ..ALL }, &[])[2], None);
        assert_eq!(of_four(Sampling { top_p: 0.51, ..ALL }, &[]), two);
        assert_eq!(of_four(Sampling { top_p: 1e-9, ..ALL }, &[])[1], Some([0.0, 1.0]));
        // The third ties with the fourth.
        assert_eq!(of_four(Sampling { top_k: 3, ..ALL }, &[]), of_four(ALL, &[]));
    }

    #[test]
    fn repetition_costs_and_nan_is_not_drawn() {
        let penalty = Sampling { repetition_penalty: 4.0, temperature: 0.0, ..ALL };
        assert_eq!(of_four(penalty, &[1])[2], Some([0.0, 1.0]));
        let of = |logits: &[f64], token| quantiles(logits, &[0].into(), &penalty, token);
        assert_eq!(of(&[-1.0, -2.0], 1), Some([0.0, 1.0]), "a negative logit becomes more negative");
        assert_eq!(of(&[f64::NAN, 3.0], 1), Some([0.0, 1.0]));
        assert_eq!(of(&[f64::NAN, f64::NAN], 0), Some([0.0, 1.0]));
    }
}

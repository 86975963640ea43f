//! Load-balancing losses of a mixture, and the balancing bias that works without a loss.

use super::route::{RouterConfig, scores, scores_backward};
use super::softmax::softmax;
use super::vector::{assert_len, dot, rows_of};

/// Weights of the balance losses in the objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// The expert loss.
    pub expert: f64,
    /// The sequence loss.
    pub sequence: f64,
    /// The z loss.
    pub z: f64,
}

/// The balance losses, unweighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Losses {
    /// E·Σ fₑ·pₑ over all tokens (Fedus et al. 2021, arXiv:2101.03961, section 2.2).
    pub expert: f64,
    /// The same per sequence, averaged over sequences (DeepSeek-V3 2024, arXiv:2412.19437).
    pub sequence: f64,
    /// The mean over tokens of (log Σ e^logits)² (Zoph et al. 2022, arXiv:2202.08906).
    pub z: f64,
}

impl Losses {
    /// Their weighted sum, the term of the objective.
    pub fn objective(&self, factors: &Factors) -> f64 {
        factors.expert * self.expert + factors.sequence * self.sequence + factors.z * self.z
    }
}

/// The losses of logits (N, E) and choices (N, k), for sequences of `tokens` tokens.
///
/// fₑ is the fraction of the choices routed to expert e; pₑ is the mean over tokens of its score, where the scores of
/// each token are normalised to a sum of 1.
///
/// # Examples
///
/// ```
/// use reference::balance::losses;
/// use reference::route::RouterConfig;
///
/// let route =
///     RouterConfig { experts: 2, chosen: 1, is_sigmoid: false, groups: None, norm: None, scaling: 1.0 };
/// // Equal probabilities, but both tokens chose the first expert: 2·(1·½ + 0·½) = 1.
/// let even = losses(&[0.0; 4], &[0, 0], 2, &route);
/// assert_eq!((even.expert, even.sequence), (1.0, 1.0));
/// ```
#[track_caller]
pub fn losses(logits: &[f64], ids: &[u32], tokens: usize, route: &RouterConfig) -> Losses {
    let p = normalised(&scores(logits, route), route.experts);
    let rows = rows_of("logits", logits, route.experts);
    let imbalance = |p: &[f64], ids: &[u32]| {
        let f = shares(ids, route.experts);
        route.experts as f64 * dot(&f, &column_means(p, route.experts))
    };
    let sequences = p.chunks_exact(tokens * route.experts).zip(ids.chunks_exact(tokens * route.chosen));
    let sequence_sum: f64 = sequences.map(|(p, ids)| imbalance(p, ids)).sum();
    let squares = logits.chunks_exact(route.experts).map(|row| softmax(&mut row.to_vec()).powi(2));
    Losses {
        expert: imbalance(&p, ids),
        sequence: sequence_sum / (rows / tokens) as f64,
        z: squares.sum::<f64>() / rows as f64,
    }
}

/// The gradient of the [`objective`](Losses::objective) with respect to the logits (N, E); f is held constant.
///
/// With respect to a token's normalised scores it is E/N·(expert·fₑ over all tokens + sequence·fₑ of its sequence),
/// with the factors of those names; the z loss adds 2·z/N·lse·softmax to the gradient of the logits.
#[track_caller]
pub fn losses_backward(
    logits: &[f64],
    ids: &[u32],
    tokens: usize,
    route: &RouterConfig,
    factors: &Factors,
) -> Vec<f64> {
    let rows = rows_of("logits", logits, route.experts);
    assert_len("ids", ids, rows * route.chosen);
    let (e, n) = (route.experts as f64, rows as f64);
    let everywhere = shares(ids, route.experts);
    let scores = scores(logits, route);
    let mut d_scores = Vec::new();
    for (t, s) in scores.chunks_exact(route.experts).enumerate() {
        let sequence =
            shares(&ids[t / tokens * tokens * route.chosen..][..tokens * route.chosen], route.experts);
        let shares = everywhere.iter().zip(&sequence);
        let dp: Vec<f64> =
            shares.map(|(all, own)| e / n * (factors.expert * all + factors.sequence * own)).collect();
        // p = s / Σ s.
        let sum: f64 = s.iter().sum();
        let mean = dot(&dp, s) / sum;
        d_scores.extend(dp.iter().map(|dp| (dp - mean) / sum));
    }
    let mut d_logits = scores_backward(logits, &d_scores, route);
    for (row, d) in logits.chunks_exact(route.experts).zip(d_logits.chunks_exact_mut(route.experts)) {
        let mut p = row.to_vec();
        let lse = softmax(&mut p);
        d.iter_mut().zip(&p).for_each(|(d, p)| *d += 2.0 * factors.z / n * lse * p);
    }
    d_logits
}

/// The selection bias (E) after a step with `chosen` (E) choices per expert: raised by `rate` for experts below the
/// mean, lowered for those above (Wang et al. 2024, arXiv:2408.15664, algorithm 1). Unchanged if nothing was chosen.
///
/// # Examples
///
/// ```
/// use reference::balance::updated_bias;
///
/// assert_eq!(updated_bias(&[0.0, 0.5, 0.0], &[7, 1, 4], 0.25), [-0.25, 0.75, 0.0]);
/// ```
#[track_caller]
pub fn updated_bias(bias: &[f64], chosen: &[u64], rate: f64) -> Vec<f64> {
    assert_len("chosen", chosen, bias.len());
    let (total, experts) = (chosen.iter().sum::<u64>(), bias.len() as u64);
    let sign = |count: u64| (total as i64 - (count * experts) as i64).signum() as f64;
    bias.iter().zip(chosen).map(|(bias, &count)| bias + rate * sign(count)).collect()
}

fn shares(ids: &[u32], experts: usize) -> Vec<f64> {
    let mut shares = vec![0.0; experts];
    ids.iter().for_each(|&id| shares[id as usize] += 1.0 / ids.len() as f64);
    shares
}

fn normalised(scores: &[f64], experts: usize) -> Vec<f64> {
    let rows = scores.chunks_exact(experts);
    rows.flat_map(|row| row.iter().map(|s| s / row.iter().sum::<f64>())).collect()
}

fn column_means(x: &[f64], cols: usize) -> Vec<f64> {
    let rows = (x.len() / cols) as f64;
    (0..cols).map(|column| x.iter().skip(column).step_by(cols).sum::<f64>() / rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_gradient;
    use crate::random::Random;
    use crate::route::GateNorm;
    use crate::route::choose;

    const ROUTE: RouterConfig = RouterConfig {
        experts: 4,
        chosen: 2,
        is_sigmoid: false,
        groups: None,
        norm: Some(GateNorm::SUM),
        scaling: 1.0,
    };

    #[test]
    fn a_balanced_load_costs_one() {
        let uniform = losses(&[0.5; 8 * 4], &[0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 3, 0, 0, 1, 2, 3], 4, &ROUTE);
        assert!((uniform.expert - 1.0).abs() < 1e-14 && (uniform.sequence - 1.0).abs() < 1e-14);
        assert!((uniform.z - (0.5 + 4.0f64.ln()).powi(2)).abs() < 1e-14);
    }

    #[test]
    fn losses_by_hand() {
        // Two sequences of one token; probabilities (1/2, 1/4, 1/8, 1/8) and (1/8, 1/8, 1/4, 1/2).
        let logits = [4.0f64, 2.0, 1.0, 1.0, 1.0, 1.0, 2.0, 4.0].map(f64::ln);
        let ids = choose(&scores(&logits, &ROUTE), None, &ROUTE);
        assert_eq!(ids, [0, 1, 3, 2]);
        let seen = losses(&logits, &ids, 1, &ROUTE);
        // Over both tokens f = 1/4 each; within a sequence f = 1/2 where p sums to 3/4.
        assert!((seen.expert - 1.0).abs() < 1e-14, "{seen:?}");
        assert!((seen.sequence - 4.0 * 0.5 * 0.75).abs() < 1e-14, "{seen:?}");
        assert!((seen.z - 8.0f64.ln().powi(2)).abs() < 1e-14, "{seen:?}");
        // Sigmoids 4/5, 2/3, 1/2, 1/2 sum to 37/15: normalised 12/37, 10/37, 7.5/37, 7.5/37.
        let sigmoid = losses(&logits, &ids, 1, &RouterConfig { is_sigmoid: true, ..ROUTE });
        assert!((sigmoid.sequence - 4.0 * 0.5 * 22.0 / 37.0).abs() < 1e-14, "{sigmoid:?}");
    }

    #[test]
    fn one_busy_expert_costs_the_number_of_experts() {
        let route = RouterConfig { chosen: 1, ..ROUTE };
        let lonely = losses(&[50.0, 0.0, 0.0, 0.0], &[0], 1, &route);
        assert!((lonely.expert - 4.0).abs() < 1e-12);
    }

    #[test]
    fn backward_is_the_gradient() {
        for is_sigmoid in [false, true] {
            for (expert, sequence, z) in [(0.3, 0.0, 0.0), (0.0, 0.7, 0.0), (0.0, 0.0, 0.1), (0.3, 0.7, 0.1)]
            {
                let (route, factors) =
                    (RouterConfig { is_sigmoid, ..ROUTE }, Factors { expert, sequence, z });
                let logits = Random::new(92).normal(6 * 4);
                let ids = choose(&scores(&logits, &route), None, &route);
                let d_logits = losses_backward(&logits, &ids, 3, &route, &factors);
                let f = |x: &[f64]| losses(x, &ids, 3, &route).objective(&factors);
                assert_gradient(&format!("{factors:?}, sigmoid: {is_sigmoid}"), &d_logits, &logits, f);
            }
        }
    }

    #[test]
    fn the_bias_favours_experts_below_the_mean() {
        let bias = updated_bias(&[0.0; 4], &[10, 6, 8, 8], 0.001);
        assert_eq!(bias, [-0.001, 0.001, 0.0, 0.0]);
        // With a mean of 7.75 every bias moves.
        assert_eq!(updated_bias(&[0.0; 4], &[7, 8, 8, 8], 1.0), [1.0, -1.0, -1.0, -1.0]);
        assert_eq!(updated_bias(&[0.5; 4], &[0; 4], 1.0), [0.5; 4]);
    }
}

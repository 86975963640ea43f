//! The router: the choice of experts per token, and their gates.

use super::softmax::softmax;
use super::vector::{assert_len, dot, rows_of};

/// Settings of a router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterConfig {
    /// E, the number of experts.
    pub experts: usize,
    /// k, experts per token.
    pub chosen: usize,
    /// Scores are the sigmoid of each logit instead of a softmax over all.
    pub is_sigmoid: bool,
    /// Group-limited routing: experts are chosen from the best groups only.
    pub groups: Option<ExpertGroups>,
    /// What the gates of a token are divided by, if by anything.
    pub norm: Option<GateNorm>,
    /// Factor of the gates, applied last.
    pub scaling: f64,
}

/// What the gates of a token are divided by to sum to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GateNorm {
    /// Their sum plus this; a single gate by itself.
    Plus(f64),
    /// Their sum, or this if it is larger.
    AtLeast(f64),
}

impl GateNorm {
    /// Their sum + 1e-9.
    pub const SUM: Self = Self::Plus(1e-9);

    /// The divisor of `gates`.
    pub fn divisor(self, gates: &[f64]) -> f64 {
        let sum: f64 = gates.iter().sum();
        match self {
            Self::Plus(_) if gates.len() == 1 => sum,
            Self::Plus(epsilon) => sum + epsilon,
            Self::AtLeast(least) => sum.max(least),
        }
    }

    /// The derivative of the divisor of `gates` with respect to each of them.
    pub fn slope(self, gates: &[f64]) -> f64 {
        match self {
            Self::AtLeast(least) if gates.iter().sum::<f64>() < least => 0.0,
            _ => 1.0,
        }
    }
}

/// ExpertGroups of E / `count` consecutive experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups that a token may choose from.
    pub chosen: usize,
    /// A group is scored by the sum of this many of its best scores: 1 or 2.
    pub best: usize,
}

/// The scores (N, E) of logits (N, E): each row's softmax, or σ(x) = 1 / (1 + e^−x) of each.
#[track_caller]
pub fn scores(logits: &[f64], route: &RouterConfig) -> Vec<f64> {
    rows_of("logits", logits, route.experts);
    let mut scores = logits.to_vec();
    match route.is_sigmoid {
        true => scores.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
        false => scores.chunks_exact_mut(route.experts).for_each(|row| _ = softmax(row)),
    }
    scores
}

/// The gradient with respect to logits (N, E), given that with respect to their [`scores`].
///
/// Softmax: dx = s·(ds − Σ s·ds); sigmoid: dx = ds·s·(1 − s).
#[track_caller]
pub fn scores_backward(logits: &[f64], d_scores: &[f64], route: &RouterConfig) -> Vec<f64> {
    assert_len("d_scores", d_scores, logits.len());
    let scores = scores(logits, route);
    let rows = scores.chunks_exact(route.experts).zip(d_scores.chunks_exact(route.experts));
    rows.flat_map(|(s, ds)| {
        let mean = dot(s, ds);
        let slope = |(s, ds): (&f64, &f64)| match route.is_sigmoid {
            true => ds * s * (1.0 - s),
            false => s * (ds - mean),
        };
        s.iter().zip(ds).map(slope).collect::<Vec<f64>>()
    })
    .collect()
}

/// The experts that each row of scores (N, E) chooses, best first: (N, k).
///
/// `bias` (E) is added to the scores for the choice only. Ties between experts or groups go to the lower index; experts
/// outside the chosen groups are never chosen.
///
/// # Examples
///
/// ```
/// use reference::route::{RouterConfig, choose};
///
/// let route =
///     RouterConfig { experts: 4, chosen: 2, is_sigmoid: false, groups: None, norm: None, scaling: 1.0 };
/// // The last expert has the highest score; the first two tie, so the first of them comes second.
/// assert_eq!(choose(&[0.3, 0.3, 0.0, 0.4], None, &route), [3, 0]);
/// // A bias changes the choice.
/// assert_eq!(choose(&[0.3, 0.3, 0.0, 0.4], Some(&[0.0, 0.2, 0.0, 0.0]), &route), [1, 3]);
/// ```
#[track_caller]
pub fn choose(scores: &[f64], bias: Option<&[f64]>, route: &RouterConfig) -> Vec<u32> {
    rows_of("scores", scores, route.experts);
    let mut ids = Vec::new();
    for row in scores.chunks_exact(route.experts) {
        let mut row = row.to_vec();
        if let Some(bias) = bias {
            assert_len("bias", bias, route.experts);
            row.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
        }
        let mut allowed: Vec<usize> = (0..route.experts).collect();
        if let Some(ExpertGroups { count, chosen, best }) = route.groups {
            let size = route.experts / count;
            let good = |group: &[f64]| {
                let mut group = group.to_vec();
                group.sort_by(|a, b| b.total_cmp(a));
                group[..best].iter().sum::<f64>()
            };
            let groups: Vec<f64> = row.chunks_exact(size).map(good).collect();
            let kept = in_order(&groups, (0..count).collect(), chosen);
            allowed.retain(|expert| kept.contains(&(expert / size)));
        }
        ids.extend(in_order(&row, allowed, route.chosen).into_iter().map(|expert| expert as u32));
    }
    ids
}

/// The gates (N, k) of the choices: gate = s, divided by what `norm` makes of the token's chosen s, times `scaling`.
/// The bias has no effect on them.
#[track_caller]
pub fn gates(logits: &[f64], ids: &[u32], route: &RouterConfig) -> Vec<f64> {
    let chosen = chosen_scores(&scores(logits, route), ids, route);
    let rows = chosen.chunks_exact(route.chosen);
    rows.flat_map(|s| {
        let divisor = divisor(s, route);
        s.iter().map(move |s| s / divisor * route.scaling)
    })
    .collect()
}

/// The gradient with respect to the scores (N, E), given that with respect to the [`gates`] (N, k); choices held.
///
/// With S the divisor of a token and c the scaling: ds = c / S·(dg − Σ dg·s / S) for the chosen experts, or c / S·dg
/// where S is a constant.
#[track_caller]
pub fn gates_backward(logits: &[f64], ids: &[u32], d_gates: &[f64], route: &RouterConfig) -> Vec<f64> {
    assert_len("d_gates", d_gates, ids.len());
    let chosen = chosen_scores(&scores(logits, route), ids, route);
    let mut d_scores = vec![0.0; logits.len()];
    let k = route.chosen;
    for (t, s) in chosen.chunks_exact(k).enumerate() {
        let (ids, dg) = (&ids[t * k..][..k], &d_gates[t * k..][..k]);
        let divisor = divisor(s, route);
        let mean = route.norm.map_or(0.0, |norm| norm.slope(s) * dot(dg, s) / divisor);
        for (id, dg) in ids.iter().zip(dg) {
            d_scores[t * route.experts + *id as usize] = route.scaling / divisor * (dg - mean);
        }
    }
    d_scores
}

fn divisor(chosen: &[f64], route: &RouterConfig) -> f64 {
    route.norm.map_or(1.0, |norm| norm.divisor(chosen))
}

#[track_caller]
fn chosen_scores(scores: &[f64], ids: &[u32], route: &RouterConfig) -> Vec<f64> {
    assert_len("ids", ids, scores.len() / route.experts * route.chosen);
    let score = |(i, id): (usize, &u32)| scores[i / route.chosen * route.experts + *id as usize];
    ids.iter().enumerate().map(score).collect()
}

/// The `count` candidates with the largest values, in descending order; ties go to the lower index.
fn in_order(values: &[f64], mut candidates: Vec<usize>, count: usize) -> Vec<usize> {
    candidates.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    candidates.truncate(count);
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{assert_close, assert_gradient};
    use crate::random::Random;

    const PLAIN: RouterConfig =
        RouterConfig { experts: 8, chosen: 2, is_sigmoid: false, groups: None, norm: None, scaling: 1.0 };

    fn grouped(chosen: usize, best: usize) -> RouterConfig {
        RouterConfig { groups: Some(ExpertGroups { count: 4, chosen, best }), ..PLAIN }
    }

    #[test]
    fn gates_by_hand() {
        // e^0 + e^ln3 + e^0 + e^ln5 = 10.
        let route = RouterConfig { experts: 4, ..PLAIN };
        let logits = [0.0, 3.0f64.ln(), 0.0, 5.0f64.ln()];
        assert_eq!(choose(&scores(&logits, &route), None, &route), [3, 1]);
        assert_close("softmax", &gates(&logits, &[3, 1], &route), &[0.5, 0.3], 1e-12);
        let normed = RouterConfig { norm: Some(GateNorm::SUM), scaling: 2.5, ..route };
        assert_close("normalised", &gates(&logits, &[3, 1], &normed), &[2.5 * 0.625, 2.5 * 0.375], 1e-8);
        // σ(ln 3) = 3/4, σ(ln 5) = 5/6; one expert alone is all there is.
        // Their sum is 0.8.
        for (least, divisor) in [(0.5, 0.8), (1.6, 1.6)] {
            let floored = RouterConfig { norm: Some(GateNorm::AtLeast(least)), ..route };
            let want = [0.5 / divisor, 0.3 / divisor];
            assert_close("at least", &gates(&logits, &[3, 1], &floored), &want, 1e-12);
        }
        let sigmoid = RouterConfig { is_sigmoid: true, ..route };
        assert_close("sigmoid", &gates(&logits, &[3, 1], &sigmoid), &[5.0 / 6.0, 0.75], 1e-12);
        let one = RouterConfig { chosen: 1, ..normed };
        assert_close("one", &gates(&logits, &[1], &one), &[2.5], 1e-12);
        let d_scores = gates_backward(&logits, &[1], &[0.7], &one);
        assert!(d_scores.iter().all(|d| d.abs() < 1e-15), "a gate that is always 1 has no gradient");
    }

    #[test]
    fn a_group_is_scored_by_its_best_or_its_best_two() {
        // Best experts 0.9 and 0.6; best pairs 1.1 (last group) and 1.0 (first).
        let scores = [0.9, 0.1, 0.0, 0.0, 0.3, 0.2, 0.5, 0.6];
        assert_eq!(choose(&scores, None, &grouped(1, 1)), [0, 1]);
        assert_eq!(choose(&scores, None, &grouped(1, 2)), [7, 6]);
        assert_eq!(choose(&scores, None, &grouped(2, 2)), [0, 7]);
    }

    #[test]
    fn exactly_the_requested_groups_are_kept() {
        // ExpertGroups 0, 2 and 3 tie: MindSpore Transformers would keep all three.
        let scores = [0.5, 0.1, 0.2, 0.2, 0.5, 0.4, 0.5, 0.45];
        assert_eq!(choose(&scores, None, &RouterConfig { chosen: 4, ..grouped(2, 1) }), [0, 4, 5, 1]);
    }

    #[test]
    fn no_expert_outside_the_groups_is_chosen() {
        // All biased scores are negative: masking the others with 0, as MindSpore Transformers does, would choose them.
        let (scores, bias) = ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], [-1.0; 8]);
        assert_eq!(choose(&scores, Some(&bias), &grouped(1, 1)), [7, 6]);
    }

    #[test]
    fn backward_is_the_gradient() {
        for is_sigmoid in [false, true] {
            let least = GateNorm::AtLeast(if is_sigmoid { 2.0 } else { 0.6 });
            let norms =
                [(1, None), (3, None), (3, Some(GateNorm::SUM)), (3, Some(least)), (8, Some(GateNorm::SUM))];
            for (chosen, norm) in norms {
                let route = RouterConfig { chosen, is_sigmoid, norm, scaling: 1.7, ..PLAIN };
                let mut random = Random::new(91);
                let (logits, d_gates) = (random.normal(5 * 8), random.normal(5 * chosen));
                let ids = choose(&scores(&logits, &route), None, &route);
                let d_scores = gates_backward(&logits, &ids, &d_gates, &route);
                let d_logits = scores_backward(&logits, &d_scores, &route);
                let name = format!("d_logits, sigmoid: {is_sigmoid}, k: {chosen}, {norm:?}");
                assert_gradient(&name, &d_logits, &logits, |x| dot(&gates(x, &ids, &route), &d_gates));
            }
        }
    }
}

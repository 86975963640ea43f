//! Choice of experts, and their gates.

use super::{ExpertGroups, Mixture, Network, Score};
use crate::softmax::softmax;
use crate::sparse_mixer;
use crate::vector::{assert_len, dot, rows_of};

/// The routing decisions for N tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Choices {
    /// (N, k): the chosen experts of each token, best first.
    pub ids: Vec<usize>,
    /// (N, k): the gates of the choices, before any is dropped.
    pub gates: Vec<f64>,
    /// (N, E): the scores of each token, normalised to a sum of 1.
    pub probabilities: Vec<f64>,
    /// (N, k): the choices without the selection bias.
    pub unbiased: Vec<usize>,
    /// Router logits, (N, E).
    pub(super) logits: Vec<f64>,
    /// Unnormalised scores, (N, E).
    scores: Vec<f64>,
}

/// The indices of the k best `scores` (E), best first; ties go to the lower index. With groups, only experts of the
/// best groups are eligible.
pub fn choose(scores: &[f64], groups: Option<ExpertGroups>, k: usize) -> Vec<usize> {
    let experts: Vec<usize> = match groups {
        None => (0..scores.len()).collect(),
        Some(groups) => {
            let size = scores.len() / groups.count;
            let goodness: Vec<f64> = scores
                .chunks_exact(size)
                .map(|group| best(group, 0..size, groups.best).iter().map(|&i| group[i]).sum())
                .collect();
            let mut kept = best(&goodness, 0..groups.count, groups.chosen);
            kept.sort_unstable();
            kept.iter().flat_map(|group| group * size..(group + 1) * size).collect()
        }
    };
    best(scores, experts, k)
}

/// The `count` best of the indices (ascending), best first; ties go to the lower index.
fn best(scores: &[f64], indices: impl IntoIterator<Item = usize>, count: usize) -> Vec<usize> {
    let mut sorted: Vec<usize> = indices.into_iter().collect();
    sorted.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    sorted.truncate(count);
    sorted
}

impl Choices {
    /// The choices for logits (N, E), with a selection bias (E) added to the scores.
    ///
    /// The bias affects the choice only; gates are computed from the scores without it.
    #[track_caller]
    pub fn new(mixture: &Mixture, logits: &[f64], bias: &[f64]) -> Self {
        mixture.assert_sound();
        let (experts, k) = (mixture.experts, mixture.chosen);
        rows_of("logits", logits, experts);
        assert_len("bias", bias, experts);
        let (mut ids, mut unbiased, mut gates) = (Vec::new(), Vec::new(), Vec::new());
        let (mut scores, mut probabilities) = (Vec::new(), Vec::new());
        for logits in logits.chunks_exact(experts) {
            let s = mixture.score.of(logits);
            let selection: Vec<f64> = s.iter().zip(bias).map(|(s, bias)| s + bias).collect();
            let chosen = choose(&selection, mixture.groups, k);
            let of_chosen: Vec<f64> = chosen.iter().map(|&expert| s[expert]).collect();
            let divisor = mixture.norm.map_or(1.0, |norm| norm.divisor(&of_chosen));
            gates.extend(match mixture.score {
                Score::SparseMixer(jitter) => sparse_mixer::gates(logits, &words(&chosen), experts, jitter),
                _ => of_chosen.iter().map(|s| s / divisor).collect(),
            });
            ids.extend(chosen);
            unbiased.extend(choose(&s, mixture.groups, k));
            let sum: f64 = s.iter().sum();
            probabilities.extend(s.iter().map(|s| s / sum));
            scores.extend(s);
        }
        gates.iter_mut().for_each(|gate| *gate *= mixture.scaling);
        Self { ids, gates, probabilities, unbiased, logits: logits.to_vec(), scores }
    }

    /// The gradient (N, E) of the logits, given those of the gates (N, k) and of the probabilities (N, E). The choice
    /// itself has no gradient.
    #[track_caller]
    pub fn backward(&self, mixture: &Mixture, dgates: &[f64], dprobabilities: &[f64]) -> Vec<f64> {
        let (experts, k) = (mixture.experts, mixture.chosen);
        assert_len("dgates", dgates, self.gates.len());
        assert_len("dprobabilities", dprobabilities, self.probabilities.len());
        let mut dlogits = Vec::with_capacity(self.logits.len());
        for (token, s) in self.scores.chunks_exact(experts).enumerate() {
            let [p, dp] = [&self.probabilities, dprobabilities].map(|all| &all[token * experts..][..experts]);
            let [g, dg] = [&self.gates, dgates].map(|all| &all[token * k..][..k]);
            let ids = &self.ids[token * k..][..k];
            // p = s / Σ s.
            let sum: f64 = s.iter().sum();
            let mut ds: Vec<f64> = dp.iter().map(|d| (d - dot(dp, p)) / sum).collect();
            if let Score::SparseMixer(jitter) = mixture.score {
                let z = &self.logits[token * experts..][..experts];
                let dg: Vec<f64> = dg.iter().map(|dg| dg * mixture.scaling).collect();
                let through_gates = sparse_mixer::gates_backward(z, &words(ids), &dg, experts, jitter);
                let of_scores = mixture.score.backward(s, &ds);
                dlogits.extend(of_scores.iter().zip(through_gates).map(|(one, other)| one + other));
                continue;
            }
            // g = scaling·s / divisor of the chosen s, or scaling·s.
            let of_chosen: Vec<f64> = ids.iter().map(|&expert| s[expert]).collect();
            let (mean, divisor) = mixture.norm.map_or((0.0, 1.0), |norm| {
                (norm.slope(&of_chosen) * dot(dg, g) / mixture.scaling, norm.divisor(&of_chosen))
            });
            for (&expert, dg) in ids.iter().zip(dg) {
                ds[expert] += mixture.scaling * (dg - mean) / divisor;
            }
            dlogits.extend(mixture.score.backward(s, &ds));
        }
        dlogits
    }
}

fn words(ids: &[usize]) -> Vec<u32> {
    ids.iter().map(|id| *id as u32).collect()
}

impl Mixture {
    /// Panics unless k experts are eligible for every token.
    #[track_caller]
    fn assert_sound(&self) {
        let reachable = match self.groups {
            None => self.experts,
            Some(groups) => {
                let whole = self.experts.is_multiple_of(groups.count);
                assert!(whole, "{} experts should divide into {} groups.", self.experts, groups.count);
                self.experts / groups.count * groups.chosen.min(groups.count)
            }
        };
        let is_known = self.shared.is_none() || matches!(self.network, Network::Gated(_));
        assert!(is_known, "a shared expert beside experts of GPT-2 is not defined.");
        let fits = (1..=reachable).contains(&self.chosen);
        assert!(fits, "a token should choose 1 to {reachable} experts, but chooses {}.", self.chosen);
    }
}

impl Score {
    /// Scores (E) of one token's logits (E).
    fn of(self, logits: &[f64]) -> Vec<f64> {
        let mut scores = logits.to_vec();
        match self {
            Self::Softmax | Self::SparseMixer(_) => {
                softmax(&mut scores);
            }
            Self::Sigmoid => scores.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
        }
        scores
    }

    /// The gradient (E) of one token's logits, given its scores (E) and their gradient.
    fn backward(self, s: &[f64], ds: &[f64]) -> Vec<f64> {
        match self {
            Self::Softmax | Self::SparseMixer(_) => {
                s.iter().zip(ds).map(|(p, d)| p * (d - dot(ds, s))).collect()
            }
            Self::Sigmoid => s.iter().zip(ds).map(|(s, d)| d * s * (1.0 - s)).collect(),
        }
    }
}

//! What a step's experts had to do, as counted on the device, and the numbers that follow.

use crate::model::config::TokenDispatch;

/// What every layer of experts did in a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MixtureReport {
    /// The layers with experts, in their order; those that predict further ahead are the last.
    pub layers: Vec<LayerLoad>,
}

/// What the experts of one layer did in a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerLoad {
    /// The layer's number among all blocks, from 0.
    pub layer: usize,
    /// Choices of each expert over the step's micro-batches, dropped ones included (E).
    pub chosen: Vec<u32>,
    /// Those of the last micro-batch (E).
    pub last: Vec<u32>,
    /// Choices of the step that found their expert full.
    pub dropped: u32,
    /// All choices of the step: tokens times experts a token.
    pub choices: u32,
    /// What balance adds to the objective: the mean over micro-batches, factors included.
    pub balance_loss: f32,
    /// What the router's z-loss adds, likewise.
    pub z_loss: f32,
}

impl LayerLoad {
    /// The share of choices that were dropped, 0 to 1.
    pub fn drop_rate(&self) -> f32 {
        if self.choices == 0 { 0.0 } else { (f64::from(self.dropped) / f64::from(self.choices)) as f32 }
    }

    /// The share that the original's `MoEDropRateCallback` estimates, from the last micro-batch alone: Σ max(0, f - c / E)
    /// with f the share of choices of each expert and c the capacity factor. It equals the share of that micro-batch that
    /// was dropped where c k N / E is a whole number. 0 where nothing is ever dropped.
    pub fn drop_rate_estimate(&self, dispatch: &TokenDispatch) -> f32 {
        let TokenDispatch::Capacity(capacity) = dispatch else { return 0.0 };
        let most = capacity.factor / self.last.len().max(1) as f64;
        shares(&self.last).map(|share| (share - most).max(0.0)).sum::<f64>() as f32
    }

    /// The entropy of the choices as a share of that of equally busy experts: -Σ f ln f / ln E, from 0, all on one
    /// expert, to 1. Of a single expert, and of a step without choices, 1.
    pub fn entropy(&self) -> f32 {
        let (experts, choices) = (self.chosen.len(), total(&self.chosen));
        if experts < 2 || choices == 0 {
            return 1.0;
        }
        let terms = shares(&self.chosen).map(|share| if share > 0.0 { -share * share.ln() } else { 0.0 });
        (terms.sum::<f64>() / (experts as f64).ln()) as f32
    }

    /// The busiest expert's choices over the mean, 1 to E. Of a step without choices, 1.
    pub fn max_over_mean(&self) -> f32 {
        let most = shares(&self.chosen).fold(0.0, f64::max);
        if most == 0.0 { 1.0 } else { (most * self.chosen.len() as f64) as f32 }
    }
}

fn total(counts: &[u32]) -> u64 {
    counts.iter().map(|count| u64::from(*count)).sum()
}

/// Each count over their sum; zeros where there are none.
fn shares(counts: &[u32]) -> impl Iterator<Item = f64> {
    let total = total(counts).max(1) as f64;
    counts.iter().map(move |count| f64::from(*count) / total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{Capacity, DropOrder};

    fn capacity(factor: f64) -> TokenDispatch {
        TokenDispatch::Capacity(Capacity { factor, order: DropOrder::Choice, renormalises: false, hot: None })
    }

    #[test]
    fn the_estimate_of_the_worked_example() {
        // semantics of the original: E = 4, c = 1.5, f = (0.5, 0.3, 0.1, 0.1).
        let load = LayerLoad { last: vec![5, 3, 1, 1], ..LayerLoad::default() };
        assert_eq!(format!("{:.5}", load.drop_rate_estimate(&capacity(1.5))), "0.12500");
        assert_eq!(load.drop_rate_estimate(&TokenDispatch::Dropless { safe_tokens: false }), 0.0);
        assert_eq!(load.drop_rate_estimate(&capacity(2.0)), 0.0);
        assert_eq!(LayerLoad { last: vec![0; 4], ..load }.drop_rate_estimate(&capacity(1.5)), 0.0);
        assert_eq!(LayerLoad::default().drop_rate_estimate(&capacity(1.5)), 0.0);
    }

    #[test]
    fn the_estimate_is_the_count_where_capacity_is_whole() {
        // 40 choices, E = 4, c = 1.5: 15 slots.
        let last = vec![20, 16, 3, 1];
        let dropped = last.iter().map(|count: &u32| count.saturating_sub(15)).sum();
        let load = LayerLoad { last, dropped, choices: 40, ..LayerLoad::default() };
        assert!((load.drop_rate() - load.drop_rate_estimate(&capacity(1.5))).abs() < 1e-7);
        assert_eq!(load.drop_rate(), 0.15);
        assert_eq!(LayerLoad::default().drop_rate(), 0.0);
    }

    #[test]
    fn entropy_and_the_busiest_expert() {
        let load = |chosen: &[u32]| LayerLoad { chosen: chosen.to_vec(), ..LayerLoad::default() };
        let both = |chosen: &[u32]| (load(chosen).entropy(), load(chosen).max_over_mean());
        assert_eq!(both(&[7, 7, 7, 7]), (1.0, 1.0));
        assert_eq!(both(&[0, 28, 0, 0]), (0.0, 4.0));
        assert_eq!(both(&[9]), (1.0, 1.0));
        assert_eq!(both(&[0, 0]), (1.0, 1.0));
        let (entropy, busiest) = both(&[5, 5, 0, 0]);
        assert!((entropy - 0.5).abs() < 1e-7 && busiest == 2.0, "{entropy} {busiest}");
        // Sums beyond 32 bits.
        assert_eq!(both(&[u32::MAX, u32::MAX, 0, 0]).1, 2.0);
    }
}

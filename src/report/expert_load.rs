//! The load of experts in a step, as counted on the device, and the metrics that follow from it.
//!
//! The drop rate that is shown is the share of the step's choices that were dropped. MindFormers' estimate, from the
//! load of the last micro-batch, is in `metrics.jsonl` as well; on several ranks it uses the last micro-batch of each.

/// The load of one layer's experts in a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerLoad {
    /// Index of the layer among all blocks, from 0.
    pub layer: usize,
    /// How often each expert was chosen in the step, including dropped choices (E).
    pub chosen: Vec<u32>,
    /// How often each expert was chosen in the last micro-batch (E).
    pub last: Vec<u32>,
    /// Choices in the step that were dropped because their expert was full.
    pub dropped: u32,
    /// All choices in the step: tokens times experts per token.
    pub choices: u32,
    /// Balance losses in the objective: mean over micro-batches, factors included.
    pub balance_loss: f32,
    /// The router's z-loss in the objective: mean over micro-batches, factor included.
    pub z_loss: f32,
}

impl LayerLoad {
    /// The fraction of choices that were dropped, 0 to 1.
    pub fn drop_rate(&self) -> f32 {
        if self.choices == 0 { 0.0 } else { (f64::from(self.dropped) / f64::from(self.choices)) as f32 }
    }

    /// The drop rate as MindFormers' `MoEDropRateCallback` estimates it, only from the last micro-batch: Σ max(0, f - c
    /// / E), where f is each expert's fraction of the choices and c the capacity factor, for a cold expert multiplied
    /// by `cold_share`. If c k N / E, and the cold share of it, is a whole number, this is the drop rate of that
    /// micro-batch. 0 without a capacity factor, since nothing is dropped then. `hot` are the hot experts, if there are
    /// any.
    pub fn drop_rate_estimate(
        &self,
        capacity_factor: Option<f64>,
        hot: Option<&[u32]>,
        cold_share: f64,
    ) -> f32 {
        let Some(factor) = capacity_factor else { return 0.0 };
        let most = factor / self.last.len().max(1) as f64;
        let of_expert = |expert: u32| match hot {
            Some(hot) if !hot.contains(&expert) => most * cold_share,
            _ => most,
        };
        let over = (0..).zip(shares(&self.last)).map(|(expert, share)| (share - of_expert(expert)).max(0.0));
        over.sum::<f64>() as f32
    }

    /// The normalised entropy of the load, -Σ f ln f / ln E: 0 if all choices are of one expert, 1 if all experts are
    /// equally busy. 1 for a single expert and for a step without choices.
    pub fn entropy(&self) -> f32 {
        let (experts, choices) = (self.chosen.len(), total(&self.chosen));
        if experts < 2 || choices == 0 {
            return 1.0;
        }
        let terms = shares(&self.chosen).map(|share| if share > 0.0 { -share * share.ln() } else { 0.0 });
        (terms.sum::<f64>() / (experts as f64).ln()) as f32
    }

    /// The busiest expert's choices over the mean, 1 to E; 1 for a step without choices.
    pub fn max_over_mean(&self) -> f32 {
        let most = shares(&self.chosen).fold(0.0, f64::max);
        if most == 0.0 { 1.0 } else { (most * self.chosen.len() as f64) as f32 }
    }
}

fn total(counts: &[u32]) -> u64 {
    counts.iter().map(|count| u64::from(*count)).sum()
}

/// Each count over the sum of all; zeros if the sum is 0.
fn shares(counts: &[u32]) -> impl Iterator<Item = f64> {
    let total = total(counts).max(1) as f64;
    counts.iter().map(move |count| f64::from(*count) / total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_of_the_worked_example() {
        // MindFormers' formula for E = 4, c = 1.5, f = (0.5, 0.3, 0.1, 0.1).
        let load = LayerLoad { last: vec![5, 3, 1, 1], ..LayerLoad::default() };
        let estimate = |load: &LayerLoad, factor| load.drop_rate_estimate(factor, None, 1.0);
        assert_eq!(format!("{:.5}", estimate(&load, Some(1.5))), "0.12500");
        assert_eq!(estimate(&load, None), 0.0);
        assert_eq!(estimate(&load, Some(2.0)), 0.0);
        assert_eq!(estimate(&LayerLoad { last: vec![0; 4], ..load }, Some(1.5)), 0.0);
        assert_eq!(estimate(&LayerLoad::default(), Some(1.5)), 0.0);
    }

    #[test]
    fn the_estimate_is_the_count_where_capacity_is_whole() {
        // 40 choices, E = 4, c = 1.5: 15 slots.
        let last = vec![20, 16, 3, 1];
        let dropped = last.iter().map(|count: &u32| count.saturating_sub(15)).sum();
        let load = LayerLoad { last, dropped, choices: 40, ..LayerLoad::default() };
        assert!((load.drop_rate() - load.drop_rate_estimate(Some(1.5), None, 1.0)).abs() < 1e-7);
        assert_eq!(load.drop_rate(), 0.15);
        // With expert 1 hot and a share of 0.4 the others have 6 slots: 14 and 1 are over.
        let dropped = LayerLoad { dropped: 15, ..load };
        let estimate = dropped.drop_rate_estimate(Some(1.5), Some(&[1]), 0.4);
        assert!((dropped.drop_rate() - estimate).abs() < 1e-7, "{estimate}");
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

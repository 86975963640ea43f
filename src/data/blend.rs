//! The order in which samples are drawn from several sources, in proportion to their weights.

/// Finds which source each sample comes from: a pure function of the sample's number, computed without the samples
/// before it.
///
/// A binary tree halves the sources at each node. Of the first n samples that reach a node, round(n · share) go to its
/// left half, so a half's count is off by at most 1/2, and a source's count by at most half the depth of the tree,
/// however long the run. Megatron aims at the same with a greedy choice of the largest deficit and a table of all
/// samples.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Blend {
    /// `sums[k]`: the sum of the first k weights, relative to the largest weight.
    sums: Vec<f64>,
}

/// A share of 1, in fixed point: its product with any sample number fits 128 bits and rounds the same on every machine.
const ONE: u64 = 1 << 63;

impl Blend {
    /// A blend of sources with these weights; only their proportions matter.
    ///
    /// # Panics
    /// If there is no weight, or a weight is not above 0 and finite.
    #[track_caller]
    pub fn new(weights: &[f64]) -> Self {
        assert!(!weights.is_empty(), "a blend needs a source");
        let mut sums = vec![0.0];
        // The sum of weights near f64::MAX would overflow.
        let largest = weights.iter().copied().fold(0.0, f64::max);
        for weight in weights {
            assert!(*weight > 0.0 && weight.is_finite(), "a weight must be finite and above 0, not {weight}");
            sums.push(sums[sums.len() - 1] + weight / largest);
        }
        Self { sums }
    }

    /// The source of sample number `sample`, and how many samples of that source come before it.
    pub fn at(&self, sample: u64) -> (usize, u64) {
        let (mut sources, mut index) = (0..self.len(), sample);
        while sources.len() > 1 {
            let (middle, share) = self.halve(&sources);
            let left = taken(index, share);
            (sources, index) = match taken(index + 1, share) > left {
                true => (sources.start..middle, left),
                false => (middle..sources.end, index - left),
            };
        }
        (sources.start, index)
    }

    /// Number of samples of each source among the first `samples` samples.
    pub fn counts(&self, samples: u64) -> Vec<u64> {
        let mut counts = vec![0; self.len()];
        let mut nodes = vec![(0..self.len(), samples)];
        while let Some((sources, samples)) = nodes.pop() {
            if sources.len() == 1 {
                counts[sources.start] = samples;
                continue;
            }
            let (middle, share) = self.halve(&sources);
            let left = taken(samples, share);
            nodes.push((sources.start..middle, left));
            nodes.push((middle..sources.end, samples - left));
        }
        counts
    }

    fn len(&self) -> usize {
        self.sums.len() - 1
    }

    /// The end of the left half of `sources`, and the share of that half in fixed point.
    fn halve(&self, sources: &std::ops::Range<usize>) -> (usize, u64) {
        let middle = sources.start.midpoint(sources.end);
        let start = self.sums[sources.start];
        let share = (self.sums[middle] - start) / (self.sums[sources.end] - start);
        // Weights too small to change the sum give 0 / 0, which converts to 0; no sample reaches such sources.
        (middle, ((share * ONE as f64) as u64).min(ONE))
    }
}

/// round(samples · share), with `share` in fixed point.
fn taken(samples: u64, share: u64) -> u64 {
    ((u128::from(samples) * u128::from(share) + u128::from(ONE / 2)) >> 63) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_has_every_sample() {
        let blend = Blend::new(&[0.3]);
        assert_eq!([0, 1, u64::MAX - 1].map(|sample| blend.at(sample)), [0, 1, u64::MAX - 1].map(|i| (0, i)));
    }

    #[test]
    fn a_third_comes_every_third_time() {
        let blend = Blend::new(&[2.0, 1.0]);
        let order: Vec<usize> = (0..9).map(|sample| blend.at(sample).0).collect();
        assert_eq!(order, [0, 1, 0, 0, 1, 0, 0, 1, 0]);
        assert_eq!(blend.counts(9), [6, 3]);
    }

    proptest::proptest! {
        #[test]
        fn counts_stay_near_the_weights(weights in proptest::collection::vec(0.01f64..10.0, 1..9)) {
            let blend = Blend::new(&weights);
            let total: f64 = weights.iter().sum();
            let depth = (weights.len() as f64).log2().ceil();
            let mut counts = vec![0; weights.len()];
            for sample in 0..500 {
                let (source, index) = blend.at(sample);
                // Each source's samples are numbered without a gap, so none is skipped or taken twice.
                proptest::prop_assert_eq!(index, counts[source]);
                counts[source] += 1;
                for (count, weight) in counts.iter().zip(&weights) {
                    let wanted = weight / total * (sample + 1) as f64;
                    proptest::prop_assert!((*count as f64 - wanted).abs() <= 0.5 * depth + 1e-9);
                }
                proptest::prop_assert_eq!(&blend.counts(sample + 1), &counts);
            }
        }
    }
}

//! Scaling of rotary frequencies for longer contexts: the replacement of theta^(−2i / d), and the factor of cos and
//! sin.

use std::f64::consts::TAU;

/// How the frequencies of [`super::rope::Rope`] are scaled. Lengths are in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Scaling {
    /// No scaling.
    #[default]
    None,
    /// YaRN, "NTK by parts" (Peng et al. 2023, arXiv:2309.00071), with the ramp over pairs of the authors' code.
    Yarn {
        /// Ratio of the new context length to L.
        factor: f64,
        /// L, the context length of the original training.
        original: f64,
        /// Pairs with more turns over L than this keep their frequency.
        beta_fast: f64,
        /// Pairs with fewer turns over L than this are slowed by the full factor.
        beta_slow: f64,
        /// See [`Scaling::magnitude`].
        mscale: f64,
        /// See [`Scaling::magnitude`].
        mscale_all_dim: f64,
        /// Whether the ramp runs between whole pairs.
        is_truncated: bool,
    },
    /// By wavelength, as in Llama 3.1 (Grattafiori et al. 2024, arXiv:2407.21783).
    Llama3 {
        /// Ratio of the new context length to L.
        factor: f64,
        /// L, the context length of the original training.
        original: f64,
        /// Pairs with fewer turns over L than this are slowed by the full factor.
        low_freq_factor: f64,
        /// Pairs with more turns over L than this keep their frequency.
        high_freq_factor: f64,
    },
    /// The base grows with the length T of the text, as in the `dynamic` of Hugging Face.
    Dynamic {
        /// s of theta (s T / L − s + 1)^(d / (d − 2)).
        factor: f64,
        /// T / L.
        lengths: f64,
    },
    /// Each pair has a divisor of its own, as in Phi-3 (Ding et al. 2024, arXiv:2402.13753).
    LongRope {
        /// One for each pair.
        divisors: &'static [f64],
        /// The factor of cos and sin.
        magnitude: f64,
    },
    /// Pair i rotates only if it is among the first `share` of the pairs, rounded down, as in Gemma 4.
    Proportional {
        /// In (0, 1].
        share: f64,
    },
}

impl Scaling {
    /// Radians per position of pair `i` of `rotary_dim` elements: f_i (1 − s) + f_i s / factor, with f_i =
    /// theta^(−2i / rotary_dim) and the blend s, 0 for pairs that keep their frequency and 1 for those slowed in full.
    pub fn frequency(&self, i: usize, rotary_dim: usize, theta: f64) -> f64 {
        let (i, dim) = (i as f64, rotary_dim as f64);
        let frequency = theta.powf(-2.0 * i / dim);
        let (factor, share) = match *self {
            Self::None => return frequency,
            Self::Dynamic { factor, lengths } => {
                let base = theta * (factor * lengths - factor + 1.0).powf(dim / (dim - 2.0));
                return base.powf(-2.0 * i / dim);
            }
            Self::LongRope { divisors, .. } => return frequency / divisors[i as usize],
            Self::Proportional { share } => {
                return if i < (share * dim / 2.0).floor() { frequency } else { 0.0 };
            }
            Self::Yarn { factor, original, beta_fast, beta_slow, is_truncated, .. } => {
                // The fractional index of the pair that makes `turns` turns over L: L theta^(−2i / d) = 2π turns.
                let pair = |turns: f64| dim / 2.0 * (original / (TAU * turns)).ln() / theta.ln();
                let (first, last) = (pair(beta_fast), pair(beta_slow));
                let (first, last) = if is_truncated { (first.floor(), last.ceil()) } else { (first, last) };
                let (first, last) = (first.max(0.0), last.min(dim - 1.0));
                assert!(
                    first < last,
                    "the ramp of YaRN should have a positive width, but runs from {first} to {last}."
                );
                (factor, ((i - first) / (last - first)).clamp(0.0, 1.0))
            }
            Self::Llama3 { factor, original, low_freq_factor, high_freq_factor } => {
                let turns = original * frequency / TAU;
                let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (factor, 1.0 - kept.clamp(0.0, 1.0))
            }
        };
        frequency * (1.0 - share) + frequency * share / factor
    }

    /// Factor of cos and sin: for YaRN m(mscale) / m(mscale_all_dim), with m(s) = 1 + 0.1 s ln(factor); otherwise 1.
    pub fn magnitude(&self) -> f64 {
        match *self {
            Self::None | Self::Llama3 { .. } | Self::Proportional { .. } | Self::Dynamic { .. } => 1.0,
            Self::LongRope { magnitude, .. } => magnitude,
            Self::Yarn { factor, mscale, mscale_all_dim, .. } => {
                let m = |scale: f64| 1.0 + 0.1 * scale * factor.max(1.0).ln();
                m(mscale) / m(mscale_all_dim)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_close;

    fn frequencies(scaling: Scaling) -> Vec<f64> {
        (0..4).map(|i| scaling.frequency(i, 8, 1e4)).collect()
    }

    /// Eight dimensions of base 10⁴: frequencies 1, 0.1, 0.01, 0.001.
    #[test]
    fn by_hand() {
        assert_close("none", &frequencies(Scaling::None), &[1.0, 0.1, 0.01, 0.001], 1e-15);
        // Pairs 0.707 and 2.212 turn 32 times and once: the ramp runs from 0 to 3.
        let yarn = Scaling::Yarn {
            factor: 4.0,
            original: 1024.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: 1.0,
            mscale_all_dim: 0.0,
            is_truncated: true,
        };
        assert_close("yarn", &frequencies(yarn), &[1.0, 0.075, 0.005, 0.00025], 1e-15);
        assert_close("magnitude", &[yarn.magnitude()], &[1.138629436111989], 1e-15);
        let fast = Scaling::Proportional { share: 0.7 };
        assert_close("proportional", &frequencies(fast), &[1.0, 0.1, 0.0, 0.0], 1e-15);
        // The pairs turn 163, 16.3, 1.63 and 0.163 times over 1024 tokens.
        let llama3 =
            Scaling::Llama3 { factor: 8.0, original: 1024.0, low_freq_factor: 1.0, high_freq_factor: 4.0 };
        let kept = (10.24 / TAU - 1.0) / 3.0;
        let blended = 0.01 * kept + 0.00125 * (1.0 - kept);
        assert_close("llama3", &frequencies(llama3), &[1.0, 0.1, blended, 0.000125], 1e-15);
    }
}

//! Rotary frequencies for contexts longer than the original training context.

use super::rope::Rope;
use std::f64::consts::TAU;
use std::sync::{Mutex, PoisonError};

/// How rotary frequencies are scaled. Lengths are in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// Unscaled.
    #[default]
    None,
    /// Positions are divided by `factor` (Chen et al., "Positional Interpolation", 2023).
    Linear {
        /// Above 0.
        factor: f64,
    },
    /// NTK-aware scaling: the base is multiplied by `factor`, which scales slow pairs most.
    Ntk {
        /// Above 0.
        factor: f64,
    },
    /// NTK-aware scaling by the length of the context: with r = log2(length / original) + 1 and α = max(2^⌈r⌉ - 1, 1)
    /// it is θ·α^(d/(d-2)), and cos and sin are multiplied by 0.1·ln(length / original) + 1.
    DynamicNtk {
        /// Context of the original training.
        original: f64,
        /// Context now.
        length: f64,
    },
    /// Frequencies of slow pairs are divided by `factor`, those of fast pairs are kept, and those in between are
    /// interpolated (Peng et al., "YaRN", 2023).
    Yarn(Yarn),
    /// The interpolation of Llama 3.1, by wavelength.
    Llama3(Llama3),
    /// Only the fast pairs rotate, as in Gemma 4; the frequencies of the others are 0.
    Proportional {
        /// The share of the pairs that rotate, rounded down; in (0, 1].
        share: f64,
    },
    /// NTK-aware scaling by the length of the text, as `dynamic` of Hugging Face: the base is
    /// θ·(factor·length / original - (factor - 1))^(d/(d-2)).
    Dynamic {
        /// At least 1.
        factor: f64,
        /// Context of the original training.
        original: f64,
        /// Length of the texts, at least `original`.
        length: f64,
    },
    /// Each pair has a divisor of its own, which depends on whether texts are longer than those of the original
    /// training (Ding et al., "LongRoPE", 2024).
    LongRope(LongRope),
}

/// The parameters of [`RopeScaling::LongRope`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongRope {
    /// Divisors of the frequencies in texts of at most `original` tokens, and in longer ones.
    pub divisors: [Divisors; 2],
    /// Context of the original training.
    pub original: f64,
    /// Whether texts are longer.
    pub is_long: bool,
    /// The factor of cos and sin, in texts of any length.
    pub magnitude: f64,
}

/// A divisor for each pair of a head. Lists are kept for good, each once, so that what has them can be copied like other
/// settings: a model has two of a few dozen numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divisors(&'static [f64]);

impl Divisors {
    /// These divisors.
    pub fn new(divisors: &[f64]) -> Self {
        static KEPT: Mutex<Vec<&'static [f64]>> = Mutex::new(Vec::new());
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = kept.iter().find(|list| **list == divisors) {
            return Self(same);
        }
        let list: &'static [f64] = Box::leak(divisors.into());
        kept.push(list);
        Self(list)
    }

    /// The divisors, one for each pair.
    pub fn list(self) -> &'static [f64] {
        self.0
    }
}

/// The parameters of [`RopeScaling::Yarn`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Factor by which the context is longer.
    pub factor: f64,
    /// Context of the original training.
    pub original: f64,
    /// Pairs with more rotations than this over the original context are kept.
    pub beta_fast: f64,
    /// Pairs with fewer rotations than this are divided by `factor`.
    pub beta_slow: f64,
    /// cos and sin are multiplied by m(mscale) / m(mscale_all_dim), m(s) = 0.1·s·ln(factor) + 1.
    pub mscale: f64,
    /// See `mscale`.
    pub mscale_all_dim: f64,
    /// Whether the interpolation begins and ends at whole pairs; in gpt-oss it does not.
    pub is_truncated: bool,
}

/// The parameters of [`RopeScaling::Llama3`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3 {
    /// Factor by which the context is longer, at least 1.
    pub factor: f64,
    /// Context of the original training.
    pub original: f64,
    /// Pairs whose wavelength is above `original / low_freq_factor` are divided by `factor`.
    pub low_freq_factor: f64,
    /// Pairs whose wavelength is below `original / high_freq_factor` are kept.
    pub high_freq_factor: f64,
}

/// How queries grow with their position: by 1 + beta·ln(1 + ⌊p / original⌋), as those of Llama 4 and Ministral 3 do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryScaling {
    /// Growth for each e-fold of the context.
    pub beta: f64,
    /// Context of the original training, in which queries stay as they are.
    pub original: f64,
}

impl QueryScaling {
    /// The factor of the queries at `position`.
    pub fn factor(&self, position: usize) -> f64 {
        1.0 + self.beta * (1.0 + (position as f64 / self.original).floor()).ln()
    }
}

impl RopeScaling {
    /// Radians per position of each pair.
    pub fn frequencies(&self, rope: &Rope) -> Vec<f64> {
        let dim = rope.rotary_dim as f64;
        let of_base = |theta: f64| (0..rope.rotary_dim / 2).map(move |i| theta.powf(-2.0 * i as f64 / dim));
        match *self {
            Self::None => of_base(rope.theta).collect(),
            Self::Linear { factor } => of_base(rope.theta).map(|f| f / factor).collect(),
            Self::Ntk { factor } => of_base(rope.theta * factor).collect(),
            Self::DynamicNtk { original, length } => {
                // Two dimensions are a single pair, whose frequency is 1 for every base.
                let exponent = if dim > 2.0 { dim / (dim - 2.0) } else { 1.0 };
                of_base(rope.theta * growth(original, length).powf(exponent)).collect()
            }
            Self::Yarn(yarn) => {
                let (low, high) = yarn.range(rope);
                let blend = |(i, frequency): (usize, f64)| {
                    let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    frequency / yarn.factor * ramp + frequency * (1.0 - ramp)
                };
                of_base(rope.theta).enumerate().map(blend).collect()
            }
            Self::Llama3(llama) => of_base(rope.theta).map(|frequency| llama.scaled(frequency)).collect(),
            Self::Dynamic { factor, original, length } => {
                // Two dimensions are a single pair, whose frequency is 1 for every base.
                let exponent = if dim > 2.0 { dim / (dim - 2.0) } else { 1.0 };
                let growth = factor * length / original - (factor - 1.0);
                of_base(rope.theta * growth.powf(exponent)).collect()
            }
            Self::LongRope(LongRope { divisors, is_long, .. }) => {
                let divisors = divisors[usize::from(is_long)].list();
                of_base(rope.theta).zip(divisors).map(|(frequency, divisor)| frequency / divisor).collect()
            }
            Self::Proportional { share } => {
                let rotating = (share * dim / 2.0) as usize;
                let stop = |(i, frequency)| if i < rotating { frequency } else { 0.0 };
                of_base(rope.theta).enumerate().map(stop).collect()
            }
        }
    }

    /// The factor by which cos and sin are multiplied.
    pub fn magnitude(&self) -> f64 {
        match *self {
            Self::None
            | Self::Linear { .. }
            | Self::Ntk { .. }
            | Self::Llama3(_)
            | Self::Dynamic { .. }
            | Self::Proportional { .. } => 1.0,
            Self::LongRope(long) => long.magnitude,
            Self::DynamicNtk { original, length } => 0.1 * (length / original).ln() + 1.0,
            Self::Yarn(yarn) => yarn.m(yarn.mscale) / yarn.m(yarn.mscale_all_dim),
        }
    }
}

impl RopeScaling {
    /// The scaling for texts of up to `tokens` tokens.
    pub fn of_texts(self, tokens: usize) -> Self {
        let tokens = tokens as f64;
        match self {
            Self::Dynamic { factor, original, .. } => {
                Self::Dynamic { factor, original, length: tokens.max(original) }
            }
            Self::LongRope(long) => Self::LongRope(LongRope { is_long: tokens > long.original, ..long }),
            other => other,
        }
    }

    /// The length up to which texts rotate alike, where longer ones rotate otherwise from their first token on.
    pub fn alike_up_to(&self) -> Option<usize> {
        match *self {
            Self::Dynamic { original, .. } | Self::LongRope(LongRope { original, .. }) => {
                Some(original as usize)
            }
            _ => None,
        }
    }
}

/// α of [`RopeScaling::DynamicNtk`].
fn growth(original: f64, length: f64) -> f64 {
    let doublings = (length / original).log2() + 1.0;
    (doublings.ceil().exp2() - 1.0).max(1.0)
}

impl Yarn {
    /// m(s) = 0.1·s·ln(factor) + 1, the growth of attention's temperature with the context.
    pub fn m(&self, scale: f64) -> f64 {
        if self.factor <= 1.0 { 1.0 } else { 0.1 * scale * self.factor.ln() + 1.0 }
    }

    /// The first and the last pair of the interpolation, from fast to slow.
    fn range(&self, rope: &Rope) -> (f64, f64) {
        let dim = rope.rotary_dim as f64;
        // The pair with this many rotations over the original context.
        let pair = |turns: f64| dim * (self.original / (TAU * turns)).ln() / (2.0 * rope.theta.ln());
        let (low, high) = (pair(self.beta_fast), pair(self.beta_slow));
        let (low, high) = if self.is_truncated { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(dim - 1.0));
        // An interpolation over no pairs is a step.
        (low, if high == low { high + 0.001 } else { high })
    }
}

impl LongRope {
    /// The factor of cos and sin where none is given, for texts `factor` times as long as `original`.
    pub fn usual_magnitude(factor: f64, original: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() }
    }
}

impl Llama3 {
    fn scaled(&self, frequency: f64) -> f64 {
        let Self { factor, original, low_freq_factor: low, high_freq_factor: high } = *self;
        let wavelength = TAU / frequency;
        if wavelength < original / high {
            frequency
        } else if wavelength > original / low {
            frequency / factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            (1.0 - smooth) * frequency / factor + smooth * frequency
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight dimensions of base 10⁴: frequencies 1, 0.1, 0.01, 0.001.
    const ROPE: Rope = Rope { rotary_dim: 8, theta: 1e4, is_interleaved: false };

    #[track_caller]
    fn close(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() <= 1e-9 * want.abs(), "{got:?} is not {want:?}");
        }
    }

    #[test]
    fn none_proportional_linear_and_ntk() {
        close(&RopeScaling::None.frequencies(&ROPE), &[1.0, 0.1, 0.01, 0.001]);
        close(&RopeScaling::Proportional { share: 0.7 }.frequencies(&ROPE), &[1.0, 0.1, 0.0, 0.0]);
        let linear = RopeScaling::Linear { factor: 4.0 };
        close(&linear.frequencies(&ROPE), &[0.25, 0.025, 0.0025, 0.00025]);
        // A base of 16·10⁴ has a fourth root of 20.
        let ntk = RopeScaling::Ntk { factor: 16.0 };
        close(&ntk.frequencies(&ROPE), &[1.0, 0.05, 0.0025, 0.000125]);
        assert!([RopeScaling::None, linear, ntk].iter().all(|scaling| scaling.magnitude() == 1.0));
    }

    #[test]
    fn dynamic_ntk_steps_at_powers_of_two() {
        let at = |length: f64| RopeScaling::DynamicNtk { original: 2048.0, length };
        // At the original length nothing changes.
        close(&at(2048.0).frequencies(&ROPE), &[1.0, 0.1, 0.01, 0.001]);
        assert_eq!(at(2048.0).magnitude(), 1.0);
        // Twice: r = 2, α = 3, the base 10⁴·3^(8/6), whose fourth root is 10·3^(1/3) = 14.42249570307408.
        let root = 14.42249570307408f64;
        let twice = [1.0, 1.0 / root, 1.0 / root.powi(2), 1.0 / root.powi(3)];
        close(&at(4096.0).frequencies(&ROPE), &twice);
        close(&[at(4096.0).magnitude()], &[1.0693147180559945]);
        // One token more rounds r up to 3: α = 7; one token beyond the original is already α = 3.
        let root = 10.0 * 7f64.powf(1.0 / 3.0);
        close(&at(4097.0).frequencies(&ROPE)[1..2], &[1.0 / root]);
        close(&at(2049.0).frequencies(&ROPE), &twice);
        // One pair has no exponent d / (d - 2).
        let pair = Rope { rotary_dim: 2, ..ROPE };
        assert_eq!(at(4096.0).frequencies(&pair), [1.0]);
    }

    /// The numbers of transformers 5.23, for a base of 10⁴ and a factor of 2.
    #[test]
    fn dynamic_and_lists_depend_on_the_length() {
        let dynamic = RopeScaling::Dynamic { factor: 2.0, original: 16.0, length: 16.0 };
        for tokens in [1, 16] {
            assert_eq!(dynamic.of_texts(tokens), dynamic);
        }
        close(&dynamic.frequencies(&ROPE), &[1.0, 0.1, 0.01, 0.001]);
        // A base of 10⁴·3^(8/6), whose fourth root is 10·3^(1/3).
        let root = 10.0 * 3f64.powf(1.0 / 3.0);
        let twice = [1.0, 1.0 / root, 1.0 / root.powi(2), 1.0 / root.powi(3)];
        close(&dynamic.of_texts(32).frequencies(&ROPE), &twice);
        let divisors = [[1.0, 2.0, 4.0, 5.0], [2.0, 4.0, 8.0, 10.0]].map(|list| Divisors::new(&list));
        let long = LongRope { divisors, original: 16.0, is_long: false, magnitude: 1.25 };
        let lists = RopeScaling::LongRope(long);
        close(&lists.of_texts(16).frequencies(&ROPE), &[1.0, 0.05, 0.0025, 0.0002]);
        close(&lists.of_texts(17).frequencies(&ROPE), &[0.5, 0.025, 0.00125, 0.0001]);
        assert_eq!((lists.magnitude(), lists.alike_up_to()), (1.25, Some(16)));
        // Equal lists are kept once.
        assert!(std::ptr::eq(divisors[0].list(), Divisors::new(&[1.0, 2.0, 4.0, 5.0]).list()));
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let yarn = Yarn {
            factor: 4.0,
            original: 1024.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: 1.0,
            mscale_all_dim: 0.0,
            is_truncated: true,
        };
        // corr(32) = 8·ln(1024 / 201.06) / (2·9.2103) = 0.70697 -> 0; corr(1) = 8·5.09361 / 18.42068 = 2.21212 -> 3.
        assert_eq!(yarn.range(&ROPE), (0.0, 3.0));
        let scaling = RopeScaling::Yarn(yarn);
        // Ramps 0, 1/3, 2/3, 1: 0.1·(1/4·1/3 + 2/3) = 0.075, 0.01·(1/4·2/3 + 1/3) = 0.005.
        close(&scaling.frequencies(&ROPE), &[1.0, 0.075, 0.005, 0.00025]);
        // Ramps from 0.70697 to 2.21212: 0, 0.19467, 0.85907 and 1.
        let exact = RopeScaling::Yarn(Yarn { is_truncated: false, ..yarn });
        let [second, third] = [1.0, 2.0].map(|i: f64| (i - 0.706_971) / (2.212_119 - 0.706_971));
        let blended = [0.1 * (1.0 - 0.75 * second), 0.01 * (1.0 - 0.75 * third)];
        for (got, want) in exact.frequencies(&ROPE).iter().zip([1.0, blended[0], blended[1], 0.00025]) {
            assert!((got - want).abs() <= 1e-5 * want, "{got} is not {want}");
        }
        // 0.1·ln 4 + 1 over 1.
        close(&[scaling.magnitude()], &[1.138629436111989]);
        // Equal scales cancel; a factor of 1 has none.
        let magnitude = |yarn| RopeScaling::Yarn(yarn).magnitude();
        assert_eq!(magnitude(Yarn { mscale: 0.7, mscale_all_dim: 0.7, ..yarn }), 1.0);
        assert_eq!(magnitude(Yarn { factor: 1.0, ..yarn }), 1.0);
        close(
            &[magnitude(Yarn { mscale: 2.0, mscale_all_dim: 1.0, ..yarn })],
            &[1.277258872223978 / 1.138629436111989],
        );
    }

    #[test]
    fn yarn_without_width_is_a_step() {
        // Both bounds at pair 0: a context shorter than one turn of any pair.
        let yarn = Yarn {
            factor: 2.0,
            original: 6.0,
            beta_fast: 1.0,
            beta_slow: 1.0,
            mscale: 1.0,
            mscale_all_dim: 1.0,
            is_truncated: true,
        };
        assert_eq!(yarn.range(&ROPE), (0.0, 0.001));
        close(&RopeScaling::Yarn(yarn).frequencies(&ROPE), &[1.0, 0.05, 0.005, 0.0005]);
    }

    #[test]
    fn llama3_blends_by_wavelength() {
        // Wavelengths 6.283, 62.83, 628.3, 6283; borders at 1024 / 4 = 256 and 1024 / 1 = 1024.
        let llama = Llama3 { factor: 8.0, original: 1024.0, low_freq_factor: 1.0, high_freq_factor: 4.0 };
        // s = (1024 / 628.3185307 - 1) / 3 = 0.2099156; (1 - s)·0.01 / 8 + s·0.01.
        let s: f64 = (1024.0 / 628.3185307179587 - 1.0) / 3.0;
        assert!((s - 0.2099156).abs() < 1e-6);
        let scaling = RopeScaling::Llama3(llama);
        close(&scaling.frequencies(&ROPE), &[1.0, 0.1, 0.00125 + s * 0.00875, 0.000125]);
        assert_eq!(scaling.magnitude(), 1.0);
        // The blend meets both ends: kept at original / high, divided at original / low.
        let at = |wavelength: f64| llama.scaled(TAU / wavelength) * wavelength / TAU;
        close(&[at(256.0), at(1024.0), at(255.9), at(1024.1)], &[1.0, 0.125, 1.0, 0.125]);
        let same = Llama3 { factor: 1.0, ..llama };
        close(&RopeScaling::Llama3(same).frequencies(&ROPE), &[1.0, 0.1, 0.01, 0.001]);
    }
}

//! Rounding between operations, as kernels round what they store in 16 bits.

use std::borrow::Cow;

use super::gpt::Weights;

/// The precision in which values are kept between operations. Operations compute in f64 whatever it is.
///
/// Only significands are rounded: exponents keep the range of f64, so a value neither overflows nor loses bits by being
/// small. A run that is compared with this one needs a loss scale for which that holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// f64.
    #[default]
    Exact,
    /// The 11 significant bits of IEEE half precision.
    F16,
    /// The 8 significant bits of bfloat16.
    Bf16,
}

impl Storage {
    /// The value rounded to nearest, ties to even.
    ///
    /// # Examples
    ///
    /// ```
    /// use reference::storage::Storage::{Bf16, Exact, F16};
    ///
    /// assert_eq!([Exact, F16, Bf16].map(|storage| storage.round(1.0 + 1.0 / 256.0)), [1.00390625, 1.00390625, 1.0]);
    /// assert_eq!(Bf16.round(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
    /// ```
    pub fn round(self, value: f64) -> f64 {
        let dropped = match self {
            Self::Exact => return value,
            Self::F16 => 53 - 11,
            Self::Bf16 => 53 - 8,
        };
        if !value.is_finite() {
            return value;
        }
        let bits = value.to_bits();
        let is_odd = (bits >> dropped) & 1;
        // A carry out of the significand increments the exponent, which is right.
        f64::from_bits((bits + (1 << (dropped - 1)) - 1 + is_odd) >> dropped << dropped)
    }

    /// The values, rounded.
    pub(super) fn store(self, mut values: Vec<f64>) -> Vec<f64> {
        if self != Self::Exact {
            values.iter_mut().for_each(|value| *value = self.round(*value));
        }
        values
    }

    /// The weights as layers read them: rounded, except those of routers and gates, which are read as they are.
    pub(super) fn copies(self, weights: &Weights) -> Cow<'_, Weights> {
        if self == Self::Exact {
            return Cow::Borrowed(weights);
        }
        const EXACT: [&str; 3] = [".mlp.gate.weight", ".mlp.gate.bias", ".mlp.shared_expert_gate.weight"];
        let is_exact = |name: &str| EXACT.iter().any(|end| name.ends_with(end));
        let copy = |(name, values): (&String, &Vec<f64>)| {
            let values = if is_exact(name) { values.clone() } else { self.store(values.clone()) };
            (name.clone(), values)
        };
        Cow::Owned(weights.iter().map(copy).collect())
    }
}

/// The f32 of a tensor in f64. Tests call this, and [`narrowed`], because this crate is optimised.
pub fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// The values rounded to f32.
pub fn narrowed(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn rounds_as_the_storage_types_do() {
        for value in Random::new(5).normal(4000).into_iter().map(|value| value as f32) {
            let exact = f64::from(value);
            assert_eq!(Storage::Bf16.round(exact), half::bf16::from_f32(value).to_f64());
            // Normal halves: smaller ones have fewer bits than are kept here.
            if value.abs() > 1e-4 {
                assert_eq!(Storage::F16.round(exact), half::f16::from_f32(value).to_f64());
            }
        }
        assert_eq!(Storage::Bf16.round(-1.998), -2.0);
        assert_eq!(Storage::F16.round(f64::INFINITY), f64::INFINITY);
    }
}

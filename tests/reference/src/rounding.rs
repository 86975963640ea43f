//! Stochastic rounding to bfloat16 (Gupta et al., "Deep learning with limited numerical precision", ICML 2015).

/// `value` rounded to one of the two neighbouring bfloat16: away from zero if the part of `value` beyond the lower one,
/// as a share of the distance between them, is at least 1 - `bits` / 2^16. Over all `bits` the mean is `value`, as far
/// as the share is a multiple of 2^-16.
///
/// The exponent keeps the range of f64: small values do not lose bits, and large ones do not become infinite.
///
/// # Examples
///
/// ```
/// use reference::rounding::round;
///
/// // A quarter of the way from 1 to its upper neighbour: rounded up by a quarter of all bits.
/// let value = 1.0 + 0.25 / 128.0;
/// assert_eq!([0, 0xbfff, 0xc000, 0xffff].map(|bits| round(value, bits)), [1.0, 1.0, 1.0078125, 1.0078125]);
/// ```
pub fn round(value: f64, bits: u16) -> f64 {
    /// Bits of an f64's significand that a bfloat16 does not have.
    const DROPPED: u32 = 53 - 8;
    if !value.is_finite() {
        return value;
    }
    // A carry out of the significand increments the exponent, which is right.
    let raised = value.to_bits() + (u64::from(bits) << (DROPPED - 16));
    f64::from_bits(raised >> DROPPED << DROPPED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// All 2^16 bits at once: the mean of all roundings is the value, exactly.
    #[test]
    fn the_mean_is_the_value_and_only_neighbours_appear() {
        for value in [1.0 + 0.3 / 128.0, -0.7123, 3.0e-20, -6.1e30].map(|value: f64| f64::from(value as f32))
        {
            let roundings = (0..=u16::MAX).map(|bits| round(value, bits));
            let low = f64::from_bits(value.to_bits() >> 45 << 45);
            let high = f64::from_bits(low.to_bits() + (1 << 45));
            assert!(roundings.clone().all(|rounded| rounded == low || rounded == high), "{value:e}");
            let mean = roundings.sum::<f64>() / 65536.0;
            assert!((mean - value).abs() <= 1e-10 * value.abs(), "{value:e}: the mean is {mean:e}");
        }
    }

    #[test]
    fn what_is_representable_stays() {
        let values =
            Random::new(3).normal(1000).into_iter().map(|value| half::bf16::from_f64(value).to_f64());
        for value in values.chain([0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY]) {
            assert!([0, 1, 0x8000, u16::MAX].iter().all(|&bits| round(value, bits) == value), "{value:e}");
        }
        assert!(round(f64::NAN, 5).is_nan());
    }
}

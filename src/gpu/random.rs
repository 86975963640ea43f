//! Counter-based random numbers: every value is a pure function of (seed, stream, counter), so there is no generator
//! state to save, and any step can be repeated or resumed exactly.
//!
//! Streams separate the uses of one seed: the data order uses the streams from [`SHUFFLE_STREAM`] on, drawn tokens
//! [`DRAW_STREAM`], the rounding of weights [`ROUNDING_STREAM`], and dropout the streams from [`DROPOUT_STREAM`] on;
//! initialisation numbers its streams below all of these.

/// The stream that draws the tokens of a generated text, on the device; see `shaders/draw/draw.wgsl`.
pub const DRAW_STREAM: u64 = 1 << 40;

/// First stream of shuffling: epoch `e` uses stream `SHUFFLE_STREAM + e`.
pub const SHUFFLE_STREAM: u64 = 1 << 48;

/// First stream of dropout masks, which are drawn on the device; see `shaders/lib/dropout.wgsl` for their numbering.
pub const DROPOUT_STREAM: u64 = 1 << 63;

/// The stream of the bits that round updated weights. They are drawn on the device; see `shaders/lib/rounding.wgsl`.
pub const ROUNDING_STREAM: u64 = 1 << 62;

/// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
///
/// ```
/// let philox = gristmill::random::Philox::new(42, 0);
/// assert_eq!(philox.block(7), philox.block(7));
/// assert!((0.0..1.0).contains(&philox.uniform(7)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Philox {
    key: [u32; 2],
    stream: [u32; 2],
}

impl Philox {
    /// The generator of `stream` under `seed`; streams of one seed are independent.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self { key: halves(seed), stream: halves(stream) }
    }

    /// The 128 random bits at `counter`.
    pub fn block(&self, counter: u64) -> [u32; 4] {
        let [low, high] = halves(counter);
        philox4x32_10([low, high, self.stream[0], self.stream[1]], self.key)
    }

    /// A uniform number in [0, 1) with 53 random bits.
    pub fn uniform(&self, counter: u64) -> f64 {
        let [a, b, _, _] = self.block(counter);
        unit(a, b)
    }

    /// A standard normal number (Box–Muller in f64). Counters 2i and 2i + 1 are the pair from one transform.
    pub fn normal(&self, counter: u64) -> f64 {
        let [a, b, c, d] = self.block(counter / 2);
        // 1 - u is in (0, 1], so the logarithm is finite.
        let radius = (-2.0 * (1.0 - unit(a, b)).ln()).sqrt();
        let angle = std::f64::consts::TAU * unit(c, d);
        radius * if counter.is_multiple_of(2) { angle.cos() } else { angle.sin() }
    }
}

/// A pseudo-random permutation of `0..len` without a table: a keyed Feistel network over the next even number of bits,
/// with cycle walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    philox: Philox,
}

/// Four rounds give a pseudo-random permutation (Luby and Rackoff); small domains benefit from a few more.
const FEISTEL_ROUNDS: u64 = 6;

impl Permutation {
    /// The permutation of `0..len` keyed by (seed, stream).
    pub fn new(len: u64, seed: u64, stream: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        Self { len, half_bits: bits.div_ceil(2).max(1), philox: Philox::new(seed, stream) }
    }

    /// The image of `index`. The domain is less than four times `len`, so cycle walking takes fewer than four rounds on
    /// average.
    ///
    /// # Panics
    /// If `index` is not below `len`.
    #[track_caller]
    pub fn at(&self, index: u64) -> u64 {
        assert!(index < self.len, "index {index} is outside the permutation of {}", self.len);
        let mut value = self.encipher(index);
        while value >= self.len {
            value = self.encipher(value);
        }
        value
    }

    fn encipher(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..FEISTEL_ROUNDS {
            // A half has at most 32 bits, so (round, half) fits one counter.
            let [bits, ..] = self.philox.block((round << 32) | right);
            (left, right) = (right, left ^ (u64::from(bits) & mask));
        }
        (left << self.half_bits) | right
    }
}

fn philox4x32_10([mut a, mut b, mut c, mut d]: [u32; 4], [mut key, mut other_key]: [u32; 2]) -> [u32; 4] {
    const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for _ in 0..10 {
        let (of_a, of_c) = (MULTIPLIERS[0] * a as u64, MULTIPLIERS[1] * c as u64);
        (a, b) = ((of_c >> 32) as u32 ^ b ^ key, of_c as u32);
        (c, d) = ((of_a >> 32) as u32 ^ d ^ other_key, of_a as u32);
        (key, other_key) = (key.wrapping_add(WEYL[0]), other_key.wrapping_add(WEYL[1]));
    }
    [a, b, c, d]
}

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// The upper 53 of 64 bits as a number in [0, 1).
fn unit(low: u32, high: u32) -> f64 {
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer tests that Random123 ships for philox4x32, 10 rounds.
    #[test]
    fn known_answers() {
        let answer = |counter, key| philox4x32_10(counter, key);
        assert_eq!(answer([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(answer([!0; 4], [!0; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        assert_eq!(
            answer([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
        assert_eq!(Philox::new(0, 0).block(0)[0], 0x6627e8d5);
    }

    #[test]
    fn moments() {
        let philox = Philox::new(1, 2);
        let count = 200_000;
        let moment = |f: &dyn Fn(u64) -> f64| (0..count).map(f).sum::<f64>() / count as f64;
        assert!((moment(&|i| philox.uniform(i)) - 0.5).abs() < 3e-3);
        assert!(moment(&|i| philox.normal(i)).abs() < 1e-2);
        assert!((moment(&|i| philox.normal(i).powi(2)) - 1.0).abs() < 2e-2);
        assert!((moment(&|i| philox.normal(i).powi(4)) - 3.0).abs() < 0.15);
        assert!(moment(&|i| philox.normal(2 * i) * philox.normal(2 * i + 1)).abs() < 1e-2);
    }

    #[test]
    fn epochs_differ() {
        let order = |stream| (0..100).map(|i| Permutation::new(100, 7, stream).at(i)).collect::<Vec<_>>();
        assert_eq!(order(0), order(0));
        assert_ne!(order(0), order(1));
        assert_ne!(order(0), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn permutes_huge_domains() {
        let permutation = Permutation::new(u64::MAX, 3, 0);
        assert_ne!(permutation.at(0), permutation.at(u64::MAX - 1));
    }

    proptest::proptest! {
        #[test]
        fn permutation_is_bijective(len in 1u64..3000, seed: u64, stream: u64) {
            let permutation = Permutation::new(len, seed, stream);
            let mut seen = vec![false; len as usize];
            for index in 0..len {
                let target = permutation.at(index) as usize;
                proptest::prop_assert!(!std::mem::replace(&mut seen[target], true));
            }
        }
    }
}

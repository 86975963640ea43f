//! Deterministic random data for the tests.

use std::f64::consts::TAU;

/// A 64-bit linear congruential generator with the multiplier and increment of Knuth's MMIX.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator seeded with `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// `count` standard normal numbers, by the Box–Muller transform.
    pub fn normal(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| (-2.0 * self.uniform().ln()).sqrt() * (TAU * self.uniform()).cos()).collect()
    }

    /// The sum of 12 uniform numbers, less its mean: roughly normal, and never beyond 6.
    pub fn near_normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    /// `count` numbers as by [`near_normal`](Self::near_normal).
    pub fn near_normals(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.near_normal()).collect()
    }

    /// `count` integers in 0..bound.
    pub fn below(&mut self, count: usize, bound: u32) -> Vec<u32> {
        (0..count).map(|_| ((1.0 - self.uniform()) * f64::from(bound)) as u32).collect()
    }

    /// A number in (0, 1], from the 53 high bits; the low bits of an LCG have short periods.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

#[test]
fn normal_has_mean_zero_and_variance_one() {
    let x = Random::new(1).normal(20_000);
    let mean = x.iter().sum::<f64>() / 20_000.0;
    let variance = x.iter().map(|x| x * x).sum::<f64>() / 20_000.0 - mean * mean;
    assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.03, "mean {mean}, variance {variance}");
}

#[test]
fn below_reaches_every_value() {
    let mut seen = [false; 7];
    Random::new(2).below(200, 7).iter().for_each(|&i| seen[i as usize] = true);
    assert_eq!(seen, [true; 7]);
}

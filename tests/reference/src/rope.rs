//! Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

use super::rope_scaling::Scaling;
use super::vector::assert_len;

/// Pairing of the elements of a head, and the frequency of each pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Elements per head.
    pub head_dim: usize,
    /// Number of leading elements of a head that are rotated, even and at most `head_dim`; the rest is unchanged.
    pub rotary_dim: usize,
    /// Base of the frequencies: pair i rotates by theta^(−2i / rotary_dim) radians per position.
    pub theta: f64,
    /// True: pairs (2i, 2i+1), as in GPT-J. False: pairs (i, i + rotary_dim / 2), as in GPT-NeoX and Llama.
    pub interleaved: bool,
    /// Frequency scaling for longer contexts.
    pub scaling: Scaling,
}

/// Rotates every head of x (tokens, heads, head_dim) in place, by the position of its token (tokens).
///
/// Pair (a, b) at position p is rotated by φ = p·theta^(−2i / rotary_dim): (a·cos φ − b·sin φ, a·sin φ + b·cos φ). With
/// scaling the frequencies are those of [`Scaling`], and the pair is multiplied by its magnitude.
#[track_caller]
pub fn rope(x: &mut [f64], positions: &[u32], heads: usize, rope: &Rope) {
    rotate(x, positions, heads, rope, 1.0);
}

/// The gradient of [`rope`] in place on dy (tokens, heads, head_dim), which becomes dx.
///
/// A rotation is orthogonal, so its transpose is the rotation by −φ, with the same magnitude.
#[track_caller]
pub fn rope_backward(dy: &mut [f64], positions: &[u32], heads: usize, rope: &Rope) {
    rotate(dy, positions, heads, rope, -1.0);
}

/// Rotates by `direction` times the angle of each pair.
#[track_caller]
fn rotate(x: &mut [f64], positions: &[u32], heads: usize, rope: &Rope, direction: f64) {
    rope.assert_valid();
    assert!(heads > 0, "a token should have at least one head to rotate.");
    assert_len("x", x, positions.len() * heads * rope.head_dim);
    for (token, &position) in x.chunks_exact_mut(heads * rope.head_dim).zip(positions) {
        for head in token.chunks_exact_mut(rope.head_dim) {
            for i in 0..rope.rotary_dim / 2 {
                let (sin, cos) = (direction * f64::from(position) * rope.frequency(i)).sin_cos();
                let (sin, cos) = (rope.scaling.magnitude() * sin, rope.scaling.magnitude() * cos);
                let (a, b) = rope.pair(i);
                (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
            }
        }
    }
}

impl Rope {
    /// Radians per position of pair `i`.
    fn frequency(&self, i: usize) -> f64 {
        self.scaling.frequency(i, self.rotary_dim, self.theta)
    }

    /// The two elements of pair `i`.
    fn pair(&self, i: usize) -> (usize, usize) {
        if self.interleaved { (2 * i, 2 * i + 1) } else { (i, i + self.rotary_dim / 2) }
    }

    #[track_caller]
    fn assert_valid(&self) {
        let Self { head_dim, rotary_dim, .. } = *self;
        assert!(head_dim > 0, "a head should have at least one element.");
        assert!(rotary_dim.is_multiple_of(2), "rotary_dim should be even, but is {rotary_dim}.");
        assert!(rotary_dim <= head_dim, "rotary_dim should fit in head_dim {head_dim}, but is {rotary_dim}.");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{assert_close, assert_gradient};
    use crate::random::Random;
    use crate::vector::dot;

    const HALF: Rope =
        Rope { head_dim: 6, rotary_dim: 6, theta: 100.0, interleaved: false, scaling: Scaling::None };
    const MODES: [Rope; 5] = [
        HALF,
        Rope { interleaved: true, ..HALF },
        Rope { head_dim: 7, rotary_dim: 4, ..HALF },
        Rope { head_dim: 9, rotary_dim: 2, interleaved: true, ..HALF },
        Rope { head_dim: 3, rotary_dim: 0, ..HALF },
    ];

    fn rotated(x: &[f64], positions: &[u32], heads: usize, mode: &Rope) -> Vec<f64> {
        let mut y = x.to_vec();
        rope(&mut y, positions, heads, mode);
        y
    }

    #[test]
    fn each_pair_turns_by_its_own_angle() {
        // theta^(−2/4) = 1/10; the fifth element is outside rotary_dim.
        let angles = [3.0_f64, 3.0 * 0.1];
        let (c, s) = (angles.map(f64::cos), angles.map(f64::sin));
        let half = Rope { head_dim: 5, rotary_dim: 4, ..HALF };
        let y = rotated(&[1.0, 1.0, 0.0, 0.0, 8.0], &[3], 1, &half);
        assert_close("half", &y, &[c[0], c[1], s[0], s[1], 8.0], 1e-15);
        let y = rotated(&[1.0, 0.0, 1.0, 0.0, 8.0], &[3], 1, &Rope { interleaved: true, ..half });
        assert_close("interleaved", &y, &[c[0], s[0], c[1], s[1], 8.0], 1e-15);
    }

    #[test]
    fn scores_depend_on_the_distance_only() {
        for mode in &MODES {
            let mut random = Random::new(31);
            let (q, k) = (random.normal(mode.head_dim), random.normal(mode.head_dim));
            let score = |i: u32, j: u32| dot(&rotated(&q, &[i], 1, mode), &rotated(&k, &[j], 1, mode));
            assert!((score(9, 4) - score(105, 100)).abs() < 1e-12);
        }
    }

    #[test]
    fn backward_is_the_gradient_and_the_inverse() {
        let (positions, heads) = ([0, 5, 2, 1000], 3);
        for mode in &MODES {
            let mut random = Random::new(32);
            let elements = positions.len() * heads * mode.head_dim;
            let (x, dy) = (random.normal(elements), random.normal(elements));
            let mut dx = dy.clone();
            rope_backward(&mut dx, &positions, heads, mode);
            assert_gradient("dx", &dx, &x, |x| dot(&rotated(x, &positions, heads, mode), &dy));
            assert_close("inverse", &rotated(&dx, &positions, heads, mode), &dy, 1e-14);
        }
    }

    #[test]
    fn a_scaled_rotation_has_its_gradient() {
        let yarn = Scaling::Yarn {
            factor: 4.0,
            original: 8.0,
            beta_fast: 1.0,
            beta_slow: 0.1,
            mscale: 1.0,
            mscale_all_dim: 0.0,
            is_truncated: true,
        };
        let llama3 =
            Scaling::Llama3 { factor: 4.0, original: 16.0, low_freq_factor: 0.5, high_freq_factor: 2.0 };
        for scaling in [yarn, llama3] {
            let mode = Rope { scaling, ..HALF };
            let (positions, mut random) = ([0, 5, 2, 100], Random::new(33));
            let (x, dy) = (random.normal(24), random.normal(24));
            let mut dx = dy.clone();
            rope_backward(&mut dx, &positions, 1, &mode);
            assert_gradient("dx", &dx, &x, |x| dot(&rotated(x, &positions, 1, &mode), &dy));
            let plain = rotated(&x, &positions, 1, &HALF);
            assert!(rotated(&x, &positions, 1, &mode).iter().zip(&plain).any(|(a, b)| (a - b).abs() > 0.1));
        }
    }

    #[test]
    #[should_panic(expected = "rotary_dim should be even, but is 3.")]
    fn refuses_an_odd_rotary_dim() {
        rope(&mut [0.0; 6], &[0], 1, &Rope { rotary_dim: 3, ..HALF });
    }
}

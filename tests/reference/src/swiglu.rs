//! Gated activations of feed-forward networks, SwiGLU and GeGLU (Shazeer 2020, arXiv:2002.05202), and the clamped form
//! of OpenAI's gpt-oss (2025).

use super::gelu::{Gelu, gelu, gelu_backward};
use super::vector::assert_len;

/// The activation of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// SwiGLU.
    Silu,
    /// GeGLU.
    Gelu(Gelu),
    /// g·σ(1.702·g)·(u + 1) with g = min(gate, 7) and u = up between −7 and 7.
    Clamped,
}

/// y = activation(gate)·up element by element.
#[track_caller]
pub fn gated(gate: &[f64], up: &[f64], by: Gate) -> Vec<f64> {
    assert_len("up", up, gate.len());
    match by {
        Gate::Silu => swiglu(gate, up),
        Gate::Gelu(kind) => gelu(gate, kind).iter().zip(up).map(|(gate, up)| gate * up).collect(),
        Gate::Clamped => {
            let of = |(gate, up): (&f64, &f64)| {
                let gate = gate.min(LIMIT);
                gate * sigmoid(STEEPNESS * gate) * (up.clamp(-LIMIT, LIMIT) + 1.0)
            };
            gate.iter().zip(up).map(of).collect()
        }
    }
}

/// (dgate, dup) of [`gated`], given dy; all of one length.
#[track_caller]
pub fn gated_backward(gate: &[f64], up: &[f64], dy: &[f64], by: Gate) -> (Vec<f64>, Vec<f64>) {
    let kind = match by {
        Gate::Silu => return swiglu_backward(gate, up, dy),
        Gate::Clamped => return clamped_backward(gate, up, dy),
        Gate::Gelu(kind) => kind,
    };
    assert_len("up", up, gate.len());
    assert_len("dy", dy, gate.len());
    let times = |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a * b).collect() };
    (gelu_backward(gate, &times(dy, up), kind), times(dy, &gelu(gate, kind)))
}

/// The limit of gate and up in the clamped form, and the factor of the gate within σ.
const LIMIT: f64 = 7.0;
const STEEPNESS: f64 = 1.702;

/// (dgate, dup) of the clamped form. What is beyond a limit has no gradient; at a limit torch gives it one.
fn clamped_backward(gate: &[f64], up: &[f64], dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let gradient = |((gate, up), dy): ((&f64, &f64), &f64)| {
        let (g, u) = (gate.min(LIMIT), up.clamp(-LIMIT, LIMIT));
        let s = sigmoid(STEEPNESS * g);
        let dgate = dy * (u + 1.0) * s * (1.0 + STEEPNESS * g * (1.0 - s));
        (if *gate > LIMIT { 0.0 } else { dgate }, if up.abs() > LIMIT { 0.0 } else { dy * g * s })
    };
    gate.iter().zip(up).zip(dy).map(gradient).unzip()
}

/// y = silu(gate)·up element by element, with silu(x) = x·σ(x) and σ(x) = 1 / (1 + e^−x).
#[track_caller]
pub fn swiglu(gate: &[f64], up: &[f64]) -> Vec<f64> {
    assert_len("up", up, gate.len());
    gate.iter().zip(up).map(|(gate, up)| gate * sigmoid(*gate) * up).collect()
}

/// (dgate, dup) of [`swiglu`], given dy; all of one length.
///
/// dgate = dy·up·σ(gate)·(1 + gate·(1 − σ(gate))), dup = dy·silu(gate).
#[track_caller]
pub fn swiglu_backward(gate: &[f64], up: &[f64], dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
    assert_len("up", up, gate.len());
    assert_len("dy", dy, gate.len());
    let gradient = |((gate, up), dy): ((&f64, &f64), &f64)| {
        let s = sigmoid(*gate);
        (dy * up * s * (1.0 + gate * (1.0 - s)), dy * gate * s)
    };
    gate.iter().zip(up).zip(dy).map(gradient).unzip()
}

/// σ(x) = 1 / (1 + e^−x). Where e^−x overflows the quotient is 0, its limit.
fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{assert_close, assert_gradient};
    use crate::random::Random;
    use crate::vector::dot;

    #[test]
    fn the_documented_example() {
        // MindSpore's example for its operator, silu of the first row times the second, printed in f32.
        let y = swiglu(&[-0.12, 0.123, 31.122], &[2.1223, 4.1212121217, 0.3123]);
        assert_close("swiglu", &y, &[-0.1197069, 0.2690224, 9.7194], 1e-5);
    }

    #[test]
    fn large_gates_saturate() {
        assert_eq!(swiglu(&[800.0, -800.0], &[1.0, 1.0]), [800.0, 0.0]);
        assert_eq!(swiglu_backward(&[-800.0], &[1.0], &[1.0]), (vec![0.0], vec![0.0]));
    }

    #[test]
    fn backward_is_the_gradient() {
        let gelus = [Gelu::Exact, Gelu::Tanh, Gelu::Fast].map(Gate::Gelu);
        for (count, by) in [(1, Gate::Silu), (31, Gate::Silu), (257, Gate::Silu)]
            .into_iter()
            .chain(gelus.map(|gelu| (31, gelu)))
            .chain([(257, Gate::Clamped)])
        {
            let mut random = Random::new(41);
            let (mut gate, mut up, dy) = (random.normal(count), random.normal(count), random.normal(count));
            if by == Gate::Clamped {
                // Some beyond a limit, none at one, where there is no derivative.
                gate.iter_mut().chain(&mut up).for_each(|x| *x *= 5.0);
            }
            let f = |gate: &[f64], up: &[f64]| dot(&gated(gate, up, by), &dy);
            let (dgate, dup) = gated_backward(&gate, &up, &dy, by);
            assert_gradient("dgate", &dgate, &gate, |gate| f(gate, &up));
            assert_gradient("dup", &dup, &up, |up| f(&gate, up));
        }
    }
}

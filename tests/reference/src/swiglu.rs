//! The gated activation of Llama's feed-forward network (Shazeer 2020, arXiv:2002.05202).

use super::vector::assert_len;

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
        for count in [1, 31, 257] {
            let mut random = Random::new(41);
            let (gate, up, dy) = (random.normal(count), random.normal(count), random.normal(count));
            let f = |gate: &[f64], up: &[f64]| dot(&swiglu(gate, up), &dy);
            let (dgate, dup) = swiglu_backward(&gate, &up, &dy);
            assert_gradient("dgate", &dgate, &gate, |gate| f(gate, &up));
            assert_gradient("dup", &dup, &up, |up| f(&gate, up));
        }
    }
}

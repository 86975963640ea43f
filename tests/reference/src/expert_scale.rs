//! A factor of each expert's gates, as the router of Gemma 4 has it.

use super::vector::assert_len;

/// y = g·s(e) of each choice: gates g and experts `ids` (N·k), s (E) -> y (N·k).
///
/// # Examples
///
/// ```
/// use reference::expert_scale::scale_gates;
///
/// assert_eq!(scale_gates(&[2.0, 3.0], &[1, 0], &[10.0, 100.0]), [200.0, 30.0]);
/// ```
#[track_caller]
pub fn scale_gates(gates: &[f64], ids: &[usize], scale: &[f64]) -> Vec<f64> {
    assert_len("gates", gates, ids.len());
    gates.iter().zip(ids).map(|(gate, &expert)| gate * scale[expert]).collect()
}

/// (dg (N·k), ds (E)) of [`scale_gates`], given dy (N·k): dg = dy·s(e), ds(e) = Σ dy·g over the choices of e.
#[track_caller]
pub fn scale_gates_backward(gates: &[f64], ids: &[usize], scale: &[f64], dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
    assert_len("dy", dy, ids.len());
    let mut dscale = vec![0.0; scale.len()];
    for ((gate, dy), &expert) in gates.iter().zip(dy).zip(ids) {
        dscale[expert] += dy * gate;
    }
    (scale_gates(dy, ids, scale), dscale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_gradient;
    use crate::random::Random;
    use crate::vector::dot;

    #[test]
    fn backward_is_the_gradient() {
        let (ids, mut random) = ([0, 3, 2, 0, 3, 1], Random::new(94));
        let (gates, scale, dy) = (random.normal(6), random.normal(5), random.normal(6));
        let (dgates, dscale) = scale_gates_backward(&gates, &ids, &scale, &dy);
        assert_gradient("dg", &dgates, &gates, |gates| dot(&scale_gates(gates, &ids, &scale), &dy));
        assert_gradient("ds", &dscale, &scale, |scale| dot(&scale_gates(&gates, &ids, scale), &dy));
        assert_eq!(dscale[4], 0.0);
    }
}

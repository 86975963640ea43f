//! The gate of attention's output, projected beside each query, as in Qwen3-Next.

use super::Block;

impl Block<'_> {
    /// Projected queries (N, H·2·d), each beside its gate: queries and gates (N, H·d). Without gates there are none.
    pub(super) fn split_gates(&self, projected: Vec<f64>) -> [Vec<f64>; 2] {
        if !self.shape.variant.attention_gate {
            return [projected, Vec::new()];
        }
        let width = self.shape.layer(self.layer).head_dim;
        let part = |first: usize| {
            projected.chunks_exact(2 * width).flat_map(|pair| pair[first..first + width].to_vec()).collect()
        };
        [part(0), part(width)]
    }

    /// The gradient of the projected queries, given those of queries and gates.
    pub(super) fn join_gates(&self, dq: Vec<f64>, dgate: &[f64]) -> Vec<f64> {
        if dgate.is_empty() {
            return dq;
        }
        let width = self.shape.layer(self.layer).head_dim;
        let pairs = dq.chunks_exact(width).zip(dgate.chunks_exact(width));
        pairs.flat_map(|(q, gate)| [q, gate].concat()).collect()
    }

    /// x · sigmoid(gate), or x where there are no gates.
    pub(super) fn gated(&self, x: &[f64], gate: &[f64]) -> Vec<f64> {
        if gate.is_empty() {
            return x.to_vec();
        }
        self.shape.storage.store(x.iter().zip(gate).map(|(x, gate)| x * sigmoid(*gate)).collect())
    }

    /// The gradients of x and of the gate, given that of [`Block::gated`].
    pub(super) fn gated_backward(&self, x: &[f64], gate: &[f64], dy: Vec<f64>) -> [Vec<f64>; 2] {
        if gate.is_empty() {
            return [dy, Vec::new()];
        }
        let slope = |gate: f64| sigmoid(gate) * (1.0 - sigmoid(gate));
        let dx = dy.iter().zip(gate).map(|(dy, gate)| dy * sigmoid(*gate)).collect();
        let dgate = dy.iter().zip(x).zip(gate).map(|((dy, x), gate)| dy * x * slope(*gate)).collect();
        [dx, dgate].map(|values| self.shape.storage.store(values))
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

//! What a block adds of its own embeddings e (N, P): norm(W_out (act(W_gate x) · e)).

use super::Block;
use crate::gpt::Weights;
use crate::swiglu::{gated, gated_backward};
use crate::vector::add;

const GATE: &str = "per_layer_input_gate";
const PROJECTION: &str = "per_layer_projection";
const NORM: &str = "post_per_layer_input_norm";

/// Activations saved for the backward pass.
pub(super) struct Input {
    /// What is added to (N, D).
    x: Vec<f64>,
    /// W_gate x, e, and act(W_gate x) · e, (N, P) each.
    gate: Vec<f64>,
    e: Vec<f64>,
    gated: Vec<f64>,
    /// The product (N, D) before its norm.
    projected: Vec<f64>,
}

/// (name, number of elements) of the tensors, of widths D and P.
pub(crate) fn parameters(hidden: usize, width: usize) -> [(&'static str, usize); 3] {
    [(GATE, width * hidden), (PROJECTION, hidden * width), (NORM, hidden)]
}

impl Block<'_> {
    /// x (N, D) plus what the embeddings `e` add.
    pub(super) fn plus_input(&self, x: Vec<f64>, e: &[f64]) -> (Vec<f64>, Input) {
        let store = |values| self.shape.storage.store(values);
        let gate = store(self.project(GATE, &x));
        let gated = store(gated(&gate, e, self.shape.gate));
        let projected = store(self.project(PROJECTION, &gated));
        let sum = store(add(&x, &self.norm(NORM, &projected)));
        (sum, Input { x, gate, e: e.to_vec(), gated, projected })
    }

    /// The gradients of x (N, D) and of the embeddings (N, P), given that of the sum.
    pub(super) fn plus_input_backward(
        &self,
        saved: &Input,
        dsum: &[f64],
        grads: &mut Weights,
    ) -> [Vec<f64>; 2] {
        let store = |values| self.shape.storage.store(values);
        let dprojected = store(self.norm_backward(NORM, &saved.projected, dsum, grads));
        let dgated = store(self.project_backward(PROJECTION, &saved.gated, &dprojected, grads));
        let (dgate, de) = gated_backward(&saved.gate, &saved.e, &dgated, self.shape.gate);
        let dx = self.project_backward(GATE, &saved.x, &store(dgate), grads);
        [store(add(dsum, &dx)), store(de)]
    }
}

//! The second half of a block: a dense network, a mixture of experts, or both.

use super::Block;
use crate::gelu::{Gelu, gelu, gelu_backward};
use crate::gpt::{Architecture, Weights, accumulate};
use crate::mixture::{Layer, Mixture, Visit};
use crate::swiglu::{gated, gated_backward};
use crate::vector::{add, scaled};
use crate::xielu::{Xielu, xielu, xielu_backward};

/// The numbers of an xIELU, of which the first two are learned.
pub const XIELU: [&str; 4] =
    ["mlp.act_fn.alpha_p", "mlp.act_fn.alpha_n", "mlp.act_fn.beta", "mlp.act_fn.eps"];

/// Activations saved for the backward pass.
pub(crate) enum FeedForward {
    Dense {
        /// (N, F) each; `gate` is empty where there is none.
        gate: Vec<f64>,
        up: Vec<f64>,
        /// activation(gate)·up or gelu(up), (N, F).
        activated: Vec<f64>,
    },
    Mixture(Visit),
    Both {
        dense: Box<FeedForward>,
        /// The output of the dense network, (N, D).
        dense_output: Vec<f64>,
        /// What the experts and their router read, (N, D) each.
        read: [Vec<f64>; 2],
        visit: Visit,
        /// The output of the experts, (N, D).
        mixture_output: Vec<f64>,
    },
}

/// The norms beside the dense network: of its output, before the experts, before the router, and of the experts' output.
pub(crate) const BESIDE_NORMS: [&str; 4] = [
    "post_feedforward_layernorm_1",
    "pre_feedforward_layernorm_2",
    "mlp.router_norm",
    "post_feedforward_layernorm_2",
];

impl Block<'_> {
    /// The output (N, D) for x (N, D), the `residual` stream (N, D) normalised.
    #[track_caller]
    pub(super) fn feed_forward(&self, x: &[f64], residual: &[f64]) -> (Vec<f64>, FeedForward) {
        match self.shape.mixture_of(self.layer) {
            None => self.dense(x),
            Some(mixture) if mixture.is_beside_dense => self.both(mixture, x, residual),
            Some(mixture) => {
                let visit = self.with_mixture(mixture, |layer| layer.forward(x, x));
                (visit.y.clone(), FeedForward::Mixture(visit))
            }
        }
    }

    /// norm(dense(x)) + norm(experts(norm(residual))), where the router reads norm(residual) / √D.
    #[track_caller]
    fn both(&self, mixture: &Mixture, x: &[f64], residual: &[f64]) -> (Vec<f64>, FeedForward) {
        let store = |values| self.shape.storage.store(values);
        let [of_dense, before_experts, before_router, of_experts] = BESIDE_NORMS;
        let (dense_output, dense) = self.dense(x);
        let dense_output = store(dense_output);
        let scored = scaled(&self.norm(before_router, residual), self.router_factor());
        let read = [store(self.norm(before_experts, residual)), store(scored)];
        let visit = self.with_mixture(mixture, |layer| layer.forward(&read[0], &read[1]));
        let mixture_output = store(visit.y.clone());
        let sum =
            store(add(&store(self.norm(of_dense, &dense_output)), &self.norm(of_experts, &mixture_output)));
        (sum, FeedForward::Both { dense: Box::new(dense), dense_output, read, visit, mixture_output })
    }

    /// What the router's norm is multiplied by, 1 / √D.
    fn router_factor(&self) -> f64 {
        (self.shape.hidden_size as f64).sqrt().recip()
    }

    #[track_caller]
    fn dense(&self, x: &[f64]) -> (Vec<f64>, FeedForward) {
        let store = |values| self.shape.storage.store(values);
        let (gate, up, activated) = match self.ungated() {
            None if self.shape.variant.xielu => {
                let up = store(self.project(self.names().up[0], x));
                let activated = store(xielu(&up, self.xielu()));
                (Vec::new(), up, activated)
            }
            None => {
                let [gate, up] = [0, 1].map(|i| store(self.project(self.names().up[i], x)));
                let activated = store(gated(&gate, &up, self.shape.gate));
                (gate, up, activated)
            }
            Some(activation) => {
                let up = store(self.project(self.names().up[0], x));
                let activated = store(gelu(&up, activation));
                (Vec::new(), up, activated)
            }
        };
        (self.project(self.names().down, &activated), FeedForward::Dense { gate, up, activated })
    }

    /// The gradients (N, D) of x and, if it is read, of the residual stream, given that of the output; adds those of
    /// the weights to `grads`.
    #[track_caller]
    pub(super) fn feed_forward_backward(
        &self,
        [x, residual]: [&[f64]; 2],
        saved: &FeedForward,
        dout: &[f64],
        seed: f64,
        grads: &mut Weights,
    ) -> (Vec<f64>, Option<Vec<f64>>) {
        match (saved, self.shape.mixture_of(self.layer)) {
            (FeedForward::Mixture(visit), Some(mixture)) => {
                let backward = |layer: &Layer<'_>| layer.backward([x, x], visit, dout, seed, &mut *grads);
                let [dx, dscored] = self.with_mixture(mixture, backward);
                (add(&dx, &dscored), None)
            }
            (FeedForward::Both { dense, dense_output, read, visit, mixture_output }, Some(mixture)) => {
                let store = |values| self.shape.storage.store(values);
                let [of_dense, before_experts, before_router, of_experts] = BESIDE_NORMS;
                let dmixture = store(self.norm_backward(of_experts, mixture_output, dout, grads));
                let backward = |layer: &Layer<'_>| {
                    layer.backward([&read[0], &read[1]], visit, &dmixture, seed, &mut *grads)
                };
                let [dexperts, dscored] = self.with_mixture(mixture, backward);
                let dscored = scaled(&dscored, self.router_factor());
                let dresidual = store(add(
                    &store(self.norm_backward(before_router, residual, &dscored, grads)),
                    &self.norm_backward(before_experts, residual, &dexperts, grads),
                ));
                let ddense = store(self.norm_backward(of_dense, dense_output, dout, grads));
                (self.dense_backward(x, dense, &ddense, grads), Some(dresidual))
            }
            (dense, None) => (self.dense_backward(x, dense, dout, grads), None),
            _ => panic!("the saved activations of layer {} are of another kind.", self.layer),
        }
    }

    /// The gradient (N, D) of the input of a dense network.
    #[track_caller]
    fn dense_backward(&self, x: &[f64], saved: &FeedForward, dout: &[f64], grads: &mut Weights) -> Vec<f64> {
        let FeedForward::Dense { gate, up, activated } = saved else {
            panic!("the saved activations of layer {} are of another kind.", self.layer)
        };
        let store = |values| self.shape.storage.store(values);
        let dactivated = store(self.project_backward(self.names().down, activated, dout, grads));
        match self.ungated() {
            None if self.shape.variant.xielu => {
                let (dup, of_numbers) = xielu_backward(up, &dactivated, self.xielu());
                for (name, gradient) in XIELU.iter().zip(of_numbers) {
                    accumulate(grads, &self.path(name), vec![gradient]);
                }
                self.project_backward(self.names().up[0], x, &store(dup), grads)
            }
            None => {
                let (dgate, dup) = gated_backward(gate, up, &dactivated, self.shape.gate);
                let (dgate, dup) = (store(dgate), store(dup));
                add(
                    &self.project_backward(self.names().up[0], x, &dgate, grads),
                    &self.project_backward(self.names().up[1], x, &dup, grads),
                )
            }
            Some(activation) => {
                let dup = store(gelu_backward(up, &dactivated, activation));
                self.project_backward(self.names().up[0], x, &dup, grads)
            }
        }
    }

    /// The numbers of this block's xIELU.
    fn xielu(&self) -> Xielu {
        let [a, b, beta, epsilon] = XIELU.map(|name| self.weights[&self.path(name)][0]);
        Xielu { a, b, beta, epsilon }
    }

    /// The activation of dense networks without a gate.
    fn ungated(&self) -> Option<Gelu> {
        match self.shape.architecture {
            Architecture::Llama => self.shape.variant.ungated,
            Architecture::Gpt2 { activation, .. } => Some(activation),
        }
    }

    /// Calls `f` with the mixture layer of this block.
    #[track_caller]
    fn with_mixture<R>(&self, mixture: &Mixture, f: impl FnOnce(&Layer<'_>) -> R) -> R {
        let Some(memory) = self.memory else { panic!("layer {} should have a router state.", self.layer) };
        let (weights, sequence_length, path) = (self.weights, self.sequence_length, self.path("mlp"));
        let (storage, low_rank) = (self.shape.storage, self.shape.low_rank.as_ref());
        f(&Layer { mixture, weights, path: &path, memory, sequence_length, storage, low_rank })
    }
}

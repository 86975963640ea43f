//! The second half of a block: a dense network, or a mixture of experts.

use super::Block;
use crate::gelu::{Gelu, gelu, gelu_backward};
use crate::gpt::{Architecture, Weights};
use crate::mixture::{Layer, Mixture, Visit};
use crate::swiglu::{gated, gated_backward};
use crate::vector::add;

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
}

impl Block<'_> {
    /// The output (N, D) for x (N, D).
    #[track_caller]
    pub(super) fn feed_forward(&self, x: &[f64]) -> (Vec<f64>, FeedForward) {
        if let Some(mixture) = self.shape.mixture_of(self.layer) {
            let visit = self.with_mixture(mixture, |layer| layer.forward(x));
            return (visit.y.clone(), FeedForward::Mixture(visit));
        }
        let store = |values| self.shape.storage.store(values);
        let (gate, up, activated) = match self.ungated() {
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

    /// The gradient (N, D) of x, given that of the output; adds those of the weights to `grads`.
    #[track_caller]
    pub(super) fn feed_forward_backward(
        &self,
        x: &[f64],
        saved: &FeedForward,
        dout: &[f64],
        seed: f64,
        grads: &mut Weights,
    ) -> Vec<f64> {
        let (gate, up, activated) = match (saved, self.shape.mixture_of(self.layer)) {
            (FeedForward::Mixture(visit), Some(mixture)) => {
                return self.with_mixture(mixture, |layer| layer.backward(x, visit, dout, seed, grads));
            }
            (FeedForward::Dense { gate, up, activated }, None) => (gate, up, activated),
            _ => panic!(
                "the saved activations of layer {} are of the other kind of feed-forward network.",
                self.layer
            ),
        };
        let store = |values| self.shape.storage.store(values);
        let dactivated = store(self.project_backward(self.names().down, activated, dout, grads));
        match self.ungated() {
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
        let storage = self.shape.storage;
        f(&Layer { mixture, weights, path: &path, memory, sequence_length, storage })
    }
}

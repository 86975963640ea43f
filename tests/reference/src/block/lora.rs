//! Adapters of the linear layers of a block.

use super::Block;
use crate::gpt::{Weights, accumulate};
use crate::low_rank::{LowRank, low_rank, low_rank_backward};
use crate::vector::add;

/// An adapter: the factor of its product, the names of A and B, and the sizes of the product.
struct Lora {
    scale: f64,
    a: String,
    b: String,
    sizes: [usize; 4],
}

impl Block<'_> {
    /// y (N, n), the result of the linear layer `name` on x (N, k), plus what its adapter adds.
    pub(super) fn adapted(&self, name: &str, x: &[f64], y: Vec<f64>) -> Vec<f64> {
        let Some(Lora { scale, a, b, sizes }) = self.lora(name, x, &y) else { return y };
        add(&y, &low_rank(x, &self.weights[&a], &self.weights[&b], scale, sizes))
    }

    /// dx (N, k) plus what passes through the adapter, given dy (N, n); adds the gradients of A and B to `grads`.
    pub(super) fn adapted_backward(
        &self,
        name: &str,
        x: &[f64],
        dy: &[f64],
        dx: Vec<f64>,
        grads: &mut Weights,
    ) -> Vec<f64> {
        let Some(Lora { scale, a, b, sizes }) = self.lora(name, x, dy) else { return dx };
        let (through, da, db) = low_rank_backward(x, &self.weights[&a], &self.weights[&b], dy, scale, sizes);
        accumulate(grads, &a, da);
        accumulate(grads, &b, db);
        add(&dx, &through)
    }

    /// The adapter of the linear layer `name` with inputs x and outputs y, if it has one.
    fn lora(&self, name: &str, x: &[f64], y: &[f64]) -> Option<Lora> {
        let path = self.path(name);
        let adapters = self.shape.low_rank.as_ref().filter(|adapters| adapters.modules.contains(&path))?;
        let rows = self.positions.len();
        let [a, b] = ["A", "B"].map(|factor| LowRank::factor(&path, factor));
        let (rank, scale) = adapters.of(&path);
        let sizes = [rows, y.len() / rows, x.len() / rows, rank];
        Some(Lora { scale, a, b, sizes })
    }
}

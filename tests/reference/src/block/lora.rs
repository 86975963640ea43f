//! Adapters of the linear layers of a block.

use super::Block;
use crate::gpt::{Weights, accumulate};
use crate::low_rank::{
    LowRank, low_rank, low_rank_backward, row_norms, scaled_columns, scaled_columns_backward,
};
use crate::matmul::{matmul_nn, matmul_nt};
use crate::vector::add;

/// An adapter: the factor of its product, the names of A and B, and the sizes of the product.
struct Lora {
    scale: f64,
    a: String,
    b: String,
    sizes: [usize; 4],
}

impl Block<'_> {
    /// y (N, n), the product of the linear layer `name` on x (N, k), plus what its adapter adds, in columns that are
    /// scaled if it has magnitudes.
    pub(super) fn adapted(&self, name: &str, x: &[f64], y: Vec<f64>) -> Vec<f64> {
        let Some(Lora { scale, a, b, sizes }) = self.lora(name, x, &y) else { return y };
        let sum = add(&y, &low_rank(x, &self.weights[&a], &self.weights[&b], scale, sizes));
        match self.magnitudes(name, scale, [&a, &b], sizes) {
            Some((_, magnitudes, norms)) => scaled_columns(&sum, magnitudes, &norms),
            None => sum,
        }
    }

    /// The gradient of the product of the linear layer `name`, given dz (N, n), that of its [`adapted`](Self::adapted)
    /// columns; adds the gradient of magnitudes to `grads`.
    pub(super) fn of_product(&self, name: &str, x: &[f64], dz: &[f64], grads: &mut Weights) -> Vec<f64> {
        let Some(Lora { scale, a, b, sizes: sizes @ [m, n, k, _] }) = self.lora(name, x, dz) else {
            return dz.to_vec();
        };
        let Some((key, magnitudes, norms)) = self.magnitudes(name, scale, [&a, &b], sizes) else {
            return dz.to_vec();
        };
        let w = &self.weights[&self.tensor(name, "weight")];
        let product =
            if self.shape.is_transposed() { matmul_nn(x, w, m, n, k) } else { matmul_nt(x, w, m, n, k) };
        let y = add(&product, &low_rank(x, &self.weights[&a], &self.weights[&b], scale, sizes));
        let [dy, dm] = scaled_columns_backward(&y, magnitudes, &norms, dz);
        accumulate(grads, &key, dm);
        dy
    }

    /// The name of the magnitudes of the linear layer `name`, these, and the norms of its rows; `None` if it has none.
    fn magnitudes(
        &self,
        name: &str,
        scale: f64,
        [a, b]: [&String; 2],
        [_, n, k, r]: [usize; 4],
    ) -> Option<(String, &[f64], Vec<f64>)> {
        let key = LowRank::magnitudes(&self.path(name));
        let magnitudes = self.weights.get(&key)?;
        let w = &self.weights[&self.tensor(name, "weight")];
        let is_transposed = self.shape.is_transposed();
        let norms = row_norms(w, &self.weights[a], &self.weights[b], scale, [n, k, r], is_transposed);
        Some((key, magnitudes, norms))
    }

    /// dx (N, k) plus what passes through the adapter, given dy (N, n), the gradient of its product; adds the gradients
    /// of A and B to `grads`.
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

//! Norms of queries and keys.

use super::Block;
use crate::gpt::{Weights, accumulate};
use crate::layer_norm::{layer_norm, layer_norm_backward};
use crate::variant::QkNorm;

impl Block<'_> {
    /// The queries (`of` = 0) or the keys (1) x after their norm.
    pub(super) fn head_norm(&self, of: usize, x: &[f64]) -> Vec<f64> {
        let name = self.names().qk_norms[of];
        match self.shape.variant.qk_norm {
            QkNorm::Heads | QkNorm::AllHeads | QkNorm::RotatedHeads => self.norm(name, x),
            QkNorm::LayerNorm => {
                let factors = self.shape.norm_factors(self.weights, &self.path(name));
                let bias = &self.weights[&self.tensor(name, "bias")];
                layer_norm(x, &factors, bias, factors.len(), self.shape.norm_eps)
            }
            QkNorm::LayerNormByHead => self
                .by_head(of, x)
                .flat_map(|(norm, x)| {
                    let factors = self.shape.norm_factors(self.weights, &norm);
                    layer_norm(x, &factors, &vec![0.0; factors.len()], factors.len(), self.shape.norm_eps)
                })
                .collect(),
        }
    }

    /// The gradient of x of [`Block::head_norm`]; adds those of the weights to `grads`.
    pub(super) fn head_norm_backward(
        &self,
        of: usize,
        x: &[f64],
        dy: &[f64],
        grads: &mut Weights,
    ) -> Vec<f64> {
        let name = self.names().qk_norms[of];
        match self.shape.variant.qk_norm {
            QkNorm::Heads | QkNorm::AllHeads | QkNorm::RotatedHeads => self.norm_backward(name, x, dy, grads),
            QkNorm::LayerNorm => {
                let factors = self.shape.norm_factors(self.weights, &self.path(name));
                let (dx, dw, db) = layer_norm_backward(x, &factors, dy, factors.len(), self.shape.norm_eps);
                accumulate(grads, &self.tensor(name, "weight"), dw);
                accumulate(grads, &self.tensor(name, "bias"), db);
                dx
            }
            QkNorm::LayerNormByHead => {
                let heads = self.by_head(of, x).zip(dy.chunks(self.shape.layer(self.layer).head_dim));
                heads
                    .flat_map(|((norm, x), dy)| {
                        let factors = self.shape.norm_factors(self.weights, &norm);
                        let (dx, dw, _) =
                            layer_norm_backward(x, &factors, dy, factors.len(), self.shape.norm_eps);
                        accumulate(grads, &format!("{norm}.weight"), dw);
                        dx
                    })
                    .collect()
            }
        }
    }

    /// Each head of x, with the full name of its norm.
    fn by_head<'a>(&'a self, of: usize, x: &'a [f64]) -> impl Iterator<Item = (String, &'a [f64])> + 'a {
        let layer = self.shape.layer(self.layer);
        let heads = [self.shape.num_heads, layer.num_kv_heads][of];
        let name = self.path(self.names().qk_norms[of]);
        x.chunks(layer.head_dim)
            .enumerate()
            .map(move |(place, x)| (format!("{name}.norms.{}", place % heads), x))
    }
}

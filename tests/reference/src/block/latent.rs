//! Queries, keys and values by way of latent vectors.

use super::Block;
use crate::gpt::{Shape, Weights};
use crate::latent_attention::{KV_DOWN, KV_NORM, KV_UP, LatentAttention, Q, Q_DOWN, Q_NORM, Q_UP};
use crate::latent_heads::{latent_heads, latent_heads_backward};
use crate::vector::add;

/// Activations saved for the backward pass.
pub(super) struct Latent {
    /// The latent vectors of the queries (N, Q) and their norm; empty where queries are computed directly.
    q_latent: Vec<f64>,
    q_normed: Vec<f64>,
    /// The latent vectors of keys and values (N, K) and their norm.
    c: Vec<f64>,
    c_normed: Vec<f64>,
}

impl Block<'_> {
    /// q, k and v of attention for its normalised input x (N, D).
    #[track_caller]
    pub(super) fn latent(&self, sizes: &LatentAttention, x: &[f64]) -> (Latent, [Vec<f64>; 3]) {
        let store = |values| self.shape.storage.store(values);
        let (q_latent, q_normed, q) = match sizes.q_rank {
            Some(_) => {
                let latent = store(self.project(Q_DOWN, x));
                let normed = store(self.latent_norm(sizes, Q_NORM, &latent));
                let q = store(self.project(Q_UP, &normed));
                (latent, normed, q)
            }
            None => (Vec::new(), Vec::new(), store(self.project(Q, x))),
        };
        let down = store(self.project(KV_DOWN, x)); // (N, K + R)
        let (c, k_rope) = self.split(&down, sizes.kv_rank);
        let c_normed = store(self.latent_norm(sizes, KV_NORM, &c));
        let kv = store(self.project(KV_UP, &c_normed));
        let heads = sizes.heads(self.shape.num_heads, self.shape.rope);
        let qkv = latent_heads(&q, &kv, &k_rope, self.positions, &heads).map(store);
        (Latent { q_latent, q_normed, c, c_normed }, qkv)
    }

    /// The gradient (N, D) of the input of [`Block::latent`]; adds those of the weights to `grads`.
    #[track_caller]
    pub(super) fn latent_backward(
        &self,
        sizes: &LatentAttention,
        saved: &Latent,
        x: &[f64],
        [dq, dk, dv]: [&[f64]; 3],
        grads: &mut Weights,
    ) -> Vec<f64> {
        let store = |values| self.shape.storage.store(values);
        let heads = sizes.heads(self.shape.num_heads, self.shape.rope);
        let (dq, dkv, dk_rope) = latent_heads_backward(dq, dk, dv, self.positions, &heads);
        let [dq, dkv, dk_rope] = [dq, dkv, dk_rope].map(store);
        let of_q = match sizes.q_rank {
            Some(_) => {
                let dnormed = store(self.project_backward(Q_UP, &saved.q_normed, &dq, grads));
                let dlatent =
                    store(self.latent_norm_backward(sizes, Q_NORM, &saved.q_latent, &dnormed, grads));
                self.project_backward(Q_DOWN, x, &dlatent, grads)
            }
            None => self.project_backward(Q, x, &dq, grads),
        };
        let dnormed = store(self.project_backward(KV_UP, &saved.c_normed, &dkv, grads));
        let dc = store(self.latent_norm_backward(sizes, KV_NORM, &saved.c, &dnormed, grads));
        let rows = dc.chunks_exact(sizes.kv_rank).zip(dk_rope.chunks_exact(heads.rope.head_dim));
        let ddown: Vec<f64> = rows.flat_map(|(dc, dk_rope)| [dc, dk_rope].concat()).collect();
        add(&of_q, &self.project_backward(KV_DOWN, x, &ddown, grads))
    }

    /// The norm `name` of latent vectors x, which has an epsilon of its own.
    fn latent_norm(&self, sizes: &LatentAttention, name: &str, x: &[f64]) -> Vec<f64> {
        let shape = Shape { norm_eps: sizes.norm_eps, ..self.shape.clone() };
        shape.norm(self.weights, &self.path(name), x)
    }

    fn latent_norm_backward(
        &self,
        sizes: &LatentAttention,
        name: &str,
        x: &[f64],
        dy: &[f64],
        grads: &mut Weights,
    ) -> Vec<f64> {
        let shape = Shape { norm_eps: sizes.norm_eps, ..self.shape.clone() };
        shape.norm_backward(self.weights, &self.path(name), x, dy, grads)
    }

    /// The first `cols` columns of each token's row, and the others.
    fn split(&self, x: &[f64], cols: usize) -> (Vec<f64>, Vec<f64>) {
        let width = x.len() / self.positions.len();
        let rows = || x.chunks_exact(width);
        (
            rows().flat_map(|row| row[..cols].to_vec()).collect(),
            rows().flat_map(|row| row[cols..].to_vec()).collect(),
        )
    }
}

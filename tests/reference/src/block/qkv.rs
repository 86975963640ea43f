//! Queries, keys and values of a block.

use super::Block;
use crate::embedding::{embedding, embedding_backward};
use crate::gpt::{QUERIES, Weights, accumulate};
use crate::variant::Naming;
use crate::vector::add;

impl Block<'_> {
    /// q (N, H·d), k (N, K·d) and v (N, K·e): from three linear layers, or from one. In a query layer q is projected from the
    /// rows of a table by position. Where keys and values are another block's, there are none.
    #[track_caller]
    pub(super) fn project_qkv(&self, x: &[f64]) -> [Vec<f64>; 3] {
        match *self.names().qkv {
            [q, ..] if self.shape.layer(self.layer).kv_source.is_some() => {
                [self.project(q, x), Vec::new(), Vec::new()]
            }
            [q, k, v] => {
                let rows = self.queries();
                let of_q = rows.as_deref().unwrap_or(x);
                let keys = self.project(k, x);
                let values = if self.has_key_values() { keys.clone() } else { self.project(v, x) };
                [self.project(q, of_q), keys, values]
            }
            [qkv] => {
                let joined = self.project(qkv, x);
                let mut parts = [const { Vec::new() }; 3];
                let layer = self.shape.layer(self.layer);
                for row in joined.chunks_exact(self.joined_heads() * layer.head_dim) {
                    for (place, vector) in row.chunks_exact(layer.head_dim).enumerate() {
                        parts[self.part(place)].extend(vector);
                    }
                }
                parts
            }
            _ => panic!("q, k and v should be three tensors or one."),
        }
    }

    /// The gradient (N, D) of the input of [`Block::project_qkv`].
    #[track_caller]
    pub(super) fn project_qkv_backward(
        &self,
        x: &[f64],
        [dq, dk, dv]: [&[f64]; 3],
        grads: &mut Weights,
    ) -> Vec<f64> {
        match *self.names().qkv {
            [q, ..] if self.shape.layer(self.layer).kv_source.is_some() => {
                self.project_backward(q, x, dq, grads)
            }
            [q, k, v] => {
                let rows = self.queries();
                let dof_q = self.project_backward(q, rows.as_deref().unwrap_or(x), dq, grads);
                let dkv = match self.has_key_values() {
                    true => self.project_backward(k, x, &add(dk, dv), grads),
                    false => {
                        let dk = self.project_backward(k, x, dk, grads);
                        add(&dk, &self.project_backward(v, x, dv, grads))
                    }
                };
                if rows.is_none() {
                    return add(&dof_q, &dkv);
                }
                let (width, drows) = (self.shape.hidden_size, self.shape.storage.store(dof_q));
                let count = self.weights[QUERIES].len() / width;
                accumulate(grads, QUERIES, embedding_backward(&drows, self.positions, count, width));
                dkv
            }
            [qkv] => {
                let head_dim = self.shape.layer(self.layer).head_dim;
                let mut parts = [dq, dk, dv].map(|part| part.chunks_exact(head_dim));
                let places = (0..self.positions.len()).flat_map(|_| 0..self.joined_heads());
                let next = |place| parts[self.part(place)].next().expect("a vector").iter().copied();
                let joined: Vec<f64> = places.flat_map(next).collect();
                self.project_backward(qkv, x, &joined, grads)
            }
            _ => panic!("q, k and v should be three tensors or one."),
        }
    }

    /// The rows (N, D) that queries are projected from, in a query layer.
    fn queries(&self) -> Option<Vec<f64>> {
        let table = self.shape.is_query_layer(self.layer).then(|| &self.weights[QUERIES])?;
        Some(embedding(table, self.positions, self.shape.hidden_size))
    }

    /// Whether the projected keys are the values, too.
    fn has_key_values(&self) -> bool {
        self.shape.layer(self.layer).key_values
    }

    /// Heads of q, k and v.
    fn joined_heads(&self) -> usize {
        self.shape.num_heads + 2 * self.shape.layer(self.layer).num_kv_heads
    }

    /// Which of q, k and v vector `place` of a joined row belongs to. They follow one another; in Bloom head by head.
    fn part(&self, place: usize) -> usize {
        let (heads, kv_heads) = (self.shape.num_heads, self.shape.layer(self.layer).num_kv_heads);
        match place.checked_sub(heads) {
            _ if self.shape.variant.naming == Naming::Bloom => place % 3,
            None => 0,
            Some(of_key) => 1 + of_key / kv_heads,
        }
    }
}

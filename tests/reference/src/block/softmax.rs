//! A block's attention by softmax, from its projections to the projection back.

use super::latent::Latent;
use super::{Activations, Block, ReadGradients, add};
use crate::attention::{Attention, attention, attention_backward, sinks_backward};
use crate::gpt::{Weights, accumulate};
use crate::largest_scores::{by_head, largest_scores};
use crate::rms_norm::{rms_norm, rms_norm_backward};
use crate::rope::{rope, rope_backward};
use crate::variant::QkNorm;
use crate::vector::scaled;

/// Activations saved for the backward pass.
pub(super) struct Softmax {
    /// Projected queries (N, H·d) and keys (N, K·d), rotated if their norm comes after that, which only the backward
    /// pass of their norm reads.
    q_projected: Vec<f64>,
    k_projected: Vec<f64>,
    /// Projected values (N, K·e), if they are normalised.
    v_projected: Vec<f64>,
    /// Queries, keys and values before they are clipped, if they are.
    unclipped: Option<[Vec<f64>; 3]>,
    /// What latent attention makes them of.
    latent: Option<Latent>,
    /// Inputs of attention: q (N, H·d), k (N, K·d), v (N, K·e).
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    /// Output of attention and its gate, (N, H·e); no gate where there is none.
    attended: Vec<f64>,
    gate: Vec<f64>,
}

impl Softmax {
    /// The keys and values that attention saw.
    pub(super) fn keys_and_values(&self) -> [&[f64]; 2] {
        [&self.k, &self.v]
    }
}

impl Block<'_> {
    /// What attention makes of its input (N, D), its projection back included: (N, D). Without keys and values of its
    /// own it reads those of another block, `shared`.
    pub(super) fn softmax(&self, input: &[f64], shared: Option<[&[f64]; 2]>) -> (Vec<f64>, Softmax) {
        let names = self.names();
        let store = |values| self.shape.storage.store(values);
        let (latent, [q_projected, k_projected, mut v]) = match &self.shape.latent {
            Some(sizes) => {
                let (saved, qkv) = self.latent(sizes, input);
                (Some(saved), qkv)
            }
            None => (None, self.project_qkv(input).map(store)),
        };
        let [q_projected, gate] = self.split_gates(q_projected);
        let has_keys = shared.is_none();
        let mut v_projected = Vec::new();
        if self.shape.variant.value_norm && has_keys {
            let ones = self.unit_weights();
            let normed = store(rms_norm(&v, &ones, ones.len(), self.shape.norm_eps));
            v_projected = std::mem::replace(&mut v, normed);
        }
        let is_last = self.shape.qk_norm && self.shape.variant.qk_norm == QkNorm::RotatedHeads;
        let norms = |[q, k]: [&[f64]; 2]| {
            let normed = |i: usize, x: &[f64]| store(self.head_norm(i, x));
            [normed(0, q), if has_keys { normed(1, k) } else { Vec::new() }]
        };
        let [mut q, mut k] = match self.shape.qk_norm && !is_last {
            true => norms([&q_projected, &k_projected]),
            false => [q_projected.clone(), k_projected.clone()],
        };
        let unclipped = self.shape.variant.clip_qkv.map(|limit| {
            let clip = |x: &mut Vec<f64>| {
                let clipped = store(x.iter().map(|x| x.clamp(-limit, limit)).collect());
                std::mem::replace(x, clipped)
            };
            [&mut q, &mut k, &mut v].map(clip)
        });
        let layer = self.shape.layer(self.layer);
        if let Some(rotation) = &layer.rope {
            rope(&mut q, self.positions, self.shape.num_heads, rotation);
            if has_keys {
                rope(&mut k, self.positions, layer.num_kv_heads, rotation);
            }
            self.scale_queries(&mut q);
            (q, k) = (store(q), store(k));
        }
        let (mut q_normed, mut k_normed) = (q_projected, k_projected);
        if is_last {
            (q_normed, k_normed) = (q, k);
            [q, k] = norms([&q_normed, &k_normed]);
        }
        if let Some(shared) = shared {
            [k, v] = shared.map(<[f64]>::to_vec);
        }
        let attended = store(attention(&q, &k, &v, &self.attention()).0);
        let gated = self.gated(&attended, &gate);
        // Attention is linear in the values, whose factor the projection back has instead: nothing is stored between.
        let mixed = scaled(&self.project(names.out, &gated), self.shape.factors.values);
        let saved = Softmax {
            q_projected: q_normed,
            k_projected: k_normed,
            v_projected,
            unclipped,
            latent,
            q,
            k,
            v,
            attended,
            gate,
        };
        (mixed, saved)
    }

    /// The gradient (N, D) of the input, given that of [`Block::softmax`]; adds those of the weights to `grads`, and
    /// those of keys and values that are another block's to `read`, which has those of its own.
    pub(super) fn softmax_backward(
        &self,
        saved: &Softmax,
        input: &[f64],
        dadded: &[f64],
        grads: &mut Weights,
        read: &mut ReadGradients,
    ) -> Vec<f64> {
        let names = self.names();
        let store = |values| self.shape.storage.store(values);
        let gated = self.gated(&saved.attended, &saved.gate);
        let dadded = &scaled(dadded, self.shape.factors.values);
        let dgated = store(self.project_backward(names.out, &gated, dadded, grads));
        let [dattended, dgate] = self.gated_backward(&saved.attended, &saved.gate, dgated);
        let (dq, dk, dv) = attention_backward(&saved.q, &saved.k, &saved.v, &dattended, &self.attention());
        let [mut dq, mut dk, mut dv] = [dq, dk, dv].map(store);
        let layer = self.shape.layer(self.layer);
        if let Some([dk_read, dv_read]) = read.keys.remove(&self.layer) {
            (dk, dv) = (store(add(&dk, &dk_read)), store(add(&dv, &dv_read)));
        }
        if let Some(source) = layer.kv_source {
            let own = [std::mem::take(&mut dk), std::mem::take(&mut dv)];
            let sum = match read.keys.remove(&source) {
                Some([dk, dv]) => [store(add(&dk, &own[0])), store(add(&dv, &own[1]))],
                None => own,
            };
            read.keys.insert(source, sum);
        }
        let has_keys = layer.kv_source.is_none();
        if self.shape.variant.value_norm && has_keys {
            let ones = self.unit_weights();
            let eps = self.shape.norm_eps;
            dv = store(rms_norm_backward(&saved.v_projected, &ones, &dv, ones.len(), eps).0);
        }
        if layer.sinks {
            let dsinks = sinks_backward(&saved.q, &saved.k, &saved.v, &dattended, &self.attention());
            accumulate(grads, &self.path(names.sinks), dsinks);
        }
        let is_last = self.shape.qk_norm && self.shape.variant.qk_norm == QkNorm::RotatedHeads;
        let mut norms_backward = |dq: &[f64], dk: &[f64]| {
            let mut of = |i: usize, x: &[f64], dy| store(self.head_norm_backward(i, x, dy, grads));
            [of(0, &saved.q_projected, dq), if has_keys { of(1, &saved.k_projected, dk) } else { Vec::new() }]
        };
        if is_last {
            [dq, dk] = norms_backward(&dq, &dk);
        }
        if let Some(rotation) = &layer.rope {
            self.scale_queries(&mut dq);
            rope_backward(&mut dq, self.positions, self.shape.num_heads, rotation);
            if has_keys {
                rope_backward(&mut dk, self.positions, layer.num_kv_heads, rotation);
            }
            (dq, dk) = (store(dq), store(dk));
        }
        if let (Some(limit), Some(unclipped)) = (self.shape.variant.clip_qkv, &saved.unclipped) {
            for (x, dx) in unclipped.iter().zip([&mut dq, &mut dk, &mut dv]) {
                let beyond = x.iter().map(|x| x.abs() > limit);
                dx.iter_mut().zip(beyond).filter(|(_, beyond)| *beyond).for_each(|(dx, _)| *dx = 0.0);
            }
        }
        if self.shape.qk_norm && !is_last {
            [dq, dk] = norms_backward(&dq, &dk);
        }
        let dq = self.join_gates(dq, &dgate);
        let dqkv = [&dq[..], &dk, &dv];
        match (&self.shape.latent, &saved.latent) {
            (Some(sizes), Some(latent)) => self.latent_backward(sizes, latent, input, dqkv, grads),
            _ => self.project_qkv_backward(input, dqkv, grads),
        }
    }

    /// The largest attention score of each head; 0 where there are none.
    pub(crate) fn largest_scores(&self, saved: &Activations) -> Vec<f64> {
        let Some(saved) = &saved.softmax else { return vec![0.0; self.shape.num_heads] };
        by_head(&largest_scores(&saved.q, &saved.k, &self.attention()), self.shape.num_heads)
    }

    /// Causal attention within each sequence, with scores scaled by their factor, 1/√head_dim, or as latent
    /// attention has it.
    fn attention(&self) -> Attention<'_> {
        let (latent, layer) = (self.shape.latent, self.shape.layer(self.layer));
        let scale = latent.map_or(1.0 / (layer.head_dim as f64).sqrt(), |latent| latent.scale);
        Attention {
            tokens: self.sequence_length,
            heads: self.shape.num_heads,
            kv_heads: layer.num_kv_heads,
            head_dim: layer.head_dim,
            value_dim: self.shape.value_dim(self.layer),
            causal: true,
            scale: self.shape.factors.scores.unwrap_or(scale),
            soft_cap: self.shape.variant.score_cap,
            window: layer.window,
            starts: None,
            factors: None,
            alibi: self.shape.variant.alibi,
            sinks: layer.sinks.then(|| &self.weights[&self.path(self.names().sinks)][..]),
        }
    }

    /// Multiplies queries (N, H·d), or their gradient, by the factors of their positions, if the layer has some. The
    /// product is stored together with the rotation.
    fn scale_queries(&self, q: &mut [f64]) {
        let layer = self.shape.layer(self.layer);
        if let Some(scaling) = layer.query_scaling {
            scaling.scale(q, self.positions, self.shape.num_heads * layer.head_dim);
        }
    }

    /// The weights of a norm of heads that has none.
    fn unit_weights(&self) -> Vec<f64> {
        vec![1.0; self.shape.layer(self.layer).head_dim]
    }
}

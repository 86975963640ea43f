//! One block of the model: attention, then a feed-forward network, each on the normalised residual and added
//! to the residual.
//!
//! Llama: x ← x + o_proj(attention(rope(q), rope(k), v)), then x ← x + down_proj(silu(gate)·up).
//! GPT-2: x ← x + c_proj(attention(q, k, v)), then x ← x + c_proj(gelu(c_fc(…))).

mod feed_forward;
mod latent;
mod lora;
mod qkv;

pub(super) use feed_forward::FeedForward;

use std::borrow::Cow;

use super::attention::{Attention, attention, attention_backward, sinks_backward};
use super::gpt::{Architecture, Shape, Weights, accumulate};
use super::largest_scores::{by_head, largest_scores};
use super::layer_norm::{layer_norm, layer_norm_backward};
use super::matmul::{linear, linear_backward, matmul_nn, matmul_nt, matmul_tn};
use super::mixture::Memory;
use super::rms_norm::{rms_norm, rms_norm_backward};
use super::rope::{rope, rope_backward};
use super::variant::{Names, NormBias, Norms, Parallel, QkNorm};
use super::vector::{add, scaled};
use latent::Latent;

/// What the sinks of a block are called.
pub(super) const SINKS: &str = "self_attn.sinks";

/// A block of a model, applied to a batch of N = B·T tokens.
pub(super) struct Block<'a> {
    pub(super) shape: &'a Shape,
    pub(super) weights: &'a Weights,
    /// Index of the block, part of the names of its tensors.
    pub(super) layer: usize,
    /// Position of every token, (N).
    pub(super) positions: &'a [u32],
    /// T.
    pub(super) sequence_length: usize,
    /// State of the router, if the block is a mixture.
    pub(super) memory: Option<&'a Memory>,
}

/// Activations saved for the backward pass. H query heads, K key and value heads of d elements; F is the width of the
/// feed-forward network.
pub(super) struct Activations {
    /// Input of the block, (N, D).
    x: Vec<f64>,
    /// x after the first norm, (N, D).
    attention_input: Vec<f64>,
    /// Projected queries (N, H·d) and keys (N, K·d), rotated if their norm comes after that, which only the backward
    /// pass of their norm reads.
    q_projected: Vec<f64>,
    k_projected: Vec<f64>,
    /// Projected values (N, K·d), if they are normalised.
    v_projected: Vec<f64>,
    /// What latent attention makes them of.
    latent: Option<Latent>,
    /// Inputs of attention: q (N, H·d), k (N, K·d), v (N, K·d).
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    /// Output of attention, (N, H·d).
    attended: Vec<f64>,
    /// The output of attention (N, D), if a norm comes after it.
    attention_output: Vec<f64>,
    /// The residual stream between attention and feed-forward network, (N, D).
    x_middle: Vec<f64>,
    /// x_middle after the second norm, (N, D).
    feed_forward_input: Vec<f64>,
    pub(super) feed_forward: FeedForward,
    /// The output of the feed-forward network (N, D), if a norm comes after it.
    feed_forward_output: Vec<f64>,
}

impl Block<'_> {
    /// The output (N, D) of the block for the input x (N, D).
    #[track_caller]
    pub(super) fn forward(&self, x: Vec<f64>) -> (Vec<f64>, Activations) {
        let names = self.names();
        let store = |values| self.shape.storage.store(values);
        let attention_input = self.norm_before(names.attention_norm, &x);
        let (latent, [q_projected, k_projected, mut v]) = match &self.shape.latent {
            Some(sizes) => {
                let (saved, qkv) = self.latent(sizes, &attention_input);
                (Some(saved), qkv)
            }
            None => (None, self.project_qkv(&attention_input).map(store)),
        };
        let mut v_projected = Vec::new();
        if self.shape.variant.value_norm {
            let ones = self.unit_weights();
            let normed = store(rms_norm(&v, &ones, ones.len(), self.shape.norm_eps));
            v_projected = std::mem::replace(&mut v, normed);
        }
        let is_last = self.shape.qk_norm && self.shape.variant.qk_norm == QkNorm::RotatedHeads;
        let norms = |qk: [&[f64]; 2]| [0, 1].map(|i| store(self.norm(names.qk_norms[i], qk[i])));
        let [mut q, mut k] = match self.shape.qk_norm && !is_last {
            true => norms([&q_projected, &k_projected]),
            false => [q_projected.clone(), k_projected.clone()],
        };
        let layer = self.shape.layer(self.layer);
        if let Some(rotation) = &layer.rope {
            rope(&mut q, self.positions, self.shape.num_heads, rotation);
            rope(&mut k, self.positions, layer.num_kv_heads, rotation);
            self.scale_queries(&mut q);
            (q, k) = (store(q), store(k));
        }
        let (mut q_normed, mut k_normed) = (q_projected, k_projected);
        if is_last {
            (q_normed, k_normed) = (q, k);
            [q, k] = norms([&q_normed, &k_normed]);
        }
        let attended = store(attention(&q, &k, &v, &self.attention()).0);
        let (x_middle, attention_output) = self.plus(&x, self.project(names.out, &attended), 0);

        let feed_forward_input = match self.shape.variant.parallel {
            None => self.norm_before(names.ffn_norm, &x_middle),
            Some(Parallel::TwoNorms) => self.norm_before(names.ffn_norm, &x),
            Some(Parallel::OneNorm) => attention_input.clone(),
        };
        let (added, feed_forward) = self.feed_forward(&feed_forward_input);
        let (mut out, feed_forward_output) = self.plus(&x_middle, added, 1);
        if let Some(factor) = self.scalar() {
            out = store(scaled(&out, factor));
        }

        let saved = Activations {
            x,
            attention_input,
            q_projected: q_normed,
            k_projected: k_normed,
            v_projected,
            latent,
            q,
            k,
            v,
            attended,
            attention_output,
            x_middle,
            feed_forward_input,
            feed_forward,
            feed_forward_output,
        };
        (out, saved)
    }

    /// The gradient (N, D) of the input, given that of the output; adds those of the weights to `grads`. It includes
    /// the balance losses of a mixture, weighted by `seed` times their factors.
    #[track_caller]
    pub(super) fn backward(
        &self,
        saved: &Activations,
        dout: &[f64],
        seed: f64,
        grads: &mut Weights,
    ) -> Vec<f64> {
        let names = self.names();
        let store = |values| self.shape.storage.store(values);
        let dout = &match self.scalar() {
            Some(factor) => store(scaled(dout, factor)),
            None => dout.to_vec(),
        };
        let input = &saved.feed_forward_input;
        let dadded = scaled(dout, self.shape.factors.residual);
        let dadded = self.post_norm_backward(&saved.feed_forward_output, &dadded, 1, grads);
        let dinput = store(self.feed_forward_backward(input, &saved.feed_forward, &dadded, seed, grads));
        let parallel = self.shape.variant.parallel;
        // What the feed-forward network gives the sum after attention, the input of the layer, and its norm.
        let (mut dx_middle, mut dx, mut dshared) = (dout.to_vec(), None, None);
        match parallel {
            None => {
                let dnorm = self.norm_before_backward(names.ffn_norm, &saved.x_middle, dinput, grads);
                dx_middle = store(add(dout, &dnorm));
            }
            Some(Parallel::TwoNorms) => {
                dx = Some(self.norm_before_backward(names.ffn_norm, &saved.x, dinput, grads));
            }
            Some(Parallel::OneNorm) => dshared = Some(dinput),
        }

        let dadded = scaled(&dx_middle, self.shape.factors.residual);
        let dadded = self.post_norm_backward(&saved.attention_output, &dadded, 0, grads);
        let dattended = store(self.project_backward(names.out, &saved.attended, &dadded, grads));
        let (dq, dk, dv) = attention_backward(&saved.q, &saved.k, &saved.v, &dattended, &self.attention());
        let [mut dq, mut dk, mut dv] = [dq, dk, dv].map(store);
        if self.shape.variant.value_norm {
            let ones = self.unit_weights();
            let eps = self.shape.norm_eps;
            dv = store(rms_norm_backward(&saved.v_projected, &ones, &dv, ones.len(), eps).0);
        }
        if self.shape.variant.sinks {
            let dsinks = sinks_backward(&saved.q, &saved.k, &saved.v, &dattended, &self.attention());
            accumulate(grads, &self.path(SINKS), dsinks);
        }
        let is_last = self.shape.qk_norm && self.shape.variant.qk_norm == QkNorm::RotatedHeads;
        let mut norms_backward = |dq: &[f64], dk: &[f64]| {
            let mut of = |i: usize, x: &[f64], dy| store(self.norm_backward(names.qk_norms[i], x, dy, grads));
            [of(0, &saved.q_projected, dq), of(1, &saved.k_projected, dk)]
        };
        if is_last {
            [dq, dk] = norms_backward(&dq, &dk);
        }
        let layer = self.shape.layer(self.layer);
        if let Some(rotation) = &layer.rope {
            self.scale_queries(&mut dq);
            rope_backward(&mut dq, self.positions, self.shape.num_heads, rotation);
            rope_backward(&mut dk, self.positions, layer.num_kv_heads, rotation);
            (dq, dk) = (store(dq), store(dk));
        }
        if self.shape.qk_norm && !is_last {
            [dq, dk] = norms_backward(&dq, &dk);
        }
        let (input, dqkv) = (&saved.attention_input, [&dq[..], &dk, &dv]);
        let dinput = match (&self.shape.latent, &saved.latent) {
            (Some(sizes), Some(latent)) => self.latent_backward(sizes, latent, input, dqkv, grads),
            _ => self.project_qkv_backward(input, dqkv, grads),
        };
        let dinput = store(dshared.map_or(dinput.clone(), |dshared| add(&dinput, &dshared)));
        let dresidual = dx.map_or(dx_middle.clone(), |dx| add(&dx_middle, &dx));
        store(add(&dresidual, &self.norm_before_backward(names.attention_norm, &saved.x, dinput, grads)))
    }

    /// The residual stream x (N, D) plus what attention or feed-forward network adds, times its factor.
    fn added_to(&self, x: &[f64], added: &[f64]) -> Vec<f64> {
        add(x, &scaled(added, self.shape.factors.residual))
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

    /// The factor of the block's result.
    fn scalar(&self) -> Option<f64> {
        self.shape.variant.layer_scalars.then(|| self.weights[&self.path("layer_scalar")][0])
    }

    /// The largest attention score of each head.
    pub(super) fn largest_scores(&self, saved: &Activations) -> Vec<f64> {
        by_head(&largest_scores(&saved.q, &saved.k, &self.attention()), self.shape.num_heads)
    }

    /// Causal attention within each sequence, with scores scaled by their factor, 1/√head_dim, or as latent attention has it.
    fn attention(&self) -> Attention<'_> {
        let (latent, layer) = (self.shape.latent, self.shape.layer(self.layer));
        let scale = latent.map_or(1.0 / (layer.head_dim as f64).sqrt(), |latent| latent.scale);
        Attention {
            tokens: self.sequence_length,
            heads: self.shape.num_heads,
            kv_heads: layer.num_kv_heads,
            head_dim: layer.head_dim,
            value_dim: latent.map_or(layer.head_dim, |latent| latent.value_dim),
            causal: true,
            scale: self.shape.factors.scores.unwrap_or(scale),
            soft_cap: self.shape.variant.score_cap,
            window: layer.window,
            starts: None,
            factors: None,
            alibi: self.shape.variant.alibi,
            sinks: self.shape.variant.sinks.then(|| &self.weights[&self.path(SINKS)][..]),
        }
    }

    /// The linear layer `name` of the block, with a bias if the weights contain one, and with its adapter: x (N, k) ->
    /// (N, n). Weights are (n, k), or (k, n) where they are stored transposed.
    #[track_caller]
    fn project(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let w = &self.weights[&self.tensor(name, "weight")];
        let bias = self.weights.get(&self.tensor(name, "bias"));
        let (m, n, k) = self.sizes(x, w);
        let y = if self.shape.is_transposed() {
            let mut y = matmul_nn(x, w, m, n, k);
            for (y, bias) in y.iter_mut().zip(bias.into_iter().flatten().cycle()) {
                *y += bias;
            }
            y
        } else {
            linear(x, w, bias.map(Vec::as_slice), m, n, k)
        };
        self.adapted(name, x, y)
    }

    /// The gradient (N, k) of the input of [`Block::project`], given dy (N, n).
    #[track_caller]
    fn project_backward(&self, name: &str, x: &[f64], dy: &[f64], grads: &mut Weights) -> Vec<f64> {
        let (weight, bias) = (self.tensor(name, "weight"), self.tensor(name, "bias"));
        let w = &self.weights[&weight];
        let (m, n, k) = self.sizes(x, w);
        let (dx, dw, dbias) = if self.shape.is_transposed() {
            let dbias = dy.chunks_exact(n).fold(vec![0.0; n], |sum, row| add(&sum, row));
            (matmul_nt(dy, w, m, k, n), matmul_tn(x, dy, k, n, m), dbias)
        } else {
            linear_backward(x, w, dy, m, n, k)
        };
        accumulate(grads, &weight, dw);
        if self.weights.contains_key(&bias) {
            accumulate(grads, &bias, dbias);
        }
        self.adapted_backward(name, x, dy, dx, grads)
    }

    /// The norm `name` of the block, over rows as long as its weight: a token, or one head of it.
    #[track_caller]
    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        self.shape.norm(self.weights, &self.path(name), x)
    }

    /// x (N, D) after the norm before a sublayer, or x if there is none.
    fn norm_before(&self, name: &str, x: &[f64]) -> Vec<f64> {
        match self.shape.variant.norms {
            Norms::After => x.to_vec(),
            Norms::Before | Norms::Both => self.shape.storage.store(self.norm(name, x)),
        }
    }

    fn norm_before_backward(&self, name: &str, x: &[f64], dy: Vec<f64>, grads: &mut Weights) -> Vec<f64> {
        match self.shape.variant.norms {
            Norms::After => dy,
            Norms::Before | Norms::Both => self.norm_backward(name, x, &dy, grads),
        }
    }

    /// x + the output y (N, D) of sublayer number `sublayer`, after its norm if there is one; then y as stored, too.
    fn plus(&self, x: &[f64], y: Vec<f64>, sublayer: usize) -> (Vec<f64>, Vec<f64>) {
        let store = |values| self.shape.storage.store(values);
        if self.shape.variant.norms == Norms::Before {
            return (store(self.added_to(x, &y)), Vec::new());
        }
        let y = store(y);
        (store(self.added_to(x, &self.norm(self.names().post_norms[sublayer], &y))), y)
    }

    /// The gradient of the output y of a sublayer, given that of the sum.
    fn post_norm_backward(&self, y: &[f64], dsum: &[f64], sublayer: usize, grads: &mut Weights) -> Vec<f64> {
        if self.shape.variant.norms == Norms::Before {
            return dsum.to_vec();
        }
        self.shape.storage.store(self.norm_backward(self.names().post_norms[sublayer], y, dsum, grads))
    }

    /// The gradient of the input of [`Block::norm`], given dy; all in the shape of x.
    #[track_caller]
    fn norm_backward(&self, name: &str, x: &[f64], dy: &[f64], grads: &mut Weights) -> Vec<f64> {
        self.shape.norm_backward(self.weights, &self.path(name), x, dy, grads)
    }

    /// The full name of a tensor of this block.
    fn tensor(&self, name: &str, kind: &str) -> String {
        format!("{}.{kind}", self.path(name))
    }

    /// The full name of a layer of this block.
    fn path(&self, name: &str) -> String {
        format!("{}.{}.{name}", self.names().layers, self.layer)
    }

    fn names(&self) -> &'static Names {
        self.shape.names()
    }

    /// (m, n, k) of the linear layer with n·k weights w on x (m, k), with one row per token.
    fn sizes(&self, x: &[f64], w: &[f64]) -> (usize, usize, usize) {
        let m = self.positions.len();
        let k = x.len() / m;
        (m, w.len() / k, k)
    }
}

impl Shape {
    /// The architecture's norm, RMSNorm or LayerNorm, over rows as long as its weight.
    #[track_caller]
    pub(super) fn norm(&self, weights: &Weights, name: &str, x: &[f64]) -> Vec<f64> {
        let w = &weights[&format!("{name}.weight")];
        let factors = self.norm_factors(w);
        match self.norm_bias() {
            None => rms_norm(x, &factors, w.len(), self.norm_eps),
            Some(NormBias::With) => {
                layer_norm(x, &factors, &weights[&format!("{name}.bias")], w.len(), self.norm_eps)
            }
            Some(NormBias::Without) => layer_norm(x, &factors, &vec![0.0; w.len()], w.len(), self.norm_eps),
        }
    }

    /// Whether LayerNorms have a bias; `None` for RMSNorms.
    pub(super) fn norm_bias(&self) -> Option<NormBias> {
        match self.architecture {
            Architecture::Llama => self.variant.layer_norm,
            Architecture::Gpt2 { .. } => Some(NormBias::With),
        }
    }

    /// The factors of a norm with the weights `w`.
    fn norm_factors<'a>(&self, w: &'a [f64]) -> Cow<'a, [f64]> {
        match self.variant.zero_centered_norms {
            true => w.iter().map(|w| 1.0 + w).collect(),
            false => w.into(),
        }
    }

    /// The gradient of the input of [`Shape::norm`], given dy; adds those of the weights to `grads`.
    #[track_caller]
    pub(super) fn norm_backward(
        &self,
        weights: &Weights,
        name: &str,
        x: &[f64],
        dy: &[f64],
        grads: &mut Weights,
    ) -> Vec<f64> {
        let weight = format!("{name}.weight");
        let w = &weights[&weight];
        let factors = self.norm_factors(w);
        let (dx, dw) = match self.norm_bias() {
            None => rms_norm_backward(x, &factors, dy, w.len(), self.norm_eps),
            Some(bias) => {
                let (dx, dw, db) = layer_norm_backward(x, &factors, dy, w.len(), self.norm_eps);
                if bias == NormBias::With {
                    accumulate(grads, &format!("{name}.bias"), db);
                }
                (dx, dw)
            }
        };
        accumulate(grads, &weight, dw);
        dx
    }
}

//! One block of the model: attention, then a feed-forward network, each on the normalised residual and added
//! to the residual.
//!
//! x ← x + o_proj(attention(rope(q), rope(k), v)), then x ← x + down_proj(silu(gate)·up).

use super::attention::{Attention, attention, attention_backward};
use super::gpt::{Shape, Weights, accumulate};
use super::matmul::{linear, linear_backward};
use super::rms_norm::{rms_norm, rms_norm_backward};
use super::rope::{rope, rope_backward};
use super::swiglu::{swiglu, swiglu_backward};
use super::vector::add;

/// A block of a model, on a batch of N = B·T tokens.
pub(super) struct Block<'a> {
    pub(super) shape: &'a Shape,
    pub(super) weights: &'a Weights,
    /// Number of the block, which is part of its tensors' names.
    pub(super) layer: usize,
    /// Position of every token, (N).
    pub(super) positions: &'a [u32],
    /// T.
    pub(super) sequence_length: usize,
}

/// What the forward pass keeps for the backward pass. H query heads, K key and value heads of d elements; F
/// is the width of the feed-forward network.
pub(super) struct Activations {
    /// Input of the block, (N, D).
    x: Vec<f64>,
    /// x after the first norm, (N, D).
    attention_input: Vec<f64>,
    /// Queries and keys as projected, (N, H·d) and (N, K·d); only their own norm looks back at them.
    q_projected: Vec<f64>,
    k_projected: Vec<f64>,
    /// What attention saw: q (N, H·d), k (N, K·d), v (N, K·d).
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    /// What attention gave, (N, H·d).
    attended: Vec<f64>,
    /// The residual between the two halves, (N, D).
    x_middle: Vec<f64>,
    /// x_middle after the second norm, (N, D).
    feed_forward_input: Vec<f64>,
    /// (N, F) each.
    gate: Vec<f64>,
    up: Vec<f64>,
    /// silu(gate)·up, (N, F).
    gated: Vec<f64>,
}

impl Block<'_> {
    /// The output (N, D) of the block for the input x (N, D).
    #[track_caller]
    pub(super) fn forward(&self, x: Vec<f64>) -> (Vec<f64>, Activations) {
        let Shape { num_heads, num_kv_heads, rope: rotation, qk_norm, .. } = self.shape;

        let attention_input = self.norm("input_layernorm", &x);
        let q_projected = self.project("self_attn.q_proj", &attention_input);
        let k_projected = self.project("self_attn.k_proj", &attention_input);
        let v = self.project("self_attn.v_proj", &attention_input);
        let (mut q, mut k) = if *qk_norm {
            (self.norm("self_attn.q_norm", &q_projected), self.norm("self_attn.k_norm", &k_projected))
        } else {
            (q_projected.clone(), k_projected.clone())
        };
        rope(&mut q, self.positions, *num_heads, rotation);
        rope(&mut k, self.positions, *num_kv_heads, rotation);
        let (attended, _) = attention(&q, &k, &v, &self.attention());
        let x_middle = add(&x, &self.project("self_attn.o_proj", &attended));

        let feed_forward_input = self.norm("post_attention_layernorm", &x_middle);
        let gate = self.project("mlp.gate_proj", &feed_forward_input);
        let up = self.project("mlp.up_proj", &feed_forward_input);
        let gated = swiglu(&gate, &up);
        let out = add(&x_middle, &self.project("mlp.down_proj", &gated));

        let saved = Activations {
            x,
            attention_input,
            q_projected,
            k_projected,
            q,
            k,
            v,
            attended,
            x_middle,
            feed_forward_input,
            gate,
            up,
            gated,
        };
        (out, saved)
    }

    /// The gradient (N, D) of the input, given that of the output; adds those of the weights to `grads`.
    #[track_caller]
    pub(super) fn backward(&self, saved: &Activations, dout: &[f64], grads: &mut Weights) -> Vec<f64> {
        let Shape { num_heads, num_kv_heads, rope: rotation, qk_norm, .. } = self.shape;

        let dgated = self.project_backward("mlp.down_proj", &saved.gated, dout, grads);
        let (dgate, dup) = swiglu_backward(&saved.gate, &saved.up, &dgated);
        let dinput = add(
            &self.project_backward("mlp.gate_proj", &saved.feed_forward_input, &dgate, grads),
            &self.project_backward("mlp.up_proj", &saved.feed_forward_input, &dup, grads),
        );
        let dnorm = self.norm_backward("post_attention_layernorm", &saved.x_middle, &dinput, grads);
        let dx_middle = add(dout, &dnorm);

        let dattended = self.project_backward("self_attn.o_proj", &saved.attended, &dx_middle, grads);
        let (mut dq, mut dk, dv) =
            attention_backward(&saved.q, &saved.k, &saved.v, &dattended, &self.attention());
        rope_backward(&mut dq, self.positions, *num_heads, rotation);
        rope_backward(&mut dk, self.positions, *num_kv_heads, rotation);
        if *qk_norm {
            dq = self.norm_backward("self_attn.q_norm", &saved.q_projected, &dq, grads);
            dk = self.norm_backward("self_attn.k_norm", &saved.k_projected, &dk, grads);
        }
        let dqk = add(
            &self.project_backward("self_attn.q_proj", &saved.attention_input, &dq, grads),
            &self.project_backward("self_attn.k_proj", &saved.attention_input, &dk, grads),
        );
        let dinput =
            add(&dqk, &self.project_backward("self_attn.v_proj", &saved.attention_input, &dv, grads));
        add(&dx_middle, &self.norm_backward("input_layernorm", &saved.x, &dinput, grads))
    }

    /// Causal attention within each sequence, with scores scaled by 1/√head_dim.
    fn attention(&self) -> Attention<'static> {
        Attention {
            tokens: self.sequence_length,
            heads: self.shape.num_heads,
            kv_heads: self.shape.num_kv_heads,
            head_dim: self.shape.head_dim,
            value_dim: self.shape.head_dim,
            causal: true,
            scale: 1.0 / (self.shape.head_dim as f64).sqrt(),
            window: self.shape.window,
            starts: None,
            factors: None,
        }
    }

    /// The linear layer `name` of the block, with a bias where the weights hold one: x (N, k) -> (N, n).
    #[track_caller]
    fn project(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let w = &self.weights[&self.tensor(name, "weight")];
        let bias = self.weights.get(&self.tensor(name, "bias"));
        let (m, n, k) = self.sizes(x, w);
        linear(x, w, bias.map(Vec::as_slice), m, n, k)
    }

    /// The gradient (N, k) of the input of [`Block::project`], given dy (N, n).
    #[track_caller]
    fn project_backward(&self, name: &str, x: &[f64], dy: &[f64], grads: &mut Weights) -> Vec<f64> {
        let (weight, bias) = (self.tensor(name, "weight"), self.tensor(name, "bias"));
        let w = &self.weights[&weight];
        let (m, n, k) = self.sizes(x, w);
        let (dx, dw, dbias) = linear_backward(x, w, dy, m, n, k);
        accumulate(grads, &weight, dw);
        if self.weights.contains_key(&bias) {
            accumulate(grads, &bias, dbias);
        }
        dx
    }

    /// The norm `name` of the block, over rows as long as its weight: a token, or one head of it.
    #[track_caller]
    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let w = &self.weights[&self.tensor(name, "weight")];
        rms_norm(x, w, w.len(), self.shape.rms_norm_eps)
    }

    /// The gradient of the input of [`Block::norm`], given dy; all in the shape of x.
    #[track_caller]
    fn norm_backward(&self, name: &str, x: &[f64], dy: &[f64], grads: &mut Weights) -> Vec<f64> {
        let name = self.tensor(name, "weight");
        let w = &self.weights[&name];
        let (dx, dw) = rms_norm_backward(x, w, dy, w.len(), self.shape.rms_norm_eps);
        accumulate(grads, &name, dw);
        dx
    }

    /// The full name of a tensor of this block.
    fn tensor(&self, name: &str, kind: &str) -> String {
        format!("model.layers.{}.{name}.{kind}", self.layer)
    }

    /// (m, n, k) of the linear layer w (n, k) on x (m, k); there is a row per token.
    fn sizes(&self, x: &[f64], w: &[f64]) -> (usize, usize, usize) {
        let m = self.positions.len();
        let k = x.len() / m;
        (m, w.len() / k, k)
    }
}

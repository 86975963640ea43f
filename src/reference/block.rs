//! One block of the model: attention, then a feed-forward network, each on the normalised residual and added
//! to the residual.
//!
//! Llama: x ← x + o_proj(attention(rope(q), rope(k), v)), then x ← x + down_proj(silu(gate)·up).
//! GPT-2: x ← x + c_proj(attention(q, k, v)), then x ← x + c_proj(gelu(c_fc(…))).

mod adapter;
mod feed_forward;

pub(super) use feed_forward::FeedForward;

use super::attention::{Attention, attention, attention_backward};
use super::gpt::{Architecture, Shape, Weights, accumulate};
use super::layer_norm::{layer_norm, layer_norm_backward};
use super::matmul::{linear, linear_backward, matmul_nn, matmul_nt, matmul_tn};
use super::mixture::Memory;
use super::rms_norm::{rms_norm, rms_norm_backward};
use super::rope::{rope, rope_backward};
use super::vector::add;

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
    /// Projected queries (N, H·d) and keys (N, K·d), which only the backward pass of their norm reads.
    q_projected: Vec<f64>,
    k_projected: Vec<f64>,
    /// Inputs of attention: q (N, H·d), k (N, K·d), v (N, K·d).
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    /// Output of attention, (N, H·d).
    attended: Vec<f64>,
    /// The residual stream between attention and feed-forward network, (N, D).
    x_middle: Vec<f64>,
    /// x_middle after the second norm, (N, D).
    feed_forward_input: Vec<f64>,
    pub(super) feed_forward: FeedForward,
}

impl Block<'_> {
    /// The output (N, D) of the block for the input x (N, D).
    #[track_caller]
    pub(super) fn forward(&self, x: Vec<f64>) -> (Vec<f64>, Activations) {
        let names = self.names();
        let store = |values| self.shape.storage.store(values);
        let attention_input = store(self.norm(names.attention_norm, &x));
        let [q_projected, k_projected, v] = self.project_qkv(&attention_input).map(store);
        let (mut q, mut k) = if self.shape.qk_norm {
            let norm = |name, x: &[f64]| store(self.norm(name, x));
            (norm("self_attn.q_norm", &q_projected), norm("self_attn.k_norm", &k_projected))
        } else {
            (q_projected.clone(), k_projected.clone())
        };
        if self.shape.architecture == Architecture::Llama {
            rope(&mut q, self.positions, self.shape.num_heads, &self.shape.rope);
            rope(&mut k, self.positions, self.shape.num_kv_heads, &self.shape.rope);
            (q, k) = (store(q), store(k));
        }
        let attended = store(attention(&q, &k, &v, &self.attention()).0);
        let x_middle = store(add(&x, &self.project(names.out, &attended)));

        let feed_forward_input = store(self.norm(names.ffn_norm, &x_middle));
        let (added, feed_forward) = self.feed_forward(&feed_forward_input);
        let out = store(add(&x_middle, &added));

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
            feed_forward,
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
        let input = &saved.feed_forward_input;
        let dinput = store(self.feed_forward_backward(input, &saved.feed_forward, dout, seed, grads));
        let dnorm = self.norm_backward(names.ffn_norm, &saved.x_middle, &dinput, grads);
        let dx_middle = store(add(dout, &dnorm));

        let dattended = store(self.project_backward(names.out, &saved.attended, &dx_middle, grads));
        let (dq, dk, dv) = attention_backward(&saved.q, &saved.k, &saved.v, &dattended, &self.attention());
        let [mut dq, mut dk, dv] = [dq, dk, dv].map(store);
        if self.shape.architecture == Architecture::Llama {
            rope_backward(&mut dq, self.positions, self.shape.num_heads, &self.shape.rope);
            rope_backward(&mut dk, self.positions, self.shape.num_kv_heads, &self.shape.rope);
            (dq, dk) = (store(dq), store(dk));
        }
        if self.shape.qk_norm {
            dq = store(self.norm_backward("self_attn.q_norm", &saved.q_projected, &dq, grads));
            dk = store(self.norm_backward("self_attn.k_norm", &saved.k_projected, &dk, grads));
        }
        let dinput = store(self.project_qkv_backward(&saved.attention_input, [&dq, &dk, &dv], grads));
        store(add(&dx_middle, &self.norm_backward(names.attention_norm, &saved.x, &dinput, grads)))
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

    /// q (N, H·d), k and v (N, K·d): from three linear layers in Llama, from the thirds of one in GPT-2.
    #[track_caller]
    fn project_qkv(&self, x: &[f64]) -> [Vec<f64>; 3] {
        match self.shape.architecture {
            Architecture::Llama => LLAMA_QKV.map(|name| self.project(name, x)),
            Architecture::Gpt2 { .. } => {
                let width = self.shape.num_heads * self.shape.head_dim;
                let qkv = self.project(GPT2_QKV, x); // (N, 3·H·d)
                let third = |i: usize| {
                    qkv.chunks_exact(3 * width).flat_map(move |row| &row[i * width..][..width]).copied()
                };
                [0, 1, 2].map(|i| third(i).collect())
            }
        }
    }

    /// The gradient (N, D) of the input of [`Block::project_qkv`].
    #[track_caller]
    fn project_qkv_backward(&self, x: &[f64], [dq, dk, dv]: [&[f64]; 3], grads: &mut Weights) -> Vec<f64> {
        match self.shape.architecture {
            Architecture::Llama => {
                let [q, k, v] = LLAMA_QKV;
                let dqk =
                    add(&self.project_backward(q, x, dq, grads), &self.project_backward(k, x, dk, grads));
                add(&dqk, &self.project_backward(v, x, dv, grads))
            }
            Architecture::Gpt2 { .. } => {
                let width = self.shape.num_heads * self.shape.head_dim;
                let rows = dq.chunks_exact(width).zip(dk.chunks_exact(width)).zip(dv.chunks_exact(width));
                let dqkv: Vec<f64> = rows.flat_map(|((dq, dk), dv)| [dq, dk, dv].concat()).collect();
                self.project_backward(GPT2_QKV, x, &dqkv, grads)
            }
        }
    }

    /// The linear layer `name` of the block, with a bias if the weights contain one, and with its adapter: x (N, k) ->
    /// (N, n). Weights are (n, k) in Llama and (k, n) in GPT-2.
    #[track_caller]
    fn project(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let w = &self.weights[&self.tensor(name, "weight")];
        let bias = self.weights.get(&self.tensor(name, "bias"));
        let (m, n, k) = self.sizes(x, w);
        let y = match self.shape.architecture {
            Architecture::Llama => linear(x, w, bias.map(Vec::as_slice), m, n, k),
            Architecture::Gpt2 { .. } => {
                let mut y = matmul_nn(x, w, m, n, k);
                for (y, bias) in y.iter_mut().zip(bias.into_iter().flatten().cycle()) {
                    *y += bias;
                }
                y
            }
        };
        self.adapted(name, x, y)
    }

    /// The gradient (N, k) of the input of [`Block::project`], given dy (N, n).
    #[track_caller]
    fn project_backward(&self, name: &str, x: &[f64], dy: &[f64], grads: &mut Weights) -> Vec<f64> {
        let (weight, bias) = (self.tensor(name, "weight"), self.tensor(name, "bias"));
        let w = &self.weights[&weight];
        let (m, n, k) = self.sizes(x, w);
        let (dx, dw, dbias) = match self.shape.architecture {
            Architecture::Llama => linear_backward(x, w, dy, m, n, k),
            Architecture::Gpt2 { .. } => (
                matmul_nt(dy, w, m, k, n),
                matmul_tn(x, dy, k, n, m),
                dy.chunks_exact(n).fold(vec![0.0; n], |sum, row| add(&sum, row)),
            ),
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
        match self.shape.architecture {
            Architecture::Llama => &LLAMA,
            Architecture::Gpt2 { .. } => &GPT2,
        }
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
        match self.architecture {
            Architecture::Llama => rms_norm(x, w, w.len(), self.norm_eps),
            Architecture::Gpt2 { .. } => {
                layer_norm(x, w, &weights[&format!("{name}.bias")], w.len(), self.norm_eps)
            }
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
        let (dx, dw) = match self.architecture {
            Architecture::Llama => rms_norm_backward(x, w, dy, w.len(), self.norm_eps),
            Architecture::Gpt2 { .. } => {
                let (dx, dw, db) = layer_norm_backward(x, w, dy, w.len(), self.norm_eps);
                accumulate(grads, &format!("{name}.bias"), db);
                (dx, dw)
            }
        };
        accumulate(grads, &weight, dw);
        dx
    }
}

/// Names of the layers of a block that both architectures have.
struct Names {
    layers: &'static str,
    attention_norm: &'static str,
    out: &'static str,
    ffn_norm: &'static str,
    down: &'static str,
}

const LLAMA: Names = Names {
    layers: "model.layers",
    attention_norm: "input_layernorm",
    out: "self_attn.o_proj",
    ffn_norm: "post_attention_layernorm",
    down: "mlp.down_proj",
};
const GPT2: Names = Names {
    layers: "transformer.h",
    attention_norm: "ln_1",
    out: "attn.c_proj",
    ffn_norm: "ln_2",
    down: "mlp.c_proj",
};
const LLAMA_QKV: [&str; 3] = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
const GPT2_QKV: &str = "attn.c_attn";

//! One block of the model: attention, then a feed-forward network, each on the normalised residual and added
//! to the residual.
//!
//! Llama: x ← x + o_proj(attention(rope(q), rope(k), v)), then x ← x + down_proj(silu(gate)·up).
//! GPT-2: x ← x + c_proj(attention(q, k, v)), then x ← x + c_proj(gelu(c_fc(…))).

mod convolution;
mod feed_forward;
mod gate;
mod head_norms;
mod input;
mod latent;
mod linear;
mod lora;
mod qkv;
mod softmax;

pub(super) use convolution::parameters as convolution_parameters;
pub(super) use feed_forward::{BESIDE_NORMS, FeedForward, XIELU};
pub(super) use input::parameters as input_parameters;

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::gpt::{Architecture, Shape, Weights, accumulate};
use super::layer_norm::{layer_norm, layer_norm_backward};
use super::matmul::{linear, linear_backward, matmul_nn, matmul_nt, matmul_tn};
use super::mixture::Memory;
use super::rms_norm::{rms_norm, rms_norm_backward};
use super::variant::{Names, NormBias, Norms, Parallel, QkNorm};
use super::vector::{add, scaled};
use softmax::Softmax;

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
    /// Those of attention by softmax.
    softmax: Option<Softmax>,
    /// The output of attention (N, D), if a norm comes after it, or the sum with it, if that is normalised.
    attention_output: Vec<f64>,
    /// The residual stream between attention and feed-forward network, (N, D).
    x_middle: Vec<f64>,
    /// x_middle after the second norm, (N, D).
    feed_forward_input: Vec<f64>,
    pub(super) feed_forward: FeedForward,
    /// The same of the feed-forward network.
    feed_forward_output: Vec<f64>,
    /// What the block's own embeddings add, if it has some.
    input: Option<input::Input>,
}

/// What a block reads beside the residual stream.
#[derive(Clone, Copy, Default)]
pub(super) struct Reads<'a> {
    /// The keys and values of another block, in one that has none.
    pub(super) keys: Option<[&'a [f64]; 2]>,
    /// Its own embeddings (N, P).
    pub(super) input: Option<&'a [f64]>,
}

/// The gradients of what blocks read beside the residual stream.
#[derive(Default)]
pub(super) struct ReadGradients {
    /// Of keys and values that later blocks read, by the block that made them.
    keys: BTreeMap<usize, [Vec<f64>; 2]>,
    /// Of the embeddings of each block, the last one first.
    pub(super) inputs: Vec<Vec<f64>>,
}

impl Activations {
    /// The keys and values that attention saw.
    #[track_caller]
    pub(super) fn keys_and_values(&self) -> [&[f64]; 2] {
        self.softmax.as_ref().expect("a block that others read has keys and values").keys_and_values()
    }
}

impl Block<'_> {
    /// The output (N, D) of the block for the input x (N, D).
    #[track_caller]
    pub(super) fn forward(&self, x: Vec<f64>, reads: Reads<'_>) -> (Vec<f64>, Activations) {
        let names = self.names();
        let store = |values| self.shape.storage.store(values);
        let attention_input = self.norm_before(names.attention_norm, &x);
        let layer = self.shape.layer(self.layer);
        let (mixed, softmax) = match (layer.linear, layer.convolution) {
            (Some(heads), _) => (self.linear(&heads, &attention_input), None),
            (None, Some(_)) => (self.convolution(&attention_input), None),
            (None, None) => {
                let (mixed, saved) = self.softmax(&attention_input, reads.keys);
                (mixed, Some(saved))
            }
        };
        let (x_middle, attention_output) = self.plus(&x, mixed, 0);

        let feed_forward_input = match self.shape.variant.parallel {
            None => self.norm_before(names.ffn_norm, &x_middle),
            Some(Parallel::TwoNorms) => self.norm_before(names.ffn_norm, &x),
            Some(Parallel::OneNorm) => attention_input.clone(),
        };
        let (added, feed_forward) = self.feed_forward(&feed_forward_input, &x_middle);
        let (mut out, feed_forward_output) = self.plus(&x_middle, added, 1);
        let mut input = None;
        if let Some(e) = reads.input {
            let (sum, saved) = self.plus_input(out, e);
            (out, input) = (sum, Some(saved));
        }
        if let Some(factor) = self.scalar() {
            out = store(scaled(&out, factor));
        }

        let saved = Activations {
            x,
            attention_input,
            softmax,
            attention_output,
            x_middle,
            feed_forward_input,
            feed_forward,
            feed_forward_output,
            input,
        };
        (out, saved)
    }

    /// The gradient (N, D) of the input, given that of the output; adds those of the weights to `grads`, and those of
    /// what it reads beside the residual stream to `read`, which has those of its own keys and values. It includes the
    /// balance losses of a mixture, weighted by `seed` times their factors.
    #[track_caller]
    pub(super) fn backward(
        &self,
        saved: &Activations,
        dout: &[f64],
        seed: f64,
        grads: &mut Weights,
        read: &mut ReadGradients,
    ) -> Vec<f64> {
        let names = self.names();
        let store = |values| self.shape.storage.store(values);
        let dout = &match self.scalar() {
            Some(factor) => store(scaled(dout, factor)),
            None => dout.to_vec(),
        };
        let dout = &match &saved.input {
            Some(input) => {
                let [dx, de] = self.plus_input_backward(input, dout, grads);
                read.inputs.push(de);
                dx
            }
            None => dout.clone(),
        };
        let dout = &self.sum_backward(&saved.feed_forward_output, dout.clone(), 1, grads);
        let input = &saved.feed_forward_input;
        let dadded = scaled(dout, self.shape.factors.residual);
        let dadded = self.post_norm_backward(&saved.feed_forward_output, &dadded, 1, grads);
        let inputs = [&input[..], &saved.x_middle];
        let (dinput, dread) = self.feed_forward_backward(inputs, &saved.feed_forward, &dadded, seed, grads);
        let dinput = store(dinput);
        let parallel = self.shape.variant.parallel;
        // What the feed-forward network gives the sum after attention, the input of the layer, and its norm.
        let (mut dx_middle, mut dx, mut dshared) = (dout.to_vec(), None, None);
        match parallel {
            None => {
                let dnorm = self.norm_before_backward(names.ffn_norm, &saved.x_middle, dinput, grads);
                let dsum = dread.map_or(dout.to_vec(), |dread| store(add(dout, &dread)));
                dx_middle = store(add(&dsum, &dnorm));
            }
            Some(Parallel::TwoNorms) => {
                dx = Some(self.norm_before_backward(names.ffn_norm, &saved.x, dinput, grads));
            }
            Some(Parallel::OneNorm) => dshared = Some(dinput),
        }

        let dx_middle = self.sum_backward(&saved.attention_output, dx_middle, 0, grads);
        let dadded = scaled(&dx_middle, self.shape.factors.residual);
        let dadded = self.post_norm_backward(&saved.attention_output, &dadded, 0, grads);
        let input = &saved.attention_input;
        let dinput = match (&saved.softmax, self.shape.layer(self.layer).linear) {
            (Some(softmax), _) => self.softmax_backward(softmax, input, &dadded, grads, read),
            (None, Some(heads)) => self.linear_backward(&heads, input, &dadded, grads),
            (None, None) => self.convolution_backward(input, &dadded, grads),
        };
        let dinput = store(dshared.map_or(dinput.clone(), |dshared| add(&dinput, &dshared)));
        let dresidual = dx.map_or(dx_middle.clone(), |dx| add(&dx_middle, &dx));
        store(add(&dresidual, &self.norm_before_backward(names.attention_norm, &saved.x, dinput, grads)))
    }

    /// The residual stream x (N, D) plus what attention or feed-forward network adds, times its factor.
    fn added_to(&self, x: &[f64], added: &[f64]) -> Vec<f64> {
        add(x, &scaled(added, self.shape.factors.residual))
    }

    /// The factor of the block's result.
    fn scalar(&self) -> Option<f64> {
        self.shape.variant.layer_scalars.then(|| self.weights[&self.path("layer_scalar")][0])
    }

    /// The linear layer `name` of the block, with a bias if the weights contain one, and with its adapter: x (N, k) ->
    /// (N, n). Weights are (n, k), or (k, n) where they are stored transposed.
    #[track_caller]
    fn project(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let w = &self.weights[&self.tensor(name, "weight")];
        let bias = self.weights.get(&self.tensor(name, "bias"));
        let (m, n, k) = self.sizes(x, w);
        let y =
            if self.shape.is_transposed() { matmul_nn(x, w, m, n, k) } else { linear(x, w, None, m, n, k) };
        let mut y = self.adapted(name, x, y);
        for (y, bias) in y.iter_mut().zip(bias.into_iter().flatten().cycle()) {
            *y += bias;
        }
        y
    }

    /// The gradient (N, k) of the input of [`Block::project`], given dy (N, n).
    #[track_caller]
    fn project_backward(&self, name: &str, x: &[f64], dy: &[f64], grads: &mut Weights) -> Vec<f64> {
        let (weight, bias) = (self.tensor(name, "weight"), self.tensor(name, "bias"));
        let w = &self.weights[&weight];
        let (m, n, k) = self.sizes(x, w);
        let dbias = dy.chunks_exact(n).fold(vec![0.0; n], |sum, row| add(&sum, row));
        let dy = &self.of_product(name, x, dy, grads);
        let (dx, dw) = if self.shape.is_transposed() {
            (matmul_nt(dy, w, m, k, n), matmul_tn(x, dy, k, n, m))
        } else {
            let (dx, dw, _) = linear_backward(x, w, dy, m, n, k);
            (dx, dw)
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
            Norms::After | Norms::AfterSum => x.to_vec(),
            Norms::Before | Norms::Both => self.shape.storage.store(self.norm(name, x)),
        }
    }

    fn norm_before_backward(&self, name: &str, x: &[f64], dy: Vec<f64>, grads: &mut Weights) -> Vec<f64> {
        match self.shape.variant.norms {
            Norms::After | Norms::AfterSum => dy,
            Norms::Before | Norms::Both => self.norm_backward(name, x, &dy, grads),
        }
    }

    /// x + the output y (N, D) of sublayer number `sublayer`, after its norm if there is one; then y as stored, too. Where
    /// the sum is normalised, the norm of the sum, and the sum.
    fn plus(&self, x: &[f64], y: Vec<f64>, sublayer: usize) -> (Vec<f64>, Vec<f64>) {
        let store = |values| self.shape.storage.store(values);
        match self.shape.variant.norms {
            Norms::Before => return (store(self.added_to(x, &y)), Vec::new()),
            Norms::AfterSum => {
                let sum = store(self.added_to(x, &y));
                return (store(self.norm(self.norms_of_sums()[sublayer], &sum)), sum);
            }
            Norms::After | Norms::Both => {}
        }
        let y = store(y);
        (store(self.added_to(x, &self.norm(self.names().post_norms[sublayer], &y))), y)
    }

    /// The norms of the two sums of a block.
    fn norms_of_sums(&self) -> [&'static str; 2] {
        [self.names().attention_norm, self.names().ffn_norm]
    }

    /// The gradient of the sum after sublayer number `sublayer`, given that of its norm, if it has one.
    fn sum_backward(&self, sum: &[f64], dy: Vec<f64>, sublayer: usize, grads: &mut Weights) -> Vec<f64> {
        match self.shape.variant.norms {
            Norms::AfterSum => {
                let norm = self.norms_of_sums()[sublayer];
                self.shape.storage.store(self.norm_backward(norm, sum, &dy, grads))
            }
            Norms::Before | Norms::After | Norms::Both => dy,
        }
    }

    /// The gradient of the output y of a sublayer, given that of the sum.
    fn post_norm_backward(&self, y: &[f64], dsum: &[f64], sublayer: usize, grads: &mut Weights) -> Vec<f64> {
        if matches!(self.shape.variant.norms, Norms::Before | Norms::AfterSum) {
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
        let factors = self.norm_factors(weights, name);
        let width = factors.len();
        match self.norm_bias() {
            None => rms_norm(x, &factors, width, self.norm_eps),
            Some(NormBias::With) => {
                layer_norm(x, &factors, &weights[&format!("{name}.bias")], width, self.norm_eps)
            }
            Some(NormBias::Without) => layer_norm(x, &factors, &vec![0.0; width], width, self.norm_eps),
        }
    }

    /// Whether LayerNorms have a bias; `None` for RMSNorms.
    pub(super) fn norm_bias(&self) -> Option<NormBias> {
        match self.architecture {
            Architecture::Llama => self.variant.layer_norm,
            Architecture::Gpt2 { .. } => Some(NormBias::With),
        }
    }

    /// The factors of the norm `name`: its weights, 1 more than these, or ones for each element of a token or head.
    #[track_caller]
    fn norm_factors<'a>(&self, weights: &'a Weights, name: &str) -> Cow<'a, [f64]> {
        if self.variant.weightless_norms {
            let is_of_heads = self.names().qk_norms.iter().any(|norm| name.ends_with(norm));
            assert!(self.variant.qk_norm != QkNorm::AllHeads, "norms of all heads have weights.");
            return vec![1.0; if is_of_heads { self.head_dim } else { self.hidden_size }].into();
        }
        let w = &weights[&format!("{name}.weight")];
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
        let factors = self.norm_factors(weights, name);
        let width = factors.len();
        let (dx, dw) = match self.norm_bias() {
            None => rms_norm_backward(x, &factors, dy, width, self.norm_eps),
            Some(bias) => {
                let (dx, dw, db) = layer_norm_backward(x, &factors, dy, width, self.norm_eps);
                if bias == NormBias::With {
                    accumulate(grads, &format!("{name}.bias"), db);
                }
                (dx, dw)
            }
        };
        if !self.variant.weightless_norms {
            accumulate(grads, &format!("{name}.weight"), dw);
        }
        dx
    }
}

//! Names and sizes of the tensors of a model.

use super::block::{BESIDE_NORMS, XIELU, convolution_parameters, input_parameters};
use super::gpt::{Architecture, HEAD, HEAD_BIAS, Layer, PROJECT_IN, PROJECT_OUT, QUERIES, Shape};
use super::latent_attention::LatentAttention;
use super::multi_token::MultiToken;
use super::per_layer;
use super::variant::{NormBias, Norms, Parallel, QkNorm};

impl Shape {
    /// (name, number of elements) of every tensor of the model: exactly what [`Weights`](super::gpt::Weights) must
    /// contain.
    pub fn parameters(&self) -> Vec<(String, usize)> {
        let mut list = match self.architecture {
            Architecture::Llama => self.llama_parameters(),
            Architecture::Gpt2 { .. } => self.gpt2_parameters(),
        };
        list.extend(self.lora_parameters(&list));
        list
    }

    fn gpt2_parameters(&self) -> Vec<(String, usize)> {
        let (hidden, names) = (self.hidden_size, self.names());
        let positions = self.position_rows();
        let width = self.embedding_width();
        let mut list = vec![(self.embedding().to_owned(), self.vocab_size * width)];
        if self.variant.embedding_width.is_some() {
            list.extend([PROJECT_IN, PROJECT_OUT].map(|name| (name.to_owned(), hidden * width)));
        }
        list.extend((positions > 0).then(|| (self.position_table().to_owned(), positions * hidden)));
        list.extend(self.variant.query_layer.then(|| (QUERIES.to_owned(), positions * hidden)));
        let add = |list: &mut Vec<(String, usize)>, name: String, weights: usize, biases: usize| {
            list.extend([(format!("{name}.weight"), weights), (format!("{name}.bias"), biases)]);
        };
        if self.variant.embedding_norm {
            add(&mut list, self.embedding_norm().to_owned(), hidden, hidden);
        }
        for layer in 0..self.num_layers {
            let name = |of: &str| format!("{}.{layer}.{of}", names.layers);
            let ([q, kv], intermediate) = (self.qk_widths(layer), self.layer(layer).intermediate_size);
            add(&mut list, name(names.attention_norm), hidden, hidden);
            let joined = [q + 2 * kv];
            let widths = if names.qkv.len() == 1 { &joined[..] } else { &[q, kv, kv] };
            for (of, width) in names.qkv.iter().zip(widths) {
                add(&mut list, name(of), hidden * width, *width);
            }
            add(&mut list, name(names.out), q * hidden, hidden);
            add(&mut list, name(names.ffn_norm), hidden, hidden);
            if let Some(mixture) = self.mixture_of(layer) {
                let experts = mixture.parameters(hidden).into_iter();
                list.extend(experts.map(|(of, count)| (name(&format!("mlp.{of}")), count)));
                continue;
            }
            add(&mut list, name(names.up[0]), hidden * intermediate, intermediate);
            add(&mut list, name(names.down), intermediate * hidden, hidden);
        }
        if self.variant.norms != Norms::AfterSum {
            add(&mut list, self.final_norm().to_owned(), hidden, hidden);
        }
        if !self.tie_word_embeddings {
            list.push((HEAD.to_owned(), self.vocab_size * width));
        }
        list
    }

    /// Elements of a value in a layer.
    pub(super) fn value_dim(&self, layer: usize) -> usize {
        let of_latent = self.latent.map(|latent| latent.value_dim);
        of_latent.or(self.variant.value_dim).unwrap_or(self.layer(layer).head_dim)
    }

    /// Elements of q, and of k, of a token in a layer.
    fn qk_widths(&self, layer: usize) -> [usize; 2] {
        let layer = self.layer(layer);
        [self.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim]
    }

    fn llama_parameters(&self) -> Vec<(String, usize)> {
        let hidden = self.hidden_size;
        let mut list = vec![(self.embedding().to_owned(), self.vocab_size * hidden)];
        list.extend(per_layer::parameters(self));
        (0..self.num_layers).for_each(|layer| list.extend(self.llama_block(layer)));
        self.add_norm(&mut list, self.final_norm().to_owned());
        if !self.tie_word_embeddings {
            list.push((HEAD.to_owned(), self.vocab_size * hidden));
        }
        list.extend(self.biases.head.then(|| (HEAD_BIAS.to_owned(), self.vocab_size)));
        let depth = self.multi_token.map_or(0, |further| further.depth);
        for layer in self.num_layers..self.num_layers + depth {
            let beside = MultiToken::parameters(hidden);
            list.extend(beside.map(|(name, count)| (format!("model.layers.{layer}.{name}.weight"), count)));
            list.extend(self.llama_block(layer));
        }
        list
    }

    /// Adds the norm `name` over D.
    fn add_norm(&self, list: &mut Vec<(String, usize)>, name: String) {
        let has_bias = self.norm_bias() == Some(NormBias::With);
        let kinds = [("weight", !self.variant.weightless_norms), ("bias", has_bias)];
        let held = kinds.into_iter().filter(|(_, is_held)| *is_held);
        list.extend(held.map(|(kind, _)| (format!("{name}.{kind}"), self.hidden_size)));
    }

    fn llama_block(&self, layer: usize) -> Vec<(String, usize)> {
        let (hidden, biases) = (self.hidden_size, self.biases);
        let ([q, kv], Layer { head_dim, num_kv_heads, intermediate_size: intermediate, .. }) =
            (self.qk_widths(layer), self.layer(layer));
        let (out, values) = (self.num_heads * self.value_dim(layer), num_kv_heads * self.value_dim(layer));
        let names = self.names();
        let mut list = Vec::new();
        let norm = |name: &str| format!("model.layers.{layer}.{name}");
        if self.variant.norms != Norms::After {
            self.add_norm(&mut list, norm(names.attention_norm));
        }
        if self.variant.norms != Norms::After && self.variant.parallel != Some(Parallel::OneNorm) {
            self.add_norm(&mut list, norm(names.ffn_norm));
        }
        let mut add = |name: &str, count: usize| list.push((format!("model.layers.{layer}.{name}"), count));
        let linear = |add: &mut dyn FnMut(&str, usize), name: &str, [out, inner]: [usize; 2], has_bias| {
            add(&format!("{name}.weight"), out * inner);
            if has_bias {
                add(&format!("{name}.bias"), out);
            }
        };
        if let Some(heads) = self.layer(layer).linear {
            heads.parameters(hidden).iter().for_each(|(name, count)| add(name, *count));
        }
        if let Some(width) = self.layer(layer).convolution {
            convolution_parameters(hidden, width).iter().for_each(|(name, count)| add(name, *count));
        }
        let has_softmax = self.layer(layer).linear.is_none() && self.layer(layer).convolution.is_none();
        let of_latent =
            |latent: LatentAttention| latent.parameters(hidden, self.num_heads, self.rope.head_dim);
        for (name, count) in self.latent.map(of_latent).into_iter().flatten() {
            add(&format!("{name}.weight"), count);
        }
        let joined = [q + 2 * kv];
        let of_q = if self.variant.attention_gate { 2 * q } else { q };
        let widths = if names.qkv.len() == 1 { &joined[..] } else { &[of_q, kv, values] };
        // Keys that are the values, too, have no third projection, and those of another layer none at all.
        let has_keys = self.layer(layer).kv_source.is_none();
        let count = match (has_keys, self.layer(layer).key_values) {
            (false, _) => 1,
            (true, true) => 2,
            (true, false) => names.qkv.len(),
        };
        for (name, &width) in
            names.qkv.iter().zip(widths).take(count).filter(|_| has_softmax && self.latent.is_none())
        {
            linear(&mut add, name, [width, hidden], biases.qkv);
        }
        if self.qk_norm && has_softmax && !self.variant.weightless_norms {
            let widths = match self.variant.qk_norm {
                QkNorm::AllHeads => [q, kv],
                QkNorm::Heads | QkNorm::RotatedHeads | QkNorm::LayerNorm => [head_dim; 2],
                QkNorm::LayerNormByHead => [0; 2],
            };
            let norms = names.qk_norms.iter().zip(widths).take(if has_keys { 2 } else { 1 });
            norms
                .filter(|(_, width)| *width > 0)
                .for_each(|(norm, width)| add(&format!("{norm}.weight"), width));
            for (norm, width) in names.qk_norms.iter().zip([q, kv]) {
                match self.variant.qk_norm {
                    QkNorm::LayerNorm => add(&format!("{norm}.bias"), head_dim),
                    QkNorm::LayerNormByHead => (0..width / head_dim)
                        .for_each(|head| add(&format!("{norm}.norms.{head}.weight"), head_dim)),
                    QkNorm::Heads | QkNorm::AllHeads | QkNorm::RotatedHeads => {}
                }
            }
        }
        if self.layer(layer).sinks {
            add(names.sinks, self.num_heads);
        }
        if has_softmax {
            linear(&mut add, names.out, [hidden, out], biases.output);
        }
        if self.variant.norms != Norms::Before && !self.variant.weightless_norms {
            names.post_norms.iter().for_each(|norm| add(&format!("{norm}.weight"), hidden));
        }
        if let Some(width) = self.variant.per_layer_width {
            let of_input = input_parameters(hidden, width);
            of_input.iter().for_each(|(name, count)| add(&format!("{name}.weight"), *count));
        }
        if self.variant.layer_scalars {
            add("layer_scalar", 1);
        }
        let mixture = self.mixture_of(layer);
        for (name, count) in mixture.map(|mixture| mixture.parameters(hidden)).into_iter().flatten() {
            add(&format!("mlp.{name}"), count);
        }
        let is_both = mixture.is_some_and(|mixture| mixture.is_beside_dense);
        if is_both {
            BESIDE_NORMS.iter().for_each(|norm| add(&format!("{norm}.weight"), hidden));
        }
        if mixture.is_none() || is_both {
            for name in names.up {
                linear(&mut add, name, [intermediate, hidden], biases.gate_up);
            }
            if self.variant.xielu {
                XIELU.iter().for_each(|number| add(number, 1));
            }
            linear(&mut add, names.down, [hidden, intermediate], biases.down);
        }
        list
    }
}

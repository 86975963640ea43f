//! Names and sizes of the tensors of a model.

use super::gpt::{Architecture, HEAD, POSITIONS, Shape};
use super::multi_token::MultiToken;

impl Shape {
    /// (name, number of elements) of every tensor of the model: exactly what [`Weights`](super::gpt::Weights) must
    /// contain.
    pub fn parameters(&self) -> Vec<(String, usize)> {
        let mut list = match self.architecture {
            Architecture::Llama => self.llama_parameters(),
            Architecture::Gpt2 { positions, .. } => self.gpt2_parameters(positions),
        };
        list.extend(self.adapter_parameters(&list));
        list
    }

    fn gpt2_parameters(&self, positions: usize) -> Vec<(String, usize)> {
        let (hidden, intermediate) = (self.hidden_size, self.intermediate_size);
        let heads = self.num_heads * self.head_dim;
        let tables = [(self.embedding(), self.vocab_size * hidden), (POSITIONS, positions * hidden)];
        let mut list: Vec<(String, usize)> =
            tables.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        let mut add = |name: String, weights: usize, biases: usize| {
            list.extend([(format!("{name}.weight"), weights), (format!("{name}.bias"), biases)]);
        };
        for layer in 0..self.num_layers {
            let name = |of: &str| format!("transformer.h.{layer}.{of}");
            add(name("ln_1"), hidden, hidden);
            add(name("attn.c_attn"), hidden * 3 * heads, 3 * heads);
            add(name("attn.c_proj"), heads * hidden, hidden);
            add(name("ln_2"), hidden, hidden);
            add(name("mlp.c_fc"), hidden * intermediate, intermediate);
            add(name("mlp.c_proj"), intermediate * hidden, hidden);
        }
        add(self.final_norm().to_owned(), hidden, hidden);
        if !self.tie_word_embeddings {
            list.push((HEAD.to_owned(), self.vocab_size * hidden));
        }
        list
    }

    fn llama_parameters(&self) -> Vec<(String, usize)> {
        let hidden = self.hidden_size;
        let mut list = vec![(self.embedding().to_owned(), self.vocab_size * hidden)];
        (0..self.num_layers).for_each(|layer| list.extend(self.llama_block(layer)));
        list.push((format!("{}.weight", self.final_norm()), hidden));
        if !self.tie_word_embeddings {
            list.push((HEAD.to_owned(), self.vocab_size * hidden));
        }
        let depth = self.multi_token.map_or(0, |further| further.depth);
        for layer in self.num_layers..self.num_layers + depth {
            let beside = MultiToken::parameters(hidden);
            list.extend(beside.map(|(name, count)| (format!("model.layers.{layer}.{name}.weight"), count)));
            list.extend(self.llama_block(layer));
        }
        list
    }

    fn llama_block(&self, layer: usize) -> Vec<(String, usize)> {
        let (hidden, intermediate, biases) = (self.hidden_size, self.intermediate_size, self.biases);
        let (q, kv) = (self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim);
        let mut list = Vec::new();
        let mut add = |name: &str, count: usize| list.push((format!("model.layers.{layer}.{name}"), count));
        let linear = |add: &mut dyn FnMut(&str, usize), name: &str, [out, inner]: [usize; 2], has_bias| {
            add(&format!("{name}.weight"), out * inner);
            if has_bias {
                add(&format!("{name}.bias"), out);
            }
        };
        add("input_layernorm.weight", hidden);
        for (name, width) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
            linear(&mut add, &format!("self_attn.{name}"), [width, hidden], biases.qkv);
        }
        if self.qk_norm {
            add("self_attn.q_norm.weight", self.head_dim);
            add("self_attn.k_norm.weight", self.head_dim);
        }
        linear(&mut add, "self_attn.o_proj", [hidden, q], biases.output);
        add("post_attention_layernorm.weight", hidden);
        match self.mixture_of(layer) {
            Some(mixture) => {
                mixture
                    .parameters(hidden)
                    .iter()
                    .for_each(|(name, count)| add(&format!("mlp.{name}"), *count));
            }
            None => {
                linear(&mut add, "mlp.gate_proj", [intermediate, hidden], biases.gate_up);
                linear(&mut add, "mlp.up_proj", [intermediate, hidden], biases.gate_up);
                linear(&mut add, "mlp.down_proj", [hidden, intermediate], biases.down);
            }
        }
        list
    }
}

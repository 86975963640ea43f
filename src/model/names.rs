//! What Hugging Face calls the parameters of each family, without `.weight` and `.bias`.

use super::config::Family;

/// The names of one family. Several names of one parameter are ranges of its rows, in order. A parameter that a family as
/// published does not have is called like its relatives.
pub(super) struct Names {
    pub embedding: &'static str,
    pub positions: &'static str,
    pub norm: &'static str,
    pub head: &'static str,
    /// Before the layer's number; what follows stands after it.
    pub layers: &'static str,
    pub attention_norm: &'static str,
    pub qkv: &'static [&'static str],
    pub q_norm: &'static str,
    pub k_norm: &'static str,
    pub wo: &'static str,
    pub ffn_norm: &'static str,
    pub gate_up: &'static [&'static str],
    pub w_down: &'static str,
    /// Whether the matrices of the layers are (in, out) in files. GPT-2 came from a code that wrote its linear layers as
    /// convolutions of width 1.
    pub is_transposed: bool,
}

impl Names {
    pub fn of(family: Family) -> &'static Self {
        match family {
            Family::Llama => &LLAMA,
            Family::Gpt2 => &GPT2,
        }
    }
}

const LLAMA: Names = Names {
    embedding: "model.embed_tokens",
    positions: "model.embed_positions",
    norm: "model.norm",
    head: "lm_head",
    layers: "model.layers",
    attention_norm: "input_layernorm",
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    q_norm: "self_attn.q_norm",
    k_norm: "self_attn.k_norm",
    wo: "self_attn.o_proj",
    ffn_norm: "post_attention_layernorm",
    gate_up: &["mlp.gate_proj", "mlp.up_proj"],
    w_down: "mlp.down_proj",
    is_transposed: false,
};

const GPT2: Names = Names {
    embedding: "transformer.wte",
    positions: "transformer.wpe",
    norm: "transformer.ln_f",
    head: "lm_head",
    layers: "transformer.h",
    attention_norm: "ln_1",
    qkv: &["attn.c_attn"],
    q_norm: "attn.q_norm",
    k_norm: "attn.k_norm",
    wo: "attn.c_proj",
    ffn_norm: "ln_2",
    gate_up: &["mlp.c_fc"],
    w_down: "mlp.c_proj",
    is_transposed: true,
};

//! What Hugging Face calls the parameters of each family, without `.weight` and `.bias`.

use super::config::{Family, SharedExpert};

/// What a mixture of experts is called inside a layer, by Qwen, DeepSeek and GLM alike.
pub(super) const ROUTER: &str = "mlp.gate";
/// Before an expert's number.
pub(super) const EXPERTS: &str = "mlp.experts";
/// What the shared expert's gate is called by Qwen2.
pub(super) const SHARED_GATE: &str = "mlp.shared_expert_gate";

/// What predicts tokens further ahead, as DeepSeek-V3 and GLM call it, inside a layer whose number follows the last one's.
pub(super) const TOKEN_NORM: &str = "enorm";
pub(super) const STATE_NORM: &str = "hnorm";
pub(super) const FUSE: &str = "eh_proj";
pub(super) const MULTI_TOKEN_NORM: &str = "shared_head.norm";

/// The name of what is added to the scores of layer number `layer` where experts are chosen, as files have it: (E).
pub fn selection_bias(layer: usize) -> String {
    format!("{}.{layer}.{ROUTER}.e_score_correction_bias", LLAMA.layers)
}

/// What the shared expert is called: by Qwen2, whose is gated, or by DeepSeek and GLM, whose are not.
pub(super) fn shared_expert(shared: &SharedExpert) -> &'static str {
    if shared.is_gated { "mlp.shared_expert" } else { "mlp.shared_experts" }
}

/// What the projections of an expert are called.
pub(super) const EXPERT_GATE_UP: [&str; 2] = ["gate_proj", "up_proj"];
pub(super) const EXPERT_DOWN: &str = "down_proj";

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

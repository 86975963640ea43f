//! How a model differs from Llama or GPT-2, and what its tensors are called.

use std::borrow::Cow;

use super::gelu::Gelu;
use super::gpt::{Architecture, HEAD_BIAS, Shape, Weights};
use super::l2_norm::{l2_norm, l2_norm_backward};
use super::vector::scaled;

/// How a model differs from its architecture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variant {
    /// What tensors are called and how they are laid out.
    pub naming: Naming,
    /// Scores fall with distance (ALiBi); there are no rotary positions then.
    pub alibi: bool,
    /// The embedded tokens are normalised before the first block.
    pub embedding_norm: bool,
    /// How queries and keys are normalised, if they are.
    pub qk_norm: QkNorm,
    /// Where the norms of a block stand; but for sums Llama only.
    pub norms: Norms,
    /// Elements of a row of the embedding and of the head where it has not D; projections lead to D and back. GPT-2 only.
    pub embedding_width: Option<usize>,
    /// Norms multiply by 1 + w instead of w, as in Gemma.
    pub zero_centered_norms: bool,
    /// LayerNorms take the place of RMSNorms, in Llama; with a bias or without.
    pub layer_norm: Option<NormBias>,
    /// Norms have no weight; Llama only.
    pub weightless_norms: bool,
    /// The activation between the two projections of dense feed-forward networks without a gate, in Llama.
    pub ungated: Option<Gelu>,
    /// The activation of dense feed-forward networks is xIELU, without a gate, in Llama.
    pub xielu: bool,
    /// Attention and feed-forward network stand beside each other; Llama only.
    pub parallel: Option<Parallel>,
    /// Values are normalised head by head, without a weight.
    pub value_norm: bool,
    /// The result of each block is multiplied by its tensor `layer_scalar`, which does not train.
    pub layer_scalars: bool,
    /// Width of the embeddings that each block has of its own; Llama only.
    pub per_layer_width: Option<usize>,
    /// The last block's queries are projected from a table by position; the final norm comes before that block.
    pub query_layer: bool,
    /// ε of the length by which each row of the head is divided; `None`: rows are as they are.
    pub head_epsilon: Option<f64>,
    /// Queries, keys and values are clipped to this before they rotate; Llama only.
    pub clip_qkv: Option<f64>,
    /// Soft cap of the attention scores.
    pub score_cap: Option<f64>,
    /// Soft cap of the logits.
    pub logit_cap: Option<f64>,
    /// Each head has a sink, a learned logit beside the scores, as in gpt-oss, in layers that do not say otherwise.
    pub sinks: bool,
    /// Elements of a value, where it has another number than a key; Llama with three tensors of q, k and v only.
    pub value_dim: Option<usize>,
    /// Each element of attention's output is multiplied by the sigmoid of a gate, which is projected beside its query.
    pub attention_gate: bool,
}

/// How queries and keys are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Head by head before the rotation, as in Qwen3.
    Heads,
    /// All heads together before the rotation, as in OLMo 2.
    AllHeads,
    /// Head by head after the rotation, as in Hunyuan.
    RotatedHeads,
    /// Head by head by LayerNorm, before the rotation; all heads share a weight and a bias.
    LayerNorm,
    /// The same with a weight for each head, and no bias.
    LayerNormByHead,
}

/// Whether a LayerNorm has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormBias {
    /// It has one, as in GPT-NeoX.
    With,
    /// It has none, as in Command R.
    Without,
}

/// What attention and feed-forward network read where they stand beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallel {
    /// Each its own norm of the residual stream, as in GPT-NeoX.
    TwoNorms,
    /// The same norm, as in GPT-J.
    OneNorm,
}

/// Where the norms of a block stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norms {
    /// x + f(norm(x))
    Before,
    /// x + norm(f(x)), as in OLMo 2.
    After,
    /// x + norm(f(norm(x))), as in Gemma 2.
    Both,
    /// norm(x + f(x)), and no norm before the head, as in OPT of 350M; in any architecture.
    AfterSum,
}

/// Rows of OPT's table of positions before that of position 0.
pub const SKIPPED: u32 = 2;

/// What the tensors of a model are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// As in the architecture. The linear weights of GPT-2 are stored (in, out).
    Plain,
    /// q, k and v as one tensor, head by head.
    Bloom,
    /// Llama's, but q, k and v as one tensor.
    Baichuan,
    /// Llama's, but those of GLM-4 for norms after sublayers.
    Glm,
    /// GPT-2's, but stored (out, in).
    BigCode,
    /// GPT-2's, but stored (out, in), and q, k and v as three tensors.
    Pangu,
    /// Those of LFM2.
    Lfm2,
    /// Llama's, but those of MiMo-V2 for sinks.
    MiMo,
    /// Those of OPT, stored (out, in), whose table of positions has [`SKIPPED`] rows before that of the first.
    Opt,
}

/// The names of the layers of a block.
pub(super) struct Names {
    pub layers: &'static str,
    pub attention_norm: &'static str,
    /// Of q, k and v each, or of all as one tensor.
    pub qkv: &'static [&'static str],
    /// Of the norms of q and k.
    pub qk_norms: [&'static str; 2],
    pub sinks: &'static str,
    pub out: &'static str,
    /// Of the outputs of attention and feed-forward network, in Llama.
    pub post_norms: [&'static str; 2],
    pub ffn_norm: &'static str,
    /// Of gate and up, or of up alone.
    pub up: &'static [&'static str],
    pub down: &'static str,
}

impl Variant {
    /// No difference.
    pub const PLAIN: Self = Self {
        naming: Naming::Plain,
        alibi: false,
        embedding_norm: false,
        qk_norm: QkNorm::Heads,
        norms: Norms::Before,
        embedding_width: None,
        zero_centered_norms: false,
        layer_norm: None,
        weightless_norms: false,
        ungated: None,
        xielu: false,
        parallel: None,
        value_norm: false,
        layer_scalars: false,
        per_layer_width: None,
        query_layer: false,
        head_epsilon: None,
        clip_qkv: None,
        score_cap: None,
        logit_cap: None,
        sinks: false,
        value_dim: None,
        attention_gate: false,
    };
}

impl Shape {
    /// The name of the embedding table.
    pub(super) fn embedding(&self) -> &'static str {
        match (self.variant.naming, self.architecture) {
            (Naming::Bloom, _) => "transformer.word_embeddings.weight",
            (Naming::Opt, _) => "model.decoder.embed_tokens.weight",
            (_, Architecture::Llama) => "model.embed_tokens.weight",
            (_, Architecture::Gpt2 { .. }) => "transformer.wte.weight",
        }
    }

    /// The name of the last norm, without its `.weight`.
    pub(super) fn final_norm(&self) -> &'static str {
        match self.architecture {
            Architecture::Llama if self.variant.naming == Naming::Lfm2 => "model.embedding_norm",
            Architecture::Llama => "model.norm",
            Architecture::Gpt2 { .. } if self.variant.naming == Naming::Opt => {
                "model.decoder.final_layer_norm"
            }
            Architecture::Gpt2 { .. } => "transformer.ln_f",
        }
    }

    /// The name of the table of positions.
    pub(super) fn position_table(&self) -> &'static str {
        match self.variant.naming {
            Naming::Opt => "model.decoder.embed_positions.weight",
            _ => "transformer.wpe.weight",
        }
    }

    /// The rows of that table for tokens at `positions`.
    pub(super) fn rows_of_positions(&self, positions: &[u32]) -> Vec<u32> {
        let skipped = if self.variant.naming == Naming::Opt { SKIPPED } else { 0 };
        positions.iter().map(|position| position + skipped).collect()
    }

    /// The name of the norm of the embedded tokens.
    pub(super) fn embedding_norm(&self) -> &'static str {
        "transformer.word_embeddings_layernorm"
    }

    /// The names of the layers of a block.
    pub(super) fn names(&self) -> &'static Names {
        match (self.variant.naming, self.architecture) {
            (Naming::Bloom, _) => &BLOOM,
            (Naming::Baichuan, _) => &BAICHUAN,
            (Naming::Glm, _) => &GLM,
            (Naming::Pangu, _) => &PANGU,
            (Naming::Opt, _) => &OPT,
            (Naming::Lfm2, _) => &LFM2,
            (Naming::MiMo, _) => &MIMO,
            (_, Architecture::Llama) if self.variant.xielu => &APERTUS,
            (_, Architecture::Llama) if self.variant.norms == Norms::Both => {
                let is_gemma = self.variant.zero_centered_norms || self.variant.layer_scalars;
                if is_gemma { &GEMMA2 } else { &HYPER_CLOVA }
            }
            (_, Architecture::Llama) if self.variant.qk_norm == QkNorm::RotatedHeads => &HUNYUAN,
            (_, Architecture::Llama) if self.variant.ungated.is_some() => &NEMOTRON,
            (_, Architecture::Llama)
                if matches!(self.variant.qk_norm, QkNorm::LayerNorm | QkNorm::LayerNormByHead) =>
            {
                &STABLE_LM
            }
            (_, Architecture::Llama) => &LLAMA,
            (_, Architecture::Gpt2 { .. }) => &GPT2,
        }
    }

    /// Whether linear weights are stored (in, out).
    pub(super) fn is_transposed(&self) -> bool {
        self.variant.naming == Naming::Plain && self.architecture != Architecture::Llama
    }

    /// Whether queries and keys rotate.
    pub(super) fn rotates(&self) -> bool {
        self.architecture == Architecture::Llama && !self.variant.alibi
    }

    /// Rows of the position table; 0: there is none.
    pub(super) fn position_rows(&self) -> usize {
        match self.architecture {
            Architecture::Llama => 0,
            Architecture::Gpt2 { positions, .. } => positions,
        }
    }

    /// Whether the queries of block `layer` come from a table.
    pub(super) fn is_query_layer(&self, layer: usize) -> bool {
        self.variant.query_layer && layer + 1 == self.num_layers
    }

    /// The head's table (V, D), its rows of unit length where the model divides them.
    pub(super) fn head_table<'a>(&self, weights: &'a Weights) -> Cow<'a, [f64]> {
        let table = &weights[self.head()];
        match self.variant.head_epsilon {
            Some(epsilon) => {
                let units = self.storage.store(l2_norm(table, self.hidden_size, epsilon));
                Cow::Owned(scaled(&units, self.factors.logits))
            }
            None if self.factors.logits == 1.0 => Cow::Borrowed(table),
            None => Cow::Owned(scaled(table, self.factors.logits)),
        }
    }

    /// The bias of the logits (V) after their factor.
    pub(super) fn head_bias(&self, weights: &Weights) -> Option<Vec<f64>> {
        self.biases.head.then(|| scaled(&weights[HEAD_BIAS], self.factors.logits))
    }

    /// The gradient of the head's tensor, given that of [`Shape::head_table`].
    pub(super) fn head_table_backward(&self, weights: &Weights, dtable: &[f64]) -> Vec<f64> {
        let dtable = scaled(dtable, self.factors.logits);
        match self.variant.head_epsilon {
            Some(epsilon) => l2_norm_backward(&weights[self.head()], &dtable, self.hidden_size, epsilon),
            None => dtable,
        }
    }
}

const LLAMA: Names = Names {
    layers: "model.layers",
    attention_norm: "input_layernorm",
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    qk_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    sinks: "self_attn.sinks",
    out: "self_attn.o_proj",
    post_norms: ["post_attention_layernorm", "post_feedforward_layernorm"],
    ffn_norm: "post_attention_layernorm",
    up: &["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
};
const MIMO: Names = Names { sinks: "self_attn.attention_sink_bias", ..LLAMA };
const GLM: Names = Names { post_norms: ["post_self_attn_layernorm", "post_mlp_layernorm"], ..LLAMA };
const NEMOTRON: Names = Names { up: &["mlp.up_proj"], ..LLAMA };
const APERTUS: Names =
    Names { attention_norm: "attention_layernorm", ffn_norm: "feedforward_layernorm", ..NEMOTRON };
const HUNYUAN: Names = Names { qk_norms: ["self_attn.query_layernorm", "self_attn.key_layernorm"], ..LLAMA };
const STABLE_LM: Names = Names { qk_norms: ["self_attn.q_layernorm", "self_attn.k_layernorm"], ..LLAMA };
const HYPER_CLOVA: Names = Names { post_norms: ["post_norm1", "post_norm2"], ..LLAMA };
const GEMMA2: Names = Names { ffn_norm: "pre_feedforward_layernorm", ..LLAMA };
const LFM2: Names = Names {
    attention_norm: "operator_norm",
    qk_norms: ["self_attn.q_layernorm", "self_attn.k_layernorm"],
    out: "self_attn.out_proj",
    ffn_norm: "ffn_norm",
    up: &["feed_forward.w1", "feed_forward.w3"],
    down: "feed_forward.w2",
    ..LLAMA
};
const BAICHUAN: Names = Names { qkv: &["self_attn.W_pack"], ..LLAMA };
const GPT2: Names = Names {
    layers: "transformer.h",
    attention_norm: "ln_1",
    qkv: &["attn.c_attn"],
    qk_norms: [""; 2],
    sinks: "",
    out: "attn.c_proj",
    post_norms: [""; 2],
    ffn_norm: "ln_2",
    up: &["mlp.c_fc"],
    down: "mlp.c_proj",
};
const PANGU: Names =
    Names { qkv: &["attn.q_proj", "attn.k_proj", "attn.v_proj"], out: "attn.out_proj", ..GPT2 };
const OPT: Names = Names {
    layers: "model.decoder.layers",
    attention_norm: "self_attn_layer_norm",
    out: "self_attn.out_proj",
    ffn_norm: "final_layer_norm",
    up: &["fc1"],
    down: "fc2",
    ..LLAMA
};
const BLOOM: Names = Names {
    layers: "transformer.h",
    attention_norm: "input_layernorm",
    qkv: &["self_attention.query_key_value"],
    qk_norms: [""; 2],
    sinks: "",
    out: "self_attention.dense",
    post_norms: [""; 2],
    ffn_norm: "post_attention_layernorm",
    up: &["mlp.dense_h_to_4h"],
    down: "mlp.dense_4h_to_h",
};

//! Names of parameters in Hugging Face files, by family and without `.weight` and `.bias`, and in Megatron.

use super::config::{Activation, Family, ModelConfig, Norm, NormPlacement, ParallelResidual, QkNorm};

/// The gate of the shared expert, as in Qwen2.
pub(super) const SHARED_GATE: &str = "mlp.shared_expert_gate";

/// The factor of a layer's result, as in Gemma 4.
pub(super) const LAYER_SCALAR: &str = "layer_scalar";

/// The projections from an embedding of another width and back, as in OPT of 350M.
pub(super) const PROJECT_IN: &str = "model.decoder.project_in";
pub(super) const PROJECT_OUT: &str = "model.decoder.project_out";

/// A dense network beside the experts, as in Gemma 4: norms of the two outputs and of the experts' input, and the
/// router's norm and factors of experts.
pub(super) mod beside {
    pub const DENSE_NORM: &str = "post_feedforward_layernorm_1";
    pub const EXPERTS_NORM: &str = "pre_feedforward_layernorm_2";
    pub const MIXTURE_NORM: &str = "post_feedforward_layernorm_2";
    pub const ROUTER_NORM: &str = "router.scale";
    pub const EXPERT_SCALE: &str = "router.per_expert_scale";
}

/// The learned numbers of an xIELU, and its constants, as in Apertus.
pub(super) const XIELU_ALPHAS: [&str; 2] = ["mlp.act_fn.alpha_p", "mlp.act_fn.alpha_n"];
pub(super) const XIELU_CONSTANTS: [&str; 2] = ["mlp.act_fn.beta", "mlp.act_fn.eps"];

/// Embeddings of each layer, as in Gemma 3n and 4: of the model, and of a layer.
pub(super) const PER_LAYER_TABLE: &str = "model.embed_tokens_per_layer";
pub(super) const PER_LAYER_CONTEXT: &str = "model.per_layer_model_projection";
pub(super) const PER_LAYER_CONTEXT_NORM: &str = "model.per_layer_projection_norm";
pub(super) const PER_LAYER_GATE: &str = "per_layer_input_gate";
pub(super) const PER_LAYER_PROJECTION: &str = "per_layer_projection";
pub(super) const PER_LAYER_NORM: &str = "post_per_layer_input_norm";

/// Multi-token prediction, as in DeepSeek-V3 and GLM: in layers whose numbers follow the last layer's.
pub(super) const TOKEN_NORM: &str = "enorm";
pub(super) const STATE_NORM: &str = "hnorm";
pub(super) const FUSE: &str = "eh_proj";
pub(super) const MULTI_TOKEN_NORM: &str = "shared_head.norm";

/// Multi-head latent attention, as in DeepSeek.
pub(super) const Q: &str = "self_attn.q_proj";
pub(super) const Q_DOWN: &str = "self_attn.q_a_proj";
pub(super) const Q_NORM: &str = "self_attn.q_a_layernorm";
pub(super) const Q_UP: &str = "self_attn.q_b_proj";
pub(super) const KV_DOWN: &str = "self_attn.kv_a_proj_with_mqa";
pub(super) const KV_NORM: &str = "self_attn.kv_a_layernorm";
pub(super) const KV_UP: &str = "self_attn.kv_b_proj";

/// Linear attention, as in Qwen3.5 and, with merged projections, in Qwen3-Next.
pub(super) mod linear {
    pub const PARTS: [&str; 4] = [
        "linear_attn.in_proj_qkv",
        "linear_attn.in_proj_z",
        "linear_attn.in_proj_b",
        "linear_attn.in_proj_a",
    ];
    pub const MERGED: [&str; 2] = ["linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"];
    pub const CONV: &str = "linear_attn.conv1d";
    pub const A_LOG: &str = "linear_attn.A_log";
    pub const DT_BIAS: &str = "linear_attn.dt_bias";
    pub const NORM: &str = "linear_attn.norm";
    pub const OUT: &str = "linear_attn.out_proj";
}

/// Gated short convolutions, as in LFM2.
pub(super) mod convolution {
    pub const IN: &str = "conv.in_proj";
    pub const CONV: &str = "conv.conv";
    pub const OUT: &str = "conv.out_proj";
}

/// The name in files of the bias (E) that layer `layer` of the model of `config` adds to the scores to choose experts.
pub fn selection_bias(config: &ModelConfig, layer: usize) -> String {
    SelectionBias::of(config).name(layer)
}

/// What names that bias in each layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct SelectionBias {
    layers: &'static str,
    tensor: &'static str,
    /// Whether files hold it as one row (1, E).
    pub is_row: bool,
}

impl SelectionBias {
    pub fn of(config: &ModelConfig) -> Self {
        let is_row = config.family == Family::Ernie45;
        Self { layers: Names::of_model(config).layers, tensor: MixtureNames::of(config).selection, is_row }
    }

    pub fn name(self, layer: usize) -> String {
        format!("{}.{layer}.{}", self.layers, self.tensor)
    }
}

/// The names of a layer's mixture of experts.
pub(super) struct MixtureNames {
    pub router: &'static str,
    /// The bias of the choice.
    selection: &'static str,
    /// The prefix of an expert's number.
    pub experts: &'static str,
    /// The projections of an expert, after its number.
    pub projections: Projections,
    /// How files hold the experts.
    pub files: ExpertFiles,
    /// The module of all experts in `transformers`, whose parameters are [`EXPERT_PARAMETERS`], whatever files call
    /// them; `None`: no class has such experts.
    pub module: Option<&'static str>,
    /// The shared expert.
    pub shared: &'static str,
    /// The shared expert if it is gated, as in Qwen2.
    pub gated_shared: &'static str,
    /// The projections of the shared expert.
    pub shared_projections: Projections,
}

/// How files hold the matrices of a layer's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpertFiles {
    /// One by one, by number.
    Each,
    /// All of a projection as one tensor (E, out, in), whose name ends with `.weight` if it `has_kind`.
    Stacked { has_kind: bool },
    /// All of a projection as one tensor (E, in, out), gate and up in turns, whose name does not end with `.weight`.
    Turned,
}

/// The parameters of the module of all experts in `transformers`: gate and up, and down. PEFT wraps them in this order.
pub(crate) const EXPERT_PARAMETERS: [&str; 2] = ["gate_up_proj", "down_proj"];

/// The names of the projections of a feed-forward network.
pub(super) struct Projections {
    /// Gate and up, or only up if there is no gate.
    pub gate_up: &'static [&'static str],
    pub down: &'static str,
}

impl MixtureNames {
    /// Mixtral's names if its architecture, MiniMax-M2's or Phi-3.5-MoE's computes the model, those of their families
    /// in files of Granite, LFM2, ERNIE 4.5 and gpt-oss, Gemma 4's beside dense networks, Hunyuan's with norms of
    /// rotated heads, otherwise those of Qwen, DeepSeek and GLM. No published GPT-2, PanGu-α or Bloom has experts: their
    /// projections are named as in dense layers.
    pub fn of(config: &ModelConfig) -> &'static Self {
        match config.family {
            Family::Gpt2 | Family::BigCode | Family::Pangu => &GPT2_MIXTURE,
            Family::Bloom => &BLOOM_MIXTURE,
            Family::GptOss => &GPT_OSS_MIXTURE,
            Family::GraniteMoe => &GRANITE_MOE,
            Family::Lfm2 => &LFM2_MIXTURE,
            Family::Ernie45 => &ERNIE_MIXTURE,
            _ if config.has_dense_beside_experts() => &GEMMA4_MIXTURE,
            _ if config.activation.gate().is_none() => &UNGATED_MIXTURE,
            _ if config.is_mixtral() || config.is_minimax_m2() || config.has_sparse_mixer() => &MIXTRAL,
            _ if config.qk_norm && config.qk_norm_kind == QkNorm::RotatedHeads => &HUNYUAN_MIXTURE,
            _ => &MIXTURE,
        }
    }
}

const MIXTURE: MixtureNames = MixtureNames {
    router: "mlp.gate",
    selection: "mlp.gate.e_score_correction_bias",
    experts: "mlp.experts",
    projections: GATED,
    files: ExpertFiles::Each,
    module: Some("mlp.experts"),
    shared: "mlp.shared_experts",
    gated_shared: "mlp.shared_expert",
    shared_projections: GATED,
};

const MIXTRAL: MixtureNames = MixtureNames {
    router: "block_sparse_moe.gate",
    selection: "block_sparse_moe.e_score_correction_bias",
    experts: "block_sparse_moe.experts",
    projections: Projections { gate_up: &["w1", "w3"], down: "w2" },
    ..MIXTURE
};

const LFM2_MIXTURE: MixtureNames = MixtureNames {
    router: "feed_forward.gate",
    selection: "feed_forward.expert_bias",
    experts: "feed_forward.experts",
    projections: MIXTRAL.projections,
    module: Some("feed_forward.experts"),
    ..MIXTURE
};

const ERNIE_MIXTURE: MixtureNames =
    MixtureNames { selection: "mlp.moe_statics.e_score_correction_bias", ..MIXTURE };

const GPT_OSS_MIXTURE: MixtureNames = MixtureNames {
    router: "mlp.router",
    projections: Projections { gate_up: &["gate_up_proj"], down: "down_proj" },
    files: ExpertFiles::Turned,
    ..MIXTURE
};

const GEMMA4_MIXTURE: MixtureNames = MixtureNames {
    router: "router.proj",
    experts: "experts",
    projections: Projections { gate_up: &["gate_up_proj"], down: "down_proj" },
    files: ExpertFiles::Stacked { has_kind: false },
    module: Some("experts"),
    ..MIXTURE
};

/// No published Llama without gates has experts.
const UNGATED_MIXTURE: MixtureNames = MixtureNames {
    projections: Projections { gate_up: &["up_proj"], down: "down_proj" },
    module: None,
    ..MIXTURE
};

const HUNYUAN_MIXTURE: MixtureNames =
    MixtureNames { router: "mlp.gate.wg", shared: "mlp.shared_mlp", ..MIXTURE };

const GRANITE_MOE: MixtureNames = MixtureNames {
    router: "block_sparse_moe.router.layer",
    experts: "block_sparse_moe",
    projections: FUSED,
    files: ExpertFiles::Stacked { has_kind: true },
    module: Some("block_sparse_moe.experts"),
    shared: "shared_mlp",
    shared_projections: FUSED,
    ..MIXTURE
};

/// Gate and up of Granite's mixtures are one tensor.
const FUSED: Projections = Projections { gate_up: &["input_linear"], down: "output_linear" };

const GPT2_MIXTURE: MixtureNames =
    MixtureNames { projections: Projections { gate_up: &["c_fc"], down: "c_proj" }, ..UNGATED_MIXTURE };

const BLOOM_MIXTURE: MixtureNames = MixtureNames {
    projections: Projections { gate_up: &["dense_h_to_4h"], down: "dense_4h_to_h" },
    ..UNGATED_MIXTURE
};

/// The projections of Llama's feed-forward network, and of most shared experts.
const GATED: Projections = Projections { gate_up: &["gate_proj", "up_proj"], down: "down_proj" };

/// The names of one family. Several names of one parameter are consecutive ranges of its rows. Parameters that the
/// published family does not have are named by analogy.
pub(super) struct Names {
    pub embedding: &'static str,
    pub positions: &'static str,
    pub embedding_norm: &'static str,
    /// The table of the last layer's queries.
    pub queries: &'static str,
    pub norm: &'static str,
    pub head: &'static str,
    /// The prefix of a layer's number; the following names are relative to it.
    pub layers: &'static str,
    pub attention_norm: &'static str,
    pub qkv: &'static [&'static str],
    pub q_norm: &'static str,
    pub k_norm: &'static str,
    pub sinks: &'static str,
    pub wo: &'static str,
    /// The norm of attention's output.
    pub post_attention_norm: &'static str,
    pub ffn_norm: &'static str,
    /// The norm of the feed-forward network's output.
    pub post_ffn_norm: &'static str,
    pub gate_up: &'static [&'static str],
    pub w_down: &'static str,
    /// Whether files hold the layers' matrices as (in, out): GPT-2's linear layers are convolutions of width 1.
    pub is_transposed: bool,
    /// Whether files hold q, k and v of each head side by side, if one matrix has them.
    pub has_fused_heads: bool,
}

impl Names {
    pub fn of(family: Family) -> &'static Self {
        match family {
            Family::Llama
            | Family::Ernie45
            | Family::Helium
            | Family::GraniteMoe
            | Family::Cohere
            | Family::GptOss
            | Family::Qwen3Next => &LLAMA,
            Family::GptNeoX => &GPT_NEOX,
            Family::GptJ => &GPT_J,
            Family::Phi => &PHI,
            Family::Mpt => &MPT,
            Family::NanoChat => &NANO_CHAT,
            Family::Lfm2 => &LFM2,
            Family::Gpt2 => &GPT2,
            Family::Bloom | Family::Falcon => &BLOOM,
            Family::Baichuan => &BAICHUAN,
            Family::BigCode => &BIG_CODE,
            Family::Pangu => &PANGU,
            Family::Opt => &OPT,
            Family::Glm => &GLM,
            Family::Phi3 => &PHI3,
        }
    }

    /// The names in `config`'s layers: with norms before and after, Llama's are those of Gemma, or of HyperCLOVA X
    /// where norms multiply by w and layers have no factor, and with norms of rotated heads those of Hunyuan. Without
    /// gates they are those of Nemotron, Arcee and Jais 2, with xIELU those of Apertus, or with GELU and LayerNorm that
    /// multiplies by w those of StarCoder 2; with LayerNorms of heads those of StableLM, with sinks those of MiMo-V2.
    /// Falcon has names of its own for two norms of one residual stream.
    pub fn of_model(config: &ModelConfig) -> &'static Self {
        match (config.family, config.norm_placement, config.qk_norm_kind) {
            (Family::Llama, ..) if config.activation == Activation::Xielu => &APERTUS,
            (Family::Llama, NormPlacement::Both, _)
                if config.zero_centered_norms || config.has_layer_scalars =>
            {
                &GEMMA
            }
            (Family::Llama, NormPlacement::Both, _) => &HYPER_CLOVA,
            (Family::Llama, _, QkNorm::RotatedHeads) => &HUNYUAN,
            (Family::Llama, ..) if config.activation.gate().is_none() => {
                let is_plain = config.norm == Norm::LayerNorm && !config.zero_centered_norms;
                if is_plain && !config.activation.is_rectified() { &STAR_CODER2 } else { &NEMOTRON }
            }
            (Family::Llama, _, kind) if kind.is_layer_norm() => &STABLE_LM,
            (Family::Llama, ..) if config.layer_kinds().any(|(layer, _)| layer.has_sinks) => &MIMO_V2,
            (Family::Falcon, ..) if config.parallel_residual == Some(ParallelResidual::TwoNorms) => &FALCON,
            (family, ..) => Self::of(family),
        }
    }
}

const LLAMA: Names = Names {
    embedding: "model.embed_tokens",
    positions: "model.embed_positions",
    embedding_norm: "model.embed_layernorm",
    queries: "model.embed_queries",
    norm: "model.norm",
    head: "lm_head",
    layers: "model.layers",
    attention_norm: "input_layernorm",
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    q_norm: "self_attn.q_norm",
    k_norm: "self_attn.k_norm",
    sinks: "self_attn.sinks",
    wo: "self_attn.o_proj",
    post_attention_norm: "post_attention_layernorm",
    ffn_norm: "post_attention_layernorm",
    post_ffn_norm: "post_feedforward_layernorm",
    gate_up: &["mlp.gate_proj", "mlp.up_proj"],
    w_down: "mlp.down_proj",
    is_transposed: false,
    has_fused_heads: false,
};

const MIMO_V2: Names = Names { sinks: "self_attn.attention_sink_bias", ..LLAMA };

const GEMMA: Names = Names { ffn_norm: "pre_feedforward_layernorm", ..LLAMA };

const HYPER_CLOVA: Names = Names { post_attention_norm: "post_norm1", post_ffn_norm: "post_norm2", ..LLAMA };

const HUNYUAN: Names =
    Names { q_norm: "self_attn.query_layernorm", k_norm: "self_attn.key_layernorm", ..LLAMA };

const NEMOTRON: Names = Names { gate_up: &["mlp.up_proj"], ..LLAMA };

const APERTUS: Names =
    Names { attention_norm: "attention_layernorm", ffn_norm: "feedforward_layernorm", ..NEMOTRON };

const STAR_CODER2: Names = Names { gate_up: &["mlp.c_fc"], w_down: "mlp.c_proj", ..LLAMA };

const GPT_NEOX: Names = Names {
    embedding: "gpt_neox.embed_in",
    norm: "gpt_neox.final_layer_norm",
    layers: "gpt_neox.layers",
    qkv: &["attention.query_key_value"],
    wo: "attention.dense",
    gate_up: &["mlp.dense_h_to_4h"],
    w_down: "mlp.dense_4h_to_h",
    has_fused_heads: true,
    ..LLAMA
};

const GLM: Names = Names {
    post_attention_norm: "post_self_attn_layernorm",
    post_ffn_norm: "post_mlp_layernorm",
    gate_up: &["mlp.gate_up_proj"],
    ..LLAMA
};

const PHI3: Names = Names { qkv: &["self_attn.qkv_proj"], ..GLM };

const STABLE_LM: Names = Names { q_norm: "self_attn.q_layernorm", k_norm: "self_attn.k_layernorm", ..LLAMA };

const PHI: Names = Names {
    norm: "model.final_layernorm",
    q_norm: STABLE_LM.q_norm,
    k_norm: STABLE_LM.k_norm,
    wo: "self_attn.dense",
    gate_up: &["mlp.fc1"],
    w_down: "mlp.fc2",
    ..LLAMA
};

const MPT: Names = Names {
    embedding: "transformer.wte",
    norm: "transformer.norm_f",
    layers: "transformer.blocks",
    attention_norm: "norm_1",
    qkv: &["attn.Wqkv"],
    wo: "attn.out_proj",
    ffn_norm: "norm_2",
    gate_up: &["ffn.up_proj"],
    w_down: "ffn.down_proj",
    ..LLAMA
};

const NANO_CHAT: Names = Names { gate_up: &["mlp.fc1"], w_down: "mlp.fc2", ..LLAMA };

const LFM2: Names = Names {
    norm: "model.embedding_norm",
    attention_norm: "operator_norm",
    q_norm: "self_attn.q_layernorm",
    k_norm: "self_attn.k_layernorm",
    wo: "self_attn.out_proj",
    ffn_norm: "ffn_norm",
    gate_up: &["feed_forward.w1", "feed_forward.w3"],
    w_down: "feed_forward.w2",
    ..LLAMA
};

const GPT2: Names = Names {
    embedding: "transformer.wte",
    positions: "transformer.wpe",
    embedding_norm: "transformer.ln_e",
    queries: "transformer.wqe",
    norm: "transformer.ln_f",
    head: "lm_head",
    layers: "transformer.h",
    attention_norm: "ln_1",
    qkv: &["attn.c_attn"],
    q_norm: "attn.q_norm",
    k_norm: "attn.k_norm",
    sinks: "attn.sinks",
    wo: "attn.c_proj",
    post_attention_norm: "ln_1_post",
    ffn_norm: "ln_2",
    post_ffn_norm: "ln_2_post",
    gate_up: &["mlp.c_fc"],
    w_down: "mlp.c_proj",
    is_transposed: true,
    has_fused_heads: false,
};

const BAICHUAN: Names = Names { qkv: &["self_attn.W_pack"], ..LLAMA };

const BIG_CODE: Names = Names { is_transposed: false, ..GPT2 };

const OPT: Names = Names {
    embedding: "model.decoder.embed_tokens",
    positions: "model.decoder.embed_positions",
    norm: "model.decoder.final_layer_norm",
    layers: "model.decoder.layers",
    attention_norm: "self_attn_layer_norm",
    wo: "self_attn.out_proj",
    ffn_norm: "final_layer_norm",
    gate_up: &["fc1"],
    w_down: "fc2",
    ..LLAMA
};

/// The names in the port of PanGu-α to PyTorch.
const PANGU: Names = Names {
    qkv: &["attn.q_proj", "attn.k_proj", "attn.v_proj"],
    wo: "attn.out_proj",
    is_transposed: false,
    ..GPT2
};

const GPT_J: Names = Names { gate_up: &["mlp.fc_in"], w_down: "mlp.fc_out", ..PANGU };

const BLOOM: Names = Names {
    embedding: "transformer.word_embeddings",
    positions: "transformer.position_embeddings",
    embedding_norm: "transformer.word_embeddings_layernorm",
    queries: "transformer.query_embeddings",
    norm: "transformer.ln_f",
    head: "lm_head",
    layers: "transformer.h",
    attention_norm: "input_layernorm",
    qkv: &["self_attention.query_key_value"],
    q_norm: "self_attention.q_norm",
    k_norm: "self_attention.k_norm",
    sinks: "self_attention.sinks",
    wo: "self_attention.dense",
    post_attention_norm: "post_self_attention_layernorm",
    ffn_norm: "post_attention_layernorm",
    post_ffn_norm: "post_mlp_layernorm",
    gate_up: &["mlp.dense_h_to_4h"],
    w_down: "mlp.dense_4h_to_h",
    is_transposed: false,
    has_fused_heads: true,
};

const FALCON: Names = Names { attention_norm: "ln_attn", ffn_norm: "ln_mlp", ..BLOOM };

/// The name that Megatron gives the parameter at `path`; `None` for biases and parameters that Megatron does not have.
pub(super) fn megatron_name(path: &str) -> Option<String> {
    const NAMES: [(&str, &str); 21] = [
        ("attention_norm", "input_layernorm.weight"),
        ("attention.wqkv", "self_attention.linear_qkv.weight"),
        ("attention.bqkv", "self_attention.linear_qkv.bias"),
        ("attention.q_norm", "self_attention.q_layernorm.weight"),
        ("attention.k_norm", "self_attention.k_layernorm.weight"),
        ("attention.w_uq", "self_attention.linear_q_up_proj.weight"),
        ("attention.kv_norm", "self_attention.kv_layernorm.weight"),
        ("attention.w_ukv", "self_attention.linear_kv_up_proj.weight"),
        ("attention.wo", "self_attention.linear_proj.weight"),
        ("attention.w_in", "self_attention.in_proj.weight"),
        ("attention.conv", "self_attention.conv1d.weight"),
        ("attention.norm", "self_attention.out_norm.weight"),
        ("ffn_norm", "pre_mlp_layernorm.weight"),
        ("feed_forward.w_gate_up", "mlp.linear_fc1.weight"),
        ("feed_forward.w_down", "mlp.linear_fc2.weight"),
        ("feed_forward.router", "mlp.router.weight"),
        ("feed_forward.experts.w_gate_up", "mlp.experts.weight1"),
        ("feed_forward.experts.w_down", "mlp.experts.weight2"),
        ("feed_forward.shared.w_gate_up", "mlp.shared_experts.linear_fc1.weight"),
        ("feed_forward.shared.w_down", "mlp.shared_experts.linear_fc2.weight"),
        ("feed_forward.shared.gate", "mlp.shared_experts.gate_weight"),
    ];
    const BESIDE: [(&str, &str); 4] = [
        ("token_norm", "enorm.weight"),
        ("state_norm", "hnorm.weight"),
        ("w_fuse", "eh_proj.weight"),
        ("norm", "final_layernorm.weight"),
    ];
    let find = |names: &[(&str, &'static str)], name: &str| {
        names.iter().find(|(ours, _)| *ours == name).map(|(_, theirs)| *theirs)
    };
    match path {
        "embedding" => Some("embedding.word_embeddings.weight".into()),
        "norm" => Some("decoder.final_layernorm.weight".into()),
        "head" => Some("output_layer.weight".into()),
        _ => {
            let (kind, rest) = path.split_once('.')?;
            let (number, name) = rest.split_once('.')?;
            match (kind, find(&BESIDE, name)) {
                ("layers", _) => Some(format!("decoder.layers.{number}.{}", find(&NAMES, name)?)),
                (_, Some(theirs)) => Some(format!("mtp.layers.{number}.{theirs}")),
                (_, None) => Some(format!("mtp.layers.{number}.transformer_layer.{}", find(&NAMES, name)?)),
            }
        }
    }
}

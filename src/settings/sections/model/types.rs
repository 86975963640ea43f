//! The types of models, one entry each.
//!
//! A type reads the rows of a base, [`LLAMA`] or [`GPT2`], and differs from it in its model where a file is silent
//! (`defaults`), in what its keys must fit (`check`), and in the names of a checkpoint's tensors (`Family`). The
//! dialect (`settings/dialect/mindformers/classes.tsv`) knows which classes of MindFormers are of which type, what
//! other keys they have, and which classes stay out.
//!
//! CONTRIBUTING.md ("A new family") has all places of a new type. One that MindFormers has, too, is a row in
//! `configs/MINDFORMERS.md`, a file in `tests/data/dialect` with a test in `tests/training/rotary_types.rs`, and a line
//! in `tests/transformers/compare.py`.

use super::{CHATGLM2, DEEPSEEK_V2, DEEPSEEK_V3, GPT_OSS, GPT2, LLAMA, Model, OPT};
use crate::model::config::{
    Activation, Family, Gate, Gelu, ModelConfig, Norm, NormPlacement, Positions, QkNorm, Sizes,
};
use crate::settings::engine::*;

/// A type: its defaults, its names of tensors and its documentation.
pub(crate) struct TypeEntry {
    /// The word of `type`. Unique.
    pub word: &'static str,
    /// The type's documentation: which models it is, and how it differs from its base.
    pub about: &'static str,
    /// The type whose rows, rules and defaults this one shares: [`LLAMA`] or [`GPT2`].
    pub base: &'static str,
    /// Sets in which numbers the model differs from one of its base where a file is silent.
    pub defaults: fn(&mut ModelConfig),
    /// Checks keys that the type fixes, and fills in those that follow from other keys.
    pub check: fn(&mut Model, &Reader<'_>),
    /// The published family whose names of tensors its checkpoint has.
    pub family: Family,
    /// Whether that family has the tensors of a model of this type; otherwise its checkpoint has Llama's names.
    pub fits: fn(&ModelConfig) -> bool,
}

/// A Llama that differs in nothing.
const PLAIN: TypeEntry = TypeEntry {
    word: LLAMA,
    about: "Llama 1 to 3, Yi, Qwen1.5 and Qwen2, Mixtral: RMSNorm, rotary positions, SwiGLU.",
    base: LLAMA,
    defaults: |_| {},
    check: |_, _| {},
    family: Family::Llama,
    fits: |_| true,
};

/// Every type.
const TYPES: [TypeEntry; 30] = [
    PLAIN,
    TypeEntry {
        word: GPT2,
        about: "GPT-2 (Radford et al., 2019): LayerNorm, learned positions, GELU, a bias in every linear layer.",
        base: GPT2,
        family: Family::Gpt2,
        ..PLAIN
    },
    TypeEntry {
        word: CHATGLM2,
        about: "ChatGLM2, ChatGLM3, CodeGeeX2 and GLM-4: a Llama whose query heads share 2 key and value heads, \
                with a bias in the projections to q, k and v, and of whose heads one half rotates, in interleaved \
                pairs.",
        defaults: |config| (config.layer.num_kv_heads, config.layer.rotary_interleaved) = (2, true),
        check: check_glm,
        family: Family::Glm,
        fits: fits_glm,
        ..PLAIN
    },
    TypeEntry {
        word: "QwenConfig",
        about: "Qwen 1: a Llama with a bias in the projections to q, k and v. `intermediate_size` is the width of \
                gate and up each; Qwen's own configuration writes twice that.",
        ..PLAIN
    },
    TypeEntry {
        word: "InternLMConfig",
        about: "InternLM: a Llama with a bias in all projections of attention (`has_bias`).",
        ..PLAIN
    },
    TypeEntry {
        word: "InternLM2Config",
        about: "InternLM2: a Llama whose published weights hold q, k and v as one matrix.",
        ..PLAIN
    },
    TypeEntry {
        word: "TelechatConfig",
        about: "TeleChat: a Llama with a bias in the projections back to the residual stream, that of attention \
                (`attn_proj_has_bias`) and that of the feed-forward layer (`add_mlp_fc2_bias_linear`).",
        check: check_telechat,
        ..PLAIN
    },
    TypeEntry {
        word: "Baichuan2_7BConfig",
        about: "Baichuan 2 of 7B (Yang et al., 2023): a Llama that divides each row of its head by the row's \
                length, the root of its sum of squares plus 1e-5. The published code has no epsilon there. Baichuan \
                1 of 7B is a plain Llama.",
        family: Family::Baichuan,
        fits: has_gate,
        defaults: |config| config.head_epsilon = Some(HEAD_EPSILON),
        ..PLAIN
    },
    TypeEntry {
        word: "Baichuan_13BConfig",
        about: "Baichuan of 13B: a Llama whose scores of attention fall with distance (ALiBi) instead of rotary \
                positions.",
        family: Family::Baichuan,
        fits: has_gate,
        defaults: |config| config.positions = Positions::Alibi,
        ..PLAIN
    },
    TypeEntry {
        word: "Baichuan2_13BConfig",
        about: "Baichuan 2 of 13B: Baichuan of 13B with the head of Baichuan 2 of 7B.",
        family: Family::Baichuan,
        fits: has_gate,
        defaults: |config| {
            config.positions = Positions::Alibi;
            config.head_epsilon = Some(HEAD_EPSILON);
        },
        ..PLAIN
    },
    TypeEntry {
        word: "BloomConfig",
        about: "Bloom (Scao et al., 2022): a GPT-2 whose scores of attention fall with distance (ALiBi), with a \
                norm of the embedded tokens and without learned positions.",
        base: GPT2,
        family: Family::Bloom,
        defaults: |config| {
            config.positions = Positions::Alibi;
            config.embedding_norm = true;
        },
        ..PLAIN
    },
    TypeEntry {
        word: "WizardCoderConfig",
        about: "WizardCoder and StarCoder (GPTBigCode; Li et al., 2023): a GPT-2 whose query heads share one key \
                and value head.",
        base: GPT2,
        family: Family::BigCode,
        defaults: |config| config.layer.num_kv_heads = 1,
        ..PLAIN
    },
    TypeEntry {
        word: "PanguAlphaConfig",
        about: "PanGu-α (Zeng et al., 2021) and CodeGeeX: a GPT-2 whose last layer, the query layer, projects its \
                queries from a learned table by position. The last norm is before that layer, as in the published \
                models.",
        base: GPT2,
        defaults: |config| config.activation = Activation::Gelu(Gelu::Fast),
        check: |model, _| model.config = model.config.clone().with_query_table(),
        family: Family::Pangu,
        ..PLAIN
    },
    TypeEntry {
        word: OPT,
        about: "OPT (Zhang et al., 2022): a GPT-2 with ReLU, whose files hold two more rows of positions. OPT of 350M has \
                norms after sums and a narrower embedding.",
        base: GPT2,
        defaults: |config| config.activation = Activation::Gelu(Gelu::Relu),
        check: |model, reader| check_opt(model, reader),
        family: Family::Opt,
        fits: is_dense,
    },
    TypeEntry {
        word: DEEPSEEK_V3,
        about: "DeepSeek-V3: a Llama with multi-head latent attention, experts chosen by sigmoid scores with a bias \
                that balances them, and multi-token prediction where `num_nextn_predict_layers` asks for it. The router is DeepSeek-V3's where a file is silent.",
        defaults: deepseek,
        ..PLAIN
    },
    TypeEntry {
        word: DEEPSEEK_V2,
        about: "DeepSeek-V2: the same attention, and experts chosen by softmax scores, whose gates are not made to \
                sum to 1.",
        defaults: deepseek,
        ..PLAIN
    },
    TypeEntry {
        word: "Phi3Config",
        about: "Phi-3 and Phi-4: a Llama whose files hold q, k and v as one tensor, gate and up as another.",
        check: |model, reader| check_rotation(model, reader, false),
        family: Family::Phi3,
        // Gate and up of other widths have padding between them here, and are two tensors.
        fits: |model| is_plain(model) && model.layer.intermediate_size.is_multiple_of(4),
        ..PLAIN
    },
    TypeEntry {
        word: "Ernie4_5Config",
        about: "ERNIE 4.5: a Llama whose heads rotate in interleaved pairs, in its files too, also with experts, whose \
                gates are divided by a sum of at least `moe_norm_min`.",
        defaults: |config| config.layer.rotary_interleaved = true,
        check: |model, reader| check_rotation(model, reader, true),
        family: Family::Ernie45,
        fits: fits_ernie,
        ..PLAIN
    },
    TypeEntry {
        word: "HeliumConfig",
        about: "Helium: a Llama whose heads rotate in interleaved pairs, in its files too.",
        defaults: |config| config.layer.rotary_interleaved = true,
        check: |model, reader| check_rotation(model, reader, true),
        family: Family::Helium,
        fits: is_plain,
        ..PLAIN
    },
    TypeEntry {
        word: "GraniteMoeConfig",
        about: "Mixtures of Granite: a Llama whose files hold all experts of a layer as one tensor, gate and up together.",
        family: Family::GraniteMoe,
        fits: fits_granite_moe,
        ..PLAIN
    },
    TypeEntry {
        word: "GPTNeoXConfig",
        about: "GPT-NeoX and Pythia: a Llama with LayerNorm, GELU without a gate, a bias in every linear layer but the head, \
                and files that hold q, k and v of each head side by side.",
        defaults: |config| {
            (config.norm, config.activation) = (Norm::LayerNorm, Activation::Gelu(Gelu::Exact));
            (config.qkv_bias, config.output_bias) = (true, true);
            (config.gate_up_bias, config.down_bias) = (true, true);
        },
        check: |model, reader| check_rotation(model, reader, false),
        family: Family::GptNeoX,
        fits: fits_gpt_neox,
        ..PLAIN
    },
    TypeEntry {
        word: "FalconConfig",
        about: "Falcon: a Llama with LayerNorm, GELU without a gate, a tied head, and files that hold the queries of \
                each key and value head beside these.",
        defaults: |config| {
            (config.norm, config.activation) = (Norm::LayerNorm, Activation::Gelu(Gelu::Exact));
            config.tie_word_embeddings = true;
        },
        check: |model, reader| check_rotation(model, reader, false),
        family: Family::Falcon,
        fits: is_ungated,
        ..PLAIN
    },
    TypeEntry {
        word: "GPTJConfig",
        about: "GPT-J: a Llama with LayerNorm, GELU without a gate, biases of the feed-forward layers and of the head, \
                and heads that rotate in interleaved pairs, in its files too.",
        defaults: |config| {
            (config.norm, config.activation) = (Norm::LayerNorm, Activation::Gelu(Gelu::Tanh));
            (config.gate_up_bias, config.down_bias, config.head_bias) = (true, true, true);
            config.layer.rotary_interleaved = true;
        },
        check: |model, reader| check_rotation(model, reader, true),
        family: Family::GptJ,
        fits: is_ungated,
        ..PLAIN
    },
    TypeEntry {
        word: "PhiConfig",
        about: "Phi-1, Phi-1.5 and Phi-2: a Llama with LayerNorm, GELU without a gate, and a bias in every linear \
                layer, the head included.",
        defaults: |config| {
            (config.norm, config.activation) = (Norm::LayerNorm, Activation::Gelu(Gelu::Tanh));
            (config.qkv_bias, config.output_bias) = (true, true);
            (config.gate_up_bias, config.down_bias, config.head_bias) = (true, true, true);
        },
        check: |model, reader| check_rotation(model, reader, false),
        family: Family::Phi,
        fits: |model| is_ungated(&without_norms(model, QkNorm::LayerNorm)),
        ..PLAIN
    },
    TypeEntry {
        word: "MptConfig",
        about: "MPT: a Llama with LayerNorm without a bias, GELU without a gate, a tied head, and scores of attention \
                that fall with distance (ALiBi) instead of rotary positions. Its files hold q, k and v as one tensor.",
        defaults: |config| {
            (config.norm, config.norm_bias) = (Norm::LayerNorm, false);
            (config.activation, config.positions) = (Activation::Gelu(Gelu::Exact), Positions::Alibi);
            config.tie_word_embeddings = true;
        },
        family: Family::Mpt,
        fits: is_ungated,
        ..PLAIN
    },
    TypeEntry {
        word: "NanoChatConfig",
        about: "nanochat: a Llama whose norms have no weights, with a norm of the embedded tokens and ReLU² without a \
                gate. Its whole heads rotate backwards, which its files say by no key.",
        defaults: |config| {
            (config.norm_weight, config.embedding_norm) = (false, true);
            config.activation = Activation::Gelu(Gelu::ReluSquared);
        },
        check: check_nano_chat,
        family: Family::NanoChat,
        fits: |model| {
            model.mixture.is_none() && model.multi_token.is_none() && model.activation.gate().is_none()
        },
        ..PLAIN
    },
    TypeEntry {
        word: "CohereConfig",
        about: "Command R: a Llama whose norms are LayerNorms without a bias, and whose heads rotate in interleaved pairs, in \
                its files too.",
        defaults: |config| {
            (config.norm, config.norm_bias) = (Norm::LayerNorm, false);
            config.layer.rotary_interleaved = true;
        },
        check: |model, reader| check_rotation(model, reader, true),
        family: Family::Cohere,
        fits: |model| is_dense(&without_norms(model, QkNorm::LayerNormByHead)) && has_gate(model),
        ..PLAIN
    },
    TypeEntry {
        word: GPT_OSS,
        about: "gpt-oss (OpenAI, 2025): a Llama with a bias in all projections of attention, a learned logit of each \
                head in the softmax of attention (a sink), and experts behind the clamped form of SwiGLU with biases, \
                as the router has one. Widths of experts are multiples of 4.",
        defaults: |config| {
            (config.qkv_bias, config.output_bias, config.layer.has_sinks) = (true, true, true);
            config.activation = Activation::Gated(Gate::Clamped);
        },
        check: |model, reader| check_gate(model, reader),
        family: Family::GptOss,
        ..PLAIN
    },
    TypeEntry {
        word: "Qwen3NextConfig",
        about: "Qwen3-Next (Alibaba, 2025): a Llama whose files hold the projections of linear attention key head by key \
                head. Qwen3.5 and 3.6 are plain Llamas with the same layers.",
        family: Family::Qwen3Next,
        fits: has_gate,
        ..PLAIN
    },
    TypeEntry {
        word: "Lfm2Config",
        about: "LFM2 and LFM2.5 (Liquid AI, 2025): a Llama with QK-norm and a tied head, most of whose layers have a \
                gated short convolution (`layer_types: conv`) instead of attention, also with experts.",
        defaults: |config| (config.layer.rope_theta, config.tie_word_embeddings) = (1e6, true),
        check: check_lfm2,
        family: Family::Lfm2,
        ..PLAIN
    },
];

/// Added by Baichuan 2 to the squared length of a row of the head.
const HEAD_EPSILON: f64 = 1e-5;

/// A type of model: which keys it has, what they are by default, and what follows from the type alone.
#[derive(Clone, Copy)]
pub struct ModelType(&'static TypeEntry);

impl ModelType {
    /// The word of `type`.
    pub fn word(self) -> &'static str {
        self.0.word
    }

    /// The words of the types whose rows the type reads.
    pub(crate) fn reads(self) -> [&'static str; 2] {
        [self.0.word, self.0.base]
    }

    /// Whether the type reads the key of `row`.
    pub(crate) fn reads_row(self, row: &RowText) -> bool {
        row.types.is_empty() || row.types.iter().any(|word| self.is(word))
    }

    /// Whether the type shares the rows and rules of `base`.
    pub(crate) fn is(self, base: &str) -> bool {
        self.reads().contains(&base)
    }

    /// The type's entry in [`TYPES`].
    pub(crate) fn entry(self) -> &'static TypeEntry {
        self.0
    }

    /// The model of this type where a file is silent. What a file must give, or what follows from its other keys, is 0.
    pub(crate) fn defaults(self) -> ModelConfig {
        let base = match self.is(GPT2) {
            true => ModelConfig::gpt2(Sizes::default()),
            false => ModelConfig { init_std: 0.01, ..ModelConfig::llama(Sizes::default()) },
        };
        let mut config = ModelConfig { family: self.0.family, ..base };
        (self.0.defaults)(&mut config);
        config
    }

    /// The type that is written `word`.
    pub(crate) fn named(word: &str) -> Option<Self> {
        TYPES.iter().find(|entry| entry.word == word).map(Self)
    }
}

impl Default for ModelType {
    fn default() -> Self {
        Self(&TYPES[0])
    }
}

impl PartialEq for ModelType {
    fn eq(&self, other: &Self) -> bool {
        self.0.word == other.0.word
    }
}

impl std::fmt::Debug for ModelType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.word)
    }
}

impl Setting for ModelType {
    fn kind() -> ValueKind {
        ValueKind::Words(TYPES.iter().map(|entry| entry.word).collect())
    }

    fn from_node(node: &Node) -> Option<Self> {
        Self::named(node.word()?)
    }

    fn to_node(&self) -> Option<Node> {
        Some(self.word().into())
    }
}

/// A table for each type, with its documentation.
pub(crate) fn tables() -> impl Iterator<Item = (TableId, Table)> {
    TYPES.iter().map(|entry| {
        let shares = match entry.base == entry.word {
            true => String::new(),
            false => format!(" It reads the keys of `{}`.", entry.base),
        };
        (Model::ID.of_type(entry.word), Table::unused(&format!("{}{shares}", entry.about), []))
    })
}

/// The model of the type that `reader` reads, where its file is silent.
pub(super) fn defaults(reader: Option<&Reader<'_>>) -> ModelConfig {
    let kind = reader.and_then(|reader| ModelType::from_node(reader.node("type")?));
    kind.unwrap_or_default().defaults()
}

fn check_glm(model: &mut Model, reader: &Reader<'_>) {
    model.rotary_percent.get_or_insert(0.5);
    if !reader.has("emb_dropout_prob") {
        model.config.embedding_dropout = model.config.hidden_dropout;
    }
    if model.config.layer.intermediate_size == 0 {
        reader.missing("intermediate_size", "a whole number from 1, the width of the feed-forward layer");
    }
}

/// The published GLM has no further biases. Its checkpoint holds gate and up as one tensor, without the padding between
/// them that odd widths have here.
fn fits_glm(model: &ModelConfig) -> bool {
    let has_other_biases = model.output_bias || model.gate_up_bias || model.down_bias;
    let is_glm = model.layer.rotary_interleaved
        && !has_other_biases
        && has_plain_tensors(model)
        && model.norm_placement.is_before();
    is_glm && model.layer.intermediate_size.is_multiple_of(4)
}

/// Experts of other widths have padding between gate and up here, and are tensors of their own.
fn fits_granite_moe(model: &ModelConfig) -> bool {
    let has_norms_before = model.norm_placement == NormPlacement::Before;
    model.mixture.as_ref().is_some_and(|mixture| {
        let shared = mixture.shared.map_or(0, |shared| shared.intermediate_size);
        mixture.intermediate_size.is_multiple_of(4) && shared.is_multiple_of(4)
    }) && has_norms_before
        && model.multi_token.is_none()
        && model.activation.gate().is_some()
}

/// ERNIE 4.5 may have experts.
fn fits_ernie(model: &ModelConfig) -> bool {
    let has_plain_norms = model.norm == Norm::RmsNorm && model.norm_placement == NormPlacement::Before;
    has_gate(model) && has_plain_norms && model.multi_token.is_none() && !model.qk_norm
}

/// Whether heads rotate in pairs or in halves, which the type decides.
fn check_rotation(model: &mut Model, reader: &Reader<'_>, in_pairs: bool) {
    if model.config.layer.rotary_interleaved != in_pairs {
        let order = if in_pairs { "neighbours (2i, 2i+1)" } else { "halves" };
        reader.fault("rotary_interleaved", format!("heads of this type rotate as {order}; remove it"));
    }
}

fn check_nano_chat(model: &mut Model, reader: &Reader<'_>) {
    check_rotation(model, reader, false);
    let rotates_whole = model.rotary_percent.is_none_or(|share| share == 1.0);
    reader.require(&["rotary_percent"], rotates_whole, "whole heads of this type rotate; remove it");
}

/// Files of the type have names for these alone.
fn check_opt(model: &Model, reader: &Reader<'_>) {
    let is_built =
        matches!(model.norm_placement, None | Some(NormPlacement::Before | NormPlacement::AfterSum));
    let message = "not built yet for this type; write `before` or `after_sum`";
    reader.require(&["norm_placement"], is_built, message);
}

/// Files of the type have no names for these.
fn check_lfm2(model: &mut Model, reader: &Reader<'_>) {
    model.use_qk_norm.get_or_insert(true);
    check_gate(model, reader);
    for (key, is_there) in [
        ("use_v_norm", model.use_v_norm == Some(true)),
        ("layer_scalars", model.layer_scalars == Some(true)),
        ("mtp_depth", model.mtp_depth.is_some_and(|depth| depth > 0)),
    ] {
        reader.require(&[key], !is_there, "not built yet for this type; remove it");
    }
}

/// Files of the type have no names for networks without a gate.
fn check_gate(model: &Model, reader: &Reader<'_>) {
    let is_gated = model.gated_linear_unit != Some(false);
    reader.require(&["gated_linear_unit"], is_gated, "not built yet for this type; remove it");
}

/// No published model of the types with names of their own has experts or other further tensors.
fn has_plain_tensors(model: &ModelConfig) -> bool {
    is_dense(model) && has_gate(model) && model.norm == Norm::RmsNorm
}

fn has_gate(model: &ModelConfig) -> bool {
    model.activation.gate().is_some()
}

fn is_dense(model: &ModelConfig) -> bool {
    model.mixture.is_none() && model.multi_token.is_none() && !model.qk_norm
}

/// The model without norms of heads that files of its type have names for.
fn without_norms(model: &ModelConfig, kind: QkNorm) -> ModelConfig {
    ModelConfig { qk_norm: model.qk_norm && model.qk_norm_kind != kind, ..model.clone() }
}

/// Nor gates, in some families.
fn is_ungated(model: &ModelConfig) -> bool {
    let is_without_gate = model.activation.gate().is_none() && model.norm_placement == NormPlacement::Before;
    is_dense(model) && is_without_gate
}

/// Files have all heads of q, k and v: as many of each.
fn fits_gpt_neox(model: &ModelConfig) -> bool {
    is_ungated(model) && model.layer.num_kv_heads == model.num_heads
}

/// Nor, except for GLM, other norms.
fn is_plain(model: &ModelConfig) -> bool {
    has_plain_tensors(model) && model.norm_placement == NormPlacement::Before
}

/// Files of the 7B model give the width of the feed-forward layer itself as its multiplier.
fn check_telechat(model: &mut Model, reader: &Reader<'_>) {
    let config = &mut model.config;
    if let (0, Some(width)) = (config.layer.intermediate_size, model.ffn_dim_multiplier)
        && width.fract() == 0.0
        && width >= config.hidden_size as f64
    {
        reader.note("ffn_dim_multiplier", format!("{width} is the width of the feed-forward layer itself"));
        (config.layer.intermediate_size, model.ffn_dim_multiplier) = (width as usize, None);
    }
}

fn deepseek(config: &mut ModelConfig) {
    (config.norm_eps, config.init_std, config.layer.rotary_interleaved) = (1e-6, 0.02, true);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::parameters::Gpt;
    use crate::settings::RunConfig;
    use std::path::Path;

    /// Files of every type have names for what it accepts, with gates and without.
    #[test]
    fn what_a_type_accepts_has_names() {
        let mut accepted = 0;
        for entry in &TYPES {
            for (is_gated, activation) in [(true, "silu"), (false, "relu"), (false, "xielu")] {
                let text = format!(
                    "model: {{ model_config: {{ type: {}, vocab_size: 64, hidden_size: 16, num_layers: 2, num_heads: 2, \
                     intermediate_size: 16, seq_length: 8, gated_linear_unit: {}, hidden_act: {activation} }} }}\n\
                     train_dataset: {{ data_loader: {{ type: TextDataLoader, dataset_files: a }} }}\n\
                     lr_schedule: {{ learning_rate: 1e-3 }}\nrunner_config: {{ epochs: 1 }}\n",
                    entry.word,
                    if is_gated { "True" } else { "False" },
                );
                let Ok(config) = RunConfig::parse(&text, Path::new("x.yaml"), &[]) else { continue };
                assert!(!Gpt::describe(&config.plan.model).is_empty());
                accepted += 1;
            }
        }
        assert!(accepted > TYPES.len(), "{accepted} models are accepted");
    }
}

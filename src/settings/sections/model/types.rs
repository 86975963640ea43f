//! The types of models, one entry each.
//!
//! A type reads the rows of a base, [`LLAMA`] or [`GPT2`], and differs from it in defaults (`prepare`), in the names of
//! a checkpoint's tensors (`Family`), and in what follows beyond the rows (`finish`). The dialect
//! (`settings/dialect/mindformers/classes.tsv`) knows which classes of MindFormers are of which type, what other keys
//! they have, and which classes stay out.
//!
//! To add a type that our layers compute, write an entry in [`TYPES`], its class there, a row in
//! `configs/MINDFORMERS.md`, a file in `tests/data/dialect` with a test in `tests/training/rotary_types.rs`, and a
//! line in `tests/transformers/compare.py`.

use super::{CHATGLM2, DEEPSEEK_V2, DEEPSEEK_V3, GPT2, LLAMA, Model};
use crate::model::config::{Activation, Family, Gelu, ModelConfig, Positions};
use crate::settings::engine::*;

/// A type: its defaults, its names of tensors and its documentation.
pub(crate) struct TypeEntry {
    /// The word of `type`. Unique.
    pub word: &'static str,
    /// The type's documentation: which models it is, and how it differs from MindFormers.
    pub about: &'static str,
    /// The type whose rows, rules and defaults this one shares: [`LLAMA`] or [`GPT2`].
    pub base: &'static str,
    /// Sets the keys that the type fixes, and its defaults. Comes before the defaults of its base.
    pub prepare: fn(&mut Model, &Reader<'_>),
    /// The published family whose names of tensors its checkpoint has.
    pub family: Family,
    /// Sets in the model what follows from the type beyond its rows.
    pub finish: fn(&Model, &mut ModelConfig),
}

/// A Llama that differs in nothing.
const PLAIN: TypeEntry = TypeEntry {
    word: LLAMA,
    about: "Llama 1 to 3, Yi, Qwen1.5 and Qwen2, Mixtral: RMSNorm, rotary positions, SwiGLU.",
    base: LLAMA,
    prepare: |_, _| {},
    family: Family::Llama,
    finish: |_, _| {},
};

/// Every type.
const TYPES: [TypeEntry; 18] = [
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
                pairs. Not taken over: its default sizes, which follow from the others here.",
        prepare: prepare_glm,
        family: Family::Glm,
        finish: finish_glm,
        ..PLAIN
    },
    TypeEntry {
        word: "QwenConfig",
        about: "Qwen 1: a Llama with a bias in the projections to q, k and v. `intermediate_size` is the width of \
                gate and up each, as in MindFormers' files; Qwen's own configuration writes twice that.",
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
        prepare: prepare_telechat,
        ..PLAIN
    },
    TypeEntry {
        word: "Baichuan2_7BConfig",
        about: "Baichuan 2 of 7B (Yang et al., 2023): a Llama that divides each row of its head by the row's \
                length, the root of its sum of squares plus 1e-5. The published code has no epsilon there. Baichuan \
                1 of 7B is a plain Llama.",
        family: Family::Baichuan,
        finish: |_, config| config.head_epsilon = Some(HEAD_EPSILON),
        ..PLAIN
    },
    TypeEntry {
        word: "Baichuan_13BConfig",
        about: "Baichuan of 13B: a Llama whose scores of attention fall with distance (ALiBi) instead of rotary \
                positions.",
        family: Family::Baichuan,
        finish: |_, config| config.positions = Positions::Alibi,
        ..PLAIN
    },
    TypeEntry {
        word: "Baichuan2_13BConfig",
        about: "Baichuan 2 of 13B: Baichuan of 13B with the head of Baichuan 2 of 7B.",
        family: Family::Baichuan,
        finish: |_, config| {
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
        finish: |_, config| {
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
        finish: |_, config| config.num_kv_heads = 1,
        ..PLAIN
    },
    TypeEntry {
        word: "PanguAlphaConfig",
        about: "PanGu-α (Zeng et al., 2021) and CodeGeeX: a GPT-2 whose last layer, the query layer, projects its \
                queries from a learned table by position. The last norm is before that layer, as in the published \
                models and in MindFormers on one stage; on several stages MindFormers has it after that layer, which \
                is another model.",
        base: GPT2,
        prepare: |model, _| {
            model.hidden_act.get_or_insert(Activation::Gelu(Gelu::Fast));
        },
        family: Family::Pangu,
        finish: |_, config| config.query_layer = true,
    },
    TypeEntry {
        word: DEEPSEEK_V3,
        about: "DeepSeek-V3: a Llama with multi-head latent attention, experts chosen by sigmoid scores with a bias \
                that balances them, and multi-token prediction where `num_nextn_predict_layers` asks for it (in \
                MindFormers always, unless that is 0). The router is DeepSeek-V3's where a file is silent.",
        prepare: prepare_deepseek,
        ..PLAIN
    },
    TypeEntry {
        word: DEEPSEEK_V2,
        about: "DeepSeek-V2: the same attention, and experts chosen by softmax scores, whose gates are not made to \
                sum to 1.",
        prepare: prepare_deepseek,
        ..PLAIN
    },
    TypeEntry {
        word: "Phi3Config",
        about: "Phi-3 and Phi-4: a Llama whose files hold q, k and v as one tensor, gate and up as another. \
                MindFormers has none.",
        prepare: |model, reader| rotates(model, reader, false),
        family: Family::Phi3,
        finish: |_, model| {
            // Gate and up of other widths have padding between them here, and are two tensors.
            keep_names(model, model.intermediate_size.is_multiple_of(4));
        },
        ..PLAIN
    },
    TypeEntry {
        word: "Ernie4_5Config",
        about: "ERNIE 4.5 without experts: a Llama whose heads rotate in interleaved pairs, in its files too. \
                MindFormers has none.",
        prepare: |model, reader| rotates(model, reader, true),
        family: Family::Ernie45,
        finish: |_, model| keep_names(model, true),
        ..PLAIN
    },
    TypeEntry {
        word: "HeliumConfig",
        about: "Helium: the same. MindFormers has none.",
        prepare: |model, reader| rotates(model, reader, true),
        family: Family::Helium,
        finish: |_, model| keep_names(model, true),
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

    /// Whether the type shares the rows and rules of `base`.
    pub(crate) fn is(self, base: &str) -> bool {
        self.reads().contains(&base)
    }

    /// Whether the last layer projects its queries from a table; it has no experts then.
    pub(crate) fn learns_queries(self) -> bool {
        self.0.family == Family::Pangu
    }

    /// The type's entry in [`TYPES`].
    pub(crate) fn entry(self) -> &'static TypeEntry {
        self.0
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

fn prepare_glm(model: &mut Model, reader: &Reader<'_>) {
    model.n_kv_heads.get_or_insert(2);
    model.rotary_percent.get_or_insert(0.5);
    model.rotary_interleaved.get_or_insert(true);
    if !reader.has("emb_dropout_prob") {
        model.emb_dropout_prob = model.hidden_dropout;
    }
    if model.intermediate_size.is_none() {
        reader.missing("intermediate_size", "a whole number from 1, the width of the feed-forward layer");
    }
}

/// The published GLM computes neither experts nor other variations of a Llama; a model that has these gets Llama's
/// names. GLM's checkpoint holds gate and up as one tensor, without the padding between them that odd widths have here.
fn finish_glm(_: &Model, model: &mut ModelConfig) {
    let has_other_biases = model.output_bias || model.gate_up_bias || model.down_bias;
    let varies = model.mixture.is_some() || model.multi_token.is_some() || model.qk_norm || has_other_biases;
    if varies || !model.rotary_interleaved || !model.intermediate_size.is_multiple_of(4) {
        model.family = Family::Llama;
    }
}

/// Sets whether heads rotate in pairs or in halves, which the type decides.
fn rotates(model: &mut Model, reader: &Reader<'_>, in_pairs: bool) {
    if model.rotary_interleaved.is_some_and(|written| written != in_pairs) {
        let order = if in_pairs { "neighbours (2i, 2i+1)" } else { "halves" };
        reader.fault("rotary_interleaved", format!("heads of this type rotate as {order}; remove it"));
    }
    model.rotary_interleaved = Some(in_pairs);
}

/// Gives a model Llama's names unless the tensors of its type `fit` it. No published model of these types has experts
/// or other further tensors.
fn keep_names(model: &mut ModelConfig, fit: bool) {
    if !fit || model.mixture.is_some() || model.multi_token.is_some() || model.qk_norm {
        model.family = Family::Llama;
    }
}

/// Files of the 7B model give the width of the feed-forward layer itself as its multiplier.
fn prepare_telechat(model: &mut Model, reader: &Reader<'_>) {
    if let (None, Some(width)) = (model.intermediate_size, model.ffn_dim_multiplier)
        && width.fract() == 0.0
        && width >= model.hidden_size as f64
    {
        reader.note("ffn_dim_multiplier", format!("{width} is the width of the feed-forward layer itself"));
        (model.intermediate_size, model.ffn_dim_multiplier) = (Some(width as usize), None);
    }
}

fn prepare_deepseek(model: &mut Model, reader: &Reader<'_>) {
    if !reader.has("rms_norm_eps") {
        model.rms_norm_eps = 1e-6;
    }
    model.init_method_std.get_or_insert(0.02);
}

//! The `model` section: `model_config` and `arch`.

use super::document::Document;
use super::family;
use super::known_keys;
use super::rope_scaling;
use super::section::{Notes, Section};
use crate::error::Result;
use crate::model::config::{Activation, Family, RopeScaling};

/// `model.model_config` as written.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSection {
    /// `type`, or what `model.arch.type` says.
    pub family: Family,
    /// Number of different tokens.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of blocks.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; as many as query heads where absent.
    pub n_kv_heads: Option<usize>,
    /// Width of a head; `hidden_size / num_heads` where absent.
    pub head_dim: Option<usize>,
    /// Megatron's name of `head_dim`. Files of the original carry it without effect, so it only may repeat the width.
    pub kv_channels: Option<usize>,
    /// Inner width of the feed-forward layer; by rule from `hidden_size` where absent.
    pub intermediate_size: Option<usize>,
    /// The rule rounds up to a multiple of this.
    pub multiple_of: usize,
    /// The rule widens by this factor.
    pub ffn_dim_multiplier: Option<f64>,
    /// GPT-2's feed-forward layer is so many times as wide as the stream where no size is given.
    pub expand_ratio: usize,
    /// `hidden_act`.
    pub activation: Activation,
    /// Tokens in a window.
    pub seq_length: usize,
    /// Positions that the model is made for; `seq_length` where absent.
    pub max_position_embedding: Option<usize>,
    /// Added to the mean square or the variance in the norms.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub theta: f64,
    /// How they are stretched: `extend_method` and `scaling_factor`, or `rope_scaling`.
    pub rope_scaling: RopeScaling,
    /// Share of a head's dimensions that rotate.
    pub rotary_percent: f64,
    /// Whether rotary pairs are neighbours.
    pub rotary_interleaved: bool,
    /// Whether the head shares the embedding's weights.
    pub tie_word_embeddings: bool,
    /// Whether the q, k and v projections have a bias.
    pub qkv_has_bias: bool,
    /// Whether q and k are normalised per head.
    pub use_qk_norm: bool,
    /// A token sees this many tokens, itself and those before it; all of them where absent.
    pub sliding_window: Option<u64>,
    /// Share of the attention weights that training drops.
    pub attention_dropout: f64,
    /// Share of what each half of a block adds to the residual stream that training drops.
    pub hidden_dropout: f64,
    /// Share of the embedding's output that training drops.
    pub emb_dropout_prob: f64,
    /// Standard deviation of the initial weights.
    pub init_method_std: f64,
    /// Targets with this id are left out of the loss.
    pub ignore_token_id: i64,
    /// Blocks behind the last that predict tokens further ahead.
    pub mtp_depth: usize,
    /// What their mean loss counts; 0.3 where absent, as in DeepSeek-V3.
    pub mtp_loss_factor: f64,
    /// Patterns of parameters that do not train.
    pub freeze: Vec<String>,
    /// Patterns of those among them that do.
    pub freeze_exclude: Vec<String>,
}

const PATH: &str = "model.model_config";

/// Reads the section.
pub(super) fn read(document: &Document, notes: &mut Notes) -> Result<ModelSection> {
    Section::open(document, "model", &known_keys::MODEL_SECTION, notes)?;
    // The type comes first: another model's keys are unknown only because the model is.
    let family = family::read(document)?;
    Section::open(document, "model.arch", &known_keys::ARCH, notes)?;
    let section = Section::open(document, PATH, &known_keys::MODEL, notes)?;
    family::check(&section, family)?;
    let positive = |number: f64| number > 0.0;
    let dropped =
        |key| section.number(key, 0.0, "a share in [0, 1)", |share| (0.0..1.0).contains(&(share as f32)));
    let untied: Option<bool> = section.get("untie_embeddings_and_output_weights")?;
    let tied: Option<bool> = section.get("tie_word_embeddings")?;
    if untied.is_some() && untied == tied {
        let message = "contradicts `tie_word_embeddings`; keep one of them";
        return Err(section.error("untie_embeddings_and_output_weights", message));
    }
    if section.node("freeze_exclude").is_some() && section.node("freeze").is_none() {
        return Err(section.error("freeze_exclude", "given without `freeze`, whose patterns it narrows"));
    }
    let mtp_depth = section.or("mtp_depth", 0)?;
    if mtp_depth == 0 && section.node("mtp_loss_factor").is_some_and(|node| !node.is_off()) {
        notes.ignore(PATH, "mtp_loss_factor");
    }
    let is_llama = family == Family::Llama;
    let qkv_has_bias = section.or("qkv_has_bias", !is_llama)?;
    if !is_llama && !qkv_has_bias {
        return Err(section.error("qkv_has_bias", "not built yet (found `False`); write `True`"));
    }
    let seq_length = section.require("seq_length")?;
    let max_position_embedding: Option<usize> = section.get("max_position_embedding")?;
    let length = max_position_embedding.unwrap_or(seq_length).max(seq_length);
    let theta = section.number("theta", 10_000.0, "a number above 0", positive)?;
    Ok(ModelSection {
        family,
        vocab_size: section.require("vocab_size")?,
        hidden_size: section.require("hidden_size")?,
        num_layers: section.require("num_layers")?,
        num_heads: section.require("num_heads")?,
        n_kv_heads: section.get("n_kv_heads")?,
        head_dim: section.get("head_dim")?,
        kv_channels: section.get("kv_channels")?,
        intermediate_size: section.get("intermediate_size")?,
        multiple_of: section.or("multiple_of", 256)?,
        ffn_dim_multiplier: section.get("ffn_dim_multiplier")?,
        expand_ratio: section.or("expand_ratio", 4)?,
        activation: family::activation(&section, family, notes)?,
        seq_length,
        max_position_embedding,
        rms_norm_eps: section.number("rms_norm_eps", 1e-5, "a number above 0", positive)?,
        theta,
        rope_scaling: rope_scaling::read(document, &section, length, theta)?,
        rotary_percent: section
            .number("rotary_percent", 1.0, "a share in (0, 1]", |share| share > 0.0 && share <= 1.0)?,
        rotary_interleaved: section.or("rotary_interleaved", false)?,
        tie_word_embeddings: tied.or(untied.map(|untied| !untied)).unwrap_or(!is_llama),
        qkv_has_bias,
        use_qk_norm: section.or("use_qk_norm", false)?,
        sliding_window: sliding_window(&section)?,
        attention_dropout: dropped("attention_dropout")?,
        hidden_dropout: dropped("hidden_dropout")?,
        emb_dropout_prob: dropped("emb_dropout_prob")?,
        init_method_std: section.number(
            "init_method_std",
            if is_llama { 0.01 } else { 0.02 },
            "a number above 0",
            positive,
        )?,
        ignore_token_id: section.or("ignore_token_id", -100)?,
        mtp_depth,
        mtp_loss_factor: section.number("mtp_loss_factor", 0.3, "a number from 0", |factor| factor >= 0.0)?,
        freeze: section.get("freeze")?.unwrap_or_default(),
        freeze_exclude: section.get("freeze_exclude")?.unwrap_or_default(),
    })
}

/// The window: Hugging Face's `sliding_window`, in tokens, which `use_sliding_window: False` switches off, or Megatron's
/// `window_size` [left, right], how many tokens a token sees before and after itself; -1 is no limit.
fn sliding_window(section: &Section) -> Result<Option<u64>> {
    let tokens: Option<u64> = section.get("sliding_window")?;
    if tokens == Some(0) {
        return Err(section.error("sliding_window", "expected a whole number above 0, found `0`"));
    }
    let is_used = section.or("use_sliding_window", true)?;
    let Some(sides) = section.node("window_size") else { return Ok(tokens.filter(|_| is_used)) };
    if tokens.is_some() {
        return Err(section.error("window_size", "given beside `sliding_window`; keep one form"));
    }
    let wrong = |found: String| {
        let message =
            format!("expected [left, 0], left a whole number from 0 or -1 for no limit, found {found}");
        Err(section.error("window_size", message))
    };
    let Some(sides) = section.get::<Vec<f64>>("window_size").ok().flatten() else {
        return wrong(sides.to_string());
    };
    match sides[..] {
        // A token sees none after itself, whatever the right side would allow.
        [-1.0, 0.0 | -1.0] => Ok(None),
        [left, 0.0] if left >= 0.0 && left.fract() == 0.0 => Ok(Some(left as u64 + 1).filter(|_| is_used)),
        _ => wrong(format!("{sides:?}")),
    }
}

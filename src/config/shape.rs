//! The shape of the model: defaults that follow from other keys, and what must fit together.

use super::mixture_shape;
use super::run::RunConfig;
use crate::error::Result;
use crate::model::config::{Family, ModelConfig, Norm, Positions};

const MAX_HEAD_DIM: usize = 256;
/// Places of dropout are numbered with 15 bits, three a layer.
const MAX_DROPPING_LAYERS: usize = 10_000;
/// No single size is larger, so that products of two fit 64 bits; real ones are far below.
pub(super) const MAX_SIZE: usize = 1 << 31;

/// Decides every number of the model.
pub(super) fn resolve(config: &RunConfig) -> Result<ModelConfig> {
    let model = &config.model;
    let wrong = |key: &str, message: String| Err(config.error(&format!("model.model_config.{key}"), message));
    for (key, size) in [
        ("vocab_size", Some(model.vocab_size)),
        ("hidden_size", Some(model.hidden_size)),
        ("num_layers", Some(model.num_layers)),
        ("num_heads", Some(model.num_heads)),
        ("n_kv_heads", model.n_kv_heads),
        ("head_dim", model.head_dim),
        ("intermediate_size", model.intermediate_size),
        ("multiple_of", Some(model.multiple_of)),
        ("expand_ratio", Some(model.expand_ratio)),
        ("seq_length", Some(model.seq_length)),
        ("max_position_embedding", model.max_position_embedding),
    ] {
        if size.is_some_and(|size| size == 0 || size > MAX_SIZE) {
            let size = size.unwrap_or_default();
            return wrong(key, format!("expected a whole number from 1 to {MAX_SIZE}, found `{size}`"));
        }
    }
    let drops = [model.attention_dropout, model.hidden_dropout, model.emb_dropout_prob];
    if model.num_layers > MAX_DROPPING_LAYERS && drops.iter().any(|share| *share > 0.0) {
        let remedy = "set the dropouts to 0 or lower it";
        return wrong("num_layers", format!("dropout serves up to {MAX_DROPPING_LAYERS} layers; {remedy}"));
    }
    let (heads, width) = (model.num_heads, model.hidden_size);
    let head_dim = match model.head_dim {
        Some(head_dim) => head_dim,
        None if !width.is_multiple_of(heads) => {
            let remedy = "change one of them or give `head_dim`";
            return wrong("num_heads", format!("{heads} heads do not divide hidden_size {width}; {remedy}"));
        }
        None => width / heads,
    };
    if model.kv_channels.is_some_and(|channels| channels != head_dim) {
        let remedy = format!("remove it, or give `head_dim` if heads are not {head_dim} wide");
        return wrong("kv_channels", format!("differs from the width of a head, {head_dim}; {remedy}"));
    }
    if head_dim > MAX_HEAD_DIM || !head_dim.is_multiple_of(4) {
        // Without `head_dim` the number of heads is what the user can change.
        let key = if model.head_dim.is_some() { "head_dim" } else { "num_heads" };
        let message = format!(
            "heads are {head_dim} wide (head_dim); the kernels take multiples of 4 up to {MAX_HEAD_DIM}"
        );
        return wrong(key, message);
    }
    let num_kv_heads = model.n_kv_heads.unwrap_or(heads);
    if !heads.is_multiple_of(num_kv_heads) {
        let message =
            format!("{num_kv_heads} key/value heads do not divide num_heads {heads}; change one of them");
        return wrong("n_kv_heads", message);
    }
    // Rounded down, but not from 47.999… when the share stands for 48 dimensions.
    let rotary_dim = (head_dim as f64 * model.rotary_percent + 1e-6) as usize;
    if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
        let share = model.rotary_percent;
        let message = format!(
            "{share} of heads {head_dim} wide rotates {rotary_dim} dimensions; an even number is needed"
        );
        return wrong("rotary_percent", message);
    }
    let (norm, positions) = match model.family {
        Family::Llama => (Norm::RmsNorm, Positions::Rotary),
        Family::Gpt2 => (Norm::LayerNorm, Positions::Learned),
    };
    let intermediate_size = intermediate_size(config)?;
    Ok(ModelConfig {
        max_positions: max_positions(config)?,
        rope_scaling: model.rope_scaling,
        family: model.family,
        vocab_size: model.vocab_size,
        hidden_size: width,
        num_layers: model.num_layers,
        num_heads: heads,
        num_kv_heads,
        head_dim,
        intermediate_size,
        activation: model.activation,
        seq_length: model.seq_length,
        positions,
        rope_theta: model.theta,
        rotary_dim,
        rotary_interleaved: model.rotary_interleaved,
        norm,
        norm_eps: model.rms_norm_eps,
        tie_word_embeddings: model.tie_word_embeddings,
        qkv_bias: model.qkv_has_bias,
        linear_bias: model.family == Family::Gpt2,
        qk_norm: model.use_qk_norm,
        sliding_window: model
            .sliding_window
            .filter(|window| *window < model.seq_length as u64)
            .map(|window| window as usize),
        attention_dropout: model.attention_dropout,
        hidden_dropout: model.hidden_dropout,
        embedding_dropout: model.emb_dropout_prob,
        init_std: model.init_method_std,
        ignore_id: u32::try_from(model.ignore_token_id).unwrap_or(u32::MAX),
        mixture: mixture_shape::resolve(config, intermediate_size)?,
        multi_token: mixture_shape::multi_token(config)?,
    })
}

/// As long as a window, or longer. A table of positions must be given that long; rotary positions just go on, as in the
/// original.
fn max_positions(config: &RunConfig) -> Result<usize> {
    let length = config.model.seq_length;
    let rows = config.model.max_position_embedding.unwrap_or(length);
    if rows < length && config.model.family == Family::Gpt2 {
        let message = format!("is below seq_length {length}: raise it, or lower seq_length to {rows}");
        return Err(config.error("model.model_config.max_position_embedding", message));
    }
    Ok(rows.max(length))
}

/// GPT-2: so many times the width. Llama's rule where no size is given: two thirds of 4 D, widened by the multiplier, rounded up to `multiple_of`.
fn intermediate_size(config: &RunConfig) -> Result<usize> {
    let model = &config.model;
    if let Some(size) = model.intermediate_size {
        return Ok(size);
    }
    if model.family == Family::Gpt2 {
        let size = model.expand_ratio * model.hidden_size;
        if size > MAX_SIZE {
            let message = format!("makes the feed-forward layer {size} wide; lower it");
            return Err(config.error("model.model_config.expand_ratio", message));
        }
        return Ok(size);
    }
    let mut inner = (4 * model.hidden_size) as f64;
    if let Some(multiplier) = model.ffn_dim_multiplier {
        // The 0.01 is the original's, against a multiplier that was rounded down when it was written.
        inner = ((multiplier + 0.01) * inner).floor();
    }
    let inner = (2.0 * inner / 3.0).floor();
    if !(1.0..=MAX_SIZE as f64).contains(&inner) {
        let message = format!("makes the feed-forward layer {inner} wide; give `intermediate_size`");
        return Err(config.error("model.model_config.ffn_dim_multiplier", message));
    }
    Ok((inner as usize).div_ceil(model.multiple_of) * model.multiple_of)
}

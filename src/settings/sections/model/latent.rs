//! Multi-head latent attention: the widths of a model of DeepSeek's types, and what they must fit.

use super::rows::Model;
use super::{DEEPSEEK_V3, LLAMA, MAX_HEAD_DIM};
use crate::model::config::{LatentAttention, LatentRotation};
use crate::settings::engine::*;

/// Keys of models with latent attention, of which others may read the width of a value alone.
pub(super) const KEYS: [&str; 8] = [
    "multi_latent_attention",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "latent_rotation",
    "latent_norm_eps",
];
const WIDTHS: [&str; 5] = [KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]];

/// The widths of DeepSeek-V3, taken where a file is silent.
pub(super) fn defaults(_: Option<&Reader<'_>>) -> LatentAttention {
    LatentAttention { q_rank: None, kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128 }
}

/// Refuses `keys`, which a model of another type has, in one line.
pub(super) fn refuse(reader: &Reader<'_>, keys: &[&str]) {
    let [first, others @ ..] = keys else { return };
    let others: Vec<String> = others.iter().map(|key| format!("`{key}`")).collect();
    let all = if others.is_empty() { String::new() } else { format!(" and {}", others.join(", ")) };
    reader.fault(first, format!("is about latent attention; write `type: {DEEPSEEK_V3}`, or remove it{all}"));
}

/// Checks the widths, and fills in what follows from them.
pub(super) fn fill(model: &mut Model, reader: &Reader<'_>) {
    model.latent.value_dim = *model.v_head_dim.get_or_insert(model.latent.value_dim);
    check_widths(&model.latent, reader);
    check_heads(model, reader);
    if model.use_qk_norm == Some(false) {
        reader.fault(
            "use_qk_norm",
            "not built yet (found `False`): latent vectors are always normalised; write `True`",
        );
    }
    if model.config.qkv_bias {
        reader.fault("qkv_has_bias", "not built yet with latent attention (found `True`); write `False`");
    }
    if model.multi_latent_attention.take() == Some(false) {
        let message = format!(
            "DeepSeek's attention is latent; write `True`, or `type: {LLAMA}` for ordinary attention"
        );
        reader.fault("multi_latent_attention", message);
    }
    let rotates_halves = model.latent_rotation == Some(LatentRotation::Halves);
    if !model.config.layer.rotary_interleaved && !rotates_halves {
        reader
            .note("rotary_interleaved", "latent attention rotates neighbours (2i, 2i+1), as in MindFormers");
    }
    if model.rotary_percent.is_some_and(|share| share != 1.0) {
        reader.fault(
            "rotary_percent",
            "has no meaning for latent attention: `qk_rope_head_dim` says what rotates; remove it",
        );
    }
    (model.use_qk_norm, model.rotary_percent) = (Some(true), Some(1.0));
}

fn check_widths(latent: &LatentAttention, reader: &Reader<'_>) {
    let LatentAttention { q_rank, kv_rank, nope_dim, rope_dim, value_dim } = *latent;
    let widths = [q_rank.unwrap_or(0), kv_rank, nope_dim, rope_dim, value_dim];
    for (key, width) in WIDTHS.into_iter().zip(widths) {
        let message = format!("the kernels take multiples of 4, not {width}");
        reader.require(&[key], width.is_multiple_of(4), message);
    }
    let message = format!("values are {value_dim} wide; the kernels take up to {MAX_HEAD_DIM}");
    reader.require(&["v_head_dim"], value_dim <= MAX_HEAD_DIM, message);
}

/// Every query head has a key and a value; the width of a head is the sum of its parts.
fn check_heads(model: &mut Model, reader: &Reader<'_>) {
    let parts = ["qk_nope_head_dim", "qk_rope_head_dim"];
    let LatentAttention { nope_dim: nope, rope_dim: rope, .. } = model.latent;
    let wide = nope.saturating_add(rope);
    let message =
        format!("makes heads {wide} wide with {} = {rope}; the kernels take up to {MAX_HEAD_DIM}", parts[1]);
    reader.require(&parts, wide <= MAX_HEAD_DIM, message);
    let (given, heads, kv_heads) =
        (model.config.layer.head_dim, model.config.num_heads, model.config.layer.num_kv_heads);
    let message = format!(
        "{given} is not the width of a head, {nope} + {rope} ({} + {}); remove it",
        parts[0], parts[1]
    );
    reader.require(&["head_dim", parts[0], parts[1]], [0, wide].contains(&given), message);
    let message = format!(
        "latent attention has a key and a value for each of {heads} heads (num_heads), not {kv_heads}; remove it"
    );
    reader.require(&["n_kv_heads", "num_heads"], kv_heads == heads, message);
    if reader.are_sound(&WIDTHS) && reader.are_sound(&["head_dim", "num_heads"]) {
        model.config.layer.head_dim = wide;
    } else {
        reader.source.distrust(&reader.path("head_dim"));
    }
}

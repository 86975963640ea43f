//! Multi-head latent attention: the widths of a model of DeepSeek's types, and what they must fit.

use super::rows::Model;
use super::{DEEPSEEK_V3, LLAMA, MAX_HEAD_DIM};
use crate::model::config::LatentAttention;
use crate::settings::engine::*;

/// The widths of DeepSeek-V3, taken where a file is silent.
const KV_RANK: usize = 512;
const NOPE_DIM: usize = 128;
const ROPE_DIM: usize = 64;
const VALUE_DIM: usize = 128;

/// Keys that only models with latent attention read.
pub(super) const KEYS: [&str; 6] = [
    "multi_latent_attention",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
];
const WIDTHS: [&str; 5] = [KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]];

/// Refuses `keys`, which a model of another type has, in one line.
pub(super) fn refuse(reader: &Reader<'_>, keys: &[&str]) {
    let [first, others @ ..] = keys else { return };
    let others: Vec<String> = others.iter().map(|key| format!("`{key}`")).collect();
    let all = if others.is_empty() { String::new() } else { format!(" and {}", others.join(", ")) };
    reader.fault(first, format!("is about latent attention; write `type: {DEEPSEEK_V3}`, or remove it{all}"));
}

/// Fills in the widths and what follows from them, and checks them.
pub(super) fn fill(model: &mut Model, reader: &Reader<'_>) {
    model.kv_lora_rank.get_or_insert(KV_RANK);
    model.qk_nope_head_dim.get_or_insert(NOPE_DIM);
    model.qk_rope_head_dim.get_or_insert(ROPE_DIM);
    model.v_head_dim.get_or_insert(VALUE_DIM);
    check_widths(model, reader);
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
    if !model.config.rotary_interleaved {
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

/// The attention that a filled model describes; `None` if it is not latent.
pub(super) fn latent_attention(model: &Model) -> Option<LatentAttention> {
    Some(LatentAttention {
        q_rank: model.q_lora_rank,
        kv_rank: model.kv_lora_rank?,
        nope_dim: model.qk_nope_head_dim?,
        rope_dim: model.qk_rope_head_dim?,
        value_dim: model.v_head_dim?,
    })
}

fn check_widths(model: &Model, reader: &Reader<'_>) {
    let widths = [
        model.q_lora_rank,
        model.kv_lora_rank,
        model.qk_nope_head_dim,
        model.qk_rope_head_dim,
        model.v_head_dim,
    ];
    for (key, width) in WIDTHS.into_iter().zip(widths) {
        let Some(width) = width else { continue };
        let message = format!("the kernels take multiples of 4, not {width}");
        reader.require(&[key], width.is_multiple_of(4), message);
    }
    let wide = model.v_head_dim.unwrap_or(0);
    let message = format!("values are {wide} wide; the kernels take up to {MAX_HEAD_DIM}");
    reader.require(&["v_head_dim"], wide <= MAX_HEAD_DIM, message);
}

/// Every query head has a key and a value; the width of a head is the sum of its parts.
fn check_heads(model: &mut Model, reader: &Reader<'_>) {
    let parts = ["qk_nope_head_dim", "qk_rope_head_dim"];
    let (nope, rope) = (model.qk_nope_head_dim.unwrap_or(0), model.qk_rope_head_dim.unwrap_or(0));
    let wide = nope.saturating_add(rope);
    let message =
        format!("makes heads {wide} wide with {} = {rope}; the kernels take up to {MAX_HEAD_DIM}", parts[1]);
    reader.require(&parts, wide <= MAX_HEAD_DIM, message);
    let (given, heads, kv_heads) = (model.config.head_dim, model.config.num_heads, model.config.num_kv_heads);
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
        model.config.head_dim = wide;
    } else {
        reader.source.distrust(&reader.path("head_dim"));
    }
}

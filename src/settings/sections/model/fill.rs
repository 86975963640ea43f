//! The defaults of a model that follow from its other keys, and what must fit together.

use super::rows::Model;
use super::{DEEPSEEK_V2, DEEPSEEK_V3, GPT2, LLAMA, MAX_HEAD_DIM, latent, rope_scaling};
use crate::model::config::{Activation, Gelu};
use crate::settings::engine::*;

/// Fills in what `model` leaves open and checks it; what depends on a faulty key stays open.
pub(super) fn fill(model: &mut Model, reader: &Reader<'_>) {
    let is_llama = model.kind.is(LLAMA);
    if [DEEPSEEK_V2, DEEPSEEK_V3].contains(&model.kind.word()) {
        latent::fill(model, reader);
    }
    if is_llama {
        fill_llama(model, reader);
    }
    fill_feed_forward(model, reader);
    fill_positions(model, reader);
    model.tie_word_embeddings.get_or_insert(model.kind.is(GPT2));
    fill_multi_token(model, reader);
    if model.ignore_token_id < 0 {
        model.ignore_token_id = -100; // any negative id is no token
    }
    let gelu = Activation::Gelu(Gelu::Tanh);
    model.hidden_act.get_or_insert(if is_llama { Activation::SwiGlu } else { gelu });
    model.init_method_std.get_or_insert(if is_llama { 0.01 } else { 0.02 });
    fill_biases(model, reader);
    let narrows = reader.has("freeze") || !reader.has("freeze_exclude");
    reader.require(&["freeze_exclude"], narrows, "given without `freeze`, whose patterns it narrows");
    let head_dim = if is_llama { model.head_dim } else { head_dim_of(model, reader) };
    if let (Some(head_dim), Some(channels)) = (head_dim, model.kv_channels.take())
        && channels != head_dim
    {
        let remedy = format!("remove it, or give `head_dim` if heads are not {head_dim} wide");
        reader.fault("kv_channels", format!("differs from the width of a head, {head_dim}; {remedy}"));
    }
}

/// The width of a head that follows from the other sizes, or a fault.
fn head_dim_of(model: &Model, reader: &Reader<'_>) -> Option<usize> {
    if !reader.are_sound(&["head_dim", "num_heads", "hidden_size"]) {
        return None;
    }
    let (heads, width) = (model.num_heads, model.hidden_size);
    let (key, head_dim) = match model.head_dim {
        Some(head_dim) => ("head_dim", head_dim),
        None if heads == 0 || width == 0 => return None,
        None if !width.is_multiple_of(heads) => {
            let remedy = "change one of them or give `head_dim`";
            reader.fault("num_heads", format!("{heads} heads do not divide hidden_size {width}; {remedy}"));
            return None;
        }
        // Without `head_dim` the number of heads is what the user can change.
        None => ("num_heads", width / heads),
    };
    if head_dim > MAX_HEAD_DIM || !head_dim.is_multiple_of(4) {
        let message = format!(
            "heads are {head_dim} wide (head_dim); the kernels take multiples of 4 up to {MAX_HEAD_DIM}"
        );
        reader.fault(key, message);
        return None;
    }
    Some(head_dim)
}

fn fill_llama(model: &mut Model, reader: &Reader<'_>) {
    let theta = *model.theta.get_or_insert(10_000.0);
    model.rotary_interleaved.get_or_insert(false);
    model.use_qk_norm.get_or_insert(false);
    model.head_dim = head_dim_of(model, reader);
    let heads = model.num_heads;
    let kv_heads = *model.n_kv_heads.get_or_insert(heads);
    let divide = kv_heads > 0 && heads.is_multiple_of(kv_heads);
    let message = format!("{kv_heads} key/value heads do not divide num_heads {heads}; change one of them");
    reader.require(&["n_kv_heads", "num_heads"], divide, message);
    let share = *model.rotary_percent.get_or_insert(1.0);
    if let Some(head_dim) = model.head_dim {
        let dim = rotary_dim(head_dim, share);
        let heads = format!("{share} of heads {head_dim} wide rotates {dim} dimensions");
        let message = format!("{heads}; an even number is needed");
        reader.require(&["rotary_percent"], dim > 0 && dim.is_multiple_of(2), message);
    }
    let length = model.max_position_embedding.unwrap_or(model.seq_length).max(model.seq_length);
    if reader.are_sound(&["seq_length", "max_position_embedding", "rope_scaling"]) {
        rope_scaling::check(&model.rope_scaling, reader, length, theta);
    }
}

/// Dimensions of a head that rotate: rounded down, except that 47.999… gives 48 where the share stands for 48.
pub(crate) fn rotary_dim(head_dim: usize, share: f64) -> usize {
    (head_dim as f64 * share + 1e-6) as usize
}

/// Fills in the inner width of the feed-forward layer. GPT-2: a multiple of the width. Llama's rule where no size is
/// given: two thirds of 4 D, widened by the multiplier, rounded up to `multiple_of`.
fn fill_feed_forward(model: &mut Model, reader: &Reader<'_>) {
    let (ratio, multiplier, multiple) =
        (model.expand_ratio.take(), model.ffn_dim_multiplier.take(), model.multiple_of.take());
    if model.intermediate_size.is_some() || !reader.is_sound("hidden_size") {
        return;
    }
    let (key, size) = if model.kind.is(GPT2) {
        ("expand_ratio", (ratio.unwrap_or(4) * model.hidden_size) as f64)
    } else {
        let wide = (4 * model.hidden_size) as f64;
        // The 0.01 makes up for a multiplier that was rounded down when it was written.
        let wide = multiplier.map_or(wide, |multiplier| ((multiplier + 0.01) * wide).floor());
        ("ffn_dim_multiplier", (2.0 * wide / 3.0).floor())
    };
    if !(1.0..=MAX_SIZE as f64).contains(&size) {
        let remedy = if key == "expand_ratio" { "lower it" } else { "give `intermediate_size`" };
        reader.fault(key, format!("makes the feed-forward layer {size} wide; {remedy}"));
        return;
    }
    let multiple = if model.kind.is(GPT2) { 1 } else { multiple.unwrap_or(256) };
    model.intermediate_size = Some((size as usize).div_ceil(multiple) * multiple);
}

/// Fills in the number of positions, which is at least the length of a window. A table of positions must be given that
/// long; rotary positions are extended to it.
fn fill_positions(model: &mut Model, reader: &Reader<'_>) {
    let (length, kind) = (model.seq_length, model.kind);
    let rows = *model.max_position_embedding.get_or_insert(length);
    let message = format!("is below seq_length {length}: raise it, or lower seq_length to {rows}");
    let keys = ["max_position_embedding", "seq_length"];
    reader.require(&keys, rows >= length || kind.is(LLAMA), message);
    model.max_position_embedding = Some(rows.max(length));
}

fn fill_multi_token(model: &mut Model, reader: &Reader<'_>) {
    let Some(depth) = model.mtp_depth.filter(|depth| *depth > 0) else {
        reader.ignore(&["mtp_loss_factor"]);
        (model.mtp_depth, model.mtp_loss_factor) = (None, None);
        return;
    };
    model.mtp_loss_factor.get_or_insert(0.3);
    let (width, length) = (model.hidden_size, model.seq_length);
    // A matrix has two halves, each of which starts at a whole group of 4 columns.
    let message = format!("needs a hidden_size that is a multiple of 4, not {width}");
    reader.require(&["mtp_depth", "hidden_size"], width.is_multiple_of(4), message);
    let message = format!("expected a whole number below seq_length {length}, found `{depth}`");
    reader.require(&["mtp_depth", "seq_length"], depth < length, message);
    let (layers, most) = (model.num_layers, MAX_LAYERS as usize);
    let message = format!("with num_layers {layers} makes more than {most} blocks; lower it");
    reader.require(&["mtp_depth", "num_layers"], layers.saturating_add(depth) <= most, message);
}

/// Decides each switch of a bias.
fn fill_biases(model: &mut Model, reader: &Reader<'_>) {
    let base = model.kind.is(GPT2);
    let is_base = [LLAMA, GPT2].contains(&model.kind.word());
    // A switch that agrees with the base's default is left out, as files without these keys mean the default.
    let decide = |switch: &mut Option<bool>| {
        let has_bias = switch.unwrap_or(base);
        *switch = (has_bias != base || !is_base).then_some(has_bias);
    };
    model.qkv_has_bias.get_or_insert(base);
    decide(&mut model.attn_proj_has_bias);
    decide(&mut model.add_mlp_fc1_bias_linear);
    decide(&mut model.add_mlp_fc2_bias_linear);
    let keys = ["qkv_has_bias", "attn_proj_has_bias", "add_mlp_fc1_bias_linear", "add_mlp_fc2_bias_linear"];
    let is_off = |key: &&str| reader.node(key).and_then(bool::from_node) == Some(false);
    for key in keys.iter().filter(|key| base && is_off(key)) {
        reader.fault(key, "not built yet (found `False`); write `True`");
    }
}

//! The defaults of a model that follow from its other keys, and what must fit together.

use super::rope_scaling::RotationSizes;
use super::rows::Model;
use super::{GPT2, LLAMA, MAX_HEAD_DIM, latent, layers, rope_scaling, rotary_dim};
use crate::model::config::{
    Activation, LatentRotation, LayerConfig, Mixer, ModelConfig, MultiToken, Norm, NormPlacement, QkNorm,
};
use crate::settings::engine::*;

/// Keys of biases that files leave out where they mean the default of the base.
pub(super) const SWITCHES: [&str; 3] =
    ["attn_proj_has_bias", "add_mlp_fc1_bias_linear", "add_mlp_fc2_bias_linear"];

/// Fills in what `model` leaves open and checks it; what depends on a faulty key stays open.
pub(super) fn fill(model: &mut Model, reader: &Reader<'_>) {
    if model.config.layer.num_kv_heads == 0 {
        model.config.layer.num_kv_heads = model.config.num_heads;
    }
    if model.is_latent() {
        latent::fill(model, reader);
    }
    model.config.layer.head_dim = head_dim_of(&model.config, reader).unwrap_or(0);
    if model.kind.is(LLAMA) {
        fill_llama(model, reader);
    }
    fill_feed_forward(model, reader);
    fill_positions(model, reader);
    fill_multi_token(model, reader);
    if model.ignore_token_id < 0 {
        model.ignore_token_id = -100; // any negative id is no token
    }
    let is_xielu = model.config.activation == Activation::Xielu;
    let message = "`xielu` is not built yet in other types than LlamaConfig; write another activation";
    reader.require(&["hidden_act"], !is_xielu || model.kind.word() == LLAMA, message);
    check_biases(model, reader);
    check_gpt2(model, reader);
    layers::check(model, reader);
    let narrows = reader.has("freeze") || !reader.has("freeze_exclude");
    reader.require(&["freeze_exclude"], narrows, "given without `freeze`, whose patterns it narrows");
    let head_dim = model.config.layer.head_dim;
    if let Some(channels) = model.kv_channels.take()
        && ![0, channels].contains(&head_dim)
    {
        let remedy = format!("remove it, or give `head_dim` if heads are not {head_dim} wide");
        reader.fault("kv_channels", format!("differs from the width of a head, {head_dim}; {remedy}"));
    }
    fill_config(model);
    if model.is_latent() {
        let eps = model.config.latent_norm_eps.filter(|eps| *eps != model.config.norm_eps);
        let config = ModelConfig { qk_norm: false, latent_norm_eps: eps, ..model.config.clone() };
        let in_pairs = model.latent_rotation != Some(LatentRotation::Halves);
        model.config = model.latent.within(config).with_layers(|layer| layer.rotary_interleaved = in_pairs);
    }
}

/// Puts into the model what keys say in another form.
fn fill_config(model: &mut Model) {
    let is_latent = model.is_latent();
    let config = &mut model.config;
    config.ignore_id = u32::try_from(model.ignore_token_id).unwrap_or(u32::MAX);
    config.embedding_width = config.embedding_width.filter(|width| *width != config.hidden_size);
    config.attention_gate = model.attention_output_gate == Some(true);
    let usual = config.layer.head_dim;
    config.value_head_dim = model.v_head_dim.filter(|width| *width != usual && !is_latent);
    config.qk_norm = model.use_qk_norm == Some(true);
    config.qk_norm_kind = model.qk_norm_kind.unwrap_or_default();
    config.has_layer_scalars = model.layer_scalars == Some(true);
    config.per_layer_width = model.hidden_size_per_layer_input;
    config.norm_placement = model.norm_placement.unwrap_or_default();
    config.parallel_residual = model.parallel_residual;
    config.norm = model.normalization.unwrap_or(config.norm);
    config.norm_bias = model.norm_has_bias.unwrap_or(config.norm_bias);
    config.norm_weight = model.norm_has_weight.unwrap_or(config.norm_weight);
    config.zero_centered_norms = model.layernorm_zero_centered_gamma == Some(true);
    let (rope_scaling, query_scaling) =
        (model.rope_scaling.config(config.max_positions), model.rope_scaling.query_scaling());
    let rotary_dim = rotary_dim(config.layer.head_dim, model.rotary_percent.unwrap_or(1.0));
    let sliding_window = model.sliding_window.map(|window| window as usize);
    let usual = LayerConfig {
        sliding_window,
        wide_window: None,
        rotates: true,
        rope_scaling,
        rotary_dim,
        query_scaling,
        mixer: Mixer::Softmax,
        ..config.layer
    };
    let config = config.clone().with_layers(|layer| {
        *layer = LayerConfig { has_query_table: layer.has_query_table, ..usual };
    });
    let config = config.with_each_layer(|number, layer| layers::set(model, number, layer));
    model.config = config.for_texts_of(config.seq_length);
}

/// The width of a head that follows from the other sizes, or a fault.
fn head_dim_of(config: &ModelConfig, reader: &Reader<'_>) -> Option<usize> {
    if !reader.are_sound(&["head_dim", "num_heads", "hidden_size"]) {
        return None;
    }
    let (heads, width) = (config.num_heads, config.hidden_size);
    let (key, head_dim) = match config.layer.head_dim {
        0 if heads == 0 || width == 0 => return None,
        0 if !width.is_multiple_of(heads) => {
            let remedy = "change one of them or give `head_dim`";
            reader.fault("num_heads", format!("{heads} heads do not divide hidden_size {width}; {remedy}"));
            return None;
        }
        // Without `head_dim` the number of heads is what the user can change.
        0 => ("num_heads", width / heads),
        head_dim => ("head_dim", head_dim),
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
    let is_layer_norm = model.normalization.unwrap_or(model.config.norm) == Norm::LayerNorm;
    let stands_before = model.norm_placement.is_none_or(|placement| placement == NormPlacement::Before);
    let is_of_opt = model.norm_placement == Some(NormPlacement::AfterSum);
    let message = "`after_sum` is not built yet for this type; write `after`, or `type: OPTConfig`";
    reader.require(&["norm_placement"], !is_of_opt, message);
    let message = "not built yet as LayerNorm; remove it, or write `normalization: RMSNorm`";
    reader.require(&["norm_placement", "normalization"], !is_layer_norm || stands_before, message);
    let message = "not built yet with norms after sublayers; remove it, or write `norm_placement: before`";
    let is_parallel = model.parallel_residual.is_some();
    reader.require(&["parallel_residual", "norm_placement"], !is_parallel || stands_before, message);
    let has_ahead = model.mtp_depth.is_some_and(|depth| depth > 0);
    let message = "not built yet where the head has a bias; remove it, or write `lm_head_has_bias: False`";
    reader.require(&["mtp_depth", "lm_head_has_bias"], !model.config.head_bias || !has_ahead, message);
    let message = "not built yet with LayerNorm; remove it, or write `normalization: RMSNorm`";
    reader.require(&["mtp_depth", "normalization"], !is_layer_norm || !has_ahead, message);
    let says_nothing = model.norm_has_bias.is_some() && !is_layer_norm;
    let message = "is of LayerNorm; write `normalization: LayerNorm`, or remove it";
    reader.require(&["norm_has_bias", "normalization"], !says_nothing, message);
    let has_weights = model.norm_has_weight.unwrap_or(model.config.norm_weight);
    let is_centred = model.layernorm_zero_centered_gamma == Some(true);
    let message = "without a weight there is nothing to add 1 to; remove one of them";
    reader.require(
        &["norm_has_weight", "layernorm_zero_centered_gamma"],
        has_weights || !is_centred,
        message,
    );
    let message = "not built yet without weights of norms; remove it, or remove `norm_has_weight`";
    reader.require(&["mtp_depth", "norm_has_weight"], has_weights || !has_ahead, message);
    let is_weighted = |kind: QkNorm| kind == QkNorm::AllHeads || kind.is_layer_norm();
    let has_joint = model.use_qk_norm == Some(true) && model.qk_norm_kind.is_some_and(is_weighted);
    let message = "not built yet without weights of norms; write `heads` or `rotated_heads`";
    reader.require(&["qk_norm_kind", "norm_has_weight"], has_weights || !has_joint, message);
    let message = "not built yet with latent attention; remove it";
    reader.require(&["norm_has_weight"], has_weights || !model.is_latent(), message);
    check_clipping(model, reader);
    let is_ungated = model.gated_linear_unit == Some(false);
    if is_ungated && model.config.activation.gate().is_some() {
        let message = "needs the activation that stands between the two projections, such as `gelu_new`, `relu` or `relu2`";
        reader.missing("hidden_act", message);
    }
    model.use_qk_norm.get_or_insert(false);
    let is_plain = model.qk_norm_kind.is_none_or(|kind| kind == QkNorm::Heads);
    let message = "without `use_qk_norm: True` nothing of it is normalised so; write that, or remove it";
    let heads_are_normed = model.use_qk_norm == Some(true) && !model.is_latent();
    reader.require(&["qk_norm_kind", "use_qk_norm"], is_plain || heads_are_normed, message);
    let share = *model.rotary_percent.get_or_insert(1.0);
    let ModelConfig { num_heads: heads, seq_length, .. } = model.config;
    let LayerConfig { num_kv_heads: kv_heads, head_dim, .. } = model.config.layer;
    let divide = kv_heads > 0 && heads.is_multiple_of(kv_heads);
    let message = format!("{kv_heads} key/value heads do not divide num_heads {heads}; change one of them");
    reader.require(&["n_kv_heads", "num_heads"], divide, message);
    let dim = rotary_dim(head_dim, share);
    let heads = format!("{share} of heads {head_dim} wide rotates {dim} dimensions");
    let message = format!("{heads}; an even number is needed");
    let rotates = dim > 0 && dim.is_multiple_of(2);
    reader.require(&["rotary_percent"], head_dim == 0 || rotates, message);
    if reader.are_sound(&["seq_length", "max_position_embedding", "rope_scaling"]) {
        let length = model.config.max_positions.max(seq_length);
        let rotating = if model.is_latent() { model.latent.rope_dim } else { dim };
        let sizes = RotationSizes { length, theta: model.config.layer.rope_theta, pairs: rotating / 2 };
        rope_scaling::check(&model.rope_scaling, reader, &sizes);
    }
}

/// Refuses clipped queries, keys and values beside what takes them apart.
fn check_clipping(model: &Model, reader: &Reader<'_>) {
    const KEY: &str = "clip_qkv";
    let clips = model.config.clip_qkv.is_some();
    reader.require(&[KEY], !clips || !model.is_latent(), "not built yet with latent attention; remove it");
    let is_last = model.qk_norm_kind == Some(QkNorm::RotatedHeads);
    let message = "not built yet with norms after the rotation; remove it, or `qk_norm_kind`";
    reader.require(&[KEY, "qk_norm_kind"], !clips || !is_last, message);
    let shares = model.num_kv_shared_layers.is_some_and(|layers| layers > 0);
    let message = "not built yet where layers share keys and values; remove it, or `num_kv_shared_layers`";
    reader.require(&[KEY, "num_kv_shared_layers"], !clips || !shares, message);
    let message = "not built yet where values are normalised; remove it, or `use_v_norm`";
    reader.require(&[KEY, "use_v_norm"], !clips || model.use_v_norm != Some(true), message);
}

/// Fills in the inner width of the feed-forward layer. GPT-2: a multiple of the width. Llama's rule where no size is
/// given: two thirds of 4 D, widened by the multiplier, rounded up to `multiple_of`.
fn fill_feed_forward(model: &mut Model, reader: &Reader<'_>) {
    let (ratio, multiplier, multiple) =
        (model.expand_ratio.take(), model.ffn_dim_multiplier.take(), model.multiple_of.take());
    if model.config.layer.intermediate_size > 0 || !reader.is_sound("hidden_size") {
        return;
    }
    let (key, size) = if model.kind.is(GPT2) {
        ("expand_ratio", (ratio.unwrap_or(4) * model.config.hidden_size) as f64)
    } else {
        let wide = (4 * model.config.hidden_size) as f64;
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
    model.config.layer.intermediate_size = (size as usize).div_ceil(multiple) * multiple;
}

/// Fills in the number of positions, which is at least the length of a window. A table of positions must be given that
/// long; rotary positions are extended to it.
fn fill_positions(model: &mut Model, reader: &Reader<'_>) {
    let length = model.config.seq_length;
    let rows = if model.config.max_positions == 0 { length } else { model.config.max_positions };
    let message = format!("is below seq_length {length}: raise it, or lower seq_length to {rows}");
    let keys = ["max_position_embedding", "seq_length"];
    reader.require(&keys, rows >= length || model.kind.is(LLAMA), message);
    model.config.max_positions = rows.max(length);
}

fn fill_multi_token(model: &mut Model, reader: &Reader<'_>) {
    let Some(depth) = model.mtp_depth.filter(|depth| *depth > 0) else {
        reader.ignore(&["mtp_loss_factor"]);
        (model.mtp_depth, model.mtp_loss_factor) = (None, None);
        return;
    };
    let loss_factor = *model.mtp_loss_factor.get_or_insert(0.3);
    model.config.multi_token = Some(MultiToken { depth, loss_factor });
    let ModelConfig { hidden_size: width, seq_length: length, num_layers: layers, .. } = model.config;
    // A matrix has two halves, each of which starts at a whole group of 4 columns.
    let message = format!("needs a hidden_size that is a multiple of 4, not {width}");
    reader.require(&["mtp_depth", "hidden_size"], width.is_multiple_of(4), message);
    let message = format!("expected a whole number below seq_length {length}, found `{depth}`");
    reader.require(&["mtp_depth", "seq_length"], depth < length, message);
    let most = MAX_LAYERS as usize;
    let message = format!("with num_layers {layers} makes more than {most} blocks; lower it");
    reader.require(&["mtp_depth", "num_layers"], layers.saturating_add(depth) <= most, message);
}

/// Refuses another norm than GPT-2's, and gates.
fn check_gpt2(model: &Model, reader: &Reader<'_>) {
    if model.kind.is(GPT2) && model.normalization == Some(Norm::RmsNorm) {
        reader.fault("normalization", "not built yet (found `RMSNorm`); write `normalization: LayerNorm`");
    }
    if model.kind.is(GPT2) && model.gated_linear_unit == Some(true) {
        reader.fault("gated_linear_unit", "not built yet (found `True`); write `False`");
    }
}

/// Refuses to leave out a bias of GPT-2's layers.
fn check_biases(model: &Model, reader: &Reader<'_>) {
    let is_off = |key: &str| reader.node(key).and_then(bool::from_node) == Some(false);
    for key in ["qkv_has_bias"].into_iter().chain(SWITCHES) {
        if model.kind.is(GPT2) && is_off(key) {
            reader.fault(key, "not built yet (found `False`); write `True`");
        }
    }
}

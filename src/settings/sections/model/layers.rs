//! Layers that are not alike: `layer_types`, with `sliding_theta` and the keys of layers without a window, and
//! `no_rope_layers`. Each list has one entry for each layer, or for the first layers, which are then repeated. The last
//! layers may share the keys and values of others (`num_kv_shared_layers`).

use super::rope_scaling::GROWTH;
use super::rows::Model;
use super::{MAX_HEAD_DIM, rotary_dim};
use crate::model::config::{
    Activation, Family, LayerConfig, LinearAttention, Mixer, Norm, NormPlacement, Positions, QkNorm,
    RopeScaling, Values, kv_source,
};
use crate::settings::engine::*;

words! {
    /// An entry of `layer_types`.
    pub enum LayerType {
        /// A token attends to all tokens before it.
        #[default]
        Full = "full_attention",
        /// A token attends to the tokens in `sliding_window`.
        Sliding = "sliding_attention",
        /// A token reads a state that earlier tokens wrote.
        Linear = "linear_attention",
        /// A token sees the last few tokens, by a convolution between gates.
        Convolution = "conv",
    }
}

words! {
    /// The layers whose softmax has sinks.
    pub enum SinkLayers {
        /// Every layer.
        #[default]
        All = "all",
        /// Those with a window.
        Sliding = "sliding_attention",
    }
}

/// Entries of `no_rope_layers`.
pub(super) const ROTATES: Range = Range::new("1 or 0 for each layer", |x| x == 0.0 || x == 1.0, 2.0);

/// Values of `linear_conv_kernel_dim` and `conv_L_cache`.
pub(super) const CONV_WIDTH: Range =
    Range::new("a whole number from 2 to 16", |x| (2.0..=16.0).contains(&x) && x.fract() == 0.0, 1.0);

const TYPES: &str = "layer_types";
const UNROTATED: &str = "no_rope_layers";

/// Checks that the lists fit the model.
pub(super) fn check(model: &Model, reader: &Reader<'_>) {
    let layers = model.config.num_layers;
    let types = model.layer_types.as_ref();
    for (key, listed) in
        [(TYPES, types.map(Vec::len)), (UNROTATED, model.no_rope_layers.as_ref().map(Vec::len))]
    {
        let Some(listed) = listed else { continue };
        let message = format!(
            "lists {listed} of {layers} layers; list all of them, or the first ones, which are repeated"
        );
        reader.require(&[key, "num_layers"], (1..=layers).contains(&listed), message);
        let message = "does not say what the blocks of multi-token prediction are; remove it, or `mtp_depth`";
        reader.require(&[key, "mtp_depth"], model.mtp_depth.is_none_or(|depth| depth == 0), message);
    }
    let slides = types.is_some_and(|types| types.contains(&LayerType::Sliding));
    let has_window = model.sliding_window.is_some();
    let message = "lists `sliding_attention`, and there is no window; give its tokens by `sliding_window`";
    reader.require(&[TYPES, "sliding_window"], has_window || !slides, message);
    if has_window && types.is_some() && !slides {
        reader.note("sliding_window", "without effect, as `layer_types` lists no `sliding_attention`");
    }
    let message = "there is no layer with a window; remove it, or give the window by `sliding_window`";
    let some_slide = has_window && (slides || types.is_none());
    reader.require(
        &["sliding_theta", TYPES, "sliding_window"],
        some_slide || model.sliding_theta.is_none(),
        message,
    );
    let rotates = model.config.positions == Positions::Rotary && !model.is_latent();
    let message = "not built yet for this type, whose heads do not rotate as a whole; remove it";
    reader.require(&[UNROTATED], rotates || model.no_rope_layers.is_none(), message);
    reader.require(&["sliding_theta"], rotates || model.sliding_theta.is_none(), message);
    check_global(model, reader);
    check_values(model, reader);
    check_sinks(model, reader, some_slide);
    check_gate(model, reader);
    check_linear(model, reader);
    check_convolutions(model, reader);
    check_shared(model, reader);
    check_inputs(model, reader);
    // Queries grow as they rotate.
    let rotate_as_a_whole =
        rotates && model.rotary_percent.unwrap_or(1.0) == 1.0 && model.no_rope_layers.is_none();
    if model.rope_scaling.llama_4_scaling_beta.is_some() && !rotate_as_a_whole {
        let path = join(&reader.path("rope_scaling"), GROWTH);
        reader
            .source
            .fault(&path, "not built yet where heads do not rotate as a whole, in all layers; remove it");
    }
}

/// Checks what layers without a window have of their own, and the norm of values.
fn check_global(model: &Model, reader: &Reader<'_>) {
    let all_slide = model.sliding_window.is_some()
        && !model.layer_types.as_ref().is_some_and(|types| types.contains(&LayerType::Full));
    let message =
        "is of layers without a window, and all have it; remove it, or list others in `layer_types`";
    for (key, is_given) in [
        ("global_head_dim", model.global_head_dim.is_some()),
        ("num_global_key_value_heads", model.num_global_key_value_heads.is_some()),
        ("attention_k_eq_v", model.attention_k_eq_v == Some(true)),
    ] {
        let are_heads_whole = !model.is_latent() || !is_given;
        reader.require(&[key], are_heads_whole, "has no meaning for latent attention; remove it");
        reader.require(&[key, TYPES], !all_slide || !is_given, message);
    }
    if let Some(width) = model.global_head_dim {
        let message = format!(
            "heads are {width} wide; the kernels take multiples of 4 up to {MAX_HEAD_DIM}, of which an even \
             number rotates"
        );
        let rotating = rotary_dim(width, model.rotary_percent.unwrap_or(1.0));
        let fits = width <= MAX_HEAD_DIM && width.is_multiple_of(4);
        reader.require(
            &["global_head_dim", "rotary_percent"],
            fits && rotating > 0 && rotating.is_multiple_of(2),
            message,
        );
    }
    if let Some(kv_heads) = model.num_global_key_value_heads {
        let heads = model.config.num_heads;
        let message =
            format!("{kv_heads} key/value heads do not divide num_heads {heads}; change one of them");
        reader.require(&["num_global_key_value_heads", "num_heads"], heads.is_multiple_of(kv_heads), message);
    }
    let is_normed = model.use_v_norm == Some(true);
    let has_qk_norm = model.use_qk_norm == Some(true)
        && !model.is_latent()
        && model.qk_norm_kind.is_none_or(|kind| kind == QkNorm::Heads);
    let message = "normalises v beside single heads of q and k; write `use_qk_norm: True`, or remove it";
    reader.require(&["use_v_norm", "use_qk_norm", "qk_norm_kind"], has_qk_norm || !is_normed, message);
    let message = "makes values of keys, which are then normalised; write `use_v_norm: True`, or remove it";
    let are_shared = model.attention_k_eq_v == Some(true);
    reader.require(&["attention_k_eq_v", "use_v_norm"], is_normed || !are_shared, message);
    let is_plain = model.config.family == Family::Llama;
    let message = "not built yet for this type; remove it";
    reader.require(&["attention_k_eq_v", "type"], is_plain || !are_shared, message);
}

/// Checks values of another width than keys, and their factor.
fn check_values(model: &Model, reader: &Reader<'_>) {
    const WIDTH: &str = "v_head_dim";
    const FACTOR: &str = "attention_value_scale";
    let has_factor = model.config.factors.values.is_some();
    let message = "not built yet with latent attention; remove it";
    reader.require(&[FACTOR], !has_factor || !model.is_latent(), message);
    let message = "not built yet where attention's output projection has a bias; remove it, or the bias";
    reader.require(&[FACTOR, "attn_proj_has_bias"], !has_factor || !model.config.output_bias, message);
    let Some(width) = model.v_head_dim.filter(|_| !model.is_latent()) else { return };
    let fits = width <= MAX_HEAD_DIM && width.is_multiple_of(4);
    let message = format!("values are {width} wide; the kernels take multiples of 4 up to {MAX_HEAD_DIM}");
    reader.require(&[WIDTH], fits, message);
    if width == model.config.layer.head_dim {
        return;
    }
    reader.require(&[WIDTH, "type"], model.config.family == Family::Llama, OTHER_TYPE);
    let message = "not built yet where values are normalised; remove it, or `use_v_norm`";
    reader.require(&[WIDTH, "use_v_norm"], model.use_v_norm != Some(true), message);
    let message = "not built yet where attention's output has gates; remove it, or `attention_output_gate`";
    let has_gate = model.attention_output_gate == Some(true);
    reader.require(&[WIDTH, "attention_output_gate"], !has_gate, message);
    let message =
        "not built yet where keys are not equally wide in all layers; remove it, or `global_head_dim`";
    reader.require(&[WIDTH, "global_head_dim"], model.global_head_dim.is_none(), message);
    let message = "not built yet where layers share keys and values; remove it, or `num_kv_shared_layers`";
    reader.require(&[WIDTH, SHARED], shared_layers(model) == 0, message);
}

/// Checks that files of the type have names for sinks, and that some layers have them. `some_slide`: some layers have a
/// window.
fn check_sinks(model: &Model, reader: &Reader<'_>, some_slide: bool) {
    const KEY: &str = "attention_sinks";
    let Some(layers) = model.attention_sinks else { return };
    let is_of_type = matches!(model.config.family, Family::Llama | Family::GptOss) && !model.is_latent();
    reader.require(&[KEY, "type"], is_of_type, OTHER_TYPE);
    let message = "there is no layer with a window; write `all`, or give the window by `sliding_window`";
    let keys = [KEY, TYPES, "sliding_window"];
    reader.require(&keys, some_slide || layers == SinkLayers::All, message);
    let message = "not built yet where layers share keys and values; remove it, or `num_kv_shared_layers`";
    reader.require(&[KEY, SHARED], shared_layers(model) == 0, message);
    let message = "not built yet with multi-token prediction; remove it, or `mtp_depth`";
    reader.require(&[KEY, "mtp_depth"], model.mtp_depth.is_none_or(|depth| depth == 0), message);
}

/// Whether names and layouts of the type are known for what Qwen3-Next has.
fn is_of_qwen(model: &Model) -> bool {
    matches!(model.config.family, Family::Llama | Family::Qwen3Next) && !model.is_latent()
}

const OTHER_TYPE: &str = "not built yet for this type; write `type: LlamaConfig`, or remove it";

/// The sizes of linear attention; those that are not written are 0.
fn linear(model: &Model) -> LinearAttention {
    LinearAttention {
        heads: model.linear_num_value_heads.unwrap_or(0),
        key_heads: model.linear_num_key_heads.unwrap_or(0),
        key_dim: model.linear_key_head_dim.unwrap_or(0),
        value_dim: model.linear_value_head_dim.unwrap_or(0),
        conv_width: model.linear_conv_kernel_dim.unwrap_or(4),
    }
}

/// Whether some layers have linear attention.
fn has_linear(model: &Model) -> bool {
    lists(model, LayerType::Linear)
}

/// Whether some layers are of this kind.
fn lists(model: &Model, kind: LayerType) -> bool {
    model.layer_types.as_ref().is_some_and(|types| types.contains(&kind))
}

/// Checks gated convolutions: that files of the type have some, and that the kernel takes their width.
fn check_convolutions(model: &Model, reader: &Reader<'_>) {
    const KEY: &str = "conv_L_cache";
    if !lists(model, LayerType::Convolution) {
        let message = "is of layers of the kind `conv`; list such layers in `layer_types`, or remove it";
        reader.require(&[KEY, TYPES], model.conv_width.is_none(), message);
        return;
    }
    let is_of_type = model.config.family == Family::Lfm2;
    let message =
        "lists `conv`, which is not built yet for this type; write `type: Lfm2Config`, or list others";
    reader.require(&[TYPES, "type"], is_of_type, message);
    let message = "not built yet beside layers of the kind `conv`; remove it";
    reader.require(&["sliding_window", TYPES], model.sliding_window.is_none(), message);
    let width = model.config.hidden_size;
    let message = format!("convolutions of `layer_types` are {width} wide; the kernel takes multiples of 4");
    reader.require(&["hidden_size", TYPES], width.is_multiple_of(4), message);
}

/// Checks linear attention: that its sizes are there, if some layers have it, and fit the kernels and each other.
fn check_linear(model: &Model, reader: &Reader<'_>) {
    let LinearAttention { heads, key_heads, key_dim, value_dim, .. } = linear(model);
    let sizes = [
        ("linear_num_value_heads", heads),
        ("linear_num_key_heads", key_heads),
        ("linear_key_head_dim", key_dim),
        ("linear_value_head_dim", value_dim),
    ];
    if !has_linear(model) {
        let width = ("linear_conv_kernel_dim", model.linear_conv_kernel_dim.unwrap_or(0));
        let message = "is of `linear_attention`; list such layers in `layer_types`, or remove it";
        for (key, size) in sizes.into_iter().chain([width]) {
            reader.require(&[key, TYPES], size == 0, message);
        }
        return;
    }
    reader.require(&[TYPES, "type"], is_of_qwen(model), OTHER_TYPE);
    let is_usual = model.normalization.unwrap_or(model.config.norm) == Norm::RmsNorm
        && model.norm_placement.is_none_or(|placement| placement == NormPlacement::Before)
        && model.parallel_residual.is_none();
    let message =
        "lists `linear_attention`, which is built for RMSNorms before attention and feed-forward layer alone";
    reader.require(&[TYPES, "normalization", "norm_placement", "parallel_residual"], is_usual, message);
    for (key, _) in sizes.into_iter().filter(|(_, size)| *size == 0) {
        reader
            .missing(key, "a whole number from 1, a size of the `linear_attention` that `layer_types` lists");
    }
    let message = |what: &str, most: usize| format!("{what}; the kernels take multiples of 4 up to {most}");
    let is_group = |size: usize, most: usize| size <= most && size.is_multiple_of(4);
    let (keys, values) = (format!("keys are {key_dim} wide"), format!("values are {value_dim} wide"));
    reader.require(&["linear_key_head_dim"], is_group(key_dim, 512), message(&keys, 512));
    reader.require(&["linear_value_head_dim"], is_group(value_dim, 1024), message(&values, 1024));
    let message = format!("{heads} value heads; the kernels take multiples of 4");
    reader.require(&["linear_num_value_heads"], heads.is_multiple_of(4), message);
    let divide = key_heads == 0 || heads.is_multiple_of(key_heads);
    let message = format!("{key_heads} heads of keys do not divide {heads} of values; change one of them");
    reader.require(&["linear_num_key_heads", "linear_num_value_heads"], divide, message);
}

/// Checks that files of the type can hold the gates of attention's output, and that its heads have them.
fn check_gate(model: &Model, reader: &Reader<'_>) {
    if model.attention_output_gate != Some(true) {
        return;
    }
    reader.require(&["attention_output_gate", "type"], is_of_qwen(model), OTHER_TYPE);
    let message =
        "not built yet with heads that rotate in interleaved pairs; remove it, or `rotary_interleaved`";
    let keys = ["attention_output_gate", "rotary_interleaved"];
    reader.require(&keys, !model.config.layer.rotary_interleaved, message);
    let is_layer_norm = model.qk_norm_kind.is_some_and(QkNorm::is_layer_norm);
    let message = "not built yet where heads have LayerNorms; remove it, or `qk_norm_kind`";
    reader.require(&["attention_output_gate", "qk_norm_kind"], !is_layer_norm, message);
    let message = "not built yet where values are normalised; remove it, or `use_v_norm`";
    reader.require(&["attention_output_gate", "use_v_norm"], model.use_v_norm != Some(true), message);
}

const SHARED: &str = "num_kv_shared_layers";

/// Checks that each layer without keys and values finds a layer to read them from.
fn check_shared(model: &Model, reader: &Reader<'_>) {
    let (layers, shared) = (model.config.num_layers, shared_layers(model));
    let message = "is of layers that share keys and values; remove it, or give `num_kv_shared_layers`";
    let is_wide = model.use_double_wide_mlp == Some(true);
    reader.require(&["use_double_wide_mlp", SHARED], shared > 0 || !is_wide, message);
    let width = model.config.layer.intermediate_size.saturating_mul(2);
    let message =
        format!("makes feed-forward layers {width} wide, over {MAX_SIZE}; lower `intermediate_size`");
    reader.require(&["use_double_wide_mlp", "intermediate_size"], width <= MAX_SIZE || !is_wide, message);
    if shared == 0 {
        return;
    }
    let is_plain = model.config.family == Family::Llama && !model.is_latent();
    reader.require(&[SHARED], is_plain, "not built yet for this type; remove it");
    let heads_are_alone = model.qk_norm_kind.is_none_or(|kind| kind == QkNorm::Heads);
    let message = "not built yet with this norm of heads; remove it, or write `qk_norm_kind: heads`";
    reader.require(&[SHARED, "qk_norm_kind"], heads_are_alone, message);
    let message = "not built yet where some layers do not rotate; remove it, or `no_rope_layers`";
    reader.require(&[SHARED, UNROTATED], model.no_rope_layers.is_none(), message);
    let message = "not built yet beside linear attention; remove it, or write other `layer_types`";
    reader.require(&[SHARED, TYPES], !has_linear(model), message);
    let message = "not built yet where attention's output has gates; remove it, or `attention_output_gate`";
    let has_gate = model.attention_output_gate == Some(true);
    reader.require(&[SHARED, "attention_output_gate"], !has_gate, message);
    let message = "not built yet with multi-token prediction; remove it, or `mtp_depth`";
    reader.require(&[SHARED, "mtp_depth"], model.mtp_depth.is_none_or(|depth| depth == 0), message);
    let message = format!("leaves none of {layers} layers that has keys and values; lower it");
    reader.require(&[SHARED, "num_layers"], shared < layers, message);
    if shared >= layers {
        return;
    }
    let lacks = (layers - shared..layers).find(|number| source_of(model, *number).is_none());
    let message = format!(
        "leaves layer {} nothing to read: none of the first {} {} a window; lower it, or change `{TYPES}`",
        lacks.unwrap_or(0),
        layers - shared,
        if lacks.is_some_and(|number| slides(model, number)) { "has" } else { "is without" },
    );
    reader.require(&[SHARED, "num_layers", TYPES], lacks.is_none(), message);
}

/// Checks the embeddings of each layer.
fn check_inputs(model: &Model, reader: &Reader<'_>) {
    const KEY: &str = "hidden_size_per_layer_input";
    let Some(width) = model.hidden_size_per_layer_input else { return };
    reader.require(&[KEY], width.is_multiple_of(4), "must be a multiple of 4");
    let layers = model.config.num_layers;
    let message =
        format!("makes {width} columns for each of {layers} layers, over {MAX_SIZE} in all; lower it");
    reader.require(&[KEY, "num_layers"], width.saturating_mul(layers) <= MAX_SIZE, message);
    let is_plain = model.config.family == Family::Llama && !model.is_latent();
    reader.require(&[KEY], is_plain, "not built yet for this type; remove it");
    let is_layer_norm = model.normalization.unwrap_or(model.config.norm) == Norm::LayerNorm;
    let message = "not built yet with LayerNorm; remove it, or write `normalization: RMSNorm`";
    reader.require(&[KEY, "normalization"], !is_layer_norm, message);
    let is_xielu = model.config.activation == Activation::Xielu;
    let message = "not built yet with `hidden_act: xielu`; write another activation, or remove it";
    reader.require(&[KEY, "hidden_act"], !is_xielu, message);
    let message = "not built yet with multi-token prediction; remove it, or `mtp_depth`";
    reader.require(&[KEY, "mtp_depth"], model.mtp_depth.is_none_or(|depth| depth == 0), message);
}

/// Number of layers that share keys and values of others.
fn shared_layers(model: &Model) -> usize {
    model.num_kv_shared_layers.unwrap_or(0)
}

/// Whether layer number `number` has a window.
fn slides(model: &Model, number: usize) -> bool {
    model.sliding_window.is_some() && entry(&model.layer_types, number) != Some(LayerType::Full)
}

/// The layer whose keys and values layer number `number` reads, if it has none.
fn source_of(model: &Model, number: usize) -> Option<usize> {
    let first = model.config.num_layers.saturating_sub(shared_layers(model));
    kv_source(number, first, |number| slides(model, number))
}

/// Sets in `layer`, number `number`, what the lists say.
pub(super) fn set(model: &Model, number: usize, layer: &mut LayerConfig) {
    match entry(&model.layer_types, number) {
        Some(LayerType::Linear) => {
            (layer.mixer, layer.sliding_window) = (Mixer::Linear(linear(model)), None);
            return;
        }
        Some(LayerType::Convolution) => {
            let width = model.conv_width.unwrap_or(3);
            (layer.mixer, layer.sliding_window) = (Mixer::Convolution { width }, None);
            return;
        }
        Some(LayerType::Full | LayerType::Sliding) | None => {}
    }
    if model.use_v_norm == Some(true) {
        layer.values = Values::Normalised;
    }
    if !slides(model, number) {
        layer.sliding_window = None;
    }
    if let Some(layers) = model.attention_sinks {
        layer.has_sinks = layers == SinkLayers::All || layer.sliding_window.is_some();
    }
    layer.kv_source = source_of(model, number);
    if layer.kv_source.is_some() && model.use_double_wide_mlp == Some(true) {
        layer.intermediate_size *= 2;
    }
    if layer.sliding_window.is_none() {
        layer.num_kv_heads = model.num_global_key_value_heads.unwrap_or(layer.num_kv_heads);
        if let Some(width) = model.global_head_dim {
            let share = model.rotary_percent.unwrap_or(1.0);
            (layer.head_dim, layer.rotary_dim) = (width, rotary_dim(width, share));
        }
        if model.attention_k_eq_v == Some(true) {
            layer.values = Values::OfKeys;
        }
    }
    if let (Some(theta), Some(_)) = (model.sliding_theta, layer.sliding_window) {
        (layer.rope_theta, layer.rope_scaling, layer.query_scaling) = (theta, RopeScaling::None, None);
    }
    layer.rotates = entry(&model.no_rope_layers, number) != Some(0);
}

/// The entry of a list for layer number `number`.
fn entry<T: Copy>(list: &Option<Vec<T>>, number: usize) -> Option<T> {
    let list = list.as_ref()?;
    list.get(number % list.len().max(1)).copied()
}

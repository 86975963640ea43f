//! Layers that are not alike: `layer_types`, with `sliding_theta`, and `no_rope_layers`. Each list has one entry for each
//! layer, or for the first layers, which are then repeated.

use super::rope_scaling::GROWTH;
use super::rows::Model;
use crate::model::config::{LayerConfig, Positions, RopeScaling};
use crate::settings::engine::*;

words! {
    /// An entry of `layer_types`.
    pub enum LayerType {
        /// A token attends to all tokens before it.
        #[default]
        Full = "full_attention",
        /// A token attends to the tokens in `sliding_window`.
        Sliding = "sliding_attention",
    }
}

/// Entries of `no_rope_layers`.
pub(super) const ROTATES: Range = Range::new("1 or 0 for each layer", |x| x == 0.0 || x == 1.0, 2.0);

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

/// Sets in `layer`, number `number`, what the lists say.
pub(super) fn set(model: &Model, number: usize, layer: &mut LayerConfig) {
    if entry(&model.layer_types, number) == Some(LayerType::Full) {
        layer.sliding_window = None;
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

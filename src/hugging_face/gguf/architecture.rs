//! The architecture of llama.cpp that computes a model, and what it lacks.

use crate::hugging_face::config_json::classes::{self, Class, Gguf};
use crate::hugging_face::config_json::facts;
use crate::hugging_face::export::{lacks, nearest};
use crate::model::config::{ModelConfig, Positions, RopeScaling};
use serde_json::Value;

/// Facts that every architecture's keys say.
const SIZES: [&str; 16] = [
    "type",
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "n_kv_heads",
    "intermediate_size",
    "rms_norm_eps",
    "tie_word_embeddings",
    "max_position_embedding",
    "theta",
    "expert_num",
    "num_experts_chosen",
    "moe_intermediate_size",
    // Of layers, which are compared one by one.
    "layer_types",
    "no_rope_layers",
];

/// The fact that layers have a window.
const WINDOW: &str = "sliding_window";

/// An architecture for a model.
pub(crate) struct Architecture {
    /// The class that is nearest to the model.
    pub(super) class: &'static Class,
    /// What llama.cpp has of it.
    pub(super) row: &'static Gguf,
    /// Tokens that the file says the model reads: fewer than its positions where a window is left out.
    pub(super) context: usize,
    /// The window of some layers, and every which layer has none.
    pub(super) window: Option<(usize, usize)>,
    /// What a user should know of the file.
    pub notices: Vec<String>,
}

impl Architecture {
    /// What llama.cpp calls it.
    pub fn name(&self) -> &str {
        &self.row.architecture
    }
}

/// The architecture of llama.cpp that computes `model`.
///
/// # Errors
/// There is none that is known here, or it lacks something; the end of a line that begins with the model.
pub(crate) fn architecture(model: &ModelConfig) -> Result<Architecture, String> {
    let class = nearest(model);
    let name = &class.name;
    let Some(row) = &class.gguf else {
        let known: Vec<&str> =
            classes::all().filter(|class| class.gguf.is_some()).map(|class| &*class.name).collect();
        return Err(format!(
            "is of the class `{name}`, of which no GGUF is written (but of {}); write it as a folder, which llama.cpp's own \
             convert_hf_to_gguf.py may read",
            known.join(", ")
        ));
    };
    let refused = |what: &str| {
        format!(
            "has {what}, which llama.cpp's `{}` has not; use it by `gristmill generate`",
            row.architecture
        )
    };
    if let Some(what) = lacks(class, model).first() {
        return Err(format!(
            "has a {what}, which neither `{name}` nor llama.cpp has; use it by `gristmill generate`"
        ));
    }
    if model.multi_token.is_some() {
        return Err(refused("blocks of multi-token prediction"));
    }
    if let Some(what) = first_lacking(row, class, model) {
        return Err(refused(&what));
    }
    if row.is_tied == Some(true) && !model.tie_word_embeddings {
        return Err(refused("a head that is not the embedding"));
    }
    let mut notices = Vec::new();
    let mut context = model.max_positions;
    let window = match (window_of(model), row.has.contains(WINDOW)) {
        (None, _) if row.needs.contains(WINDOW) => Some((model.max_positions, 2)),
        (None, _) => None,
        (Some(window), true) => {
            let period = period_of(model).ok_or_else(|| refused("a sliding window in these layers"))?;
            Some((window, period))
        }
        (Some(window), false) => {
            context = context.min(window);
            notices.push(format!(
                "llama.cpp's `{}` has no sliding window: the file says that the model reads {context} tokens, within which it \
                 computes the same",
                row.architecture
            ));
            None
        }
    };
    if let Some(notice) = yarn_notice(model) {
        notices.push(notice);
    }
    Ok(Architecture { class, row, context, window, notices })
}

/// The first thing that `model` has and that neither the class always has nor the row lists.
fn first_lacking(row: &Gguf, class: &Class, model: &ModelConfig) -> Option<String> {
    let facts = facts(model);
    let null = Value::Null;
    let fact = |name: &str| facts.get(name).unwrap_or(&null);
    let said = |name: &str, value: &Value| format!("`{name}: {value}`");
    let wanted = |value: &Value| match value.as_str().and_then(|text| text.strip_prefix('=')) {
        Some(other) => fact(other).clone(),
        None => value.clone(),
    };
    let differing = row.always.iter().find(|(name, value)| *fact(name) != wanted(value));
    if let Some((name, _)) = differing {
        return Some(said(name, fact(name)));
    }
    // A window as long as the texts stands for none.
    let is_lacking = |name: &&String| fact(name).is_null() && *name != WINDOW;
    if let Some(name) = row.needs.iter().find(is_lacking) {
        return Some(format!("no `{name}`"));
    }
    let rotates =
        |number: usize| row.unrotated_period.is_none_or(|period| !(number + 1).is_multiple_of(period));
    let other = (0..model.num_layers).find(|number| model.layer(*number).rotates != rotates(*number));
    if let Some(number) = other.filter(|_| model.positions == Positions::Rotary) {
        let how = if rotates(number) { "no rotation" } else { "a rotation" };
        return Some(format!("{how} in layer {number}"));
    }
    let scaling = fact("rope_scaling");
    if let Some(kind) = scaling["rope_type"].as_str().filter(|kind| !row.has.contains(*kind)) {
        return Some(format!("a rotation that is scaled by `{kind}`"));
    }
    if let Some(theta) = fact("sliding_theta").as_f64() {
        let is_alike = theta == model.layer.rope_theta;
        if !is_alike && !row.has.contains("sliding_theta") {
            return Some("a rotation of their own in layers with a window".to_string());
        }
    }
    let is_off = |name: &str, value: &Value| match (name, value) {
        (_, Value::Null | Value::Bool(false)) => true,
        ("rotary_percent" | "routed_scaling_factor", value) => value.as_f64() == Some(1.0),
        ("head_dim", _) => model.layer.head_dim * model.num_heads == model.hidden_size,
        ("attention_multiplier", value) => {
            let width = match row.layers_scaled_by_share == Some(model.num_layers) {
                true => model.hidden_size / model.num_heads,
                false => model.layer.head_dim,
            };
            let plain = 1.0 / (width as f64).sqrt();
            value.as_f64().is_some_and(|scale| (scale / plain - 1.0).abs() < 1e-6)
        }
        ("rope_scaling" | "sliding_theta" | WINDOW, _) => true,
        (_, value) => value.as_f64() == Some(0.0),
    };
    let is_known = |name: &str| {
        SIZES.contains(&name)
            || row.has.contains(name)
            || row.always.contains_key(name)
            || classes::always_here().contains_key(name)
            || class.facts.get(name).is_some_and(|said| classes::keys_of(said).is_none())
    };
    let lacking = facts.iter().find(|(name, value)| !is_known(name) && !is_off(name, value));
    lacking.map(|(name, value)| said(name, value))
}

/// The window of the layers that have one.
fn window_of(model: &ModelConfig) -> Option<usize> {
    model.layer_kinds().find_map(|(layer, _)| model.published_window(layer))
}

/// The number p such that every p-th layer has no window and all others have the same; `None` if there is none.
fn period_of(model: &ModelConfig) -> Option<usize> {
    let window = window_of(model);
    let fits = |period: &usize| {
        (0..model.num_layers).all(|number| {
            let has_window = number % period < period - 1;
            model.published_window(model.layer(number)) == window.filter(|_| has_window)
        })
    };
    (1..=model.num_layers + 1).find(fits)
}

/// What llama.cpp computes otherwise of a rotation scaled by YaRN.
fn yarn_notice(model: &ModelConfig) -> Option<String> {
    let is_fractional = matches!(model.layer.rope_scaling, RopeScaling::Yarn(yarn) if !yarn.is_truncated);
    is_fractional.then(|| {
        "llama.cpp begins and ends the interpolation of YaRN at whole pairs, and this model (`truncate: false`) does not: \
         what it computes differs slightly"
            .to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Sizes;

    /// A misspelt word of a row would refuse a model, or let one pass.
    #[test]
    fn rows_name_facts_and_scalings() {
        let scalings = ["linear", "yarn", "llama3", "longrope"];
        for class in classes::all() {
            let Some(row) = &class.gguf else { continue };
            let sizes = Sizes {
                vocab_size: 8,
                hidden_size: 8,
                num_layers: 2,
                num_heads: 2,
                intermediate_size: 8,
                seq_length: 8,
            };
            let plain = facts(&ModelConfig::llama(sizes));
            let is_fact = |name: &String| plain.contains_key(name.as_str()) || class.facts.contains_key(name);
            for name in row.has.iter().chain(row.always.keys()).chain(&row.needs) {
                assert!(is_fact(name) || scalings.contains(&name.as_str()), "{}: {name}", class.name);
            }
            assert!(row.needs.iter().all(|name| row.has.contains(name)), "{}", class.name);
        }
    }
}

//! `extend_method` with `scaling_factor` or `pretrain_seqlen`, and what any scaling must fit.

use super::rope_scaling::{Method, Scaling, read_parameters, require_all, takes};
use super::rows::Model;
use crate::settings::engine::*;

/// `extend_method`: its words.
const EXTEND_METHODS: [(&str, Method); 9] = [
    ("PI", Method::Linear),
    ("NTK", Method::Ntk),
    ("linear", Method::Linear),
    ("LINEAR", Method::Linear),
    ("DYNAMIC_NTK", Method::DynamicNtk),
    ("YARN", Method::Yarn),
    ("yarn", Method::Yarn),
    ("LLAMA3", Method::Llama3),
    ("llama3", Method::Llama3),
];

/// Length that DYNAMIC_NTK starts from where the file does not say: MindFormers' default.
const PRETRAIN_SEQLEN: u64 = 2048;
/// Turns `extend_method` into a scaling, and checks any scaling against a model whose longest position is `length` and whose
/// base is `theta`.
pub(super) fn fill(model: &mut Model, reader: &Reader<'_>, length: usize, theta: f64) {
    if !reader.are_sound(&["rope_scaling", "extend_method", "position_embedding_type", "scaling_factor"]) {
        return;
    }
    let Some(method) = method_of(model, reader) else { return };
    let factor = model.scaling_factor.take();
    let pretrained = model.pretrain_seqlen.take();
    match (reader.has("rope_scaling"), method) {
        (true, Some(_)) => {
            reader.fault("rope_scaling", "says the same as `extend_method` does; keep one of them")
        }
        (true, None) => {}
        (false, Some(word)) => match EXTEND_METHODS.iter().find(|(known, _)| *known == word) {
            Some((_, method)) => {
                let found = read_method(reader, &word, *method, factor.as_ref(), pretrained);
                model.rope_scaling = found.unwrap_or_default();
            }
            None => {
                let known = "None, PI, NTK, linear, DYNAMIC_NTK, YARN and LLAMA3";
                let key =
                    if reader.has("extend_method") { "extend_method" } else { "position_embedding_type" };
                reader.fault(key, format!("unknown method `{word}`; known are {known}"));
            }
        },
        // Files of MindFormers carry a factor of 1 without a method.
        (false, None) if factor.is_some_and(|node| !node.is_off() && f64::from_node(&node) != Some(1.0)) => {
            reader
                .fault("scaling_factor", "has no effect without `extend_method`; name a method or remove it");
        }
        (false, None) => {}
    }
    check(&model.rope_scaling, reader, length, theta);
}

/// The method that either of its keys names; `None` after a fault.
fn method_of(model: &mut Model, reader: &Reader<'_>) -> Option<Option<String>> {
    let method = model.extend_method.take();
    let positions = model.position_embedding_type.take();
    let has_both = reader.has("extend_method") && reader.has("position_embedding_type");
    if has_both
        && positions.as_ref().map(|word| word.to_lowercase())
            != method.as_ref().map(|word| word.to_lowercase())
    {
        let message = "differs from `extend_method`, whose other name it is; keep one of them";
        reader.fault("position_embedding_type", message);
        return None;
    }
    Some(method.or(positions))
}

fn read_method(
    reader: &Reader<'_>,
    word: &str,
    method: Method,
    factor: Option<&Node>,
    pretrained: Option<u64>,
) -> Option<Scaling> {
    let key = "scaling_factor";
    let parameters = match (word, factor) {
        ("PI" | "NTK", node) => {
            let number = node.and_then(f64::from_node).filter(|number| *number > 0.0);
            if number.is_none() {
                let found = node.map_or("nothing".to_string(), ToString::to_string);
                reader.fault(key, format!("{word} takes a number above 0, found {found}"));
                return None;
            }
            Scaling { factor: number, ..Scaling::default() }
        }
        ("DYNAMIC_NTK", node) => {
            if node.is_some_and(|node| f64::from_node(node) != Some(1.0)) {
                let message = "has no meaning for DYNAMIC_NTK, which takes `pretrain_seqlen`; remove it";
                reader.fault(key, message);
            }
            let original = pretrained.unwrap_or(PRETRAIN_SEQLEN) as f64;
            Scaling { original_max_position_embeddings: Some(original), ..Scaling::default() }
        }
        (_, Some(Node::Map(_))) => read_parameters(reader, key, method, word)?,
        (_, node) => {
            let found = node.map_or("nothing".to_string(), ToString::to_string);
            reader.fault(key, format!("expected a section, found {found}; {}", takes(method, word)));
            return None;
        }
    };
    require_all(reader, key, Scaling { kind: method, ..parameters }, word)
}

fn check(parameters: &Scaling, reader: &Reader<'_>, length: usize, theta: f64) {
    let fault =
        |key: &str, message: String| reader.source.fault(&format!("{}.{key}", place(reader)), message);
    let original = parameters.original_max_position_embeddings.unwrap_or(0.0);
    match parameters.kind {
        Method::Yarn => {
            if theta <= 1.0 {
                reader.fault("theta", format!("YARN needs a base above 1, found `{theta}`"));
            }
            if let (Some(fast), Some(slow)) = (parameters.beta_fast, parameters.beta_slow)
                && fast < slow
            {
                fault("beta_fast", format!("is below beta_slow, {slow}; exchange the two"));
            }
        }
        Method::Llama3 => {
            if let Some(factor) = parameters.factor.filter(|factor| *factor < 1.0) {
                fault("factor", format!("expected a number from 1, found `{factor}`"));
            }
            if original >= length as f64 {
                let message = format!(
                    "is not below the longest position, {length}; lower it or raise max_position_embeddings"
                );
                fault("original_max_position_embeddings", message);
            }
            if let (Some(low), Some(high)) = (parameters.low_freq_factor, parameters.high_freq_factor)
                && high <= low
            {
                fault("high_freq_factor", format!("is not above low_freq_factor, {low}; raise it"));
            }
        }
        Method::DynamicNtk if original > length as f64 => {
            let message = format!(
                "{original} is above the longest position, {length}: nothing is extended; lower it or write \
                 `extend_method: None`"
            );
            reader.fault("pretrain_seqlen", message);
        }
        _ => {}
    }
}

/// Where the parameters were written.
fn place(reader: &Reader<'_>) -> String {
    reader.path(if reader.has("rope_scaling") { "rope_scaling" } else { "scaling_factor" })
}

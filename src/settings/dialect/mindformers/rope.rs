//! `extend_method` with `scaling_factor` or `pretrain_seqlen`: MindFormers' form of `rope_scaling`.

use super::model::{ModelForms, path};
use crate::settings::engine::*;
use crate::settings::sections::model::{LLAMA, ScalingMethod, scaling_keys, scaling_takes};

/// The words of `extend_method`.
const METHODS: [(&str, ScalingMethod); 9] = [
    ("PI", ScalingMethod::Linear),
    ("NTK", ScalingMethod::Ntk),
    ("linear", ScalingMethod::Linear),
    ("LINEAR", ScalingMethod::Linear),
    ("DYNAMIC_NTK", ScalingMethod::DynamicNtk),
    ("YARN", ScalingMethod::Yarn),
    ("yarn", ScalingMethod::Yarn),
    ("LLAMA3", ScalingMethod::Llama3),
    ("llama3", ScalingMethod::Llama3),
];

/// Length that DYNAMIC_NTK starts from if the file does not say: MindFormers' default.
const PRETRAIN_SEQLEN: u64 = 2048;

const SECTION: &str = "rope_scaling";
const FACTOR: &str = "scaling_factor";
const METHOD: &str = "extend_method";
const POSITIONS: &str = "position_embedding_type";

/// Writes `rope_scaling` where a method is named.
pub(super) fn translate(source: &mut Source, forms: &ModelForms) {
    if ![METHOD, POSITIONS, FACTOR].iter().all(|key| source.is_sound(&path(key))) {
        return;
    }
    let factor = forms.scaling_factor.as_ref();
    let (word, form) = match (&forms.extend_method, &forms.position_embedding_type) {
        (Some(word), other) => {
            let is_other = |other: &String| other.to_lowercase() != word.to_lowercase();
            if source.node(&path(POSITIONS)).is_some() && other.as_ref().is_none_or(is_other) {
                let message = "differs from `extend_method`, whose other name it is; keep one of them";
                source.fault(&path(POSITIONS), message);
                return;
            }
            (word, METHOD)
        }
        (None, Some(word)) => (word, POSITIONS),
        // Files of MindFormers carry a factor of 1 without a method.
        (None, None) => {
            if factor.is_some_and(|node| !node.is_off() && f64::from_node(node) != Some(1.0)) {
                let message = "has no effect without `extend_method`; name a method or remove it";
                source.fault(&path(FACTOR), message);
            }
            return;
        }
    };
    if source.node(&path(SECTION)).is_some() {
        source.fault(&path(SECTION), "says the same as `extend_method` does; keep one of them");
        return;
    }
    match METHODS.iter().find(|(known, _)| known == word) {
        Some((_, method)) => extend(source, forms, word, *method, form),
        None => {
            let known = "None, PI, NTK, linear, DYNAMIC_NTK, YARN and LLAMA3";
            source.fault(&path(form), format!("unknown method `{word}`; known are {known}"));
        }
    }
}

/// Writes the section for `method`, which the key `form` calls `word`.
fn extend(source: &mut Source, forms: &ModelForms, word: &str, method: ScalingMethod, form: &str) {
    let factor = forms.scaling_factor.as_ref();
    let found = factor.map_or("nothing".to_string(), ToString::to_string);
    match (word, factor) {
        ("PI" | "NTK", node) => {
            let number = node.and_then(f64::from_node).filter(|number| *number > 0.0);
            let Some(number) = number else {
                source.fault(&path(FACTOR), format!("{word} takes a number above 0, found {found}"));
                return;
            };
            put(source, "factor", number, FACTOR);
        }
        ("DYNAMIC_NTK", node) => {
            if node.is_some_and(|node| f64::from_node(node) != Some(1.0)) {
                let message = "has no meaning for DYNAMIC_NTK, which takes `pretrain_seqlen`; remove it";
                source.fault(&path(FACTOR), message);
            }
            let original = forms.pretrain_seqlen.unwrap_or(PRETRAIN_SEQLEN);
            put(source, "original_max_position_embeddings", original, "pretrain_seqlen");
        }
        (_, Some(Node::Map(entries))) => {
            let has = |key: &str| entries.iter().any(|(name, node)| name == key && !node.is_none());
            for key in ["rope_type", "type"].into_iter().filter(|key| has(key)) {
                let message = format!("unknown key; {}", scaling_takes(method, word));
                source.fault(&join(&path(FACTOR), key), message);
            }
            // Hugging Face's section has defaults for absent keys; MindFormers' section has none.
            let keys = scaling_keys(method);
            let is_known = |name: &str| keys.contains(&name);
            let missing = keys.iter().find(|key| !has(key));
            if let Some(key) = missing.filter(|_| entries.iter().all(|(name, _)| is_known(name))) {
                let message = format!("`{key}` is missing; {}", scaling_takes(method, word));
                source.fault(&path(FACTOR), message);
                return;
            }
            source.document.put(&path(SECTION), Node::Map(entries.clone()), &path(FACTOR));
        }
        _ => {
            let takes = scaling_takes(method, word);
            source.fault(&path(FACTOR), format!("expected a section, found {found}; {takes}"));
            return;
        }
    }
    put(source, "rope_type", method.word(), form);
}

fn put(source: &mut Source, key: &str, value: impl Into<Node>, form: &str) {
    source.document.put(&join(&path(SECTION), key), value.into(), &path(form));
}

/// `position_embedding_type`: how Llama's rotary frequencies are stretched; GPT-2's positions are learned.
pub(super) fn positions(reader: &Reader<'_>, key: &'static str) -> Option<Option<String>> {
    let word: String = reader.convert(key, reader.node(key)?)?;
    let is_llama = reader.kind_is(LLAMA);
    match (is_llama, word.as_str()) {
        (true, "rope") | (false, "learned_absolute" | "absolute") => Some(None),
        (
            true,
            "learned_absolute" | "absolute" | "none" | "relative" | "mrope" | "partial_rope" | "alibi",
        )
        | (false, _) => {
            let remedy = if is_llama { "rope" } else { "learned_absolute" };
            reader.fault(key, format!("not built yet (found `{word}`); write `{key}: {remedy}`"));
            None
        }
        (true, _) => Some(Some(word)),
    }
}

//! Names of a language model's tensors inside a model of images or sound.
//!
//! In such a file `model.language_model.layers.0.mlp.up_proj.weight` is the name of `model.layers.0.mlp.up_proj.weight`
//! of the language model alone. Adapters have the same names behind PEFT's prefix. The tensors of other towers are not
//! read.

use crate::model::parameters::PEFT_PREFIX;
use std::collections::BTreeMap;

/// The prefixes of a language model inside a wrapper: the prefix of its body, which is `model.` without a wrapper, and
/// what comes before the name of its head.
const PREFIXES: [(&str, &str); 4] = [
    ("model.language_model.", ""),
    ("language_model.model.", "language_model."),
    ("model.text_model.", ""),
    ("model.language_model.model.", "model.language_model."),
];
/// The starts of the names of other towers beside a language model that has no prefix.
const TOWERS: [&str; 3] = ["visual.", "vision_tower.", "multi_modal_projector."];
const BODY: &str = "model.";
const HEAD: &str = "lm_head.";

/// The prefixes of the language model in a file.
#[derive(Clone, Copy)]
pub(super) struct Wrapped {
    body: &'static str,
    head: &'static str,
}

impl Wrapped {
    /// The prefixes of these `names`, of a model or of adapters, if they have some.
    pub fn recognise<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Option<Self> {
        let starts = |prefix: &str, end: &str| {
            let inner = |name: &'a str| name.strip_prefix(PEFT_PREFIX).unwrap_or(name).strip_prefix(prefix);
            names.clone().filter_map(inner).any(|rest| rest.starts_with(end))
        };
        let is_body = |body: &str| starts(body, "layers.") || starts(body, "embed_tokens.");
        let (body, head) = PREFIXES.into_iter().find(|(body, _)| is_body(body))?;
        Some(Self { body, head })
    }

    /// The names that the file may have for the tensor `name` of a language model by itself, as a part of its body or
    /// as its head: up to two, of which one may be there.
    pub fn names(self, name: &str) -> impl Iterator<Item = String> {
        let (peft, name) = match name.strip_prefix(PEFT_PREFIX) {
            Some(inner) => (PEFT_PREFIX, inner),
            None => ("", name),
        };
        let body = name.strip_prefix(BODY).map(|rest| format!("{peft}{}{rest}", self.body));
        let head = name.starts_with(HEAD).then(|| format!("{peft}{}{name}", self.head));
        body.into_iter().chain(head)
    }

    /// Whether the tensor `stored` is of the language model.
    fn holds(self, stored: &str) -> bool {
        let name = stored.strip_prefix(PEFT_PREFIX).unwrap_or(stored);
        let head = name.strip_prefix(self.head).unwrap_or(name);
        name.starts_with(self.body) || head.starts_with(HEAD)
    }
}

/// The name that `name` of a file has in a language model by itself.
pub(super) fn alone(name: &str) -> String {
    let bodies =
        PREFIXES.iter().rev().find_map(|(body, _)| Some(format!("{BODY}{}", name.strip_prefix(body)?)));
    bodies.unwrap_or_else(|| name.to_string())
}

/// The name that the classes of `transformers` have for a module of a language model inside them, whatever their files
/// call its tensors.
pub(super) fn module(name: &str) -> String {
    name.strip_prefix(BODY).map_or_else(|| name.to_string(), |rest| format!("{}{rest}", PREFIXES[0].0))
}

/// Whether the tensor `stored` of a file whose language model is `wrapped` is of another tower.
pub(super) fn is_of_tower(wrapped: Option<Wrapped>, stored: &str) -> bool {
    wrapped.map_or(TOWERS.iter().any(|tower| stored.starts_with(tower)), |wrapped| !wrapped.holds(stored))
}

/// The towers that tensors with these `names` belong to, each with the number of its tensors: `visual (390)`.
pub(super) fn towers<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut counts = BTreeMap::new();
    for name in names {
        let parts = if name.starts_with(BODY) { 2 } else { 1 };
        let end = name.match_indices('.').nth(parts - 1).map_or(name.len(), |(end, _)| end);
        *counts.entry(&name[..end]).or_insert(0) += 1;
    }
    let listed = counts.into_iter().map(|(tower, count): (&str, usize)| format!("{tower} ({count})"));
    listed.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_model_is_found_behind_its_prefix() {
        for (body, head) in [
            ("model.language_model.", "lm_head.weight"),
            ("language_model.model.", "language_model.lm_head.weight"),
            ("model.text_model.", "lm_head.weight"),
            ("model.language_model.model.", "model.language_model.lm_head.weight"),
        ] {
            let layer = format!("{body}layers.0.mlp.up_proj.weight");
            let names = [&layer, "vision_tower.norm.weight", "model.projector", head];
            let wrapped = Wrapped::recognise(names.into_iter()).unwrap();
            assert!(wrapped.names("model.layers.0.mlp.up_proj.weight").eq([layer.clone()]));
            assert!(wrapped.names("lm_head.weight").eq([head]));
            let is_of_tower = names.map(|name| super::is_of_tower(Some(wrapped), name));
            assert_eq!(is_of_tower, [false, true, true, false], "{body}");
            assert_eq!(alone(&layer), "model.layers.0.mlp.up_proj.weight");
            let adapter = format!("{PEFT_PREFIX}{body}layers.0.mlp.up_proj.lora_A.weight");
            let wrapped = Wrapped::recognise([adapter.as_str()].into_iter()).unwrap();
            let name = format!("{PEFT_PREFIX}model.layers.0.mlp.up_proj.lora_A.weight");
            assert!(wrapped.names(&name).eq([adapter]));
        }
    }

    #[test]
    fn a_model_by_itself_has_no_prefix() {
        let names = ["model.layers.0.mlp.up_proj.weight", "lm_head.weight", "visual.blocks.0.norm.weight"];
        assert!(Wrapped::recognise(names.into_iter()).is_none());
        assert_eq!(names.map(|name| is_of_tower(None, name)), [false, false, true]);
        assert_eq!(alone(names[0]), names[0]);
    }

    #[test]
    fn towers_are_counted() {
        let names =
            ["model.visual.a.weight", "vision_tower.b", "model.visual.b.weight", "image_newline", "model.x"];
        assert_eq!(
            towers(names.into_iter()),
            "image_newline (1), model.visual (2), model.x (1), vision_tower (1)"
        );
    }
}

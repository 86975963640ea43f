//! What patterns select in each layer of a model, and what the log says of it.

use super::operators::{LayerFeatures, Operators, paths};
use super::rows::Recompute;
use super::selection::{Pattern, Selected};
use crate::model::config::{Operator, WITHOUT_OUTPUT};
use crate::model::stages::{Chunks, Stages};
use crate::settings::engine::*;

/// The patterns of a key.
pub(super) struct Choice {
    key: &'static str,
    patterns: Vec<Chosen>,
}

/// A pattern and the layers that it is about.
struct Chosen {
    text: String,
    chunks: Chunks,
    pattern: Pattern,
    layers: Vec<usize>,
}

/// What a key selects in a layer.
#[derive(Default)]
struct Found {
    /// The names that were matched, for the log.
    names: Vec<&'static str>,
    operators: Vec<Operator>,
}

impl Choice {
    /// The patterns of `key`, with the layers of each.
    pub fn new(key: &'static str, selected: Selected, stages: &Stages) -> Self {
        let chosen = |(text, chunks): (String, Chunks)| {
            let one = [(text.clone(), chunks.clone())];
            Some(Chosen { pattern: Pattern::new(&text)?, layers: acting(&one, stages, &[]), text, chunks })
        };
        Self { key, patterns: selected.into_iter().filter_map(chosen).collect() }
    }

    fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Logs the layers of each pattern as MindFormers does, and what a pattern does not do.
    pub fn note(&self, reader: &Reader<'_>, parts: &LayerFeatures<'_>) {
        let Self { key, patterns } = self;
        if self.is_empty() {
            return;
        }
        let python = |chosen: &Chosen| format!("'{}': {:?}", chosen.text.replace('\\', r"\\"), chosen.chunks);
        let entries: Vec<String> = patterns.iter().map(python).collect();
        reader.source.note(format!("Formative {key}: {{{}}}", entries.join(", ")));
        for chosen in patterns {
            if let Some(why) = self.idle(chosen, parts) {
                reader.source.note(format!("{}.{key}: {why}", super::PATH));
            }
        }
    }

    /// Why a pattern selects nothing, if so.
    fn idle(&self, chosen: &Chosen, parts: &LayerFeatures<'_>) -> Option<String> {
        let Chosen { text, pattern, layers, .. } = chosen;
        if layers.iter().any(|layer| !self.found_by(chosen, *layer, parts).operators.is_empty()) {
            return None;
        }
        let first = *layers.first()?;
        let is_module = |operator: Operator| operator.names().any(|name| pattern.part_of(name).is_some());
        if layers.iter().any(|layer| parts.operators(*layer).any(is_module)) {
            return Some(format!(
                "{text} is expected to be operation but got cell, this configuration will not be effective."
            ));
        }
        let without = WITHOUT_OUTPUT.iter().find_map(|(reason, names)| {
            let name = names.split_whitespace().find(|name| pattern.part_of(name).is_some())?;
            Some(format!("`{text}` selects nothing to recompute: `{name}` {reason}"))
        });
        let there = paths(parts.operators(first)).join(", ");
        let unmatched = || {
            format!(
                "`{text}` matches no operator of layer {first}; its operators are {there}, and a pattern separates levels by `\\.`"
            )
        };
        Some(without.unwrap_or_else(unmatched))
    }

    /// What the key selects in `layer`.
    fn found(&self, layer: usize, parts: &LayerFeatures<'_>) -> Found {
        let mut all = Found::default();
        for chosen in self.patterns.iter().filter(|chosen| chosen.layers.contains(&layer)) {
            let Found { names, operators } = self.found_by(chosen, layer, parts);
            all.names.extend(names);
            all.operators.extend(operators);
        }
        all.names.sort_unstable();
        all.names.dedup();
        all
    }

    /// What `chosen` selects in `layer`: an operator whose name it matches, or where the key takes modules also all operators
    /// of a module.
    fn found_by(&self, chosen: &Chosen, layer: usize, parts: &LayerFeatures<'_>) -> Found {
        let takes_modules = self.key == "select_recompute";
        let mut found = Found::default();
        for operator in parts.operators(layer) {
            let part = operator
                .names()
                .find_map(|name| chosen.pattern.part_of(name).filter(|part| takes_modules || *part == name));
            if let Some(part) = part {
                found.names.push(part);
                found.operators.push(operator);
            }
        }
        found
    }
}

/// Makes `layers` and `operators` of `recompute` what the choices say, and logs it by layer. Layers that are recomputed as a
/// whole are not selected from; where some of their operators are excluded, the others are listed in their place.
pub(super) fn apply(
    choices: &[Choice],
    recompute: &mut Recompute,
    source: &Source,
    parts: &LayerFeatures<'_>,
    layers: usize,
) {
    let (selects, excludes) = choices.split_at(2);
    if !excludes.iter().all(Choice::is_empty) {
        source.note(
            "The configuration of select_recompute_exclude and select_comm_recompute_exclude have the highest priority.",
        );
    }
    if recompute.layers.is_empty()
        && recompute.operators == Operators::default()
        && choices.iter().all(Choice::is_empty)
    {
        return;
    }
    let written = std::mem::take(&mut recompute.operators);
    let full = std::mem::take(&mut recompute.layers);
    for layer in 0..layers {
        let is_full = full.binary_search(&layer).is_ok();
        let mut operators = written.of(layer);
        if is_full {
            source.note(format!("Set full recompute at layer {layer}"));
            operators = parts.operators(layer).collect();
        } else {
            log(source, "select recompute on", layer, &paths(operators.iter().copied()));
            for (choice, kind) in selects.iter().zip(["", "comm "]) {
                let found = choice.found(layer, parts);
                log(source, &format!("select {kind}recompute on"), layer, &found.names);
                operators.extend(found.operators);
            }
        }
        let before = operators.len();
        for (choice, kind) in excludes.iter().zip(["", "comm "]) {
            let found = choice.found(layer, parts);
            log(source, &format!("select {kind}recompute exclude"), layer, &found.names);
            operators.retain(|operator| !found.operators.contains(operator));
        }
        match is_full && operators.len() == before {
            true => recompute.layers.push(layer),
            false => add_all(&mut recompute.operators, operators, layer),
        }
    }
}

fn log(source: &Source, what: &str, layer: usize, names: &[&str]) {
    if !names.is_empty() {
        source.note(format!("Set {what} at layer {layer}: {}", names.join(", ")));
    }
}

fn add_all(operators: &mut Operators, mut of_layer: Vec<Operator>, layer: usize) {
    of_layer.sort_unstable();
    of_layer.dedup();
    of_layer.into_iter().for_each(|operator| operators.add(operator, layer));
}

/// The layers in which a pattern acts: those of its layers that are not recomputed as a whole (`full`).
pub(super) fn acting(selected: &[(String, Chunks)], stages: &Stages, full: &[usize]) -> Vec<usize> {
    let mut layers: Vec<usize> = selected.iter().flat_map(|(_, chunks)| stages.first(chunks)).collect();
    layers.sort_unstable();
    layers.dedup();
    layers.retain(|layer| full.binary_search(layer).is_err());
    layers
}

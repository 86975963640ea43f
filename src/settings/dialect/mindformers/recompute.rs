//! `recompute_config` in the form of MindFormers: how many layers of each stage are recomputed, and patterns of
//! operators. These become `layers` and `operators`, from which the log lines of MindFormers are written.
//!
//! Files count layers by the stages of the pipeline, also for a run of one rank. A fused kernel is recomputed if one of
//! the operators that it fuses is selected, and kept if one of them is excluded. `select_comm_recompute` in MindFormers
//! repeats communication alone; here the operators whose results are gathered from other ranks, the norms by default,
//! are recomputed themselves, and the gathered results with them. A list holds numbers: text in a list, such as
//! `recompute: ['a']`, is an error, where MindFormers recomputes all layers. Of MindFormers' five `Formative` log
//! lines, only those that select something are logged.

mod counts;
mod patterns;
#[cfg(test)]
mod tests;

use crate::model::config::Operator;
use crate::model::stages::{Chunks, Stages};
use crate::settings::engine::*;
use crate::settings::sections::parallel::{self, Distribution};
use crate::settings::sections::recompute::{LayerFeatures, PATH, Recompute, paths};
use counts::Amount;
use patterns::{Pattern, Selection, names};

rows! {
    /// `recompute_config`: other forms of `layers` and `operators`. The `config.yaml` of the run folder has `layers`
    /// and `operators` in their place.
    pub struct RecomputeForms in "recompute_config" forms {
        /// Layers to recompute: all of them, or the first layers of each pipeline stage of MindFormers, as many as the
        /// list says. The stages follow from `pipeline_stage`, `offset` and `pp_interleave_num`; blocks of multi-token
        /// prediction count as the last layers.
        recompute: Amount = Host.default(Amount::every(false))
            .read_by(|reader, key| reader.form(key, Amount::read))
            .example("True"),
        /// Operators to recompute in layers that are not recomputed as a whole; `True` means the activation of
        /// feed-forward networks. A pattern is a path of regular expressions separated by `\.`, each of which must
        /// match a whole name, from the layer down to an operator or a module; a fused kernel is recomputed if a name
        /// that it answers to is matched.
        select_recompute: Selection = Host.default(NOTHING)
            .read_by(|reader, key| reader.form(key, Selection::read))
            .example("True"),
        /// The same for operators whose results are gathered from other ranks again; `True` means the norms. Where
        /// nothing is gathered, the operators themselves are recomputed. A module is not accepted.
        select_comm_recompute: Selection =
            Host.default(NOTHING).read_by(|reader, key| reader.form(key, Selection::read)).example("True"),
        /// Operators that are kept, whatever the other keys say: also in layers that are recomputed as a whole. A
        /// module is not accepted.
        select_recompute_exclude: Selection =
            Host.default(NOTHING).read_by(|reader, key| reader.form(key, Selection::read)).example("['feed_forward\\.mul']"),
        /// The same for `select_comm_recompute`; there is no difference between the two.
        select_comm_recompute_exclude: Selection =
            Host.default(NOTHING).read_by(|reader, key| reader.form(key, Selection::read)).example("['.*\\.norm']"),
    }
}

const NOTHING: Selection = Selection(Vec::new());

/// The keys that select operators, and the keys that exclude some of the selected operators.
pub const SELECTIONS: [&str; 4] = [
    "select_recompute",
    "select_comm_recompute",
    "select_recompute_exclude",
    "select_comm_recompute_exclude",
];

/// The operators that are recomputed where none are named: the activation of a network with a gate.
const SELECTED: [&str; 2] = [r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu"];
/// The activation of a network without a gate, for which MindFormers' default selects nothing.
const SELECTED_WITHOUT_GATE: [&str; 1] = [r"feed_forward\.gelu"];
const COMMUNICATION: [&str; 1] = [r".*\.norm"];

/// A pattern and the layers to which it applies.
struct Chosen {
    pattern: Pattern,
    chunks: Chunks,
    layers: Vec<usize>,
}

/// The keys as a table, with the operators that patterns can name.
pub(super) fn documented() -> (TableId, Table) {
    let (id, mut table) = RecomputeForms::documented();
    table.about += &patterns::listing();
    (id, table)
}

/// Adds to `recompute` the layers and operators that the forms select, and logs what is recomputed.
pub(in crate::settings) fn translate(
    source: &Source,
    recompute: &mut Recompute,
    parts: LayerFeatures<'_>,
    parallel: &Distribution,
) {
    let reader = Reader::unchecked(source, PATH);
    let forms = RecomputeForms::read(&reader);
    let counts_stages = forms.count_stages();
    let Some(stages) = parallel::counted_stages(source, parts.model, parallel, counts_stages) else { return };
    // Every key is read before the first fault ends this function.
    let full = fitted(&reader, "recompute", forms.recompute.distribute(&stages));
    let chosen = forms.chosen(&reader, &stages, parts);
    let (Some(full), Some(chosen), true) = (full, chosen, source.is_sound(PATH)) else { return };
    let covered = stages.first(&full);
    let selects = chosen.iter().any(|chosen| !chosen.is_empty());
    if !covered.is_empty() || selects {
        source.note(format!("num_layers per stage: {:?}", stages.layers()));
        source.note(format!("Accumulated num_layers per stage: {:?}", stages.accumulated()));
    }
    if !covered.is_empty() {
        source.note(format!("Formative layer_recompute: {full:?}"));
    }
    let is_one_form = recompute.layers.is_empty() || covered.is_empty();
    reader.require(&["layers", "recompute"], is_one_form, "given beside `recompute`; keep one of them");
    let is_one_form = recompute.operators.0.is_empty() || !selects;
    let beside = "given beside `select_recompute` or one of its kin; keep one of them";
    reader.require(&["operators"], is_one_form, beside);
    recompute.layers.extend(covered);
    SELECTIONS.into_iter().zip(&chosen).for_each(|(key, chosen)| note_patterns(source, key, chosen, parts));
    apply(&chosen, recompute, source, parts, stages.layers().iter().flatten().sum());
}

/// `value`, or a fault of `key`.
fn fitted<T>(reader: &Reader<'_>, key: &str, value: Result<T, String>) -> Option<T> {
    value.map_err(|message| reader.fault(key, message)).ok()
}

impl RecomputeForms {
    /// The value of each of the [`SELECTIONS`].
    fn selections(&self) -> [&Selection; 4] {
        [
            &self.select_recompute,
            &self.select_comm_recompute,
            &self.select_recompute_exclude,
            &self.select_comm_recompute_exclude,
        ]
    }

    /// Whether a key counts the layers of stages.
    fn count_stages(&self) -> bool {
        let mut amounts = self.selections().into_iter().flat_map(|Selection(entries)| entries);
        self.recompute.depends_on_stages() || amounts.any(|(_, amount)| amount.depends_on_stages())
    }

    /// The patterns of each of the [`SELECTIONS`] that apply to any layer, except those that an exclusion contradicts.
    fn chosen(
        &self,
        reader: &Reader<'_>,
        stages: &Stages,
        parts: LayerFeatures<'_>,
    ) -> Option<[Vec<Chosen>; 4]> {
        let activation: &[&str] = if parts.has_gate() { &SELECTED } else { &SELECTED_WITHOUT_GATE };
        let defaults: [&[&str]; 4] = [activation, &COMMUNICATION, &[], &[]];
        let keys = SELECTIONS.into_iter().zip(self.selections()).zip(defaults);
        let chosen =
            keys.map(|((key, selection), defaults)| fitted(reader, key, choose(selection, defaults, stages)));
        let chosen: Vec<Option<Vec<Chosen>>> = chosen.collect();
        let [select, comm, exclude, comm_exclude] = chosen.try_into().ok()?;
        let mut chosen = [select?, comm?, exclude?, comm_exclude?];
        let (selects, excludes) = chosen.split_at_mut(2);
        for (number, (selects, excludes)) in selects.iter_mut().zip(excludes).enumerate() {
            for pattern in remove_excluded(selects, excludes) {
                let [key, exclude] = [SELECTIONS[number], SELECTIONS[number + 2]];
                reader.source.note(format!(
                    "The pattern {pattern} in {key} conflicts with {exclude} and will be removed."
                ));
            }
        }
        Some(chosen)
    }
}

/// The patterns of `selection` that apply to any layer; `defaults` stand in where it names no pattern.
fn choose(selection: &Selection, defaults: &[&str], stages: &Stages) -> Result<Vec<Chosen>, String> {
    let mut all = Vec::new();
    for (pattern, amount) in &selection.0 {
        let chunks = amount.distribute(stages)?;
        let patterns = match pattern {
            Some(pattern) => vec![pattern.clone()],
            None => defaults.iter().map(|text| Pattern::new(text)).collect::<Result<_, _>>()?,
        };
        let layers = stages.first(&chunks);
        let chosen = |pattern| Chosen { pattern, chunks: chunks.clone(), layers: layers.clone() };
        all.extend(patterns.into_iter().filter(|_| !layers.is_empty()).map(chosen));
    }
    Ok(all)
}

/// Removes from `selects` the patterns that one of `excludes` contradicts, and returns them. As in MindFormers, a
/// pattern is removed from all layers, even if the exclusion applies to fewer.
fn remove_excluded(selects: &mut Vec<Chosen>, excludes: &[Chosen]) -> Vec<String> {
    let is_excluded =
        |one: &mut Chosen| excludes.iter().any(|other| one.pattern.conflicts_with(&other.pattern));
    selects.extract_if(.., is_excluded).map(|chosen| chosen.pattern.text).collect()
}

/// Logs the layers of each pattern of `key` as MindFormers does, and why a pattern selects nothing.
fn note_patterns(source: &Source, key: &str, chosen: &[Chosen], parts: LayerFeatures<'_>) {
    if chosen.is_empty() {
        return;
    }
    let python = |one: &Chosen| format!("'{}': {:?}", one.pattern.text.replace('\\', r"\\"), one.chunks);
    let entries: Vec<String> = chosen.iter().map(python).collect();
    source.note(format!("Formative {key}: {{{}}}", entries.join(", ")));
    for one in chosen {
        if let Some(why) = idle(key, one, parts) {
            source.note(format!("{PATH}.{key}: {why}"));
        }
    }
}

/// Why a pattern of `key` selects nothing, if so.
fn idle(key: &str, chosen: &Chosen, parts: LayerFeatures<'_>) -> Option<String> {
    let Chosen { pattern, layers, .. } = chosen;
    let found = |layer: &usize| !found_in(*layer, key, std::slice::from_ref(chosen), parts).is_empty();
    let first = *layers.first().filter(|_| !layers.iter().any(found))?;
    let is_module = |operator: Operator| names(operator).any(|name| pattern.part_of(name).is_some());
    let text = &pattern.text;
    if layers.iter().any(|layer| parts.operators(*layer).any(is_module)) {
        return Some(format!(
            "{text} is expected to be operation but got cell, this configuration will not be effective."
        ));
    }
    pattern.without_output().or_else(|| {
        let there = paths(parts.operators(first)).join(", ");
        Some(format!(
            "`{text}` matches no operator of layer {first}; its operators are {there}, and a pattern separates \
             levels by `\\.`"
        ))
    })
}

/// The operators of `layer` that the patterns of `key` select, each with the name that a pattern matches: a name of the
/// operator or, if the key takes modules, also of a module that contains it.
fn found_in(
    layer: usize,
    key: &str,
    chosen: &[Chosen],
    parts: LayerFeatures<'_>,
) -> Vec<(&'static str, Operator)> {
    let takes_modules = key == SELECTIONS[0];
    let matched = |chosen: &Chosen, operator: Operator| {
        names(operator)
            .find_map(|name| chosen.pattern.part_of(name).filter(|part| takes_modules || *part == name))
    };
    let of_layer = chosen.iter().filter(|chosen| chosen.layers.contains(&layer));
    let found = of_layer.flat_map(|chosen| {
        parts.operators(layer).filter_map(move |operator| Some((matched(chosen, operator)?, operator)))
    });
    let mut found: Vec<_> = found.collect();
    found.sort_unstable_by_key(|(name, _)| *name);
    found
}

/// Sets `layers` and `operators` of `recompute` as the patterns say, and logs them by layer. Operators are not selected
/// in layers that are recomputed as a whole; if some operators of such a layer are excluded, its other operators are
/// listed in place of the layer.
fn apply(
    chosen: &[Vec<Chosen>; 4],
    recompute: &mut Recompute,
    source: &Source,
    parts: LayerFeatures<'_>,
    layers: usize,
) {
    if !chosen[2..].iter().all(Vec::is_empty) {
        source.note(
            "The configuration of select_recompute_exclude and select_comm_recompute_exclude have the highest \
             priority.",
        );
    }
    let log = |what: &str, layer: usize, mut names: Vec<&str>| {
        names.dedup();
        if !names.is_empty() {
            source.note(format!("Set select {what} at layer {layer}: {}", names.join(", ")));
        }
    };
    let kinds = ["recompute on", "comm recompute on", "recompute exclude", "comm recompute exclude"];
    let written = std::mem::take(&mut recompute.operators);
    let full = std::mem::take(&mut recompute.layers);
    for layer in 0..layers {
        let is_full = full.contains(&layer);
        let mut operators: Vec<Operator> =
            if is_full { parts.operators(layer).collect() } else { written.of(layer) };
        let all = operators.len();
        match is_full {
            true => source.note(format!("Set full recompute at layer {layer}")),
            false => log(kinds[0], layer, paths(operators.iter().copied())),
        }
        for (number, chosen) in chosen.iter().enumerate().skip(if is_full { 2 } else { 0 }) {
            let found = found_in(layer, SELECTIONS[number], chosen, parts);
            log(kinds[number], layer, found.iter().map(|(name, _)| *name).collect());
            match number {
                0 | 1 => operators.extend(found.iter().map(|(_, operator)| *operator)),
                _ => operators.retain(|operator| found.iter().all(|(_, other)| other != operator)),
            }
        }
        match is_full && operators.len() == all {
            true => recompute.layers.push(layer),
            false => recompute.operators.add(layer, operators),
        }
    }
}

//! `recompute_config`: which layers, and which of their operators, are computed again in the backward pass.
//!
//! The lists of a file count layers by the stages of the pipeline, for a run of one rank too. They are resolved to
//! numbers of layers and operators, which is what the run folder has.
//!
//! A fused kernel is recomputed if one of the operators that it fuses is selected, and kept if one is excluded.
//! `select_comm_recompute` repeats communication alone in MindFormers; here the operators whose results are gathered from
//! other ranks, the norms by default, are recomputed themselves, with what is gathered after them. A list holds
//! numbers: text in it, such as `recompute: ['a']`, is an error, where MindFormers recomputes all layers. Of
//! MindFormers' five `Formative` log lines only those that select something are logged.

mod amount;
mod choice;
mod operators;
mod rows;
mod selection;
mod stages;
#[cfg(test)]
mod tests;

pub use amount::{Amount, Count, CountsOfInterleave};
pub use operators::Operators;
pub use rows::Recompute;
pub use rows::SELECTIONS;
pub use selection::Selection;
pub use stages::Offset;

use super::model::{self, Model};
use super::moe::Moe;
use super::parallel::{Distribution, Parallelism};
use crate::model::stages::{Chunks, Stages};
use crate::ranks::RankLayout;
use crate::settings::engine::*;
use choice::Choice;
use operators::LayerFeatures;
use selection::{Selected, remove_excluded};
use stages::distribute;

pub(crate) const PATH: &str = Recompute::ID.section;

/// The operators that MindFormers recomputes where none are named: the activation of a network with a gate.
const SELECTED: [&str; 2] = [r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu"];
/// That of a network without one, in which MindFormers' default finds nothing.
const SELECTED_WITHOUT_GATE: [&str; 1] = [r"feed_forward\.gelu"];
const COMMUNICATION: [&str; 1] = [r".*\.norm"];

/// The section as a table, with the operators that patterns can name.
pub(crate) fn documented() -> (TableId, Table) {
    let (id, mut table) = Recompute::documented();
    table.about += &operators::listing();
    (id, table)
}

/// Reads the section, and resolves every form of its keys to numbers of layers: those of `model`, the blocks of multi-token
/// prediction after the others.
pub(crate) fn read(source: &Source, model: &Model, moe: Option<&Moe>, parallel: &Distribution) -> Recompute {
    let reader = Reader::open(source, PATH, &[Recompute::ID]);
    let mut recompute = Recompute::read(&reader);
    note_communication(&reader, &recompute, parallel);
    if is_shape_sound(source) {
        resolve(&mut recompute, &reader, LayerFeatures { model, moe }, parallel);
    }
    // `layers` and `operators` say it all now, without the stages that counts need.
    recompute.selections().into_iter().for_each(|selection| *selection = Selection::NONE);
    recompute.recompute = Amount::Every(false);
    recompute
}

/// Turns counts of layers into `layers` and `operators`, and says which they are.
fn resolve(
    recompute: &mut Recompute,
    reader: &Reader<'_>,
    parts: LayerFeatures<'_>,
    parallel: &Distribution,
) {
    let layers = parts.model.num_layers.saturating_add(parts.model.mtp_depth.unwrap_or(0));
    let counts_stages = recompute.counts_stages();
    if !counts_stages && parallel.layout.pipeline == 1 {
        ignore_stages(reader.source);
    }
    let Some(stages) = counted_stages(counts_stages, reader.source, layers, parts.model, parallel) else {
        return;
    };
    // Every key is read before the first fault ends this.
    let full = distributed(reader, "recompute", recompute.recompute.distribute(&stages));
    let selected = selected(recompute, reader, &stages, &parts);
    let (Some(full), Some(selected), true) = (full, selected, reader.source.is_sound(PATH)) else { return };
    let covered = stages.first(&full);
    let selects = selected.iter().any(|selected| !selected.is_empty());
    if !covered.is_empty() || selects {
        let (of_stages, ends) = (python(stages.layers()), python(&stages.accumulated()));
        reader.source.note(format!("num_layers per stage: {of_stages}"));
        reader.source.note(format!("Accumulated num_layers per stage: {ends}"));
    }
    if !covered.is_empty() {
        reader.source.note(format!("Formative layer_recompute: {}", python(&full)));
    }
    if !recompute.layers.is_empty() {
        check_layers(recompute, reader, layers, !covered.is_empty());
    }
    operators::check(&mut recompute.operators, reader, &parts, layers, selects);
    recompute.layers.extend(covered);
    let choices: Vec<Choice> = SELECTIONS
        .into_iter()
        .zip(selected)
        .map(|(key, selected)| Choice::new(key, selected, &stages))
        .collect();
    choices.iter().for_each(|choice| choice.note(reader, &parts));
    choice::apply(&choices, recompute, reader.source, &parts, layers);
}

/// The stages by which counts are distributed. `None` after a fault; all layers in one stage if nothing counts them by stage.
fn counted_stages(
    counts_stages: bool,
    source: &Source,
    layers: usize,
    model: &Model,
    parallel: &Distribution,
) -> Option<Stages> {
    if parallel.layout.pipeline > 1 {
        return Some(parallel.stages.clone());
    }
    if !counts_stages {
        return Some(asked_stages(layers, model, parallel).unwrap_or_else(|_| Stages::one(layers)));
    }
    note_interleaves(source, model, parallel);
    asked_stages(layers, model, parallel)
        .map_err(|message| fault_of_stages(source, model, parallel, message))
        .ok()
}

/// Reports why there are no stages: a switch that is off where `offset` has a list for each interleave, the offsets, or their number.
fn fault_of_stages(source: &Source, model: &Model, parallel: &Distribution, message: String) {
    let needs_switch = matches!(model.offset, Some(Offset::Chunks(_))) && interleaves(model, parallel) > 1;
    if needs_switch && !parallel.asked.pipeline.pipeline_interleave {
        let message = "must be True where `offset` has a list for each interleave: without it `pp_interleave_num` counts as 1; \
                       write True, or one offset for each stage";
        return source.fault(INTERLEAVE, message);
    }
    let key = match model.offset {
        Some(_) => format!("{}.offset", model::PATH),
        None => "parallel_config.pipeline_stage".to_string(),
    };
    source.fault(&key, message);
}

/// The switch that makes `pp_interleave_num` count.
const INTERLEAVE: &str = "parallel.pipeline_config.pipeline_interleave";

/// The layers of the stages that a run is spread over. All in one after a fault.
pub(crate) fn stages(source: &Source, model: &Model, parallel: &Distribution) -> Stages {
    let ahead = model.mtp_depth.unwrap_or(0);
    let layers = model.num_layers.saturating_add(ahead);
    if parallel.layout.pipeline == 1 || !is_shape_sound(source) {
        return Stages::one(layers);
    }
    note_interleaves(source, model, parallel);
    match asked_stages(layers, model, parallel).and_then(|stages| stages.check(ahead).map(|()| stages)) {
        Ok(stages) => stages,
        Err(message) => {
            fault_of_stages(source, model, parallel, message);
            Stages::one(layers)
        }
    }
}

/// Reports chunks of a stage where there are no stages.
pub(crate) fn check_interleaves(source: &Source, model: &Model, parallel: &Distribution) {
    let (degrees, key) = (&parallel.asked.degrees, "parallel_config.pipeline_stage");
    let is_alone = parallel.counts && degrees.pipeline_stage == 1 && source.is_sound(key);
    let interleaves = interleaves(model, parallel);
    if is_alone && parallel.asked.pipeline.pipeline_interleave && interleaves > 1 {
        let switch = "`parallel.pipeline_config.pipeline_interleave: False`";
        source.fault(
            key,
            format!(
                "pp_interleave_num {interleaves} needs pipeline_stage above 1; raise it, or write {switch}"
            ),
        );
    }
}

/// The stages of the degrees that were written.
fn asked_stages(layers: usize, model: &Model, parallel: &Distribution) -> Result<Stages, String> {
    let Parallelism { degrees, pipeline, .. } = &parallel.asked;
    let interleaves = if pipeline.pipeline_interleave { interleaves(model, parallel) } else { 1 };
    let [stages, interleaves] =
        [degrees.pipeline_stage, interleaves].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    distribute(layers, stages, interleaves, model.offset.as_ref())
}

fn interleaves(model: &Model, parallel: &Distribution) -> u64 {
    model.pp_interleave_num.unwrap_or(parallel.asked.degrees.pp_interleave_num)
}

fn note_interleaves(source: &Source, model: &Model, parallel: &Distribution) {
    let interleaves = interleaves(model, parallel);
    if interleaves > 1 && !parallel.asked.pipeline.pipeline_interleave {
        source.note(format!("pp_interleave_num: `{interleaves}` is taken as 1 without `{INTERLEAVE}: True`"));
    }
}

/// Whether the keys that the layers of stages follow from have no fault.
fn is_shape_sound(source: &Source) -> bool {
    let shape = ["type", "num_layers", "mtp_depth", "offset", "pp_interleave_num"];
    let is_sound = shape.iter().all(|key| source.is_sound(&format!("{}.{key}", model::PATH)));
    is_sound && ["model.arch", "parallel_config"].iter().all(|path| source.is_sound(path))
}

/// Says that the keys have no meaning from which the layers of stages follow.
fn ignore_stages(source: &Source) {
    for key in ["offset", "pp_interleave_num"] {
        let path = format!("{}.{key}", model::PATH);
        if source.node(&path).is_some_and(|node| !node.is_off()) {
            source.ignore(&path);
        }
    }
    if source.node(INTERLEAVE).and_then(bool::from_node) == Some(true) {
        source.ignore(INTERLEAVE);
    }
}

/// `chunks`, or a fault of `key`.
fn distributed<T>(reader: &Reader<'_>, key: &str, chunks: Result<T, String>) -> Option<T> {
    chunks.map_err(|message| reader.fault(key, message)).ok()
}

/// Layers that were written by number.
fn check_layers(recompute: &mut Recompute, reader: &Reader<'_>, layers: usize, counts_too: bool) {
    let last = layers.saturating_sub(1);
    if let Some(layer) = recompute.layers.iter().find(|layer| **layer > last) {
        reader.fault("layers", format!("there is no layer {layer}; the last is {last}"));
    }
    reader.require(&["layers", "recompute"], !counts_too, "given beside `recompute`; keep one of them");
    recompute.layers.sort_unstable();
    recompute.layers.dedup();
}

/// The layers of each pattern of the [`SELECTIONS`], without the patterns that an exclusion contradicts.
fn selected(
    recompute: &mut Recompute,
    reader: &Reader<'_>,
    stages: &Stages,
    parts: &LayerFeatures<'_>,
) -> Option<Vec<Selected>> {
    let activation: &[&str] = if parts.has_gate() { &SELECTED } else { &SELECTED_WITHOUT_GATE };
    let defaults: [&[&str]; 4] = [activation, &COMMUNICATION, &[], &[]];
    let keys = SELECTIONS.into_iter().zip(recompute.selections()).zip(defaults);
    let distribute = |((key, selection), defaults): ((_, &mut Selection), &[&str])| {
        let mut selected = distributed(reader, key, selection.distribute(defaults, stages))?;
        selected.retain(|(_, chunks)| chunks.iter().flatten().any(|count| *count > 0));
        Some(selected)
    };
    let selected: Vec<Option<Selected>> = keys.map(distribute).collect();
    let mut selected: Vec<Selected> = selected.into_iter().collect::<Option<_>>()?;
    for (selects, excludes) in [(0, 2), (1, 3)] {
        let excluded = selected[excludes].clone();
        for pattern in remove_excluded(&mut selected[selects], &excluded) {
            let [key, exclude] = [selects, excludes].map(|index| SELECTIONS[index]);
            reader.source.note(format!(
                "The pattern {pattern} in {key} conflicts with {exclude} and will be removed."
            ));
        }
    }
    Some(selected)
}

/// Says which switches of what ranks exchange have nothing to switch.
fn note_communication(reader: &Reader<'_>, recompute: &Recompute, parallel: &Distribution) {
    let Recompute {
        parallel_optimizer_comm_recompute, mp_comm_recompute, recompute_slice_activation, ..
    } = *recompute;
    let RankLayout { data, model, .. } = parallel.layout;
    let shares_optimizer = data > 1 && parallel.asked.context.enable_parallel_optimizer;
    let (of_optimizer, of_matrices) = ("parallel.enable_parallel_optimizer: True", "model_parallel");
    let switches = [
        (
            "parallel_optimizer_comm_recompute",
            parallel_optimizer_comm_recompute,
            shares_optimizer,
            of_optimizer,
        ),
        ("mp_comm_recompute", !mp_comm_recompute, model > 1, of_matrices),
        ("recompute_slice_activation", recompute_slice_activation, model > 1, of_matrices),
    ];
    for (key, _, _, needed) in switches.into_iter().filter(|(_, differs, counts, _)| *differs && !counts) {
        match parallel.layout.world() {
            1 => reader.note(key, "no effect on one device"),
            _ => reader.note(key, format!("no effect without `{needed}`")),
        }
    }
}

/// Numbers as MindFormers' log prints them.
fn python(chunks: &Chunks) -> String {
    format!("{chunks:?}")
}

//! `recompute_config`: which layers are computed again in the backward pass.

mod amount;
mod rows;
mod selection;
mod stages;
#[cfg(test)]
mod tests;

pub use amount::{Amount, Count, Row};
pub use rows::Recompute;
pub use selection::Selection;
pub use stages::Offset;

use super::model::{self, Model};
use super::parallel::Distribution;
use crate::settings::engine::*;
use selection::{Selected, remove_excluded};
use stages::{Chunks, Stages};

pub(crate) const PATH: &str = "recompute_config";

/// The operators that the original recomputes where none are named.
const SELECTED: [&str; 2] = [r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu"];
const COMMUNICATION: [&str; 1] = [r".*\.norm"];

/// Reads the section, and resolves every form of `recompute` to numbers of layers: those of `model`, the blocks of multi-token
/// prediction after the others.
pub(crate) fn read(source: &Source<'_>, model: &Model, parallel: &Distribution) -> Recompute {
    let reader = Reader::open(source, PATH, &[&Recompute::table()]);
    let mut recompute = Recompute::read(&reader);
    note_communication(&reader, &recompute);
    let shape = ["type", "num_layers", "mtp_depth", "offset", "pp_interleave_num"];
    let is_sound = shape.iter().all(|key| source.is_sound(&format!("{}.{key}", model::PATH)));
    if is_sound && ["model.arch", "parallel_config", PATH].iter().all(|path| source.is_sound(path)) {
        resolve(&mut recompute, &reader, model, parallel);
    }
    // `layers` says it all now, without the stages that counts need.
    recompute.selections().into_iter().for_each(|selection| *selection = Selection::NONE);
    recompute.recompute = Amount::Every(false);
    recompute
}

/// Turns counts of layers into `layers`, and says which they are.
fn resolve(recompute: &mut Recompute, reader: &Reader<'_>, model: &Model, parallel: &Distribution) {
    let layers = model.num_layers.saturating_add(model.mtp_depth.unwrap_or(0));
    let counts_stages = recompute.counts_stages();
    if !counts_stages {
        ignore_stages(reader.source);
    }
    let Some(stages) = stages(counts_stages, reader, layers, model, parallel) else { return };
    let Some(full) = dealt(reader, "recompute", recompute.recompute.deal(&stages)) else { return };
    let covered = stages.first(&full);
    if !recompute.layers.is_empty() {
        check_layers(recompute, reader, layers, !covered.is_empty());
    } else if !covered.is_empty() {
        let (of_stages, ends) = (python(stages.layers()), python(&stages.accumulated()));
        reader.source.note(format!("num_layers per stage: {of_stages}"));
        reader.source.note(format!("Accumulated num_layers per stage: {ends}"));
        reader.source.note(format!("Formative layer_recompute: {}", python(&full)));
        recompute.layers = covered;
    }
    for layer in &recompute.layers {
        reader.source.note(format!("Set full recompute at layer {layer}"));
    }
    note_selected(recompute, reader, &stages);
}

/// The layers of each stage. `None` after a fault; all layers in one stage if nothing counts them by stage.
fn stages(
    counts_stages: bool,
    reader: &Reader<'_>,
    layers: usize,
    model: &Model,
    parallel: &Distribution,
) -> Option<Stages> {
    let source = reader.source;
    let Distribution { degrees, is_interleaved, .. } = parallel;
    let interleaves = model.pp_interleave_num.unwrap_or(degrees.pp_interleave_num);
    if counts_stages && interleaves > 1 && !*is_interleaved {
        let switch = "parallel.pipeline_config.pipeline_interleave";
        source.note(format!("pp_interleave_num: `{interleaves}` is taken as 1 without `{switch}: True`"));
    }
    let interleaves = if *is_interleaved { interleaves } else { 1 };
    let [stages, interleaves] =
        [degrees.pipeline_stage, interleaves].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    match Stages::new(layers, stages, interleaves, model.offset.as_ref()) {
        Ok(stages) => Some(stages),
        // All layers or none are the same layers, however they are dealt.
        Err(_) if !counts_stages => Some(Stages::one(layers)),
        Err(message) => {
            source.fault(&format!("{}.offset", model::PATH), message);
            None
        }
    }
}

/// Says that the keys have no meaning from which the layers of stages follow.
fn ignore_stages(source: &Source<'_>) {
    for key in ["offset", "pp_interleave_num", "virtual_pipeline_model_parallel_size"] {
        let path = format!("{}.{key}", model::PATH);
        if source.node(&path).is_some_and(|node| !node.is_off()) {
            source.ignore(model::PATH, key);
        }
    }
}

/// `chunks`, or a fault of `key`.
fn dealt<T>(reader: &Reader<'_>, key: &str, chunks: Result<T, String>) -> Option<T> {
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

/// Checks the operators that are selected, and says that they are not recomputed by themselves.
fn note_selected(recompute: &mut Recompute, reader: &Reader<'_>, stages: &Stages) {
    let full = recompute.layers.clone();
    let keys = ["select_recompute", "select_comm_recompute"];
    let excludes = ["select_recompute_exclude", "select_comm_recompute_exclude"];
    let [selected, communication, excluded, excluded_communication] = recompute.selections();
    let pairs =
        [(selected, excluded, &SELECTED[..]), (communication, excluded_communication, &COMMUNICATION[..])];
    let mut idle = Vec::new();
    for ((key, exclude), (selection, exclusion, defaults)) in keys.into_iter().zip(excludes).zip(pairs) {
        let selected = dealt(reader, key, selection.deal(defaults, stages));
        let excluded = dealt(reader, exclude, exclusion.deal(&[], stages));
        let (Some(mut selected), Some(excluded)) = (selected, excluded) else { continue };
        for pattern in remove_excluded(&mut selected, &excluded) {
            reader.source.note(format!(
                "The pattern {pattern} in {key} conflicts with {exclude} and will be removed."
            ));
        }
        let acts = |selected: &Selected| !acting(selected, stages, &full).is_empty();
        idle.extend(Some(key).filter(|_| acts(&selected)));
        // In layers that are recomputed whole, an excluded operator would be kept.
        idle.extend(Some(exclude).filter(|_| !acting(&excluded, stages, &[]).is_empty()));
    }
    if !idle.is_empty() {
        let keys = idle.join(", ");
        reader.source.note(format!(
            "{PATH}: without effect, since single operators are not recomputed yet: {keys}; `recompute: True` recomputes whole \
             layers"
        ));
    }
}

/// The layers in which a pattern acts: those of its layers that are not recomputed as a whole (`full`).
fn acting(selected: &Selected, stages: &Stages, full: &[usize]) -> Vec<usize> {
    let mut layers: Vec<usize> = selected.iter().flat_map(|(_, chunks)| stages.first(chunks)).collect();
    layers.sort_unstable();
    layers.dedup();
    layers.retain(|layer| full.binary_search(layer).is_err());
    layers
}

/// The switches of what several devices would do.
fn note_communication(reader: &Reader<'_>, recompute: &Recompute) {
    let Recompute {
        parallel_optimizer_comm_recompute, mp_comm_recompute, recompute_slice_activation, ..
    } = *recompute;
    let switches = [
        ("parallel_optimizer_comm_recompute", parallel_optimizer_comm_recompute),
        ("mp_comm_recompute", !mp_comm_recompute),
        ("recompute_slice_activation", recompute_slice_activation),
    ];
    for (key, _) in switches.into_iter().filter(|(_, differs)| *differs) {
        reader.note(key, "no effect on one device");
    }
}

/// Numbers as the original's log prints them.
fn python(chunks: &Chunks) -> String {
    format!("{chunks:?}")
}

//! `model.model_config`: the shape of the model.

mod extend;
mod family;
mod fill;
mod pet;
mod rope_scaling;
mod rows;

pub(crate) use family::{PATH, arch_table, family_table};
pub(crate) use fill::rotary_dim;
pub(crate) use pet::path_of as pet_path;
pub use pet::{Pet, PetType};
pub use rope_scaling::Scaling;
pub use rows::Model;

use crate::element::Element;
use crate::settings::engine::*;
use rows::LLAMA;

/// The table of the section `model` itself.
pub(crate) fn outer_table() -> Table {
    Table::unused("`model`: the model.", [sections("model_config arch")])
}

/// Reads the section and fills in its defaults; with the reader, for the keys of a mixture that stand among the model's.
pub(crate) fn read<'a>(source: &'a Source<'a>, of_mixture: &Table) -> (Reader<'a>, Model) {
    Reader::open(source, "model", &[&outer_table()]);
    pet::check_architecture(source);
    let table = Model::table();
    let Some(family) = family::of(source).filter(|_| !is_elsewhere(source)) else {
        // Another model's keys are unknown only because the model is; adapters are none of the model's.
        pet::check(source);
        source.distrust(PATH);
        return (Reader::empty(source, PATH).of_type(LLAMA), Model::default());
    };
    Reader::open(source, "model.arch", &[&arch_table()]);
    let reader =
        Reader::open(source, PATH, &[&table, of_mixture, &family_table(family)]).of_type(family.word());
    if !is_described(source, &table) {
        return (Reader::empty(source, PATH).of_type(LLAMA), Model::default());
    }
    for row in reader.foreign(&table).into_iter().filter(|row| reader.asks(row.key)) {
        reader.fault(row.key, format!("has no meaning for `{}`; remove it", family.word()));
    }
    let mut model = Model::read(&reader);
    model.kind = family;
    note_types(&mut model, &reader);
    fill::fill(&mut model, &reader);
    (reader, model)
}

/// Says of types that are not followed what is done instead.
fn note_types(model: &mut Model, reader: &Reader<'_>) {
    let types = [
        ("embedding_init_type", model.embedding_init_type.take()),
        ("softmax_compute_type", model.softmax_compute_type.take()),
        ("layernorm_compute_type", model.layernorm_compute_type.take()),
        ("rotary_dtype", model.rotary_dtype.take()),
    ];
    for (key, _) in
        types.into_iter().filter(|(_, wanted)| wanted.is_some_and(|wanted| wanted != Element::F32))
    {
        reader.note(key, "float32 here, which is more precise");
    }
}

/// Whether the shape is in another folder, which the top level reports.
fn is_elsewhere(source: &Source<'_>) -> bool {
    source.node("pretrained_model_dir").is_some_and(|node| !node.is_off())
}

/// Whether any required key is written. Templates leave out all of them, which is one fault and not five.
fn is_described(source: &Source<'_>, table: &Table) -> bool {
    let required: Vec<&str> = table.rows.iter().filter(|row| row.is_required).map(|row| row.key).collect();
    let names = source.names();
    let entries = match source.node(PATH) {
        Some(Node::Map(entries)) => entries.as_slice(),
        _ => &[],
    };
    let describes =
        |(name, node): &(String, Node)| required.contains(&names.canonical(name)) && !node.is_none();
    if entries.iter().any(describes) {
        return true;
    }
    let is_explained = required.iter().any(|key| source.explains_absence(PATH, key));
    if is_explained {
        source.distrust(PATH);
    } else {
        source.missing(
            PATH,
            required[0],
            format!("describes no model; write at least `{}`", required.join("`, `")),
        );
    }
    false
}

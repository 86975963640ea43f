//! `model.model_config`: the shape of the model.

mod extend;
mod family;
mod fill;
mod rope_scaling;
mod rows;

pub(crate) use family::{PATH, arch_table, family_table};
pub(crate) use fill::rotary_dim;
pub use rope_scaling::Scaling;
pub use rows::Model;

use crate::settings::engine::*;
use rows::LLAMA;

/// The table of the section `model` itself.
pub(crate) fn outer_table() -> Table {
    Table::unused("`model`: the model.", [sections("model_config arch")])
}

/// Reads the section and fills in its defaults; with the reader, for the keys of a mixture that stand among the model's.
pub(crate) fn read<'a>(source: &'a Source<'a>, of_mixture: &Table) -> (Reader<'a>, Model) {
    Reader::open(source, "model", &[&outer_table()]);
    Reader::open(source, "model.arch", &[&arch_table()]);
    let family = family::of(source);
    let table = Model::table();
    let Some(family) = family else {
        // Another model's keys are unknown only because the model is.
        return (Reader::empty(source, PATH).of_type(LLAMA), Model::default());
    };
    let reader =
        Reader::open(source, PATH, &[&table, of_mixture, &family_table(family)]).of_type(family.word());
    for row in reader.foreign(&table).into_iter().filter(|row| reader.asks(row.key)) {
        reader.fault(row.key, format!("has no meaning for `{}`; remove it", family.word()));
    }
    let mut model = Model::read(&reader);
    model.kind = family;
    fill::fill(&mut model, &reader);
    (reader, model)
}

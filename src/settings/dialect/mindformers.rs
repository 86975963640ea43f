//! Files of MindSpore Transformers (MindFormers), and the names of Megatron and Hugging Face that they may use.

mod callbacks;
mod classes;
mod dataset;
mod mixture;
mod model;
mod names;
mod optimizer;
pub(super) mod parallel;
mod places;
pub(super) mod recompute;
mod rope;
mod unused;

pub(crate) use names::NAMES;

use crate::settings::engine::{Section, Source, Table, TableId};

/// Environment variables by which MindFormers compiles equal layers once.
pub(crate) const LAZY_INLINE: [&str; 2] = ["ENABLE_LAZY_INLINE", "ENABLE_LAZY_INLINE_NO_PIPELINE"];

/// The answer to such a variable.
pub(crate) const ABOUT_LAZY_INLINE: &str =
    "changes nothing: a kernel is compiled once, however many layers and micro-batches use it";

/// Writes each key under the one name and in the one section in which it is read.
pub(super) fn unify(source: &mut Source) {
    names::unify(source);
    places::gather(source);
}

/// Translates MindFormers' words in `source` to this program's keys.
pub(super) fn translate(source: &mut Source) {
    callbacks::translate(source);
    let kind = classes::translate(source);
    let model = model::translate(source, kind);
    mixture::translate(source, kind);
    dataset::translate(source, &model);
    optimizer::translate(source);
    parallel::translate(source);
    unused::check(source);
}

/// The tables of sections and of forms of keys that only MindFormers has.
pub(crate) fn tables() -> Vec<(TableId, Table)> {
    let forms = [
        model::ModelForms::documented(),
        mixture::MixtureForms::documented(),
        dataset::DatasetForms::documented(),
        optimizer::OptimizerForms::documented(),
        parallel::ShardForms::documented(),
        recompute::documented(),
    ];
    forms.into_iter().chain(callbacks::tables()).chain(unused::tables()).collect()
}

/// Adds to the `table` of `id` the other names of its keys, the keys without use, the types that are not built, and the
/// classes.
pub(super) fn describe(id: TableId, table: &mut Table) {
    table.rows.iter_mut().for_each(|row| row.names = NAMES.of(id.section, row.key).collect());
    table.unused.extend(unused::keys_of(id));
    table.planned = unused::planned_of(id);
    match id.type_word() {
        Some(word) => table.about += &classes::about(word),
        None if id.section == "model.arch" => table.about += &classes::about_outside(),
        None => {}
    }
}

/// The lines of a table of data, each with `COLUMNS` columns between tabs.
///
/// # Panics
/// If a line of the table has another number of columns, which a test would find.
fn lines<const COLUMNS: usize>(text: &'static str) -> impl Iterator<Item = [&'static str; COLUMNS]> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let columns: Vec<&str> = line.split('\t').collect();
        columns.try_into().unwrap_or_else(|_| panic!("expected {COLUMNS} columns: {line}"))
    })
}

//! Files of MindSpore Transformers (MindFormers), and the names of Megatron and Hugging Face that they may use.

mod callbacks;
mod classes;
mod dataset;
mod mixture;
mod model;
mod names;
mod optimizer;
mod parallel;
mod places;
pub(in crate::settings) mod recompute;
mod rope;
mod unused;

pub(crate) use names::NAMES;

use crate::settings::engine::{Other, Section, Source, Table, TableId};

/// Writes each key under the one name and in the one section where it is read.
pub(super) fn unify(source: &mut Source) {
    names::unify(source);
    places::gather(source);
}

/// Puts what `source` says in MindFormers' words where this program's keys are.
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

/// What the documentation of the table `id` says of MindFormers' classes.
pub(crate) fn about_classes(id: TableId) -> String {
    id.type_word().map_or_else(String::new, classes::about)
}

/// The keys of the table `id` that are known and not used.
pub(crate) fn unused_in(id: TableId) -> impl Iterator<Item = Other> {
    unused::keys_of(id)
}

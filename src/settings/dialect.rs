//! Files of other programs, translated to this program's own keys before any section is read.
//!
//! A translator moves values to the keys that are read, and turns keys that say the same in another way into those of
//! this program. Each value keeps its origin: messages name the file, the line and the key, or the flag, under which it
//! was written.

mod hugging_face;
mod mindformers;

#[cfg(feature = "cli")]
pub(crate) use mindformers::recompute::SELECTIONS;
pub(crate) use mindformers::{ABOUT_LAZY_INLINE, LAZY_INLINE, NAMES};
pub(super) use mindformers::{parallel::note_differences, recompute::translate as translate_recompute};

use super::engine::{Section, Source, Table, TableId};
use super::sections;
use std::sync::OnceLock;

/// Translates all of `source`.
pub(super) fn translate(source: &mut Source) {
    mindformers::unify(source);
    hugging_face::translate(source);
    mindformers::translate(source);
}

/// Every key that a file may have, in the order of the documentation: the sections' own, and those of other programs
/// beside them.
pub(super) fn tables() -> &'static [(TableId, Table)] {
    static TABLES: OnceLock<Vec<(TableId, Table)>> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut tables = sections::tables();
        tables.extend(mindformers::tables());
        tables.push(hugging_face::FolderForms::documented());
        tables.iter_mut().for_each(|(id, table)| mindformers::describe(*id, table));
        tables
    })
}

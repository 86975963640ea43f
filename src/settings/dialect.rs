//! Files of other programs, translated to this program's own keys before any section is read.
//!
//! A translator moves values to the keys that are read, and turns keys that say the same in another way into those of
//! this program. Each value keeps its origin: messages name the file, the line and the key, or the flag, under which it
//! was written.

pub(super) mod hugging_face;
pub(super) mod mindformers;

use super::engine::{Source, Table, TableId};

/// Translates all of `source`.
pub(super) fn translate(source: &mut Source) {
    mindformers::unify(source);
    hugging_face::translate(source);
    mindformers::translate(source);
}

/// The tables of sections and of forms of keys that only other programs have.
pub(super) fn tables() -> Vec<(TableId, Table)> {
    let mut tables = mindformers::tables();
    tables.push(hugging_face::table());
    tables
}

//! Every key that a file may have: the sections' own, and those of other programs beside them.

use super::dialect::{self, mindformers};
use super::engine::Table;
use super::sections;
use std::sync::OnceLock;

/// Every section and its table, by dotted path, in the order of the documentation.
pub(super) fn tables() -> &'static [(&'static str, Table)] {
    static TABLES: OnceLock<Vec<(&'static str, Table)>> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut tables = sections::tables();
        tables.extend(dialect::tables());
        for (path, table) in &mut tables {
            table.rows.iter_mut().for_each(|row| row.names = mindformers::NAMES.of(path, row.key).collect());
            table.others.extend(mindformers::unused_in(path));
            table.about += &mindformers::about_classes(path);
        }
        tables
    })
}

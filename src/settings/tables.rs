//! Every key that a file may have: the sections' own, and those of other programs beside them.

use super::dialect::{self, mindformers};
use super::engine::{RowText, Table, TableId, join};
use super::sections;
use std::sync::OnceLock;

/// Every table, in the order of the documentation.
pub(super) fn tables() -> &'static [(TableId, Table)] {
    static TABLES: OnceLock<Vec<(TableId, Table)>> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut tables = sections::tables();
        tables.extend(dialect::tables());
        for (id, table) in &mut tables {
            let names = |key| mindformers::NAMES.of(id.section, key).collect();
            table.rows.iter_mut().for_each(|row| row.names = names(row.key));
            table.unused.extend(mindformers::unused::keys_of(*id));
            table.about += &mindformers::about_classes(*id);
        }
        tables
    })
}

/// The sections whose tables describe the keys of the section at `path` of a file. The names of such sections have no
/// numbers for items of a list, and a section that has the keys of another is described with that section.
pub(super) fn described_at(path: &str) -> Vec<String> {
    let parts = path.split('.').filter(|part| part.parse::<usize>().is_err());
    let path = parts.collect::<Vec<_>>().join(".");
    match path.strip_suffix(".base_lr").unwrap_or(&path) {
        "lr_schedule" | "grouped_lr_schedule.default" => vec!["lr_schedule".to_string()],
        group @ "grouped_lr_schedule.grouped" => vec![group.to_string(), "lr_schedule".to_string()],
        _ => vec![path.replacen("eval_dataset", "train_dataset", 1)],
    }
}

/// The row of `key` in the section at `path` of a file, where callbacks are of type `kind`.
pub(super) fn row_at(path: &str, key: &str, kind: Option<&str>) -> Option<&'static RowText> {
    let sections = described_at(path);
    let of_callback = kind.filter(|_| sections[0] == "callbacks").map(|kind| join("callbacks", kind));
    let is_meant = |id: &TableId| sections.iter().chain(&of_callback).any(|section| section == id.section);
    tables().iter().filter(|(id, _)| is_meant(id)).find_map(|(_, table)| table.row_of(key, kind))
}

//! The rows as text: `gristmill explain`, and the reference in `configs/README.md`.

use super::dialect::{ABOUT_LAZY_INLINE, LAZY_INLINE, NAMES, tables};
use super::engine::{
    Handling, Node, RowText, Table, TableId, UnusedKeys, ValueKind, closest, join, to_json, words,
};
use crate::error::{Error, Result};
use std::fmt::Write;

/// The documentation of a key, of every key of a section, or of all sections: by key, by dotted path, by section or
/// the last part of its name, such as a callback's or a model's type, or by a value that a key accepts.
///
/// # Errors
/// If nothing has that name; the message names the likeliest.
pub fn explain(name: Option<&str>) -> Result<String> {
    let tables = tables();
    let Some(name) = name else {
        return Ok(list(tables.iter()));
    };
    if let Some((id, table)) = tables.iter().find(|(id, _)| id.is_called(name)) {
        let forms = tables.iter().filter(|(other, _)| *other == id.forms() && other != id);
        let forms = forms.map(|(id, table)| format!("\n{}", section_text(id, table)));
        return Ok(section_text(id, table) + &forms.collect::<String>());
    }
    if LAZY_INLINE.contains(&name) {
        return Ok(format!("in the environment\n{name}\n  {ABOUT_LAZY_INLINE}\n"));
    }
    let described = if name == "callback" { "callbacks" } else { &described_at(name)[0] };
    let within = format!("{described}.");
    let listed = list(tables.iter().filter(|(id, _)| id.section.starts_with(&within)));
    if !listed.is_empty() {
        return Ok(listed);
    }
    let (section, key) = name.rsplit_once('.').map_or((None, name), |(section, key)| (Some(section), key));
    let sections = section.map(described_at);
    let in_section = |path: &str| {
        sections.as_ref().is_none_or(|sections| sections.iter().any(|section| path.starts_with(section)))
    };
    let find = |is_meant: &dyn Fn(&str) -> bool| -> Vec<String> {
        let meant = tables.iter().filter(|(id, _)| is_meant(id.section));
        meant.filter_map(|(id, table)| key_text(id, table, key)).collect()
    };
    let mut found = find(&in_section);
    if found.is_empty() {
        // The keys of a mixture may be written among those of the model, for example.
        found = find(&|_| true);
    }
    if !found.is_empty() {
        return Ok(found.join("\n"));
    }
    let accepts = |row: &RowText| {
        matches!(&row.kind, ValueKind::Words(words) if words.contains(&name)) || row.types.contains(&name)
    };
    let values: Vec<String> = tables
        .iter()
        .flat_map(|(id, table)| {
            table.rows.iter().filter(|row| accepts(row)).map(|row| in_section_text(id, row))
        })
        .collect();
    if !values.is_empty() {
        return Ok(values.join("\n"));
    }
    let known = tables.iter().flat_map(|(id, table)| [id.section].into_iter().chain(table.names()));
    let remedy = match closest(key, known) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`gristmill explain` lists the sections".to_string(),
    };
    Err(Error::config(name, format!("no such key or section; {remedy}")))
}

/// The reference of all settings, in Markdown.
pub fn reference() -> String {
    let mut text = String::new();
    for (id, table) in tables() {
        let _ = write!(text, "### {}\n\n{}\n\n", heading(id), table.about);
        if !table.rows.is_empty() {
            text += "| key | values | default | decides | |\n|---|---|---|---|---|\n";
            for row in &table.rows {
                let default = default_text(row).replace('|', "\\|");
                let about = about_text(row).replace('|', "\\|");
                let values = values_text(row).replace('|', "\\|");
                let decides = row.decides.word();
                let _ = writeln!(text, "| `{}` | {values} | {default} | {decides} | {about} |", row.key);
            }
            text.push('\n');
        }
        let unused: String =
            table.unused_keys().map(|other| format!("- {}\n", other_text(id, other))).collect();
        if !unused.is_empty() {
            text += &(unused + "\n");
        }
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

fn section_text(id: &TableId, table: &Table) -> String {
    let mut text = format!("{id}\n  {}\n", table.about);
    for row in &table.rows {
        let _ = write!(text, "\n{}", row_text(row));
    }
    for other in table.unused_keys() {
        let _ = write!(text, "\n{}\n", other_text(id, other).replace('`', ""));
    }
    text
}

fn key_text(id: &TableId, table: &Table, key: &str) -> Option<String> {
    let key = NAMES.key(id.section, key);
    let rows = table.rows.iter().filter(|row| row.key == key).map(|row| in_section_text(id, row));
    let rows = rows.collect::<Vec<_>>().join("\n");
    if !rows.is_empty() {
        return Some(rows);
    }
    let other = table.unused_keys().find(|other| other.covers(key))?;
    Some(format!("in {id}\n{key}\n  {}\n", handling_text(other)))
}

/// The sections of `tables`, a line each.
fn list<'a>(tables: impl Iterator<Item = &'a (TableId, Table)>) -> String {
    tables.map(|(id, table)| format!("{:<40} {}\n", id.to_string(), first_sentence(&table.about))).collect()
}

fn in_section_text(id: &TableId, row: &RowText) -> String {
    format!("in {id}\n{}", row_text(row))
}

fn row_text(row: &RowText) -> String {
    let mut text = format!("{}: {}\n", row.key, values_text(row).replace('`', ""));
    let _ = writeln!(text, "  {}", about_text(row));
    let _ =
        writeln!(text, "  default: {}; decides: {}", default_text(row).replace('`', ""), row.decides.word());
    if let Some(example) = row.example.lines().next() {
        let _ = writeln!(text, "  example: `{}: {example}`", row.key);
    }
    text
}

fn values_text(row: &RowText) -> String {
    match (row.range, &row.kind) {
        (Some(range), _) => range.words.to_string(),
        (None, kind) => kind.expected(),
    }
}

fn default_text(row: &RowText) -> String {
    match &row.default {
        _ if row.is_required => "must be written".to_string(),
        _ if !row.filled.is_empty() => row.filled.to_string(),
        None => "none".to_string(),
        Some(node) if row.default_of.is_some() => {
            let of_others = row
                .default_of
                .iter()
                .map(|(kinds, other)| format!(", of `{}` `{}`", kinds.join("` and `"), to_json(other)));
            format!("`{}`", to_json(node)) + &of_others.collect::<String>()
        }
        Some(Node::Text(text)) if text.is_empty() => "none".to_string(),
        Some(Node::List(items)) if items.is_empty() => "none".to_string(),
        Some(Node::Bool(value)) => format!("`{}`", if *value { "True" } else { "False" }),
        Some(node) => format!("`{}`", to_json(node)),
    }
}

/// The documentation, the types that read the key, and its other names.
fn about_text(row: &RowText) -> String {
    let mut text = row.about.clone();
    if !row.types.is_empty() {
        let _ = write!(text, " Read by `{}`.", row.types.join("`, `"));
    }
    if !row.names.is_empty() {
        let _ = write!(text, " Also `{}`.", row.names.join("`, `"));
    }
    text
}

fn other_text(id: &TableId, other: &UnusedKeys) -> String {
    let keys: Vec<String> = words(other.keys)
        .map(|key| [&[key], &NAMES.of(id.section, key).collect::<Vec<_>>()[..]].concat().join("`/`"))
        .map(|names| format!("`{names}`"))
        .collect();
    format!("{}: {}.", keys.join(", "), handling_text(other))
}

fn handling_text(other: &UnusedKeys) -> String {
    let kind = other.kind.as_ref().map_or_else(String::new, |kind| format!("{}; ", kind.expected()));
    let fate = match other.handling {
        Handling::Ignored => format!("ignored with a notice: {}", other.sentence),
        Handling::Differs(passes) => format!("{} (a notice unless {})", other.sentence, passes.describe()),
        Handling::Refused(passes) => format!("accepted only as {}; {}", passes.describe(), other.sentence),
        Handling::Section => other.sentence.to_string(),
    };
    kind + &fate
}

fn first_sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| first).trim_end_matches('.')
}

fn heading(id: &TableId) -> String {
    match id.to_string() {
        text if id.section.is_empty() => text.replacen('t', "T", 1),
        text => format!("`{text}`"),
    }
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

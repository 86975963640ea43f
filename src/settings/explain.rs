//! The rows as text: `gristmill explain`, and the reference in `configs/README.md`.

use super::dialect::mindformers::NAMES;
use super::engine::{Fate, Node, Other, RowText, Table, ValueKind, closest, to_json, words};
use super::tables::tables;
use crate::error::{Error, Result};
use std::fmt::Write;

/// What a key does, or every key of a section, or all sections: by key, by dotted path, by section or the last part of its name, such
/// as a callback's or a model's type, or by a value that a key accepts.
///
/// # Errors
/// If nothing has that name; the message names the likeliest.
pub fn explain(name: Option<&str>) -> Result<String> {
    let tables = tables();
    let Some(name) = name else {
        return Ok(list(tables.iter()));
    };
    let is_called = |path: &str| {
        path == name || path.ends_with(&format!(".{name}")) || path.ends_with(&format!("({name})"))
    };
    if let Some((path, table)) = tables.iter().find(|(path, _)| is_called(path)) {
        return Ok(section_text(path, table));
    }
    let within = format!("{}.", described_as(name));
    let listed = list(tables.iter().filter(|(path, _)| path.starts_with(&within)));
    if !listed.is_empty() {
        return Ok(listed);
    }
    let (section, key) = name.rsplit_once('.').map_or((None, name), |(section, key)| (Some(section), key));
    let section = section.map(described_as);
    let in_section = |path: &str| section.as_ref().is_none_or(|section| path.starts_with(section.as_str()));
    let find = |is_meant: &dyn Fn(&str) -> bool| -> Vec<String> {
        let meant = tables.iter().filter(|(path, _)| is_meant(path));
        meant.filter_map(|(path, table)| key_text(path, table, key)).collect()
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
        .flat_map(|(path, table)| {
            table.rows.iter().filter(|row| accepts(row)).map(|row| in_section_text(path, row))
        })
        .collect();
    if !values.is_empty() {
        return Ok(values.join("\n"));
    }
    let known = tables.iter().flat_map(|(path, table)| [*path].into_iter().chain(table.names()));
    let remedy = match closest(key, known) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`gristmill explain` lists the sections".to_string(),
    };
    Err(Error::config(name, format!("no such key or section; {remedy}")))
}

/// The reference of all settings, in Markdown.
pub fn reference() -> String {
    let mut text = String::new();
    for (path, table) in tables() {
        let _ = write!(text, "### {}\n\n{}\n\n", heading(path), table.about);
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
            table.unused_keys().map(|other| format!("- {}\n", other_text(path, other))).collect();
        if !unused.is_empty() {
            text += &(unused + "\n");
        }
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// The section under which the keys of `section`, a path as messages print it, are described.
fn described_as(section: &str) -> String {
    let parts = section.split('.').filter(|part| part.parse::<usize>().is_err());
    let path = parts.collect::<Vec<_>>().join(".").replacen("eval_dataset", "train_dataset", 1);
    match path.as_str() {
        "grouped_lr_schedule.default" | "lr_schedule.base_lr" => "lr_schedule".to_string(),
        "callback" => "callbacks".to_string(),
        _ => path,
    }
}

fn section_text(path: &str, table: &Table) -> String {
    let mut text = format!("{}\n  {}\n", shown(path), table.about);
    for row in &table.rows {
        let _ = write!(text, "\n{}", row_text(row));
    }
    for other in table.unused_keys() {
        let _ = write!(text, "\n{}\n", other_text(path, other).replace('`', ""));
    }
    text
}

fn key_text(path: &str, table: &Table, key: &str) -> Option<String> {
    let section = shown(path);
    let key = NAMES.key(path, key);
    let row = table.row(key);
    let other = table.unused_keys().find(|other| other.covers(key));
    match (row, other) {
        (Some(row), _) => Some(in_section_text(path, row)),
        (None, Some(other)) => Some(format!("in {section}\n{key}\n  {}\n", fate_text(other))),
        (None, None) => None,
    }
}

/// The sections of `tables`, a line each.
fn list<'a>(tables: impl Iterator<Item = &'a (&'static str, Table)>) -> String {
    tables.map(|(path, table)| format!("{:<40} {}\n", shown(path), first_sentence(&table.about))).collect()
}

fn in_section_text(path: &str, row: &RowText) -> String {
    format!("in {}\n{}", shown(path), row_text(row))
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
        None => "none".to_string(),
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

fn other_text(path: &str, other: &Other) -> String {
    let keys: Vec<String> = words(other.keys)
        .map(|key| [&[key], &NAMES.of(path, key).collect::<Vec<_>>()[..]].concat().join("`/`"))
        .map(|names| format!("`{names}`"))
        .collect();
    format!("{}: {}.", keys.join(", "), fate_text(other))
}

fn fate_text(other: &Other) -> String {
    match other.fate {
        Fate::Ignored => format!("ignored with a notice: {}", other.sentence),
        Fate::Differs(passes) => format!("{} (a notice unless {})", other.sentence, passes.describe()),
        Fate::Refused(passes) => format!("accepted only as {}; {}", passes.describe(), other.sentence),
        Fate::Section => other.sentence.to_string(),
    }
}

fn first_sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| first).trim_end_matches('.')
}

fn shown(path: &str) -> &str {
    if path.is_empty() { "(top level)" } else { path }
}

fn heading(path: &str) -> String {
    match path.strip_prefix(' ') {
        Some(rest) => format!("Top level {rest}"),
        None if path.is_empty() => "Top level".to_string(),
        None => format!("`{path}`"),
    }
}

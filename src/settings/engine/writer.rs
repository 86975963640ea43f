//! Sections written out: as a file that reads back as them, and as what a resumed run must share.

use super::document::to_yaml;
use super::node::Node;
use super::path::join;
use super::section::Placed;
use super::table::Decides;
use serde_json::Value;
use std::collections::BTreeMap;

/// The sections as a YAML document. Parts of a path that are numbers are items of a list.
pub(crate) fn write(sections: &[Placed]) -> String {
    let mut root = Node::Map(Vec::new());
    for section in sections {
        for entry in &section.entries {
            if let Some(node) = &entry.written {
                let keys = section.path.split('.').filter(|key| !key.is_empty()).chain([entry.key]);
                put(&mut root, keys, node.clone());
            }
        }
    }
    to_yaml(&root)
}

/// What of the sections decides the shape of the model or the numbers of a run, by dotted path.
pub(crate) fn decisions(sections: &[Placed]) -> BTreeMap<String, Value> {
    let mut decisions = BTreeMap::new();
    for section in sections.iter().filter(|section| section.decides) {
        for entry in section.entries.iter().filter(|entry| entry.decides != Decides::Host) {
            if let Some(node) = &entry.decision {
                decisions.insert(join(&section.path, entry.key), to_json(node));
            }
        }
    }
    decisions
}

/// `node` as JSON.
pub(crate) fn to_json(node: &Node) -> Value {
    match node {
        Node::Null => Value::Null,
        Node::Bool(value) => (*value).into(),
        Node::Int(number) => match (u64::try_from(*number), i64::try_from(*number)) {
            (Ok(number), _) => number.into(),
            (_, Ok(number)) => number.into(),
            _ => number.to_string().into(),
        },
        Node::Float(number) => (*number).into(),
        Node::Text(text) => text.as_str().into(),
        Node::List(items) => items.iter().map(to_json).collect(),
        Node::Map(entries) => entries.iter().map(|(key, node)| (key.clone(), to_json(node))).collect(),
    }
}

/// Puts `node` at the path of `keys`, making sections and lists on the way.
fn put<'a>(root: &mut Node, keys: impl Iterator<Item = &'a str>, node: Node) {
    let mut place = root;
    for key in keys {
        let index = key.parse::<usize>();
        if *place == Node::Null {
            *place = if index.is_ok() { Node::List(Vec::new()) } else { Node::Map(Vec::new()) };
        }
        place = match (place, index) {
            (Node::List(items), Ok(index)) => {
                items.resize(items.len().max(index + 1), Node::Null);
                &mut items[index]
            }
            (Node::Map(entries), _) => {
                let found = entries.iter().position(|(name, _)| name == key).unwrap_or_else(|| {
                    entries.push((key.to_string(), Node::Null));
                    entries.len() - 1
                });
                &mut entries[found].1
            }
            (place, _) => unreachable!("{key} below {place}"),
        };
    }
    *place = node;
}

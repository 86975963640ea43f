//! Sections written out: as a file that reads back as the same sections, and as the values that a resumed run must
//! share.

use super::node::Node;
use super::node::join;
use super::section::Placed;
use super::table::ResumeImpact;
use super::yaml::to_yaml;
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

/// The values that decide the shape of the model or the numbers of a run, by dotted path.
pub(crate) fn decisions(sections: &[Placed]) -> BTreeMap<String, Value> {
    let mut decisions = BTreeMap::new();
    for section in sections.iter().filter(|section| section.decides) {
        for entry in section.entries.iter().filter(|entry| entry.decides != ResumeImpact::Host) {
            if let Some(node) = &entry.decision {
                decisions.insert(join(&section.path, entry.key), to_json(node));
            }
        }
    }
    decisions
}

/// `node` as JSON.
pub(crate) fn to_json(node: &Node) -> Value {
    // Cannot fail: its keys are strings.
    serde_json::to_value(node).unwrap_or_default()
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
            (Node::Map(entries), _) => Node::entry(entries, key),
            (place, _) => unreachable!("{key} below {place}"),
        };
    }
    *place = node;
}

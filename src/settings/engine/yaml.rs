//! YAML text as [`Node`]s and back, as PyYAML's `safe_load` reads it: anchors and merge keys are resolved, and if a
//! section has a key twice, its last value counts. No other file knows the parser.

use std::fmt;

use serde::Deserialize;
use serde::de::{EnumAccess, IgnoredAny, MapAccess, SeqAccess, VariantAccess, Visitor};
use serde_yaml::{Deserializer, Error};

use super::locate;
use super::node::Node;
use super::node::join;
use crate::error::foreign;

/// A document, and the dotted paths of keys that one section has more than once.
pub(super) struct Parsed {
    /// The values.
    pub root: Node,
    /// The repeated keys; each has its last value.
    pub repeated: Vec<String>,
}

/// The tree of `text`, or the line and the reason why there is none.
pub(super) fn parse(text: &str) -> Result<Parsed, (usize, String)> {
    // Some editors mark UTF-8 by a first character that is not part of the YAML text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let read = foreign(|| Raw::deserialize(Deserializer::from_str(text)));
    let reason = |error: Error| {
        // A fault before the end of the document is a different one. If there are several documents, the parser gives
        // no line.
        let line = error.location().map_or(usize::MAX, |location| location.line());
        let end = end_of_document(text).filter(|(end, _)| *end <= line);
        end.unwrap_or_else(|| line_and_reason(error))
    };
    let Raw(tree) = read.map_err(|panic| (1, panic))?.map_err(reason)?;
    let mut repeated = Vec::new();
    let root = resolve(tree, "", &mut repeated).map_err(|path| {
        (locate::line(text, &path), format!("`<<` in `{path}` takes a section or a list of sections"))
    })?;
    Ok(Parsed { root, repeated })
}

/// `node` as a YAML document.
pub(super) fn to_yaml(node: &Node) -> String {
    // Cannot fail: the tree has no tags, and its keys are strings.
    serde_yaml::to_string(node).unwrap_or_default()
}

/// The merge key: the keys of its value become keys of the section that holds it.
const MERGE: &str = "<<";

/// Resolves merge keys, and reduces repeated keys to their last value, below `path`. The error is the path of a merge
/// key that holds no section.
fn resolve(node: Node, path: &str, repeated: &mut Vec<String>) -> Result<Node, String> {
    match node {
        Node::List(items) => {
            let resolved = items.into_iter().enumerate();
            let resolved =
                resolved.map(|(index, item)| resolve(item, &join(path, &index.to_string()), repeated));
            resolved.collect::<Result<_, _>>().map(Node::List)
        }
        Node::Map(entries) => {
            let (mut own, mut merged) = (Vec::new(), Vec::new());
            for (key, value) in entries {
                if key == MERGE {
                    for (key, value) in merge(value, path, repeated)? {
                        *Node::entry(&mut merged, &key) = value;
                    }
                    continue;
                }
                let place = join(path, &key);
                let is_repeated = own.iter().any(|(other, _)| *other == key);
                repeated.extend(is_repeated.then(|| place.clone()));
                *Node::entry(&mut own, &key) = resolve(value, &place, repeated)?;
            }
            // The section's own keys go before those that it merges.
            merged.retain(|(key, _)| own.iter().all(|(other, _)| other != key));
            own.extend(merged);
            Ok(Node::Map(own))
        }
        scalar => Ok(scalar),
    }
}

/// The entries that a merge key adds to the section at `path`. Later entries count; sections of a list are reversed,
/// since the first of them goes before the others.
fn merge(value: Node, path: &str, repeated: &mut Vec<String>) -> Result<Vec<(String, Node)>, String> {
    match resolve(value, path, repeated)? {
        Node::Map(entries) => Ok(entries),
        Node::List(sections) => {
            let mut merged = Vec::new();
            for section in sections.into_iter().rev() {
                let Node::Map(entries) = section else { return Err(path.to_string()) };
                merged.extend(entries);
            }
            Ok(merged)
        }
        _ => Err(path.to_string()),
    }
}

/// The line that ends the document although more follows, and advice for the user. Such a line is `...`, which examples
/// write for parts that they leave out, or `---` after the first line that says something.
fn end_of_document(text: &str) -> Option<(usize, String)> {
    let says = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.iter().position(|line| says(line) && *line != "---")?;
    let ends = |line: &str| line.trim() == "..." || line == "---";
    let at = first + lines[first..].iter().position(|line| ends(line))?;
    lines[at + 1..].iter().any(says).then(|| {
        let message = match lines[at].trim() {
            "..." => "`...` ends a document, and more follows; remove the line, by which examples leave something out",
            _ => "`---` begins a second document, and a configuration is one; remove the line",
        };
        (at + 1, message.to_string())
    })
}

fn line_and_reason(error: Error) -> (usize, String) {
    let line = error.location().map_or(1, |location| location.line());
    // The message starts with the line number already; to repeat it reads badly.
    (line, error.to_string().split(" at line ").next().unwrap_or_default().replace('\n', " "))
}

/// A tree as written: repeated keys and merge keys are still in it.
struct Raw(Node);

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor).map(Raw)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Int(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Int(number.into()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Node, E> {
        Ok(Node::Int(number))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Node, E> {
        Ok(i128::try_from(number).map_or(Node::Float(number as f64), Node::Int))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
        Ok(Node::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_string()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(Raw(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some((Raw(key), Raw(value))) = entries.next_entry()? {
            map.push((key_text(key), value));
        }
        Ok(Node::Map(map))
    }

    /// A tag is ignored; the value under it counts.
    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<Node, A::Error> {
        let (IgnoredAny, value) = tagged.variant()?;
        value.newtype_variant::<Raw>().map(|Raw(node)| node)
    }
}

fn key_text(key: Node) -> String {
    match key {
        Node::Text(text) => text,
        other => other.to_string().trim_matches('`').to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Node {
        parse(text).map(|parsed| parsed.root).unwrap_or_else(|(line, message)| panic!("{line}: {message}"))
    }

    /// The expected values are those that PyYAML 6 prints for the same text.
    #[test]
    fn merge_keys_and_repeated_keys_as_pyyaml_reads_them() {
        let same = [
            ("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}", "a: {x: 1, y: 2}\nb: {y: 3, x: 1}"),
            ("b: {y: 3, <<: {x: 1, y: 2}}", "b: {y: 3, x: 1}"),
            ("b: {<<: [{x: 1}, {x: 2, y: 2}]}", "b: {x: 1, y: 2}"),
            ("b: {<<: {x: 1}, <<: {x: 2}}", "b: {x: 2}"),
            ("a: &a {<<: {z: 1}, x: 1}\nb: {<<: *a}", "a: {x: 1, z: 1}\nb: {x: 1, z: 1}"),
            ("a: 1\nb: 2\na: {c: 3, c: 4}", "a: {c: 4}\nb: 2"),
            ("\u{feff}a: 1\r\nb:\r\n  - 2\r\n", "a: 1\nb: [2]"),
            ("a: !tag {b: !!str 1}", "a: {b: '1'}"),
        ];
        for (text, plain) in same {
            assert_eq!(read(text), read(plain), "{text}");
        }
    }

    #[test]
    fn repeated_keys_are_listed_and_merged_ones_are_not() {
        let repeated = |text: &str| parse(text).map_or(Vec::new(), |parsed| parsed.repeated);
        assert_eq!(repeated("a: 1\nb: [{c: 1, c: 2}]\na: 2"), ["b.0.c", "a"]);
        assert_eq!(repeated("a: &a {x: 1}\nb: {<<: *a, x: 2}"), [""; 0]);
    }

    #[test]
    fn what_cannot_be_merged_has_a_line() {
        let wrong = parse("a: 1\nb:\n  c: 2\n  <<: 3").map(|_| ()).unwrap_err();
        assert_eq!(wrong, (2, "`<<` in `b` takes a section or a list of sections".to_string()));
        assert_eq!(parse("a: [").map(|_| ()).unwrap_err().0, 2);
    }

    #[test]
    fn dots_of_examples_and_second_documents_have_a_line_and_a_remedy() {
        let wrong = |text: &str| parse(text).map(|_| ()).unwrap_err();
        for (text, line) in [
            ("a: 1\n...\nb: 2", 2),
            ("a:\n  b: 1\n  ...\n  c: 2\n", 3),
            ("# note\na:\n  ...\n  c: 2\n  ...\n", 3),
            ("a:\n...\n- b: 1", 2),
        ] {
            let (found, message) = wrong(text);
            assert!(
                found == line && message.starts_with("`...` ends a document"),
                "{text}: {found}: {message}"
            );
        }
        let (line, message) = wrong("a: 1\n b: 2\n...\nc: 3\n");
        assert!(line == 2 && !message.contains("..."), "a fault before the dots: {line}: {message}");
        let (line, message) = wrong("---\na: 1\n---\nb: 2");
        assert!(line == 3 && message.starts_with("`---` begins a second document"), "{line}: {message}");
        for fine in ["a: 1\n...\n", "---\na: 1\n", "a: |\n  ...\n  b\n"] {
            assert!(parse(fine).is_ok(), "{fine}");
        }
    }
}

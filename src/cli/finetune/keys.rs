//! The keys of a configuration, written as a person would write them: a section that fits a line is written in one
//! line.

use crate::settings::Override;
use serde_json::Value;
use std::str::FromStr;

/// Most columns of a line that holds a section.
const COLUMNS: usize = 110;

/// Keys by their paths, in order, with their values in YAML. A number in a path is the index of an item in a list.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    written: Vec<Override>,
    entries: Vec<(String, String)>,
}

/// A value, or the keys of a section.
enum KeyTree<'a> {
    Value(&'a str),
    Section(Vec<(&'a str, KeyTree<'a>)>),
}

impl Keys {
    /// Starts with the keys of a user's command line, which take precedence over all keys that are added. For sections,
    /// these are the [`Override::values`].
    pub fn new(written: Vec<Override>) -> Self {
        Self { written, entries: Vec::new() }
    }

    /// The value that the user has written for `path`, in YAML.
    pub fn written(&self, path: &str) -> Option<&str> {
        self.written.iter().rev().find(|one| one.path == path).map(|one| one.value.as_str())
    }

    /// Whether the user has written a key whose path begins with `start`.
    pub fn writes_within(&self, start: &str) -> bool {
        self.written.iter().any(|one| one.path.starts_with(start))
    }

    /// Whether the user has written `word` in a value of `path` or of a key within it.
    pub fn has_word(&self, path: &str, word: &str) -> bool {
        self.written.iter().any(|one| one.lies_within(path) && one.value.contains(word))
    }

    /// The number that the user has written for `path`.
    pub fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.written(path)?.parse().ok()
    }

    /// Adds a key, unless the user has written it, or a section that contains it.
    pub fn add(&mut self, path: &str, value: impl ToString) {
        if !self.written.iter().any(|one| one.covers(path)) {
            self.entries.push((path.to_string(), value.to_string()));
        }
    }

    /// Adds a key whose value may need quotes.
    pub fn add_json(&mut self, path: &str, value: &Value) {
        self.add(path, yaml_of(value));
    }

    /// The configuration as YAML.
    pub fn yaml(&self) -> String {
        let mut all: Vec<(&str, &str)> =
            self.entries.iter().map(|(path, value)| (&**path, &**value)).collect();
        for one in &self.written {
            // A written key is placed beside its relatives, or at the end.
            let shared =
                |path: &str| path.split('.').zip(one.path.split('.')).take_while(|(a, b)| a == b).count();
            let most = all.iter().map(|(path, _)| shared(path)).max().unwrap_or(0);
            let place = all.iter().rposition(|(path, _)| shared(path) == most).filter(|_| most > 0);
            match all.iter().position(|(path, _)| *path == one.path) {
                Some(same) => all[same].1 = &one.value,
                None => all.insert(place.map_or(all.len(), |place| place + 1), (&one.path, &one.value)),
            }
        }
        let mut parts = parts(&all);
        parts.sort_by_key(|(_, part)| matches!(part, KeyTree::Section(_))); // sections come last, because they are longer
        let mut text = String::new();
        block(&parts, 0, &mut text);
        text
    }
}

/// A value in YAML: words and numbers without quotes, lists and the rest as JSON, which is YAML too.
fn yaml_of(value: &Value) -> String {
    let is_bare = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '.')
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
            && !["true", "false", "null", "yes", "no", "on", "off", "y", "n", ".", ".nan", ".inf"]
                .contains(&&*text.to_lowercase())
    };
    match value {
        Value::String(text) if is_bare(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(yaml_of).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

/// A key in YAML: names of modules and patterns may need quotes.
fn name_of(name: &str) -> String {
    let is_bare = name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    if is_bare { name.to_owned() } else { Value::from(name).to_string() }
}

fn parts<'a>(entries: &[(&'a str, &'a str)]) -> Vec<(&'a str, KeyTree<'a>)> {
    let mut names: Vec<&str> = Vec::new();
    for (path, _) in entries {
        let name = path.split('.').next().unwrap_or(path);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let part = |name: &'a str| {
        let value = entries.iter().find(|(path, _)| *path == name);
        let below = entries
            .iter()
            .filter_map(|(path, value)| Some((path.strip_prefix(name)?.strip_prefix('.')?, *value)));
        (
            name,
            value.map_or_else(
                || KeyTree::Section(parts(&below.collect::<Vec<_>>())),
                |(_, value)| KeyTree::Value(value),
            ),
        )
    };
    names.into_iter().map(part).collect()
}

fn is_list(keys: &[(&str, KeyTree<'_>)]) -> bool {
    !keys.is_empty() && keys.iter().all(|(name, _)| name.parse::<usize>().is_ok())
}

/// A part in one line.
fn flow(part: &KeyTree<'_>) -> String {
    let joined = |keys: &[(&str, KeyTree<'_>)], one: fn(&(&str, KeyTree<'_>)) -> String| {
        keys.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    match part {
        KeyTree::Value(value) => (*value).to_string(),
        KeyTree::Section(keys) if is_list(keys) => format!("[{}]", joined(keys, |(_, part)| flow(part))),
        KeyTree::Section(keys) => {
            format!("{{ {} }}", joined(keys, |(name, part)| format!("{}: {}", name_of(name), flow(part))))
        }
    }
}

/// A section with a line for each key that needs one.
fn block(keys: &[(&str, KeyTree<'_>)], depth: usize, text: &mut String) {
    let list = is_list(keys);
    for (name, part) in keys {
        let start = if list {
            format!("{}- ", "  ".repeat(depth))
        } else {
            format!("{}{}: ", "  ".repeat(depth), name_of(name))
        };
        let line = start.clone() + &flow(part);
        match part {
            KeyTree::Section(below) if line.len() > COLUMNS => {
                *text += start.trim_end();
                text.push('\n');
                block(below, depth + 1, text);
            }
            _ => *text += &(line + "\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sections_that_fit_are_one_line_and_what_was_written_counts() {
        let written = ["--b.rate=3", "--seed=7", "--list.0.max=2", "--d={x: 1}"];
        let written = Override::parse_all(written).unwrap().into_iter().flat_map(Override::values);
        let mut keys = Keys::new(written.collect());
        keys.add_json("a", &json!("x/y.z"));
        keys.add_json("b.name", &json!("it's: 1"));
        keys.add("b.rate", 1);
        keys.add("b.kind", "True");
        keys.add("list.0.type", "Monitor");
        keys.add("list.0.max", 1);
        keys.add("c.long.first", "x".repeat(60));
        keys.add("c.long.second", "y".repeat(60));
        keys.add("d.x", 2);
        keys.add("d.y", 3);
        let (x, y) = ("x".repeat(60), "y".repeat(60));
        assert_eq!(
            keys.yaml(),
            format!(
                "a: x/y.z\nseed: 7\nb: {{ name: \"it's: 1\", kind: True, rate: 3 }}\nlist: [{{ type: Monitor, max: 2 }}]\nc:\n  long:\n    first: {x}\n    \
                 second: {y}\nd: {{ y: 3, x: 1 }}\n"
            )
        );
        let patterns =
            Override::parse_all(["--e={'[qk]_proj': 4}"]).unwrap().into_iter().flat_map(Override::values);
        assert_eq!(Keys::new(patterns.collect()).yaml(), "e: { \"[qk]_proj\": 4 }\n");
        assert_eq!((keys.written("b.rate"), keys.written("b")), (Some("3"), None));
        assert_eq!((keys.number("d.x"), keys.number::<u64>("d.y")), (Some(1), None));
        for text in ["yes", "1e3", "", "a b", "#x", "-x", "."] {
            assert!(yaml_of(&json!(text)).starts_with('"'), "{text}");
        }
    }
}

//! A YAML file with the overrides of the command line laid over it. The only file that knows the parser.

use std::path::{Path, PathBuf};

use serde_yaml::Value;

use super::locate;
use super::names::Names;
use super::node::Node;
use super::overrides::Override;
use super::path::{is_below, join};
use crate::error::{Error, Result};

/// A configuration as written: its values, and where each comes from.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    file: PathBuf,
    text: String,
    root: Node,
    overrides: Vec<Override>,
    names: &'static Names,
}

impl Document {
    /// Parses `text`, which was read from `file`, and lays `overrides` over it, the last one on top. `names` are the names
    /// of keys that have several.
    pub fn parse(text: &str, file: &Path, overrides: &[Override], names: &'static Names) -> Result<Self> {
        let root = parse(text).map_err(|(line, message)| {
            Error::config(format!("{}:{line}", file.display()), format!("not valid YAML: {message}"))
        })?;
        let root = if root == Node::Null { Node::Map(Vec::new()) } else { root };
        if !matches!(root, Node::Map(_)) {
            let message = format!("expected sections (keys and values), found {root}");
            return Err(Error::config(format!("{}:1", file.display()), message));
        }
        let mut document =
            Self { file: file.to_path_buf(), text: text.to_string(), root, overrides: Vec::new(), names };
        for one in overrides {
            document.lay_over(one)?;
        }
        Ok(document)
    }

    /// The file this was read from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The names of keys that have several.
    pub fn names(&self) -> &'static Names {
        self.names
    }

    /// The value at a dotted path; items of lists are numbered from 0.
    pub fn get(&self, path: &str) -> Option<&Node> {
        if path.is_empty() {
            return Some(&self.root);
        }
        path.split('.').try_fold(&self.root, |node, key| node.get(key))
    }

    /// Whether the command line changes anything below `path`.
    pub fn is_overridden(&self, path: &str) -> bool {
        self.overrides.iter().any(|one| one.lies_within(path))
    }

    /// An error about the value at `path`, under whichever of its names it was written.
    pub fn error(&self, path: &str, message: impl std::fmt::Display) -> Error {
        let path = self.written(path);
        let origin = self.flag(&path).map_or_else(
            || format!("{}:{}: {path}", self.file.display(), locate::line(&self.text, &path)),
            |one| one.flag.clone(),
        );
        Error::config(origin.trim_end_matches(": "), message)
    }

    /// The line of the file on which the value at `path` was written; 0 where a flag set it.
    pub fn line(&self, path: &str) -> usize {
        let path = self.written(path);
        if self.flag(&path).is_some() { 0 } else { locate::line(&self.text, &path) }
    }

    /// The override that set the value at `path`, written so, if one did.
    fn flag(&self, path: &str) -> Option<&Override> {
        self.overrides.iter().rev().find(|one| is_below(path, &one.path))
    }

    /// `path` with its last key under the name that was written.
    fn written(&self, path: &str) -> String {
        let (parent, key) = path.rsplit_once('.').unwrap_or(("", path));
        let section = self.get(parent);
        let has = |name: &str| section.is_some_and(|section| section.get(name).is_some());
        match self.names.of(key).iter().find(|name| has(name)) {
            Some(name) if !has(key) => path[..path.len() - key.len()].to_string() + name,
            _ => path.to_string(),
        }
    }

    fn lay_over(&mut self, one: &Override) -> Result<()> {
        let value = parse(&one.value).map_err(|(_, message)| {
            Error::config(&one.flag, format!("`{}` is not a valid value: {message}", one.value))
        })?;
        let written = self.written(&one.path);
        set(&mut self.root, &written, value).map_err(|message| Error::config(&one.flag, message))?;
        self.overrides.push(Override { path: written, ..one.clone() });
        Ok(())
    }
}

/// `node` as a YAML document.
pub(crate) fn to_yaml(node: &Node) -> String {
    // Cannot fail: the tree has no tags, and its keys are strings.
    serde_yaml::to_string(node).unwrap_or_default()
}

/// The tree of `text`, or the line and the reason why there is none.
fn parse(text: &str) -> std::result::Result<Node, (usize, String)> {
    let fail = |error: serde_yaml::Error| {
        let message = error.to_string();
        // The parser places a repeated key at the start of its section.
        let repeated = message.contains("duplicate entry").then(|| locate::repeated_key(text)).flatten();
        let line = repeated.or(error.location().map(|location| location.line())).unwrap_or(1);
        // The line stands in front; a message that repeats it reads badly.
        (line, message.split(" at line ").next().unwrap_or_default().replace('\n', " "))
    };
    let mut value: Value = serde_yaml::from_str(text).map_err(fail)?;
    value.apply_merge().map_err(fail)?;
    Ok(from_value(value))
}

fn from_value(value: Value) -> Node {
    match value {
        Value::Null => Node::Null,
        Value::Bool(value) => Node::Bool(value),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Node::Int(number.into()),
            (_, Some(number)) => Node::Int(number.into()),
            _ => Node::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Node::Text(text),
        Value::Sequence(items) => Node::List(items.into_iter().map(from_value).collect()),
        Value::Mapping(entries) => {
            Node::Map(entries.into_iter().map(|(key, value)| (key_text(key), from_value(value))).collect())
        }
        // A tag says nothing to us; the value under it does.
        Value::Tagged(tagged) => from_value(tagged.value),
    }
}

fn key_text(key: Value) -> String {
    match from_value(key) {
        Node::Text(text) => text,
        other => other.to_string().trim_matches('`').to_string(),
    }
}

/// Puts `value` at a dotted path, making the sections on the way.
fn set(root: &mut Node, path: &str, value: Node) -> std::result::Result<(), String> {
    let mut node = root;
    let mut done = String::new();
    for key in path.split('.') {
        if *node == Node::Null {
            *node = Node::Map(Vec::new());
        }
        let found = node.to_string();
        node = match node {
            Node::Map(entries) => Node::entry(entries, key),
            Node::List(items) => {
                let len = items.len();
                let item = key.parse::<usize>().ok().and_then(|index| items.get_mut(index));
                item.ok_or_else(|| format!("`{done}` is a list of {len} items, numbered from 0"))?
            }
            _ => return Err(format!("`{done}` is {found}, not a section")),
        };
        done = join(&done, key);
    }
    *node = value;
    Ok(())
}

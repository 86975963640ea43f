//! A YAML file and the files that it extends, with the overrides of the command line laid over them.

use std::path::{Path, PathBuf};

use super::layers::{DropReplaced, Layers};
use super::names::Names;
use super::node::Node;
use super::node::{is_below, join, parent_and_key};
use super::setting::Setting;
use super::yaml::{Parsed, parse};
use crate::error::{Error, Result};

/// A configuration as written: its values, and where each comes from.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    layers: Layers,
    root: Node,
    overrides: Vec<Override>,
    /// Values that are read elsewhere than they were written, as pairs of paths (where read, where written).
    origins: Vec<(String, String)>,
    /// Keys that occur twice in one value of the command line.
    repeated: Vec<String>,
}

impl Document {
    /// Parses `text`, which was read from `file`. It is laid over the files that its key `bases` names, and `overrides`
    /// are laid over it, the last one on top. Without `bases` no other file is read. `names` are the keys that have
    /// several names. `drop_replaced` drops from the layers below what a layer replaces.
    pub fn parse(
        text: &str,
        file: &Path,
        overrides: &[Override],
        names: &Names,
        bases: Option<&str>,
        drop_replaced: DropReplaced,
    ) -> Result<Self> {
        let is_base = |one: &&Override| bases.is_some_and(|bases| one.path == bases);
        let written = overrides.iter().rev().find(is_base).map(value_of).transpose()?;
        let bases_written = written.as_ref().map(|parsed| &parsed.root);
        let (layers, mut root) = Layers::read(text, file, bases, bases_written, drop_replaced)?;
        let mut flags = Node::Map(Vec::new());
        for one in overrides {
            // Values that cannot be read are reported below.
            let value = parse(&one.value).map(|parsed| parsed.root).unwrap_or(Node::Null);
            let _ = set(&mut flags, &one.path, value);
        }
        drop_replaced(&mut root, &flags);
        let mut document =
            Self { layers, root, overrides: Vec::new(), origins: Vec::new(), repeated: Vec::new() };
        // An override of `bases` that names files was handled above; any other value of it is laid over, to be
        // reported.
        let names_files = written.is_some_and(|parsed| Vec::<PathBuf>::from_node(&parsed.root).is_some());
        for one in overrides.iter().filter(|one| !names_files || !is_base(one)) {
            document.lay_over(one, names)?;
        }
        Ok(document)
    }

    /// The file this was read from.
    pub fn file(&self) -> &Path {
        self.layers.file()
    }

    /// Notices about keys that were written more than once in one section.
    pub fn notices(&self) -> impl Iterator<Item = String> {
        let all = self.layers.repeated().iter().chain(&self.repeated);
        all.map(|place| format!("{place}: written more than once; the last value counts, as PyYAML reads it"))
    }

    /// The value at a dotted path; items of lists are numbered from 0.
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.root.at(path)
    }

    /// Whether the command line changes anything below `path`.
    pub fn is_overridden(&self, path: &str) -> bool {
        let path = self.written(path);
        self.overrides.iter().any(|one| one.lies_within(&path))
    }

    /// Moves the value at `from` to `to`, where it is read; messages go on naming the place at which it was written.
    pub fn move_value(&mut self, from: &str, to: &str) {
        if let Some(node) = self.take(from) {
            self.put(to, node, from);
        }
    }

    /// Gives the key `name` of `section` the name under which it is read.
    pub fn rename(&mut self, section: &str, name: &str, key: &str) {
        if name == key {
            return;
        }
        let Some(entries) = self.entries(section) else { return };
        if let Some((found, _)) = entries.iter_mut().find(|(found, _)| found == name) {
            *found = key.to_string();
            self.origins.push((join(section, key), join(section, name)));
        }
    }

    /// Removes the value at `path`.
    pub fn take(&mut self, path: &str) -> Option<Node> {
        let (section, key) = parent_and_key(path);
        let entries = self.entries(section)?;
        let index = entries.iter().position(|(name, _)| name == key)?;
        Some(entries.remove(index).1)
    }

    fn entries(&mut self, section: &str) -> Option<&mut Vec<(String, Node)>> {
        let mut keys = section.split('.').filter(|key| !key.is_empty());
        match keys.try_fold(&mut self.root, |node, key| node.get_mut(key))? {
            Node::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// Puts `node`, which follows from the value that was written for `origin`, at `path`. Does nothing if a part of
    /// `path` already holds something else than a section.
    pub fn put(&mut self, path: &str, node: Node, origin: &str) {
        let written = self.written(origin);
        if set(&mut self.root, path, node).is_ok() {
            self.origins.push((path.to_string(), written));
        }
    }

    /// An error about the value at `path`, at the place where it was written.
    pub fn error(&self, path: &str, message: impl std::fmt::Display) -> Error {
        let path = self.written(path);
        let (place, key) = match self.flag(&path) {
            Some(one) => (one.flag.clone(), path[one.path.len()..].trim_start_matches('.')),
            None => (self.layers.place(&path), path.as_str()),
        };
        Error::config(format!("{place}: {key}").trim_end_matches(": "), message)
    }

    /// The line of the file on which the value at `path` was written; 0 where a flag set it.
    pub fn line(&self, path: &str) -> usize {
        let path = self.written(path);
        if self.flag(&path).is_some() { 0 } else { self.layers.line(&path) }
    }

    /// The path at which the value that is read at `path` was written.
    pub fn written(&self, path: &str) -> String {
        let mut moved = self.origins.iter().rev().filter(|(read, _)| is_below(path, read));
        let Some((read, written)) = moved.next() else { return path.to_string() };
        format!("{written}{}", &path[read.len()..])
    }

    /// The path at which the value that is read at `path` was written; `None` if a flag set it.
    pub fn written_in_file(&self, path: &str) -> Option<String> {
        Some(self.written(path)).filter(|path| self.flag(path).is_none())
    }

    /// The last override that set the value written at `path`, if one did.
    fn flag(&self, path: &str) -> Option<&Override> {
        self.overrides.iter().rev().find(|one| is_below(path, &one.path))
    }

    /// Lays `one` over the file, under the name of the key that the file uses.
    fn lay_over(&mut self, one: &Override, names: &Names) -> Result<()> {
        let Parsed { root: value, repeated } = value_of(one)?;
        self.repeated.extend(repeated.iter().map(|key| format!("{}: {key}", one.flag)));
        let (section, name) = parent_and_key(&one.path);
        let key = names.key(section, name);
        let spellings = [name, key].into_iter().chain(names.of(section, key)).map(|name| join(section, name));
        let there = spellings.into_iter().find(|path| self.get(path).is_some());
        let written = there.unwrap_or_else(|| one.path.clone());
        set(&mut self.root, &written, value).map_err(|message| Error::config(&one.flag, message))?;
        self.overrides.push(Override { path: written, ..one.clone() });
        Ok(())
    }
}

/// Calls `each` with every value in `node`, which is at `path`. Sections that have no keys, or keys that no path can
/// name, count as values.
#[cfg(feature = "cli")]
fn take_apart(path: &str, node: &Node, each: &mut impl FnMut(&str, &Node)) {
    let is_name = |name: &str| name.parse::<usize>().is_err() && !name.is_empty() && !name.contains('.');
    match node {
        Node::Map(entries) if !entries.is_empty() && entries.iter().all(|(name, _)| is_name(name)) => {
            entries.iter().for_each(|(name, node)| take_apart(&join(path, name), node, each));
        }
        _ => each(path, node),
    }
}

fn value_of(one: &Override) -> Result<Parsed> {
    parse(&one.value).map_err(|(_, message)| {
        Error::config(&one.flag, format!("`{}` is not a valid value: {message}", one.value))
    })
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

/// One key that the command line sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The flag as typed, for messages.
    pub flag: String,
    /// The dotted path of the key; items of lists are numbered from 0.
    pub path: String,
    /// The value, in YAML.
    pub value: String,
}

impl Override {
    /// An override that sets the key `path` to `value`, whatever characters a text in `value` has.
    pub(crate) fn of(path: &str, value: &serde_json::Value) -> Self {
        Self { flag: format!("--{path}"), path: path.to_string(), value: value.to_string() } // JSON is YAML
    }

    /// Whether the override sets the value at the dotted path `section`, or a value in it.
    pub(crate) fn lies_within(&self, section: &str) -> bool {
        is_below(&self.path, section)
    }

    /// Whether the override sets the value at the dotted `path`, or a section that holds it.
    #[cfg(feature = "cli")]
    pub(crate) fn covers(&self, path: &str) -> bool {
        is_below(path, &self.path)
    }

    /// Splits an override that sets a section into one override for each value. An override that cannot be read stays
    /// whole, to be reported where it is laid over a file.
    #[cfg(feature = "cli")]
    pub(crate) fn values(self) -> Vec<Self> {
        match parse(&self.value) {
            Ok(Parsed { root: root @ Node::Map(_), repeated }) if repeated.is_empty() => {
                let mut values = Vec::new();
                take_apart(&self.path, &root, &mut |path, node| {
                    // JSON is YAML, but has no `.nan`.
                    let value = match node {
                        Node::Float(number) => {
                            format!("{number:?}").replace("NaN", ".nan").replace("inf", ".inf")
                        }
                        _ => serde_json::to_string(node).unwrap_or_default(),
                    };
                    values.push(Self { path: path.to_string(), value, flag: self.flag.clone() });
                });
                values
            }
            _ => vec![self],
        }
    }
}

//! A file and the files that it extends. Each is a layer; values of an upper layer take precedence over those of a
//! lower one.

use std::path::{Path, PathBuf};

use super::locate;
use super::node::Node;
use super::setting::Setting;
use super::yaml::{Parsed, parse};
use crate::error::{Error, Result};

/// Drops from a lower layer what the upper one, which is given second, says in its place by other keys.
pub(super) type DropReplaced = fn(&mut Node, &Node);

/// The layers of a configuration, the file itself first.
#[derive(Clone, Debug)]
pub(super) struct Layers {
    all: Vec<Layer>,
    /// Keys that a section of some file has more than once, each with the place of the value that counts.
    repeated: Vec<String>,
    drop_replaced: DropReplaced,
}

/// One file.
#[derive(Clone, Debug)]
struct Layer {
    file: PathBuf,
    text: String,
    root: Node,
}

impl Layers {
    /// Reads `text`, which was read from `file`, and the files that its key `bases` names: one path or several,
    /// relative to the file. Those files may name others. Also returns the tree that all layers make together.
    /// `written`, if given, stands in for the value of the key `bases`.
    ///
    /// # Errors
    /// If a file is missing, is no YAML or no section, or leads back to itself.
    pub fn read(
        text: &str,
        file: &Path,
        bases: Option<&str>,
        written: Option<&Node>,
        drop_replaced: DropReplaced,
    ) -> Result<(Self, Node)> {
        let mut layers = Self { all: Vec::new(), repeated: Vec::new(), drop_replaced };
        let root = layers.add(text, file, bases, written, &mut Vec::new())?;
        Ok((layers, root))
    }

    /// The file itself.
    pub fn file(&self) -> &Path {
        &self.all[0].file
    }

    /// `FILE:LINE` of the value at `path`: in the uppermost layer that has it, otherwise in the file itself.
    pub fn place(&self, path: &str) -> String {
        let layer = self.layer(path);
        format!("{}:{}", layer.file.display(), locate::line(&layer.text, path))
    }

    /// The line of the file itself on which the value at `path` was written; its first line if another file wrote the
    /// value.
    pub fn line(&self, path: &str) -> usize {
        locate::line(&self.all[0].text, path)
    }

    /// Keys that a section of some file has more than once, each with the place of the value that counts.
    pub fn repeated(&self) -> &[String] {
        &self.repeated
    }

    fn layer(&self, path: &str) -> &Layer {
        let has = |layer: &&Layer| layer.root.at(path).is_some();
        self.all.iter().find(has).unwrap_or(&self.all[0])
    }

    /// Adds a file and its bases; `above` are the files that led to it.
    fn add(
        &mut self,
        text: &str,
        file: &Path,
        bases: Option<&str>,
        written: Option<&Node>,
        above: &mut Vec<PathBuf>,
    ) -> Result<Node> {
        let Parsed { root, repeated } = parse(text).map_err(|(line, message)| {
            Error::config(format!("{}:{line}", file.display()), format!("not valid YAML: {message}"))
        })?;
        let mut own = match root {
            Node::Null => Vec::new(),
            Node::Map(entries) => entries,
            other => {
                let message = format!("expected sections (keys and values), found {other}");
                return Err(Error::config(format!("{}:1", file.display()), message));
            }
        };
        let place = |path: &str| format!("{}:{}: {path}", file.display(), locate::line(text, path));
        self.repeated.extend(repeated.iter().map(|path| place(path)));
        let layer = Layer { file: file.to_path_buf(), text: text.to_string(), root: Node::Map(own.clone()) };
        self.all.push(layer);
        let Some(key) = bases else { return Ok(Node::Map(own)) };
        let index = own.iter().position(|(name, _)| name == key);
        let found = written.or(index.map(|index| &own[index].1)).filter(|node| !node.is_off());
        // A value that is not one path or a list of paths stays, to be reported like any other value.
        let Some(names) = found.and_then(Vec::<PathBuf>::from_node) else { return Ok(Node::Map(own)) };
        index.map(|index| own.remove(index));
        let origin = if written.is_some() { format!("--{key}") } else { place(key) };
        above.push(file.to_path_buf());
        let mut lower = Vec::new();
        // The last base counts first, so its layer lies above the others.
        for name in names.iter().rev() {
            let path = file.with_file_name("").join(name);
            let real = path.canonicalize().ok();
            let is_same = |other: &PathBuf| real.is_some() && other.canonicalize().ok() == real;
            if above.iter().any(is_same) {
                let message = format!("{} builds on this file in its turn; remove it", path.display());
                return Err(Error::config(origin, message));
            }
            let text = std::fs::read_to_string(&path).map_err(|error| {
                let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = folder.map_or(".".into(), |folder| folder.display().to_string());
                let message =
                    format!("{} cannot be read: {error}; paths are relative to {folder}", path.display());
                Error::config(&origin, message)
            })?;
            lower.push(self.add(&text, &path, bases, None, above)?);
        }
        above.pop();
        let mut base = Vec::new();
        for node in lower.into_iter().rev() {
            let Node::Map(entries) = node else { continue };
            // If several bases have a top-level key, the last of them gives the whole value of the key.
            for (key, value) in entries {
                *Node::entry(&mut base, &key) = value;
            }
        }
        let (mut base, own) = (Node::Map(base), Node::Map(own));
        (self.drop_replaced)(&mut base, &own);
        merge(&mut base, own);
        Ok(base)
    }
}

/// Lays `upper` over `lower`: sections are merged key by key, everything else is replaced.
fn merge(lower: &mut Node, upper: Node) {
    match (lower, upper) {
        (Node::Map(lower), Node::Map(upper)) => {
            upper.into_iter().for_each(|(key, value)| merge(Node::entry(lower, &key), value));
        }
        (lower, upper) => *lower = upper,
    }
}

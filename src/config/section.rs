//! One section of a document: its keys checked against what we know, its values read with their types.

use super::aliases;
use super::document::Document;
use super::keys::{Keys, Outcome};
use super::known_keys::SECTIONS;
use super::node::{FromNode, Node};
use crate::error::{Error, Result};

/// What a user should hear once about a configuration that is otherwise fine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes {
    /// Keys that do something else than in the original, and what.
    texts: Vec<String>,
    /// Keys without meaning here, as (section, key).
    ignored: Vec<(String, String)>,
}

impl Notes {
    /// Adds a sentence, once.
    pub fn add(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.texts.contains(&text) {
            self.texts.push(text);
        }
    }

    /// Adds a key without meaning.
    pub fn ignore(&mut self, section: &str, key: &str) {
        self.ignored.push((section.to_string(), key.to_string()));
    }

    /// All sentences; the ignored keys become one.
    pub fn into_notices(self) -> Vec<String> {
        let mut notices = self.texts;
        let mut sections: Vec<(String, Vec<String>)> = Vec::new();
        for (section, key) in self.ignored {
            match sections.iter_mut().find(|(name, _)| *name == section) {
                Some((_, keys)) => keys.push(key),
                None => sections.push((section, vec![key])),
            }
        }
        let listed: Vec<String> = sections
            .into_iter()
            .map(|(section, keys)| match (section.as_str(), keys.as_slice()) {
                ("", keys) => keys.join(", "),
                (section, [key]) => format!("{section}.{key}"),
                (section, keys) => format!("{section}.{{{}}}", keys.join(", ")),
            })
            .collect();
        if !listed.is_empty() {
            notices.push(format!("without meaning here and ignored: {}", listed.join(", ")));
        }
        notices
    }
}

/// A section whose keys are all known.
pub(crate) struct Section<'a> {
    document: &'a Document,
    keys: &'static Keys,
    path: String,
    entries: &'a [(String, Node)],
}

impl<'a> Section<'a> {
    /// Opens the section at `path`; an absent one is empty.
    ///
    /// # Errors
    /// If it is no section, or has a key that is unknown, not built yet, or given under two names.
    pub fn open(document: &'a Document, path: &str, keys: &'static Keys, notes: &mut Notes) -> Result<Self> {
        let entries: &[_] = match document.get(path) {
            Some(Node::Map(entries)) => entries,
            Some(node) if !node.is_none() => {
                let message = format!("expected a section (keys and values), found {node}");
                return Err(document.error(path, message));
            }
            _ => &[],
        };
        let section = Self { document, keys, path: path.to_string(), entries };
        for (index, (key, node)) in entries.iter().enumerate() {
            section.check(index, key, node, notes)?;
        }
        Ok(section)
    }

    /// The value of `key`, if there is one that is not "none".
    pub fn get<T: FromNode>(&self, key: &str) -> Result<Option<T>> {
        let Some(node) = self.node(key) else { return Ok(None) };
        let value = T::from_node(node).map(Some);
        value.ok_or_else(|| self.error(key, format!("expected {}, found {node}", T::EXPECTED)))
    }

    /// The value of `key`, or `default`.
    pub fn or<T: FromNode>(&self, key: &str, default: T) -> Result<T> {
        Ok(self.get(key)?.unwrap_or(default))
    }

    /// The value of `key`, which must be there.
    pub fn require<T: FromNode>(&self, key: &str) -> Result<T> {
        self.get(key)?.ok_or_else(|| {
            self.document.error(&self.path, format!("`{key}` is missing; give it {}", T::EXPECTED))
        })
    }

    /// The number at `key` that must satisfy `accepts`, said in words by `range`.
    pub fn number(&self, key: &str, default: f64, range: &str, accepts: impl Fn(f64) -> bool) -> Result<f64> {
        match self.get(key)? {
            Some(number) if !accepts(number) => {
                Err(self.error(key, format!("expected {range}, found `{number}`")))
            }
            found => Ok(found.unwrap_or(default)),
        }
    }

    /// The whole number at `key`, which must not be 0.
    pub fn positive(&self, key: &str, default: u64) -> Result<u64> {
        match self.get(key)? {
            Some(0) => Err(self.error(key, "expected a whole number above 0, found `0`")),
            found => Ok(found.unwrap_or(default)),
        }
    }

    /// The value of `key` as it was written, unless it is "none".
    pub fn node(&self, key: &str) -> Option<&'a Node> {
        debug_assert!(self.keys.uses(key), "{}.{key} is read but not listed in known_keys.rs", self.path);
        let same = |name: &str| aliases::canonical(name) == aliases::canonical(key);
        let found = self.entries.iter().find(|(name, _)| same(name));
        found.map(|(_, node)| node).filter(|node| !node.is_none())
    }

    /// Keys and values as they were written.
    pub fn entries(&self) -> &'a [(String, Node)] {
        self.entries
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The dotted path of `key`.
    pub fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_string() } else { format!("{}.{key}", self.path) }
    }

    /// An error about `key`.
    pub fn error(&self, key: &str, message: impl std::fmt::Display) -> Error {
        self.document.error(&self.path(key), message)
    }

    fn check(&self, index: usize, key: &str, node: &Node, notes: &mut Notes) -> Result<()> {
        let name = aliases::canonical(key);
        let twin = self.entries[..index].iter().find(|(other, _)| aliases::canonical(other) == name);
        if let Some((twin, _)) = twin {
            let message = format!("another name of `{twin}`, which is given too; keep one of them");
            return Err(self.error(key, message));
        }
        if let Some(rule) = self.keys.rules.iter().find(|rule| rule.covers(name)) {
            match rule.outcome {
                _ if node.is_none() || rule.passes.allows(node) => {}
                Outcome::NotBuilt(remedy) => {
                    return Err(self.error(key, format!("not built yet (found {node}); {remedy}")));
                }
                Outcome::Differs(text) => notes.add(format!("{}: {text}", self.path(key))),
            }
        } else if self.keys.ignores(name) {
            if !node.is_off() {
                notes.ignore(&self.path, key);
            }
        } else if !self.keys.uses(name) {
            return Err(self.error(key, format!("unknown key{}", self.suggestion(key))));
        }
        Ok(())
    }

    /// The likeliest remedy for an unknown key.
    fn suggestion(&self, key: &str) -> String {
        if let Some(name) = closest(key, self.keys.names()) {
            return format!("; did you mean `{name}`?");
        }
        let home = SECTIONS.iter().find(|(_, keys)| keys.uses(aliases::canonical(key)));
        match home {
            Some((section, _)) if !section.is_empty() => format!("; it belongs in `{section}`"),
            Some(_) => "; it belongs at the top level".to_string(),
            None => match SECTIONS
                .iter()
                .find_map(|(section, keys)| Some((section, closest(key, keys.names())?)))
            {
                Some((section, name)) if !section.is_empty() => format!("; did you mean `{section}.{name}`?"),
                Some((_, name)) => format!("; did you mean `{name}` at the top level?"),
                None => "; remove it or correct its name".to_string(),
            },
        }
    }
}

/// The candidate most like `word`, if any is much like it.
pub(crate) fn closest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // 0.75 lets one letter in four be wrong: `hiden_size`, `epoch`, `leraning_rate`, but not `depth` for `seed`.
    const ALIKE: f64 = 0.75;
    candidates
        .map(|name| (strsim::normalized_damerau_levenshtein(word, name), name))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

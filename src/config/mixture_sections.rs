//! The two places that describe a mixture of experts, read as one: `moe_config` and `model.model_config`.

use super::aliases;
use super::document::Document;
use super::keys::Keys;
use super::known_keys;
use super::node::{FromNode, Node};
use super::section::{Notes, Section};
use crate::error::{Error, Result};

/// A key may stand in either place. In both, it must say the same.
pub(super) struct MixtureSections<'a> {
    document: &'a Document,
    moe: Section<'a>,
    model: Section<'a>,
}

const MODEL_PATH: &str = "model.model_config";

impl<'a> MixtureSections<'a> {
    /// Opens both.
    ///
    /// # Errors
    /// Keys of `moe_config` that are unknown or not built; a key that the two give different values.
    pub fn open(document: &'a Document, notes: &mut Notes) -> Result<Self> {
        let moe = Section::open(document, "moe_config", &known_keys::MOE, notes)?;
        // Whoever read the model has said what is to be said of its keys.
        let model = Section::open(document, MODEL_PATH, &known_keys::MODEL, &mut Notes::default())?;
        for (key, node) in model.entries() {
            let twin = moe.entries().iter().find(|(name, _)| same(name, key));
            let Some((name, other)) = twin.filter(|(_, other)| *other != *node) else { continue };
            if !node.is_none() && !other.is_none() {
                let message = format!("differs from `moe_config.{name}`, {other}; keep one of them");
                return Err(model.error(key, message));
            }
        }
        Ok(Self { document, moe, model })
    }

    /// The value of `key` as it was written, unless it is "none".
    pub fn node(&self, key: &str) -> Option<&'a Node> {
        self.section(key).node(key)
    }

    /// The value of `key`, if there is one that is not "none".
    pub fn get<T: FromNode>(&self, key: &str) -> Result<Option<T>> {
        self.section(key).get(key)
    }

    /// The value of `key`, or `default`.
    pub fn or<T: FromNode>(&self, key: &str, default: T) -> Result<T> {
        self.section(key).or(key, default)
    }

    /// The number at `key` that must satisfy `accepts`, said in words by `range`.
    pub fn number(&self, key: &str, default: f64, range: &str, accepts: impl Fn(f64) -> bool) -> Result<f64> {
        self.section(key).number(key, default, range, accepts)
    }

    /// The whole number at `key`; files of the original write some as `8.0`.
    pub fn whole(&self, key: &str) -> Result<Option<usize>> {
        match self.node(key) {
            Some(Node::Float(number)) if number.fract() == 0.0 && (0.0..1e15).contains(number) => {
                Ok(Some(*number as usize))
            }
            _ => self.get(key),
        }
    }

    /// The word at `key`, one of `words`.
    pub fn word(&self, key: &str, words: &[&'static str]) -> Result<Option<&'static str>> {
        let Some(node) = self.node(key) else { return Ok(None) };
        match words.iter().find(|word| node.word() == Some(**word)) {
            Some(word) => Ok(Some(word)),
            None => Err(self.error(key, format!("expected {}, found {node}", words.join(" or ")))),
        }
    }

    /// An error about `key`, where it stands.
    pub fn error(&self, key: &str, message: impl std::fmt::Display) -> Error {
        self.section(key).error(key, message)
    }

    /// The dotted path of `key`, where it stands, under the name that was written.
    pub fn path(&self, key: &str) -> String {
        let section = self.section(key);
        let written = section.entries().iter().find(|(name, _)| same(name, key));
        section.path(written.map_or(key, |(name, _)| name))
    }

    /// `key` if the command line gives it: then it is the one to blame where two contradict each other.
    pub fn overridden(&self, key: &'static str) -> Option<&'static str> {
        self.document.is_overridden(&self.path(key)).then_some(key)
    }

    /// Notes all keys that only a mixture reads: in a dense model they have no meaning.
    pub fn ignore_all(&self, notes: &mut Notes) {
        for (section, path) in [(&self.model, MODEL_PATH), (&self.moe, "moe_config")] {
            for (key, node) in section.entries() {
                let name = aliases::canonical(key);
                let is_of_mixtures = known_keys::MOE.uses(name) || name == "return_extra_loss";
                if is_of_mixtures && name != "expert_num" && !node.is_off() {
                    notes.ignore(path, key);
                }
            }
        }
    }

    /// Notes `keys` that were written, since another one takes their meaning.
    pub fn ignore(&self, keys: &[&str], notes: &mut Notes) {
        for key in keys.iter().filter(|key| self.node(key).is_some_and(|node| !node.is_off())) {
            let path = self.path(key);
            let (section, key) = path.rsplit_once('.').unwrap_or(("", &path));
            notes.ignore(section, key);
        }
    }

    /// Where `key` stands; `moe_config` where it was not written.
    fn section(&self, key: &str) -> &Section<'a> {
        let reads = |keys: &'static Keys| keys.uses(aliases::canonical(key));
        if !reads(&known_keys::MOE) || (self.moe.node(key).is_none() && self.model.node(key).is_some()) {
            return &self.model;
        }
        &self.moe
    }
}

fn same(one: &str, other: &str) -> bool {
    aliases::canonical(one) == aliases::canonical(other)
}

//! Which operators of which layers `select_recompute` and its kin are about.
//!
//! A pattern is a path of regular expressions, separated by `\.`: each must match a whole name, from the block down to the
//! operator.

use super::amount::Amount;
use crate::model::groups::compile;
use crate::model::stages::{Chunks, Stages};
use crate::settings::engine::*;
use regex::bytes::Regex;

/// Which operators, and of how many layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The key's default operators.
    Defaults(Amount),
    /// Those that a pattern matches, in every layer.
    Patterns(Vec<String>),
    /// Those that a pattern matches, each in so many layers.
    Amounts(Vec<(String, Amount)>),
}

/// The layers of each pattern.
pub(crate) type Selected = Vec<(String, Chunks)>;

impl Selection {
    /// Nothing.
    pub(super) const NONE: Self = Self::Defaults(Amount::Every(false));

    /// Reads `node`.
    ///
    /// # Errors
    /// What was found that selects nothing, or the pattern that is no regular expression.
    pub(super) fn read(node: &Node) -> Result<Self, String> {
        let selection = match node {
            Node::List(items) if items.iter().any(is_pattern) => {
                let text = |item: &Node| item.word().filter(|_| is_pattern(item)).map(str::to_string);
                let patterns: Option<_> = items.iter().map(text).collect();
                Self::Patterns(patterns.ok_or("patterns beside other values in one list")?)
            }
            Node::Map(entries) => {
                let read = |(pattern, node): &(String, Node)| match Amount::read(node) {
                    Ok(amount) => Ok((pattern.clone(), amount)),
                    Err(found) => Err(format!("{found} for `{}`", pattern.escape_debug())),
                };
                Self::Amounts(entries.iter().map(read).collect::<Result<_, _>>()?)
            }
            _ => Self::Defaults(Amount::read(node)?),
        };
        selection.patterns(&[]).iter().try_for_each(|pattern| match names(pattern) {
            Ok(_) => Ok(()),
            Err(_) if pattern.contains(r"\\.") => Err(format!(
                "`{pattern}`, of which single quotes keep both backslashes; write `'{}'`",
                pattern.replace(r"\\", r"\")
            )),
            Err(message) => Err(format!("a pattern that cannot be read: {message}")),
        })?;
        Ok(selection)
    }

    /// Whether it depends on which layers the stages have.
    pub(super) fn depends_on_stages(&self) -> bool {
        match self {
            Self::Defaults(amount) => amount.depends_on_stages(),
            Self::Patterns(_) => false,
            Self::Amounts(amounts) => amounts.iter().any(|(_, amount)| amount.depends_on_stages()),
        }
    }

    /// The layers of each pattern; without patterns, of `defaults`.
    ///
    /// # Errors
    /// As [`Amount::distribute`].
    pub(super) fn distribute(&self, defaults: &[&str], stages: &Stages) -> Result<Selected, String> {
        let patterns = self.patterns(defaults).into_iter().map(str::to_string);
        match self {
            Self::Defaults(amount) => {
                let chunks = amount.distribute(stages)?;
                Ok(patterns.map(|pattern| (pattern, chunks.clone())).collect())
            }
            Self::Patterns(_) => Ok(patterns.map(|pattern| (pattern, stages.layers().clone())).collect()),
            Self::Amounts(amounts) => amounts
                .iter()
                .map(|(pattern, amount)| Ok((pattern.clone(), amount.distribute(stages)?)))
                .collect(),
        }
    }

    fn patterns<'a>(&'a self, defaults: &[&'a str]) -> Vec<&'a str> {
        match self {
            Self::Defaults(_) => defaults.to_vec(),
            Self::Patterns(patterns) => patterns.iter().map(String::as_str).collect(),
            Self::Amounts(amounts) => amounts.iter().map(|(pattern, _)| pattern.as_str()).collect(),
        }
    }
}

/// Removes from `selected` the patterns that one of `excluded` contradicts, and returns them. As in MindFormers they are
/// removed from all layers, however many the exclusion has.
pub(super) fn remove_excluded(selected: &mut Selected, excluded: &Selected) -> Vec<String> {
    let acts = |chunks: &Chunks| chunks.iter().flatten().any(|count| *count > 0);
    let is_excluded = |(pattern, _): &(String, Chunks)| {
        excluded.iter().any(|(other, chunks)| acts(chunks) && conflict(pattern, other))
    };
    selected.extract_if(.., |one| is_excluded(one)).map(|(pattern, _)| pattern).collect()
}

/// A pattern, ready to match names.
pub(super) struct Pattern(Vec<Regex>);

impl Pattern {
    /// The pattern `text`; `None` if it is no pattern, which [`Selection::read`] refuses.
    pub fn new(text: &str) -> Option<Self> {
        names(text).ok().map(Self)
    }

    /// What the pattern means of the operator `name`, whose levels are separated by dots: all of it, or a module that
    /// contains it.
    pub fn part_of<'n>(&self, name: &'n str) -> Option<&'n str> {
        let levels: Vec<&str> = name.split('.').collect();
        let fits = self.0.len() <= levels.len()
            && self.0.iter().zip(&levels).all(|(pattern, level)| pattern.is_match(level.as_bytes()));
        fits.then(|| &name[..levels[..self.0.len()].join(".").len()])
    }
}

/// Whether two patterns name the same operators: at each level one of the two matches the other.
fn conflict(one: &str, other: &str) -> bool {
    let (Ok(ones), Ok(others)) = (names(one), names(other)) else { return false };
    let mut levels = one.split(SEPARATOR).zip(other.split(SEPARATOR)).zip(ones.iter().zip(&others));
    let matches = |((one, other), (as_one, as_other)): ((&str, &str), (&Regex, &Regex))| {
        one == other || as_one.is_match(other.as_bytes()) || as_other.is_match(one.as_bytes())
    };
    ones.len() == others.len() && levels.all(matches)
}

const SEPARATOR: &str = r"\.";

/// The levels of a pattern, each to match a whole name.
fn names(pattern: &str) -> Result<Vec<Regex>, String> {
    pattern
        .split(SEPARATOR)
        .map(|name| compile(name).and_then(|_| compile(&format!("^(?:{name})$"))))
        .collect()
}

/// Text other than the words of YAML 1.1 for True and False.
fn is_pattern(node: &Node) -> bool {
    node.word().is_some() && bool::from_node(node).is_none()
}

impl Setting for Selection {
    fn kind() -> ValueKind {
        ValueKind::Form(
            "True, False, how many layers of each pipeline stage as in [2, 1], such a list for each interleave, a list of \
             patterns, or a section of patterns and layers",
        )
    }

    fn to_node(&self) -> Option<Node> {
        match self {
            Self::Defaults(amount) => amount.to_node(),
            Self::Patterns(patterns) => patterns.to_node(),
            Self::Amounts(amounts) => {
                let entry = |(pattern, amount): &(String, Amount)| Some((pattern.clone(), amount.to_node()?));
                Some(Node::Map(amounts.iter().filter_map(entry).collect()))
            }
        }
    }
}

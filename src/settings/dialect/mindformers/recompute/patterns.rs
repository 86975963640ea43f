//! Patterns of operators: the operators that a key selects, and the layers in which it selects them.
//!
//! A pattern is a path of regular expressions, separated by `\.`; each expression must match a whole name, from the
//! block down to the operator.

use super::counts::Amount;
use crate::model::config::Operator;
use crate::model::groups::compile;
use crate::settings::dialect::mindformers::lines;
use crate::settings::engine::*;
use regex::bytes::Regex;
use std::sync::LazyLock;

/// Patterns, each with an amount of layers; an entry without a pattern stands for the default patterns of the key.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection(pub Vec<(Option<Pattern>, Amount)>);

/// A pattern: its text, and the levels that it has.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The pattern as it is written.
    pub text: String,
    levels: Vec<Regex>,
}

const SEPARATOR: &str = r"\.";

/// The operators of MindFormers that the operators here fuse.
static OPERATORS: LazyLock<Vec<[&str; 2]>> = LazyLock::new(|| lines(include_str!("operators.tsv")).collect());

/// Names of operators without an output of their own that could be dropped: the reason, and the names between spaces.
const WITHOUT_OUTPUT: [(&str, &str); 3] = [
    (
        "writes into the output of `attention.wqkv` or `attention.qk_norm`, with which it is recomputed",
        "attention.rope attention.apply_rotary_emb self_attention.apply_rotary_pos_emb",
    ),
    (
        "is a view",
        "attention.wq.reshape attention.wk.reshape attention.wv.reshape attention.w_qkv.reshape \
         attention.wo.reshape attention.reshape feed_forward.w1.reshape feed_forward.w2.reshape \
         feed_forward.w3.reshape feed_forward.w_gate_hidden.reshape feed_forward.reshape",
    ),
    (
        "adds to the result of the layer, which is always kept",
        "feed_forward.w_down feed_forward.w2.matmul mlp.linear_fc2.matmul feed_forward.combine",
    ),
];

impl Selection {
    /// Reads `node`.
    ///
    /// # Errors
    /// The part of it that selects nothing, or the pattern that is no regular expression.
    pub fn read(node: &Node) -> Result<Self, String> {
        let entries: Result<Vec<_>, String> = match node {
            Node::List(items) if items.iter().any(is_pattern) => {
                if !items.iter().all(is_pattern) {
                    return Err("patterns beside other values in one list".to_string());
                }
                let patterns = items.iter().filter_map(Node::word).map(Pattern::new);
                patterns.map(|pattern| Ok((Some(pattern?), Amount::every(true)))).collect()
            }
            Node::Map(entries) => {
                let amount = |(text, node): &(String, Node)| match Amount::read(node) {
                    Ok(amount) => Ok((Some(Pattern::new(text)?), amount)),
                    Err(found) => Err(format!("{found} for `{}`", text.escape_debug())),
                };
                entries.iter().map(amount).collect()
            }
            _ => Amount::read(node).map(|amount| vec![(None, amount)]),
        };
        entries.map(Self)
    }
}

impl Pattern {
    /// The pattern `text`.
    ///
    /// # Errors
    /// A level that is no regular expression.
    pub fn new(text: &str) -> Result<Self, String> {
        let level = |name: &str| compile(name).and_then(|_| compile(&format!("^(?:{name})$")));
        match text.split(SEPARATOR).map(level).collect() {
            Ok(levels) => Ok(Self { text: text.to_string(), levels }),
            Err(_) if text.contains(r"\\.") => Err(format!(
                "`{text}`, of which single quotes keep both backslashes; write `'{}'`",
                text.replace(r"\\", r"\")
            )),
            Err(message) => Err(format!("a pattern that cannot be read: {message}")),
        }
    }

    /// The part of the operator's path `name` that the pattern matches: the whole path, or a module that contains the
    /// operator.
    pub fn part_of<'n>(&self, name: &'n str) -> Option<&'n str> {
        let levels: Vec<&str> = name.split('.').collect();
        let fits = self.levels.len() <= levels.len()
            && self.levels.iter().zip(&levels).all(|(pattern, level)| pattern.is_match(level.as_bytes()));
        fits.then(|| &name[..levels[..self.levels.len()].join(".").len()])
    }

    /// Whether both patterns name the same operators: at each level one of the two matches the other.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let texts = self.text.split(SEPARATOR).zip(other.text.split(SEPARATOR));
        let mut levels = texts.zip(self.levels.iter().zip(&other.levels));
        let matches = |((one, other), (as_one, as_other)): ((&str, &str), (&Regex, &Regex))| {
            one == other || as_one.is_match(other.as_bytes()) || as_other.is_match(one.as_bytes())
        };
        self.levels.len() == other.levels.len() && levels.all(matches)
    }

    /// Why the pattern selects nothing, if it names an operator that has no output of its own.
    pub fn without_output(&self) -> Option<String> {
        WITHOUT_OUTPUT.iter().find_map(|(reason, names)| {
            let name = words(names).find(|name| self.part_of(name).is_some())?;
            Some(format!("`{}` selects nothing to recompute: `{name}` {reason}", self.text))
        })
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Setting for Selection {
    fn kind() -> ValueKind {
        ValueKind::Form(
            "True, False, how many layers of each pipeline stage as in [2, 1], such a list for each interleave, a \
             list of patterns, or a section of patterns and layers",
        )
    }

    /// Only a default is written: the `config.yaml` of the run folder has `layers` and `operators` instead.
    fn to_node(&self) -> Option<Node> {
        self.0.is_empty().then(|| false.into())
    }
}

/// The names that `operator` answers to: its path, and the names of the operators that it fuses.
pub fn names(operator: Operator) -> impl Iterator<Item = &'static str> {
    let path = operator.path();
    let of_operator = OPERATORS.iter().find(|[known, _]| *known == path);
    std::iter::once(path).chain(of_operator.into_iter().flat_map(|[_, names]| words(names)))
}

/// The operators, and the names that they answer to, for the documentation of the keys.
pub fn listing() -> String {
    let quoted = |names: Vec<&str>| format!("`{}`", names.join("`, `"));
    let mut text = " Operators, and the names of MindFormers that they answer to:\n".to_string();
    for operator in Operator::all() {
        let others: Vec<&str> = names(operator).skip(1).collect();
        let others = if others.is_empty() { String::new() } else { format!(": {}", quoted(others)) };
        text += &format!("\n- `{}`{others}", operator.path());
    }
    text += "\n\nWhat has no output of its own that could be dropped:\n";
    for (reason, names) in WITHOUT_OUTPUT {
        text += &format!("\n- {}: each {reason}", quoted(words(names).collect()));
    }
    text
}

/// Whether `node` is text other than the words of YAML 1.1 for True and False.
fn is_pattern(node: &Node) -> bool {
    node.word().is_some() && bool::from_node(node).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_of_an_operator() {
        for [path, _] in OPERATORS.iter() {
            assert!(Operator::named(path).is_some(), "{path}");
        }
    }
}

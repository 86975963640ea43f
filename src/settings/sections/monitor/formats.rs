//! The destinations of a monitored number.

use crate::settings::engine::{Node, Setting, ValueKind};

/// The destinations of a number. By default it has none and is not computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formats {
    /// Whether the number is in a line of the log.
    pub log: bool,
    /// Whether the number is a scalar of TensorBoard.
    pub tensorboard: bool,
}

const LOG: &str = "log";
const TENSORBOARD: &str = "tensorboard";

impl Formats {
    /// The log alone.
    pub const LOG: Self = Self { log: true, tensorboard: false };

    /// Whether the number goes anywhere.
    pub fn is_on(&self) -> bool {
        self.log || self.tensorboard
    }

    fn with(self, node: &Node) -> Option<Self> {
        match node.word()? {
            LOG => Some(Self { log: true, ..self }),
            TENSORBOARD => Some(Self { tensorboard: true, ..self }),
            _ => None,
        }
    }
}

impl Setting for Formats {
    fn kind() -> ValueKind {
        ValueKind::Form("log, tensorboard or a list of both")
    }

    fn from_node(node: &Node) -> Option<Self> {
        match node {
            Node::List(items) => {
                items.iter().try_fold(Self::default(), |formats: Self, item| formats.with(item))
            }
            word => Self::default().with(word),
        }
    }

    fn to_node(&self) -> Option<Node> {
        let words = [(self.log, LOG), (self.tensorboard, TENSORBOARD)];
        let words: Vec<Node> =
            words.iter().filter(|(is_on, _)| *is_on).map(|(_, word)| (*word).into()).collect();
        self.is_on().then_some(Node::List(words))
    }
}

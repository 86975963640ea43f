//! `parallel.parallel_mode`.

use crate::settings::engine::*;

/// `parallel.parallel_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ParallelMode {
    /// Every device has the whole model.
    Data,
    /// As `parallel_config` says.
    #[default]
    SemiAuto,
    /// The same, and the rest is searched for.
    Auto,
    /// As the program says.
    Hybrid,
    /// One device.
    StandAlone,
}

/// MindFormers' number, if it has one, and words.
const MODES: [(ParallelMode, &str, &str); 6] = [
    (ParallelMode::Data, "0", "DATA_PARALLEL"),
    (ParallelMode::SemiAuto, "1", "SEMI_AUTO_PARALLEL"),
    (ParallelMode::Auto, "2", "AUTO_PARALLEL"),
    (ParallelMode::Hybrid, "3", "HYBRID_PARALLEL"),
    (ParallelMode::StandAlone, "", "STAND_ALONE"),
    (ParallelMode::StandAlone, "", "MANUAL_PARALLEL"),
];

impl Setting for ParallelMode {
    fn kind() -> ValueKind {
        ValueKind::Form("0, 1, 2, 3 or a word such as SEMI_AUTO_PARALLEL")
    }

    fn from_node(node: &Node) -> Option<Self> {
        let written = match node {
            Node::Int(number) => number.to_string(),
            node => node.word()?.to_ascii_uppercase(),
        };
        let known = |(_, number, word): &&(Self, &str, &str)| written == *number || written == *word;
        MODES.iter().find(known).filter(|_| !written.is_empty()).map(|(mode, ..)| *mode)
    }

    fn to_node(&self) -> Option<Node> {
        MODES.iter().find(|(mode, ..)| mode == self).map(|(.., word)| Node::from(*word))
    }
}

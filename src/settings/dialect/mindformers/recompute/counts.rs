//! Counts of layers, in every form that MindFormers accepts.

use crate::model::stages::{Chunks, Stages};
use crate::settings::engine::*;

/// How many layers, counted from the first of each chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Counts for the stages, distributed to the interleaves of each stage in turn.
    OfStages(Counts),
    /// Counts for the stages of each interleave.
    OfInterleaves(Vec<Counts>),
}

/// The number of layers of each stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counts {
    /// All layers, or none.
    Every(bool),
    /// A count for each stage. A count above the layers of its stage takes them all, and stages at the end without a
    /// count have 0.
    Listed(Vec<usize>),
}

impl Amount {
    /// All layers, or none.
    pub const fn every(all: bool) -> Self {
        Self::OfStages(Counts::Every(all))
    }

    /// Reads `node`.
    ///
    /// # Errors
    /// The part of it that is no amount.
    pub fn read(node: &Node) -> Result<Self, String> {
        match node {
            Node::List(items) if items.iter().any(|item| matches!(item, Node::List(_))) => {
                let beside = |item: &Node| format!("{item} beside a list in the same list");
                items
                    .iter()
                    .map(|item| Counts::read(item, beside))
                    .collect::<Result<_, _>>()
                    .map(Self::OfInterleaves)
            }
            _ => Counts::read(node, Node::to_string).map(Self::OfStages),
        }
    }

    /// Whether the amount depends on which layers the stages have.
    pub fn depends_on_stages(&self) -> bool {
        !matches!(self, Self::OfStages(Counts::Every(_)))
    }

    /// The amount as one number for each chunk of `stages`, at most the layers that the chunk has.
    ///
    /// # Errors
    /// If there are more numbers than stages, or another number of interleaves.
    pub fn distribute(&self, stages: &Stages) -> Result<Chunks, String> {
        let layers = stages.layers();
        match self {
            Self::OfStages(counts) => {
                let of_stage = |stage| layers.iter().map(|row: &Vec<usize>| row[stage]).sum();
                let totals: Vec<usize> = (0..stages.stages()).map(of_stage).collect();
                Ok(deal_in_turn(&counts.limit(&totals)?, layers))
            }
            Self::OfInterleaves(rows) if rows.len() != layers.len() => Err(format!(
                "has {} lists, but there are {} interleaves (pp_interleave_num); write one for each",
                rows.len(),
                layers.len()
            )),
            Self::OfInterleaves(rows) => {
                rows.iter().zip(layers).map(|(row, layers)| row.limit(layers)).collect()
            }
        }
    }
}

impl Counts {
    /// Reads `node`; `found` describes a value of another kind.
    fn read(node: &Node, found: impl Fn(&Node) -> String) -> Result<Self, String> {
        match node {
            Node::List(items) => items.iter().map(count).collect::<Result<_, _>>().map(Self::Listed),
            _ => bool::from_node(node).map(Self::Every).ok_or_else(|| found(node)),
        }
    }

    /// The counts for stages with `layers` layers, each limited to the layers of its stage.
    fn limit(&self, layers: &[usize]) -> Result<Vec<usize>, String> {
        match self {
            Self::Every(all) => Ok(layers.iter().map(|layers| layers * usize::from(*all)).collect()),
            Self::Listed(counts) if counts.len() > layers.len() => Err(too_long(counts.len(), layers.len())),
            Self::Listed(counts) => {
                let counts = counts.iter().copied().chain(std::iter::repeat(0));
                Ok(layers.iter().zip(counts).map(|(layers, count)| count.min(*layers)).collect())
            }
        }
    }
}

impl Setting for Amount {
    fn kind() -> ValueKind {
        ValueKind::Form(
            "True, False, or how many layers of each pipeline stage as in [2, 1], or such a list for each interleave",
        )
    }

    /// Only a default is written: the `config.yaml` of the run folder has `layers` and `operators` instead.
    fn to_node(&self) -> Option<Node> {
        (*self == Self::every(false)).then(|| false.into())
    }
}

/// The number of layers of one stage; `True` means all.
fn count(node: &Node) -> Result<usize, String> {
    match node {
        Node::Int(count) if *count < 0 => Err(format!("the negative number {node}")),
        Node::Int(count) => Ok(usize::try_from(*count).unwrap_or(usize::MAX)),
        _ => match bool::from_node(node) {
            Some(all) => Ok(if all { usize::MAX } else { 0 }),
            None => Err(format!("{node} in the list")),
        },
    }
}

fn too_long(counts: usize, stages: usize) -> String {
    let most = if stages == 1 { "one entry".to_string() } else { format!("at most {stages} entries") };
    format!(
        "has {counts} entries, but parallel_config.pipeline_stage is {stages}; write {most}, or `pipeline_stage: \
         {counts}`"
    )
}

/// Distributes the count of each stage, limited to the stage's layers, to its interleaves: one layer at a time, in
/// turn, to those that have layers left.
fn deal_in_turn(counts: &[usize], layers: &Chunks) -> Chunks {
    let mut distributed: Chunks = layers.iter().map(|row| vec![0; row.len()]).collect();
    for (stage, count) in counts.iter().enumerate() {
        let mut rest = *count;
        for turn in 1.. {
            for (row, layers) in distributed.iter_mut().zip(layers) {
                if rest > 0 && layers[stage] >= turn {
                    row[stage] = turn;
                    rest -= 1;
                }
            }
            if rest == 0 {
                break;
            }
        }
    }
    distributed
}

//! How many layers a key of `recompute_config` is about, in every form that MindFormers accepts.

use crate::model::stages::{Chunks, Stages};
use crate::settings::engine::*;

/// How many layers, counted from the first of each chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Amount {
    /// All layers, or none.
    Every(bool),
    /// Of each stage, distributed to its interleaves in turn; stages at the end without a count have 0.
    Stages(Vec<Count>),
    /// Of each interleave.
    Chunks(Vec<CountsOfInterleave>),
}

/// How many layers of one interleave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CountsOfInterleave {
    /// All layers, or none.
    Every(bool),
    /// Of each stage.
    Stages(Vec<Count>),
}

/// How many layers of one place; more than it has are all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// All layers, or none.
    Every(bool),
    /// So many.
    Layers(u64),
}

impl Amount {
    /// Reads `node`.
    ///
    /// # Errors
    /// What was found that is no amount.
    pub(super) fn read(node: &Node) -> Result<Self, String> {
        match node {
            Node::List(items) if items.iter().any(|item| matches!(item, Node::List(_))) => {
                items.iter().map(CountsOfInterleave::read).collect::<Result<_, _>>().map(Self::Chunks)
            }
            Node::List(items) => counts(items).map(Self::Stages),
            _ => bool::from_node(node).map(Self::Every).ok_or_else(|| node.to_string()),
        }
    }

    /// Whether it depends on which layers the stages have.
    pub(super) fn depends_on_stages(&self) -> bool {
        !matches!(self, Self::Every(_))
    }

    /// The amount as one number for each chunk of `stages`, at most the layers that the chunk has.
    ///
    /// # Errors
    /// If there are more numbers than stages, or another number of interleaves.
    pub(super) fn distribute(&self, stages: &Stages) -> Result<Chunks, String> {
        let layers = stages.layers();
        match self {
            Self::Every(true) => Ok(layers.clone()),
            Self::Every(false) => Ok(layers.iter().map(|row| vec![0; row.len()]).collect()),
            Self::Stages(counts) if counts.len() > stages.stages() => Err(too_long(counts.len(), stages)),
            Self::Stages(counts) => Ok(deal_in_turn(counts, layers)),
            Self::Chunks(rows) if rows.len() != layers.len() => Err(format!(
                "has {} lists, but there are {} interleaves (pp_interleave_num); write one for each",
                rows.len(),
                layers.len()
            )),
            Self::Chunks(rows) => {
                rows.iter().zip(layers).map(|(row, layers)| row.distribute(layers, stages)).collect()
            }
        }
    }
}

impl CountsOfInterleave {
    fn read(node: &Node) -> Result<Self, String> {
        match node {
            Node::List(items) => counts(items).map(Self::Stages),
            _ => bool::from_node(node)
                .map(Self::Every)
                .ok_or_else(|| format!("{node} beside a list in the same list")),
        }
    }

    fn distribute(&self, layers: &[usize], stages: &Stages) -> Result<Vec<usize>, String> {
        match self {
            Self::Every(all) => Ok(layers.iter().map(|layers| if *all { *layers } else { 0 }).collect()),
            Self::Stages(counts) if counts.len() > layers.len() => Err(too_long(counts.len(), stages)),
            Self::Stages(counts) => {
                let counts = counts.iter().copied().chain(std::iter::repeat(Count::Every(false)));
                Ok(counts.zip(layers).map(|(count, layers)| count.of(*layers)).collect())
            }
        }
    }
}

impl Count {
    fn read(node: &Node) -> Result<Self, String> {
        match node {
            Node::Int(count) if *count < 0 => Err(format!("the negative number {node}")),
            Node::Int(count) => Ok(Self::Layers(u64::try_from(*count).unwrap_or(u64::MAX))),
            _ => bool::from_node(node).map(Self::Every).ok_or_else(|| format!("{node} in the list")),
        }
    }

    /// The count among `layers` layers.
    fn of(self, layers: usize) -> usize {
        match self {
            Self::Every(all) => layers * usize::from(all),
            Self::Layers(count) => usize::try_from(count).unwrap_or(usize::MAX).min(layers),
        }
    }
}

impl Setting for Amount {
    fn kind() -> ValueKind {
        ValueKind::Form(
            "True, False, or how many layers of each pipeline stage as in [2, 1], or such a list for each interleave",
        )
    }

    fn to_node(&self) -> Option<Node> {
        Some(match self {
            Self::Every(all) => (*all).into(),
            Self::Stages(counts) => Node::List(counts.iter().map(Count::node).collect()),
            Self::Chunks(rows) => Node::List(rows.iter().map(CountsOfInterleave::node).collect()),
        })
    }
}

impl CountsOfInterleave {
    fn node(&self) -> Node {
        match self {
            Self::Every(all) => (*all).into(),
            Self::Stages(counts) => Node::List(counts.iter().map(Count::node).collect()),
        }
    }
}

impl Count {
    fn node(&self) -> Node {
        match *self {
            Self::Every(all) => all.into(),
            Self::Layers(count) => count.into(),
        }
    }
}

fn counts(items: &[Node]) -> Result<Vec<Count>, String> {
    items.iter().map(Count::read).collect()
}

fn too_long(counts: usize, stages: &Stages) -> String {
    let stages = stages.stages();
    let most = if stages == 1 { "one entry".to_string() } else { format!("at most {stages} entries") };
    format!(
        "has {counts} entries, but parallel_config.pipeline_stage is {stages}; write {most}, or `pipeline_stage: {counts}`"
    )
}

/// Distributes the count of each stage to its interleaves, one layer at a time, to those that have layers left.
fn deal_in_turn(counts: &[Count], layers: &Chunks) -> Chunks {
    let mut distributed: Chunks = layers.iter().map(|row| vec![0; row.len()]).collect();
    for (stage, count) in counts.iter().enumerate() {
        let total = layers.iter().map(|row| row[stage]).sum();
        let mut rest = count.of(total);
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

//! How many layers the stages of a pipeline have, and each of the chunks of a stage with `pp_interleave_num`: as MindFormers distributes
//! them. Files count layers by stages for a run of one rank, too.

use crate::model::stages::Stages;
use crate::settings::engine::*;

/// `offset`: how many layers a chunk has more than an even share, or fewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offset {
    /// The same for every chunk.
    Every(i64),
    /// For each stage, the same in every interleave.
    Stages(Vec<i64>),
    /// For each interleave, for each stage.
    Chunks(Vec<Vec<i64>>),
}

/// Distributes `layers` layers, blocks of multi-token prediction included, to `stages` stages of `interleaves` chunks each.
///
/// # Errors
/// If there are fewer layers than chunks, or `offset` has other dimensions, does not add up to the remainder, or leaves a
/// chunk a negative number of layers.
pub(crate) fn distribute(
    layers: usize,
    stages: usize,
    interleaves: usize,
    offset: Option<&Offset>,
) -> Result<Stages, String> {
    let chunks = stages.saturating_mul(interleaves);
    if chunks <= 1 {
        return Ok(Stages::one(layers)); // nothing is distributed, whatever the offset says
    }
    let places = format!("{stages} stages x {interleaves} interleaves");
    if chunks > layers {
        return Err(format!("{layers} layers are too few for {places}; write fewer of these"));
    }
    let Some(offsets) = by_chunk(offset.unwrap_or(&Offset::Every(0)), stages, interleaves) else {
        return Err(format!("expected {}, for {places}", Offset::kind().expected()));
    };
    let (share, rest) = ((layers / chunks) as i64, (layers % chunks) as i64);
    let sum = offsets.iter().flatten().fold(0i64, |sum, offset| sum.saturating_add(*offset));
    if sum != rest {
        let found = match offset {
            None => "write an `offset` whose numbers".to_string(),
            Some(_) => format!("the offsets {offsets:?} add up to {sum}; write some that"),
        };
        return Err(format!("{layers} layers over {places} leave {rest}: {found} add up to {rest}"));
    }
    let of_chunk = |offset: &i64| usize::try_from(share.saturating_add(*offset)).ok();
    let distributed = offsets.iter().map(|row| row.iter().map(of_chunk).collect()).collect::<Option<_>>();
    distributed.map(Stages::new).ok_or_else(|| {
        format!(
            "leaves a stage fewer than 0 layers: an even share is {share}; write no offset below -{share}"
        )
    })
}

impl Setting for Offset {
    fn kind() -> ValueKind {
        ValueKind::Form(
            "a whole number, one for each pipeline stage as in [-1, 1], or such a list for each interleave",
        )
    }

    fn from_node(node: &Node) -> Option<Self> {
        let stages = |node: &Node| list(node, i64::from_node);
        i64::from_node(node)
            .map(Self::Every)
            .or_else(|| stages(node).map(Self::Stages))
            .or_else(|| list(node, stages).map(Self::Chunks))
    }

    fn to_node(&self) -> Option<Node> {
        match self {
            Self::Every(offset) => offset.to_node(),
            Self::Stages(offsets) => offsets.to_node(),
            Self::Chunks(offsets) => offsets.to_node(),
        }
    }
}

/// The items of a list.
fn list<T>(node: &Node, read: impl Fn(&Node) -> Option<T>) -> Option<Vec<T>> {
    if let Node::List(items) = node { items.iter().map(read).collect() } else { None }
}

/// `offset` for each chunk; `None` if it has other dimensions.
fn by_chunk(offset: &Offset, stages: usize, interleaves: usize) -> Option<Vec<Vec<i64>>> {
    let offsets = match offset {
        Offset::Every(offset) => vec![vec![*offset; stages]; interleaves],
        Offset::Stages(offsets) => vec![offsets.clone(); interleaves],
        Offset::Chunks(offsets) => offsets.clone(),
    };
    let fits = offsets.len() == interleaves && offsets.iter().all(|row| row.len() == stages);
    fits.then_some(offsets)
}

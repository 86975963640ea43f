//! How MindFormers deals layers to the stages of a pipeline. A run here has no stages, but files count layers by them.
//!
//! With `pp_interleave_num` a stage holds several chunks of layers that are not neighbours: chunks are numbered (interleave,
//! stage), and layers fill them in this order.

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

/// One number for each chunk: for each interleave, for each stage.
pub(crate) type Chunks = Vec<Vec<usize>>;

/// The layers of each chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stages {
    layers: Chunks,
}

impl Stages {
    /// Deals `layers` layers, blocks of multi-token prediction included, to `stages` stages of `interleaves` chunks each.
    ///
    /// # Errors
    /// If there are fewer layers than chunks, or `offset` has other dimensions, does not add up to the remainder, or leaves a
    /// chunk a negative number of layers.
    pub fn new(
        layers: usize,
        stages: usize,
        interleaves: usize,
        offset: Option<&Offset>,
    ) -> Result<Self, String> {
        let chunks = stages.saturating_mul(interleaves);
        if chunks <= 1 {
            return Ok(Self::one(layers)); // nothing is dealt, whatever the offset says
        }
        let places = format!("{stages} stages x {interleaves} interleaves");
        if chunks > layers {
            return Err(format!("{layers} layers are too few for {places}"));
        }
        let Some(offsets) = by_chunk(offset.unwrap_or(&Offset::Every(0)), stages, interleaves) else {
            return Err(format!("expected {}, for {places}", Offset::kind().expected()));
        };
        let (share, rest) = ((layers / chunks) as i64, (layers % chunks) as i64);
        let sum = offsets.iter().flatten().fold(0i64, |sum, offset| sum.saturating_add(*offset));
        if sum != rest {
            return Err(format!(
                "{layers} layers over {places} leave {rest}, but the offsets add up to {sum}"
            ));
        }
        let of_chunk = |offset: &i64| usize::try_from(share.saturating_add(*offset)).ok();
        let dealt = offsets.iter().map(|row| row.iter().map(of_chunk).collect()).collect::<Option<_>>();
        dealt
            .map(|layers| Self { layers })
            .ok_or_else(|| format!("leaves a stage fewer than 0 layers: an even share is {share}"))
    }

    /// All layers in one stage.
    pub fn one(layers: usize) -> Self {
        Self { layers: vec![vec![layers]] }
    }

    /// The layers of each chunk.
    pub fn layers(&self) -> &Chunks {
        &self.layers
    }

    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.layers.first().map_or(0, Vec::len)
    }

    /// Layers before the end of each chunk.
    pub fn accumulated(&self) -> Chunks {
        let mut end = 0;
        let mut add = |layers: &usize| {
            end += layers;
            end
        };
        self.layers.iter().map(|row| row.iter().map(&mut add).collect()).collect()
    }

    /// The numbers of the first layers of each chunk, `counts` of them: which layers MindFormers recomputes.
    pub fn first(&self, counts: &Chunks) -> Vec<usize> {
        let chunks = self.layers.iter().flatten().zip(self.accumulated().into_iter().flatten());
        let counts = counts.iter().flatten();
        chunks.zip(counts).flat_map(|((layers, end), count)| end - layers..end - layers + count).collect()
    }
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

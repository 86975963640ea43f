//! How many layers each stage of a pipeline has and, with `pp_interleave_num`, each chunk of a stage.

use super::{Distribution, Parallelism};
use crate::model::stages::Stages;
use crate::settings::engine::*;
use crate::settings::sections::model::{self, Model};

/// `offset`: how many layers a chunk has more or fewer than an even share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offset {
    /// One number for every chunk.
    Every(i64),
    /// One number for each stage, the same in every interleave.
    Stages(Vec<i64>),
    /// One number for each stage of each interleave.
    Chunks(Vec<Vec<i64>>),
}

/// The switch that makes `pp_interleave_num` count.
const INTERLEAVE: &str = "parallel.pipeline_config.pipeline_interleave";

/// The stages over which a run is spread, and their layers. After a fault all layers are in one stage.
pub(crate) fn stages(source: &Source, model: &Model, parallel: &Distribution) -> Stages {
    let one = || Stages::one(model.blocks());
    if parallel.layout.pipeline == 1 || !is_shape_sound(source) {
        return one();
    }
    let ahead = model.mtp_depth.unwrap_or(0);
    let source_of = |layer: usize| model.config.layer(layer).kv_source;
    let check = |stages: Stages| {
        stages.check(ahead)?;
        stages.check_sources(source_of)?;
        Ok(stages)
    };
    or_fault(source, model, parallel, asked(model, parallel).and_then(check)).unwrap_or_else(one)
}

/// The stages that counts of layers refer to, also on one rank: the stages that the file asks for. If no key `counts`
/// layers by stages, the keys about stages have no meaning on one rank. `None` after a fault.
pub(crate) fn counted_stages(
    source: &Source,
    model: &Model,
    parallel: &Distribution,
    counts: bool,
) -> Option<Stages> {
    if !is_shape_sound(source) {
        return None;
    }
    if parallel.layout.pipeline > 1 {
        return Some(parallel.stages.clone());
    }
    if counts {
        return or_fault(source, model, parallel, asked(model, parallel));
    }
    for key in ["offset", "pp_interleave_num"].map(|key| join(model::PATH, key)) {
        if source.node(&key).is_some_and(|node| !node.is_off()) {
            source.ignore(&key);
        }
    }
    if source.value(INTERLEAVE) == Some(true) {
        source.ignore(INTERLEAVE);
    }
    Some(asked(model, parallel).unwrap_or_else(|_| Stages::one(model.blocks())))
}

/// Reports chunks of a stage where there are no stages, and two numbers of them.
pub(crate) fn check_interleaves(source: &Source, model: &Model, parallel: &Distribution) {
    let (own, other) = (join(model::PATH, "pp_interleave_num"), "parallel_config.pp_interleave_num");
    if let (Some(written), Some(count)) = (source.value::<u64>(other), model.pp_interleave_num)
        && written != count
    {
        source.fault(&own, format!("is {count}, and `{other}` is {written}; keep one of them"));
    }
    let key = "parallel_config.pipeline_stage";
    let is_alone = parallel.counts && parallel.asked.degrees.pipeline_stage == 1 && source.is_sound(key);
    let interleaves = interleaves(model, parallel);
    if is_alone && parallel.asked.pipeline.pipeline_interleave && interleaves > 1 {
        let message = format!(
            "pp_interleave_num {interleaves} needs pipeline_stage above 1; raise it, or write `{INTERLEAVE}: False`"
        );
        source.fault(key, message);
    }
}

/// Whether the keys that the layers of stages follow from have no fault.
pub(crate) fn is_shape_sound(source: &Source) -> bool {
    let shape = ["type", "num_layers", "mtp_depth", "offset", "pp_interleave_num"];
    let is_sound = shape.iter().all(|key| source.is_sound(&join(model::PATH, key)));
    is_sound && ["model.arch", "parallel_config"].iter().all(|path| source.is_sound(path))
}

/// The stages that the written degrees ask for.
fn asked(model: &Model, parallel: &Distribution) -> Result<Stages, String> {
    let Parallelism { degrees, pipeline, .. } = &parallel.asked;
    let interleaves = if pipeline.pipeline_interleave { interleaves(model, parallel) } else { 1 };
    let [stages, interleaves] =
        [degrees.pipeline_stage, interleaves].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    distribute(model.blocks(), stages, interleaves, model.offset.as_ref())
}

fn interleaves(model: &Model, parallel: &Distribution) -> u64 {
    model.pp_interleave_num.unwrap_or(parallel.asked.degrees.pp_interleave_num)
}

/// Notes that interleaves do not count without their switch, and reports why there are no stages: as a fault of that
/// switch if `offset` has a list for each interleave, otherwise of the offsets or of the number of stages.
fn or_fault(
    source: &Source,
    model: &Model,
    parallel: &Distribution,
    stages: Result<Stages, String>,
) -> Option<Stages> {
    let interleaves = interleaves(model, parallel);
    let lacks_switch = interleaves > 1 && !parallel.asked.pipeline.pipeline_interleave;
    if lacks_switch {
        source.note(format!("pp_interleave_num: `{interleaves}` is taken as 1 without `{INTERLEAVE}: True`"));
    }
    let report = |message: String| {
        match model.offset {
        Some(Offset::Chunks(_)) if lacks_switch => source.fault(
            INTERLEAVE,
            "must be True where `offset` has a list for each interleave: without it `pp_interleave_num` counts as 1; \
             write True, or one offset for each stage",
        ),
        Some(_) => source.fault(&join(model::PATH, "offset"), message),
        None => source.fault("parallel_config.pipeline_stage", message),
    }
    };
    stages.map_err(report).ok()
}

/// Distributes `layers` layers, blocks of multi-token prediction included, to `stages` stages of `interleaves` chunks
/// each.
///
/// # Errors
/// If there are fewer layers than chunks, or `offset` has other dimensions, does not add up to the remainder, or
/// leaves a chunk a negative number of layers.
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

/// The `offset` of each chunk; `None` if `offset` has other dimensions.
fn by_chunk(offset: &Offset, stages: usize, interleaves: usize) -> Option<Vec<Vec<i64>>> {
    let offsets = match offset {
        Offset::Every(offset) => vec![vec![*offset; stages]; interleaves],
        Offset::Stages(offsets) => vec![offsets.clone(); interleaves],
        Offset::Chunks(offsets) => offsets.clone(),
    };
    let fits = offsets.len() == interleaves && offsets.iter().all(|row| row.len() == stages);
    fits.then_some(offsets)
}

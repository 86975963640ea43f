//! The recordings of forward and backward passes, and those of what the ranks make of them.

use super::arenas::Arenas;
use crate::error::Result;
use crate::kernels::Capabilities;
use crate::model::arena::{Arena, ArenaLayout, Holds};
use crate::model::gpt::LossTensors;
use crate::model::{ForwardContext, Mode, Training};
use crate::ops::cast::cast;
use crate::ops::dropout::count_micro_step;
use crate::record::{Recorder, Recording, Tensor};
use crate::sharding::buckets::BucketBuffers;
use crate::sharding::ownership::Ownership;
use crate::tape::Tape;

/// The parameters that passes are recorded on.
#[derive(Clone, Copy)]
pub(super) struct Passes<'a> {
    pub layout: &'a ArenaLayout,
    pub arenas: &'a Arenas,
    pub ownership: &'a Ownership,
    pub capabilities: Capabilities,
}

impl Passes<'_> {
    /// Forward, loss and backward: gradients are added to their arena.
    pub fn micro_step(&self, training: &ForwardContext<'_>, losses: &LossTensors) -> Result<Recording> {
        let Self { layout, arenas, ownership, capabilities } = *self;
        let mut rec = Recorder::new("micro_step", capabilities);
        if let Mode::Training(Training { step, masks: Some(masks), .. }) = training.mode {
            let (rank, ranks) = (ownership.ranks.data_rank() as u32, ownership.ranks.data as u32);
            rec.scope("dropout", |rec| count_micro_step(rec, step, masks.state, rank, ranks));
        }
        let read = arenas.read();
        let weights =
            ownership.shards_weights().then(|| BucketBuffers::for_weights(&mut rec, ownership, &read));
        let sums = &arenas.gradients;
        let gradients =
            ownership.shards_gradients().then(|| BucketBuffers::for_gradients(&mut rec, ownership, sums));
        let gpt = layout.bind(training.config, held(&weights, &read), Some(held(&gradients, sums)));
        let mut tape = Tape::new(&mut rec);
        gpt.loss(&mut tape, training, losses);
        let backward = tape.rec.dispatch_count();
        tape.backward();
        if let Some(weights) = weights {
            weights.gather(&mut rec, ownership, Some(backward));
        }
        if let Some(gradients) = gradients {
            gradients.scatter(&mut rec, ownership);
        }
        ownership.sum_gradients(&mut rec, sums);
        ownership.sum_repeated(&mut rec, layout, sums);
        rec.try_finish()
    }

    /// Forward and loss alone.
    pub fn eval(&self, evaluation: &ForwardContext<'_>, losses: &LossTensors) -> Result<Recording> {
        let Self { layout, arenas, ownership, capabilities } = *self;
        let mut rec = Recorder::new("eval", capabilities);
        let read = arenas.read();
        let weights =
            ownership.shards_weights().then(|| BucketBuffers::for_weights(&mut rec, ownership, &read));
        let gpt = layout.bind(evaluation.config, held(&weights, &read), None);
        gpt.loss(&mut Tape::forward_only(&mut rec), evaluation, losses);
        if let Some(weights) = weights {
            weights.gather(&mut rec, ownership, None);
        }
        rec.try_finish()
    }
}

/// What holds parameters: the buffers of a recording, or else the arena.
fn held<'a>(buffers: &'a Option<BucketBuffers<'_>>, arena: &'a Arena) -> &'a dyn Holds {
    match buffers {
        Some(buffers) => buffers,
        None => arena,
    }
}

/// Rounds the weights that layers read in 16 bits, segment by segment.
pub(super) fn copies(
    layout: &ArenaLayout,
    arenas: &Arenas,
    ownership: &Ownership,
    capabilities: Capabilities,
) -> Result<Option<Recording>> {
    let mut rec = Recorder::new("copy", capabilities);
    let copied = arenas.copies.segments.iter().enumerate().filter(|(_, copy)| copy.is_some());
    for (i, _) in copied.clone() {
        for range in ownership.updated(layout, i) {
            let [weights, copies] =
                [&arenas.weights, &arenas.copies].map(|arena| arena.range(i, range.clone()));
            rec.scope(format!("weights.{i}"), |rec| cast(rec, weights, copies));
        }
    }
    ownership.gather(&mut rec, &arenas.copies, "copies", |_| true);
    let recording = rec.try_finish()?;
    Ok((copied.count() > 0).then_some(recording))
}

/// The sums of an evaluation's losses and correct predictions over the ranks, each of which evaluates some of the micro-batches.
pub(super) fn sum_evaluation(
    loss: Tensor,
    correct: Option<Tensor>,
    ownership: &Ownership,
    capabilities: Capabilities,
) -> Result<Option<Recording>> {
    let mut rec = Recorder::new("sum_evaluation", capabilities);
    let sums: Vec<Tensor> = [loss].into_iter().chain(correct).collect();
    ownership.sum_counts(&mut rec, &sums, None);
    let recording = rec.try_finish()?;
    Ok((!recording.exchanges.is_empty()).then_some(recording))
}

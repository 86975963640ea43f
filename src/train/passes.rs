//! The recordings of forward and backward passes, and those of what the ranks make of them.

use super::arenas::Arenas;
use super::sharing::Sharing;
use crate::error::Result;
use crate::kernels::Capabilities;
use crate::model::arena::ArenaLayout;
use crate::model::gpt::LossTensors;
use crate::model::parameters::Gpt;
use crate::model::{ForwardContext, Mode, Training};
use crate::ops::cast::cast;
use crate::ops::dropout::count_micro_step;
use crate::record::{Recorder, Recording, Tensor};
use crate::tape::{Parameter, Tape};

/// Forward, loss and backward: gradients are added to their arena.
pub(super) fn micro_step(
    gpt: &Gpt<Parameter>,
    training: &ForwardContext<'_>,
    losses: &LossTensors,
    sharing: &Sharing,
    arenas: &Arenas,
    capabilities: Capabilities,
) -> Result<Recording> {
    let mut rec = Recorder::new("micro_step", capabilities);
    if let Mode::Training(Training { step, masks: Some(masks), .. }) = training.mode {
        let (rank, ranks) = (sharing.ranks.data_rank() as u32, sharing.ranks.data as u32);
        rec.scope("dropout", |rec| count_micro_step(rec, step, masks.state, rank, ranks));
    }
    let mut tape = Tape::new(&mut rec);
    gpt.loss(&mut tape, training, losses);
    tape.backward();
    sharing.sum_gradients(&mut rec, &arenas.gradients);
    rec.try_finish()
}

/// Forward and loss alone.
pub(super) fn eval(
    gpt: &Gpt<Parameter>,
    evaluation: &ForwardContext<'_>,
    losses: &LossTensors,
    capabilities: Capabilities,
) -> Result<Recording> {
    let mut rec = Recorder::new("eval", capabilities);
    gpt.loss(&mut Tape::forward_only(&mut rec), evaluation, losses);
    rec.try_finish()
}

/// Rounds the weights that layers read in 16 bits, segment by segment.
pub(super) fn copies(
    layout: &ArenaLayout,
    arenas: &Arenas,
    sharing: &Sharing,
    capabilities: Capabilities,
) -> Result<Option<Recording>> {
    let mut rec = Recorder::new("copy", capabilities);
    let copied = arenas.copies.segments.iter().enumerate().filter(|(_, copy)| copy.is_some());
    for (i, _) in copied.clone() {
        for range in sharing.updated(layout, i) {
            let [weights, copies] =
                [&arenas.weights, &arenas.copies].map(|arena| arena.range(i, range.clone()));
            rec.scope(format!("weights.{i}"), |rec| cast(rec, weights, copies));
        }
    }
    sharing.gather(&mut rec, &arenas.copies, "copies", |_| true);
    let recording = rec.try_finish()?;
    Ok((copied.count() > 0).then_some(recording))
}

/// The sum of an evaluation's losses over the ranks, each of which evaluates some of the micro-batches.
pub(super) fn sum_evaluation(
    loss: Tensor,
    sharing: &Sharing,
    capabilities: Capabilities,
) -> Result<Option<Recording>> {
    let mut rec = Recorder::new("sum_evaluation", capabilities);
    sharing.sum_counts(&mut rec, &[loss], None);
    let recording = rec.try_finish()?;
    Ok((!recording.exchanges.is_empty()).then_some(recording))
}

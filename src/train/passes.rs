//! The recordings of forward and backward passes, and those of the ranks' work on their results.

use super::arenas::Arenas;
use super::hot_copies::HotCopies;
use super::model_chunks::ModelChunk;
use crate::element::Element;
use crate::error::Result;
use crate::kernels::Capabilities;
use crate::model::arena::{Arena, ArenaLayout, Holds};
use crate::model::config::{LowRank, Magnitudes};
use crate::model::parameters::Gpt;
use crate::model::{ForwardContext, Mode, Training, start_from_norms};
use crate::ops::cast::cast;
use crate::ops::dropout::count_micro_step;
use crate::ops::preference::Preference;
use crate::ranks::Group;
use crate::ranks::sharding::buckets::BucketBuffers;
use crate::ranks::sharding::ownership::Ownership;
use crate::record::{Collective, Recorder, Recording, Span, Tensor};
use crate::settings::RunPlan;
use crate::tape::{CrossEntropy, Parameter, Tape};

/// The parameters that passes are recorded on.
#[derive(Clone, Copy)]
pub(super) struct Passes<'a> {
    pub layout: &'a ArenaLayout,
    pub arenas: &'a Arenas,
    pub copies: Option<&'a HotCopies>,
    pub ownership: &'a Ownership,
    pub capabilities: Capabilities,
}

impl Passes<'_> {
    /// Forward, loss and backward: gradients are added to their arena.
    pub fn micro_step(
        &self,
        chunk: &ModelChunk,
        training: &ForwardContext<'_>,
        loss: &CrossEntropy,
    ) -> Result<Recording> {
        let Self { layout, arenas, copies, ownership, capabilities } = *self;
        let mut rec = Recorder::new("micro_step", capabilities);
        let rows = self.received(&mut rec, chunk, training);
        if let Mode::Training(Training { step, masks: Some(masks), .. }) = training.mode {
            let (slot, slots) = chunk.slot.unwrap_or((0, 1));
            let (rank, ranks) = (ownership.ranks.data_rank(), ownership.ranks.data);
            let [first, every] = [slot * ranks + rank, slots * ranks].map(|number| number as u32);
            rec.scope("dropout", |rec| count_micro_step(rec, step, masks.state, first, every));
        }
        let read = arenas.read();
        let weights =
            ownership.shards_weights().then(|| BucketBuffers::for_weights(&mut rec, ownership, &read));
        let sums = &arenas.gradients;
        let gradients =
            ownership.shards_gradients().then(|| BucketBuffers::for_gradients(&mut rec, ownership, sums));
        let mut gpt = layout.bind(training.config, held(&weights, &read), Some(held(&gradients, sums)));
        copies.iter().for_each(|copies| copies.attach(&mut gpt));
        let loss = &with_reference(&mut rec, &gpt, training, loss);
        let mut tape = Tape::new(&mut rec);
        let rows = rows.map(|rows| tape.leaf(rows, true));
        let sent = gpt.chunk(&mut tape, training, &chunk.chunk, rows, loss).zip(chunk.neighbours[1]);
        if let Some((sent, to)) = sent {
            self.send(tape.rec, to, sent.tensor);
        }
        let backward = tape.rec.dispatch_count();
        if chunk.slot.is_some() {
            tape.rec.cut();
        }
        if let Some((sent, from)) = sent {
            let Tensor { rows, cols, element, .. } = sent.tensor;
            let gradient = self.receive(tape.rec, from, [rows, cols], element);
            tape.give(sent, gradient);
        }
        tape.backward();
        let gradient = rows.and_then(|rows| tape.gradient(rows));
        if let Some((gradient, to)) = gradient.zip(chunk.neighbours[0]) {
            self.send(tape.rec, to, gradient);
        }
        if let Some(weights) = weights {
            weights.gather(&mut rec, ownership, Some(backward));
        }
        if let Some(gradients) = gradients {
            gradients.scatter(&mut rec, ownership);
        }
        if chunk.ends_step {
            ownership.sum_gradients(&mut rec, sums);
            ownership.sum_repeated(&mut rec, layout, sums);
            copies.iter().for_each(|copies| copies.sum_gradients(&mut rec, ownership));
        }
        rec.try_finish()
    }

    /// Forward and loss alone.
    pub fn eval(
        &self,
        chunk: &ModelChunk,
        evaluation: &ForwardContext<'_>,
        loss: &CrossEntropy,
    ) -> Result<Recording> {
        let Self { layout, arenas, copies, ownership, capabilities } = *self;
        let mut rec = Recorder::new("eval", capabilities);
        let rows = self.received(&mut rec, chunk, evaluation);
        let read = arenas.read();
        let weights =
            ownership.shards_weights().then(|| BucketBuffers::for_weights(&mut rec, ownership, &read));
        let mut gpt = layout.bind(evaluation.config, held(&weights, &read), None);
        copies.iter().for_each(|copies| copies.attach(&mut gpt));
        let loss = &with_reference(&mut rec, &gpt, evaluation, loss);
        let mut tape = Tape::forward_only(&mut rec);
        let rows = rows.map(|rows| tape.leaf(rows, false));
        let sent = gpt.chunk(&mut tape, evaluation, &chunk.chunk, rows, loss);
        if let Some((sent, to)) = sent.zip(chunk.neighbours[1]) {
            self.send(tape.rec, to, sent.tensor);
        }
        if let Some(weights) = weights {
            weights.gather(&mut rec, ownership, None);
        }
        rec.try_finish()
    }

    /// Forward alone: the log-probabilities of pairs under the model as it is, written to `log_probs`.
    pub fn references(
        &self,
        evaluation: &ForwardContext<'_>,
        loss: &CrossEntropy,
        log_probs: Tensor,
    ) -> Result<Recording> {
        let Self { layout, arenas, copies, ownership, capabilities } = *self;
        let mut rec = Recorder::new("references", capabilities);
        let read = arenas.read();
        let weights =
            ownership.shards_weights().then(|| BucketBuffers::for_weights(&mut rec, ownership, &read));
        let mut gpt = layout.bind(evaluation.config, held(&weights, &read), None);
        copies.iter().for_each(|copies| copies.attach(&mut gpt));
        gpt.log_probabilities(&mut Tape::forward_only(&mut rec), evaluation, loss, Some(log_probs));
        if let Some(weights) = weights {
            weights.gather(&mut rec, ownership, None);
        }
        rec.try_finish()
    }

    /// The rows (N, D) that a chunk starts with, from the stage before; this rank's rows if ranks share tokens.
    fn received(&self, rec: &mut Recorder, chunk: &ModelChunk, ctx: &ForwardContext<'_>) -> Option<Tensor> {
        let (rows, width) = (ctx.stream_rows(), ctx.config.hidden_size as u32);
        let from = chunk.neighbours[0]?;
        Some(self.receive(rec, from, [rows, width], ctx.config.compute))
    }

    /// A tensor (rows, cols) that the rank `from` sends.
    fn receive(&self, rec: &mut Recorder, from: usize, [rows, cols]: [u32; 2], element: Element) -> Tensor {
        let received = rec.tensor("received", rows, cols, element);
        let collective = Collective::Receive { received: Span::of(&received), from };
        rec.exchange("stage", collective, &self.pair(from));
        received
    }

    fn send(&self, rec: &mut Recorder, to: usize, sent: Tensor) {
        rec.exchange("stage", Collective::Send { sent: Span::of(&sent), to }, &self.pair(to));
    }

    /// The group of this rank and another one.
    fn pair(&self, other: usize) -> Group {
        let own = self.ownership.ranks.rank;
        Group::new(vec![own.min(other), own.max(other)])
    }
}

/// `loss` with the log-probabilities of its pairs under `gpt` without its adapters, if it compares with these.
fn with_reference<'p>(
    rec: &mut Recorder,
    gpt: &'p Gpt<Parameter>,
    ctx: &ForwardContext<'p>,
    loss: &CrossEntropy,
) -> CrossEntropy {
    let Some(preference) = loss.preference else { return *loss };
    if preference.reference.is_some() || !preference.loss.has_reference() {
        return *loss;
    }
    let ctx = ForwardContext { mode: Mode::Reference, ..*ctx };
    let reference =
        rec.scope("reference", |rec| gpt.log_probabilities(&mut Tape::forward_only(rec), &ctx, loss, None));
    CrossEntropy { preference: Some(Preference { reference: Some(reference), ..preference }), ..*loss }
}

/// Where the parameters are: in the buffers of a recording, or otherwise in the arena.
fn held<'a>(buffers: &'a Option<BucketBuffers<'_>>, arena: &'a Arena) -> &'a dyn Holds {
    match buffers {
        Some(buffers) => buffers,
        None => arena,
    }
}

/// Rounds the weights that layers read in 16 bits, segment by segment, and fills the copies of hot experts.
pub(super) fn copies(
    layout: &ArenaLayout,
    arenas: &Arenas,
    hot: Option<&HotCopies>,
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
    hot.iter().for_each(|hot| hot.fill(&mut rec, (layout, &arenas.read()), ownership));
    let recording = rec.try_finish()?;
    Ok((!recording.dispatches.is_empty()).then_some(recording))
}

/// Writes the norms of frozen matrices, from which magnitudes of adapters start; `None` without magnitudes.
pub(super) fn magnitudes(
    plan: &RunPlan,
    (layout, arenas): (&ArenaLayout, &Arenas),
    capabilities: Capabilities,
) -> Result<Option<Recording>> {
    let learns = |low_rank: &&LowRank| low_rank.magnitudes == Magnitudes::Learned;
    let Some(low_rank) = plan.model.low_rank.as_ref().filter(learns) else { return Ok(None) };
    let mut rec = Recorder::new("magnitudes", capabilities);
    start_from_norms(&mut rec, layout, low_rank, &arenas.read());
    rec.try_finish().map(Some)
}

/// Sums the `sums` of an evaluation over the ranks, each of which evaluates some of the
/// micro-batches.
pub(super) fn sum_evaluation(
    sums: &[Tensor],
    ownership: &Ownership,
    capabilities: Capabilities,
) -> Result<Option<Recording>> {
    let mut rec = Recorder::new("sum_evaluation", capabilities);
    ownership.sum_counts(&mut rec, sums, None);
    let recording = rec.try_finish()?;
    Ok((!recording.exchanges.is_empty()).then_some(recording))
}

//! How the ranks of a run share the gradients and the optimizer's work, as exchange points of its recordings.
//!
//! | sharded | gradients | what a rank holds | weights |
//! |---|---|---|---|
//! | nothing | summed once a step | everything | every rank updates all |
//! | moments and master weights (ZeRO stage 1) | reduce-scattered once a step | its part of the moments, and of f32 weights that layers do not read | each rank updates its part; the parts are gathered |
//! | gradients, too (stage 2) | in a buffer per bucket from its first gradient to the end of its exchange; reduce-scattered in every micro-batch | its part of the sums as well | the same |
//! | weights, too (`parallel_optimizer_comm_recompute`) | the same as without | its part of what layers read as well | a bucket is gathered before the first dispatch that reads it, and again in the backward pass, while the dispatches of the bucket before run (`buckets.rs`) |
//!
//! The norm is computed in shares and the partial sums are gathered, so every rank clips by the same number and
//! finds the same overflow.

use crate::element::Element;
use crate::model::ExpertState;
use crate::model::arena::{Arena, ArenaLayout, Part};
use crate::model::parameters::Spec;
use crate::ops::grad_norm::NormShares;
use crate::ops::spread::ExpertRanks;
use crate::ops::tally::TallyColumns;
use crate::ranks::RankLayout;
use crate::record::{Collective, Recorder, Span, Tensor};
use crate::sharding::shards::{Bucket, Shards};
use crate::sharding::{Sharded, Sharding};
use std::ops::Range;

/// How the ranks of a run share the work on its parameters.
#[derive(Clone, Debug)]
pub struct Ownership {
    /// The ranks, and which of them this is.
    pub ranks: RankLayout,
    /// What each rank holds a part of (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    /// 2020): with the optimizer's state (stage 1) it updates its own part of the parameters.
    pub sharding: Sharding,
    /// Who owns what.
    pub shards: Shards,
}

impl Ownership {
    /// The ownership of parameters in `layout`.
    pub(crate) fn new(layout: &ArenaLayout, ranks: RankLayout, sharding: Sharding) -> Self {
        // Every rank has all gradients but those of the experts of others, of which it does not sum the squares.
        let block = if sharding.what == Sharded::None { ranks.expert } else { sharding.ranks };
        let divides = sharding.what != Sharded::Gradients && !sharding.gathers_again;
        Self { ranks, sharding, shards: Shards::new(layout, &ranks, block, divides) }
    }

    /// Whether each rank updates its own part of the parameters.
    pub(crate) fn shards_optimizer(&self) -> bool {
        self.sharding.what != Sharded::None
    }

    /// Whether each rank accumulates the gradients of its own part alone.
    pub(crate) fn shards_gradients(&self) -> bool {
        self.sharding.what == Sharded::Gradients
    }

    /// Whether each rank keeps its own part of the weights alone, and gathers the others where layers read them.
    pub(crate) fn shards_weights(&self) -> bool {
        self.shards_optimizer() && self.sharding.gathers_again
    }

    /// What this rank updates of a segment: ranges of its elements.
    pub fn updated(&self, layout: &ArenaLayout, segment: usize) -> Vec<Range<u64>> {
        match self.shards_optimizer() {
            true => self.shards.own(segment),
            false => vec![layout.segments[segment].whole()],
        }
    }

    /// The same for another rank, whose parameters are those of `layout`.
    pub(crate) fn of_rank(&self, rank: usize, layout: &ArenaLayout) -> Self {
        Self::new(layout, RankLayout { rank, ..self.ranks }, self.sharding)
    }

    /// Whether this rank has all weights, and can compute the model alone.
    pub(crate) fn holds_all_weights(&self) -> bool {
        !self.shards_weights() && self.ranks.expert == 1
    }

    /// The ranks over which experts are spread; `None` if each holds all.
    pub(crate) fn expert_ranks(&self) -> Option<ExpertRanks> {
        let place = self.ranks.expert_part();
        (self.ranks.expert > 1).then(|| ExpertRanks { group: self.ranks.expert_group(), place })
    }

    /// Whether no rank has the sums of all gradients after their exchange, so that each computes the norm of a share.
    pub(crate) fn shares_norm(&self) -> bool {
        self.shards_optimizer() || self.ranks.expert > 1
    }

    /// The ranges of a segment whose gradients count in this rank's share of the norm: those of all ranks together are all
    /// gradients, each once.
    pub(crate) fn normed(&self, layout: &ArenaLayout, segment: usize) -> Vec<Range<u64>> {
        match self.shares_norm() {
            true => self.shards.own(segment),
            false => vec![layout.segments[segment].whole()],
        }
    }

    /// What of a part of a parameter is in this rank's share of the norm: ranges of the elements of its segment.
    pub(crate) fn normed_of(&self, layout: &ArenaLayout, spec: &Spec, part: &Part) -> Vec<Range<u64>> {
        let own = part.offset..part.offset + part.elements(spec);
        let normed = self.normed(layout, part.segment).into_iter();
        let shared = normed.map(|range| range.start.max(own.start)..range.end.min(own.end));
        shared.filter(|range| !range.is_empty()).collect()
    }

    /// The shares of the gradients whose norm each rank computes; `None` if every rank has all of them.
    pub(crate) fn norm_shares(&self) -> Option<NormShares> {
        self.shares_norm().then(|| {
            let group = self.shards.block();
            let place = group.place(self.ranks.rank).unwrap_or(0);
            NormShares { lengths: self.shards.lengths_by_rank(), group, place }
        })
    }

    /// Sums gradients over the ranks, bucket by bucket, each as soon as the last micro-batch has added to it. Where the
    /// optimizer is sharded, each rank gets the sums that it updates by.
    pub(crate) fn sum_gradients(&self, rec: &mut Recorder, gradients: &Arena) {
        for (number, bucket) in self.shards.buckets.iter().enumerate() {
            let label = format!("gradients.{number}");
            if !self.shards_optimizer() {
                let whole = span(gradients, bucket, bucket.range.clone());
                rec.exchange_once_complete(&label, Collective::sum(vec![whole]), &bucket.replicas);
                continue;
            }
            let range = self.shards.own_of(bucket);
            // With gradients sharded, owners have exchanged those of every micro-batch.
            if !self.shards_gradients() {
                let own = span(gradients, bucket, range.clone());
                let whole = span(gradients, bucket, bucket.range.clone());
                let parts = bucket.parts_in_bytes(whole.element.bytes());
                let collective = Collective::ReduceScatter { own, whole, parts };
                rec.exchange_once_complete(&label, collective, &bucket.owners);
            }
            if !range.is_empty() {
                let own = span(gradients, bucket, range);
                rec.exchange_once_complete(&label, Collective::sum(vec![own]), &bucket.copies);
            }
        }
    }

    /// Where the optimizer is sharded, and weights are not, gathers what each rank has updated of those segments of `arena` that it
    /// `holds` and all ranks have whole.
    pub(crate) fn gather(
        &self,
        rec: &mut Recorder,
        arena: &Arena,
        label: &str,
        holds: impl Fn(usize) -> bool,
    ) {
        let is_held = |segment: usize| arena.segments[segment].is_some() && holds(segment);
        let buckets = self
            .shards
            .buckets
            .iter()
            .enumerate()
            .filter(|_| self.shards_optimizer() && !self.shards_weights());
        for (number, bucket) in buckets.filter(|(_, bucket)| is_held(bucket.segment)) {
            let whole = span(arena, bucket, bucket.range.clone());
            let own = span(arena, bucket, self.shards.own_of(bucket));
            let parts = bucket.parts_in_bytes(whole.element.bytes());
            let collective = Collective::AllGather { own, whole, parts };
            rec.exchange(&format!("{label}.{number}"), collective, &bucket.owners);
        }
    }

    /// Sums what micro-batches have counted over the ranks: losses and correct predictions, and the tallies of routers.
    pub(crate) fn sum_counts(&self, rec: &mut Recorder, sums: &[Tensor], experts: Option<&ExpertState>) {
        let sums = sums.iter().map(|state| {
            let words = Span::of(state);
            words.part(0, state.cols.into(), Element::F32)
        });
        let tallies = experts.into_iter().flat_map(|experts| {
            let columns = TallyColumns::of(experts.experts());
            experts.layers().flat_map(move |layer| {
                let row = Span::of(&experts.tally(layer));
                let counts = row.part(0, columns.expert_loss.into(), Element::U32);
                let losses = u64::from(columns.z_loss + 1 - columns.expert_loss);
                [counts, row.part(columns.expert_loss.into(), losses, Element::F32)]
            })
        });
        let sums = sums.chain(tallies).collect();
        rec.exchange("counts", Collective::sum(sums), &self.ranks.data_group());
    }
}

fn span(arena: &Arena, bucket: &Bucket, range: Range<u64>) -> Span {
    Span::of(&arena.range(bucket.segment, range))
}

//! How the ranks of a run share the gradients and the optimizer's work, as exchange points of the run's recordings.
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
use crate::ops::matrix_ranks::MatrixRanks;
use crate::ops::spread::ExpertRanks;
use crate::ops::tally::TallyColumns;
use crate::ranks::sharding::shards::{Bucket, Shards};
use crate::ranks::sharding::{Sharded, Sharding};
use crate::ranks::{Group, RankLayout};
use crate::record::{Collective, Recorder, Span, Tensor};
use std::collections::BTreeMap;
use std::ops::Range;

/// How the ranks of a run share the work on its parameters.
#[derive(Clone, Debug)]
pub struct Ownership {
    /// The layout of the ranks, and the number of this one.
    pub ranks: RankLayout,
    /// The state of which each rank holds only a part (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
    /// Trillion Parameter Models", 2020): if the optimizer's state is sharded (stage 1), each rank updates its own part
    /// of the parameters.
    pub sharding: Sharding,
    /// Which rank owns which part.
    pub shards: Shards,
    /// Elements in each rank's share of the norm, for the ranks that compute one; empty if norms are not shared.
    norm_lengths: Vec<Vec<u64>>,
}

impl Ownership {
    /// The ownership of the parameters of this rank's stage; `layouts` are those of all stages of a pipeline.
    pub(crate) fn among_stages(layouts: &[ArenaLayout], ranks: RankLayout, sharding: Sharding) -> Self {
        let of_stage = |stage| {
            let rank = ranks.in_stage(stage);
            Self::new(&layouts[stage], RankLayout { rank, ..ranks }, sharding)
        };
        let all: Vec<Self> = (0..layouts.len()).map(of_stage).collect();
        let lengths = all.iter().zip(layouts).flat_map(|(one, layout)| one.norm_lengths_of(layout));
        Self { norm_lengths: lengths.collect(), ..all[ranks.stage()].clone() }
    }

    /// The ownership of parameters in `layout`, without shares of the norm.
    pub(crate) fn new(layout: &ArenaLayout, ranks: RankLayout, sharding: Sharding) -> Self {
        // Every rank has all gradients except those of other ranks' experts, whose squares it does not sum.
        let block = if sharding.what == Sharded::None { ranks.expert } else { sharding.ranks };
        let divides = sharding.what != Sharded::Gradients && !sharding.gathers_again;
        let shards = Shards::new(layout, &ranks, block, divides);
        Self { ranks, sharding, shards, norm_lengths: Vec::new() }
    }

    /// Whether each rank updates its own part of the parameters.
    pub(crate) fn shards_optimizer(&self) -> bool {
        self.sharding.what != Sharded::None
    }

    /// Whether each rank accumulates only the gradients of its own part.
    pub(crate) fn shards_gradients(&self) -> bool {
        self.sharding.what == Sharded::Gradients
    }

    /// Whether each rank keeps only its own part of the weights, and gathers the rest where layers read them.
    pub(crate) fn shards_weights(&self) -> bool {
        self.shards_optimizer() && self.sharding.gathers_again
    }

    /// The ranges of a segment's elements that this rank updates.
    pub fn updated(&self, layout: &ArenaLayout, segment: usize) -> Vec<Range<u64>> {
        match self.shards_optimizer() {
            true => self.shards.own(segment),
            false => vec![layout.segments[segment].whole()],
        }
    }

    /// The ownership on another rank, whose parameters have the layout `layout`.
    pub(crate) fn of_rank(&self, rank: usize, layout: &ArenaLayout) -> Self {
        Self::new(layout, RankLayout { rank, ..self.ranks }, self.sharding)
    }

    /// Whether this rank has all weights, and so can compute the model alone.
    pub(crate) fn holds_all_weights(&self) -> bool {
        let RankLayout { expert, model, pipeline, .. } = self.ranks;
        !self.shards_weights() && [expert, model, pipeline] == [1; 3]
    }

    /// The ranks over which experts are spread; `None` if each holds all.
    pub(crate) fn expert_ranks(&self) -> Option<ExpertRanks> {
        let place = self.ranks.expert_part();
        (self.ranks.expert > 1).then(|| ExpertRanks { group: self.ranks.expert_group(), place })
    }

    /// The ranks that share each matrix; `None` if each rank holds matrices whole.
    pub(crate) fn matrix_ranks(&self) -> Option<MatrixRanks> {
        let RankLayout { model, shares_tokens, shares_vocabulary, .. } = self.ranks;
        (model > 1).then(|| MatrixRanks {
            group: self.ranks.matrix_group(),
            place: self.ranks.matrix_part(),
            shares_tokens,
            shares_vocabulary,
        })
    }

    /// Whether no rank has the sums of all gradients after their exchange, so that each rank computes the norm of a
    /// share.
    pub(crate) fn shares_norm(&self) -> bool {
        let RankLayout { expert, model, pipeline, .. } = self.ranks;
        self.shards_optimizer() || [expert, model, pipeline] != [1; 3]
    }

    /// The ranks that together have each gradient exactly once.
    pub(crate) fn norm_group(&self) -> Group {
        let on = |rank| RankLayout { rank, ..self.ranks };
        let block = self.shards.block().ranks.into_iter();
        let of_stage = Group::new(block.flat_map(|rank| on(rank).matrix_group().ranks).collect());
        self.ranks.in_all_stages(&of_stage)
    }

    /// Whether this rank's gradients of a segment count in the norm: parameters that both ends of a pipeline hold count
    /// in the first stage.
    fn counts(&self, layout: &ArenaLayout, segment: usize) -> bool {
        !layout.segments[segment].kind.is_copied || self.ranks.stage() == 0
    }

    /// The ranges of a segment whose gradients count in this rank's share of the norm. The shares of all ranks together
    /// contain each gradient exactly once.
    pub(crate) fn normed(&self, layout: &ArenaLayout, segment: usize) -> Vec<Range<u64>> {
        match self.shares_norm() {
            true => self.normed_on(self.ranks.rank, layout, segment),
            false => vec![layout.segments[segment].whole()],
        }
    }

    /// The lengths of the ranges that count in the shares of this rank's stage, whose parameters have the layout
    /// `layout`: for each rank of a block and of the ranks that share its matrices.
    fn norm_lengths_of(&self, layout: &ArenaLayout) -> Vec<Vec<u64>> {
        let trained = (0..layout.segments.len()).filter(|&index| !layout.segments[index].kind.is_frozen);
        let of_rank = |rank: usize| {
            let ranges = trained.clone().flat_map(|segment| self.normed_on(rank, layout, segment));
            ranges.map(|range| range.end - range.start).collect()
        };
        let on = |rank| RankLayout { rank, ..self.ranks };
        self.shards
            .block()
            .ranks
            .into_iter()
            .flat_map(|rank| on(rank).matrix_group().ranks)
            .map(of_rank)
            .collect()
    }

    /// The ranges that count in the share of `rank`, whose matrices have the layout `layout`. Rows that several
    /// tensor-parallel ranks hold count on the first of them.
    fn normed_on(&self, rank: usize, layout: &ArenaLayout, segment: usize) -> Vec<Range<u64>> {
        if !self.counts(layout, segment) {
            return Vec::new();
        }
        let RankLayout { model, .. } = self.ranks;
        let (own, part) =
            (self.shards.own_of_rank(rank, segment), RankLayout { rank, ..self.ranks }.matrix_part());
        if part == 0 {
            return own;
        }
        let held = layout.parameters.iter().flat_map(|(spec, parts)| {
            let copies = spec.copies(model).into_iter().filter(|(_, ranks)| part % ranks > 0);
            let parts = parts.iter().filter(|part| part.segment == segment);
            copies.flat_map(move |(lines, _)| parts.clone().map(move |part| part.lines(spec, &lines)))
        });
        let mut counted_elsewhere: Vec<Range<u64>> = held.filter(|range| !range.is_empty()).collect();
        counted_elsewhere.sort_unstable_by_key(|range| range.start);
        without(own, &counted_elsewhere)
    }

    /// The ranges of a part of a parameter that are in this rank's share of the norm, as elements of its segment.
    pub(crate) fn normed_of(&self, layout: &ArenaLayout, spec: &Spec, part: &Part) -> Vec<Range<u64>> {
        let own = part.offset..part.offset + part.elements(spec);
        let normed = self.normed(layout, part.segment).into_iter();
        let shared = normed.map(|range| range.start.max(own.start)..range.end.min(own.end));
        shared.filter(|range| !range.is_empty()).collect()
    }

    /// The shares of the gradients whose norm each rank computes; `None` if every rank has all of them.
    pub(crate) fn norm_shares(&self) -> Option<NormShares> {
        self.shares_norm().then(|| {
            let group = self.norm_group();
            let place = group.place(self.ranks.rank).unwrap_or(0);
            NormShares { lengths: self.norm_lengths.clone(), group, place }
        })
    }

    /// Sums the gradients of the parameters that both ends of a pipeline hold over both ends, after the replicas of
    /// each end have summed theirs. It comes after the step's last half, since the first stage has its gradients no
    /// earlier.
    pub(crate) fn sum_copied(&self, rec: &mut Recorder, layout: &ArenaLayout, gradients: &Arena) {
        let copied = layout.segments.iter().enumerate().filter(|(_, segment)| segment.kind.is_copied);
        let trained = copied.filter(|(_, segment)| !segment.kind.is_frozen).map(|(index, _)| index);
        let of_segment = |index: usize| {
            let ranges = self.updated(layout, index).into_iter();
            ranges.map(move |range| Span::of(&gradients.range(index, range)))
        };
        let spans: Vec<Span> = trained.flat_map(of_segment).collect();
        if !spans.is_empty() {
            rec.exchange("gradients.copied", Collective::sum(spans), &self.ranks.end_group());
        }
    }

    /// Sums gradients over the ranks, bucket by bucket, each as soon as the last micro-batch has added to it. If the
    /// optimizer is sharded, each rank receives only the sums for the part that it updates.
    pub(crate) fn sum_gradients(&self, rec: &mut Recorder, gradients: &Arena) {
        for (number, bucket) in self.shards.buckets.iter().enumerate() {
            let label = format!("gradients.{number}");
            if !self.shards_optimizer() {
                let whole = span(gradients, bucket, bucket.range.clone());
                rec.exchange_once_complete(&label, Collective::sum(vec![whole]), &bucket.replicas);
                continue;
            }
            let range = self.shards.own_of(bucket);
            // If gradients are sharded, owners have exchanged those of every micro-batch.
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

    /// Sums the gradients of rows that several tensor-parallel ranks hold, each with one term of the gradient, after
    /// the sums over replicas.
    pub(crate) fn sum_repeated(&self, rec: &mut Recorder, layout: &ArenaLayout, gradients: &Arena) {
        let mut by_ranks: BTreeMap<usize, Vec<Span>> = BTreeMap::new();
        for (spec, parts) in layout.parameters.iter().filter(|(spec, _)| spec.trains) {
            for (lines, ranks) in spec.repeated() {
                let held = parts.iter().flat_map(|part| {
                    let updated = self.updated(layout, part.segment).into_iter();
                    let lines = part.lines(spec, lines);
                    let own = updated.map(move |own| own.start.max(lines.start)..own.end.min(lines.end));
                    own.filter(|own| !own.is_empty()).map(|own| gradients.range(part.segment, own))
                });
                by_ranks.entry(*ranks).or_default().extend(held.map(|tensor| Span::of(&tensor)));
            }
        }
        for (ranks, spans) in by_ranks.into_iter().filter(|(_, spans)| !spans.is_empty()) {
            rec.exchange_once_complete("repeated", Collective::sum(spans), &self.ranks.matrix_repeats(ranks));
        }
    }

    /// If the optimizer is sharded and weights are not, gathers the parts that the ranks have updated, in those
    /// segments of `arena` that it `holds` and that all ranks have whole.
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

    /// Sums the counts of micro-batches over the ranks: losses and correct predictions, and the tallies of routers.
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
        let group = self.ranks.in_all_stages(&self.ranks.data_group());
        rec.exchange("counts", Collective::sum(sums), &group);
    }
}

/// The parts of `ranges` that are in none of `others`; both are ascending.
fn without(ranges: Vec<Range<u64>>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for Range { mut start, end } in ranges {
        for other in others.iter().filter(|other| other.start < end) {
            if start < other.start {
                left.push(start..other.start);
            }
            start = start.max(other.end);
        }
        if start < end {
            left.push(start..end);
        }
    }
    left
}

fn span(arena: &Arena, bucket: &Bucket, range: Range<u64>) -> Span {
    Span::of(&arena.range(bucket.segment, range))
}

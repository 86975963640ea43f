//! Buffers of buckets that live within one recording: for gradients until their sums are exchanged, and for weights
//! while layers read them.

use crate::element::Element;
use crate::model::arena::{Arena, Holds, Part};
use crate::model::parameters::Spec;
use crate::ops::add::add;
use crate::ops::zero::zero;
use crate::ranks::sharding::ownership::Ownership;
use crate::ranks::sharding::shards::Bucket;
use crate::record::{Collective, Recorder, Span, Tensor};

/// A buffer for each bucket that several ranks own together.
pub(crate) struct BucketBuffers<'a> {
    buffers: Vec<BucketBuffer<'a>>,
    /// Holds the elements that are in no bucket.
    others: &'a Arena,
}

struct BucketBuffer<'a> {
    number: usize,
    bucket: &'a Bucket,
    /// The whole bucket, as one flat row.
    whole: Tensor,
}

impl<'a> BucketBuffers<'a> {
    fn new(
        rec: &mut Recorder,
        label: &str,
        ownership: &'a Ownership,
        element: impl Fn(&Bucket) -> Element,
        others: &'a Arena,
    ) -> Self {
        let buckets = ownership.shards.buckets.iter().enumerate();
        let shared = buckets.filter(|(_, bucket)| !bucket.owners.is_single());
        let buffers = shared.map(|(number, bucket)| {
            let elements = (bucket.range.end - bucket.range.start) as u32;
            let whole = rec.tensor(&format!("{label}.{number}"), 1, elements, element(bucket));
            BucketBuffer { number, bucket, whole }
        });
        Self { buffers: buffers.collect(), others }
    }

    /// Buffers for the gradients of a micro-batch, which are added to the sums of the step, `sums`.
    pub fn for_gradients(rec: &mut Recorder, ownership: &'a Ownership, sums: &'a Arena) -> Self {
        Self::new(rec, "gradients", ownership, |_| Element::F32, sums)
    }

    /// Buffers for the weights in `arena`, in which each rank holds the part that it owns.
    pub fn for_weights(rec: &mut Recorder, ownership: &'a Ownership, arena: &'a Arena) -> Self {
        Self::new(rec, "weights", ownership, |bucket| arena.element(bucket.segment), arena)
    }

    /// Sums the gradients over their owners, each bucket directly after the last launch that adds to it, and adds this
    /// rank's part to the step's sums.
    pub fn scatter(&self, rec: &mut Recorder, ownership: &Ownership) {
        let mut summed = Vec::new();
        for BucketBuffer { number, bucket, whole } in &self.buffers {
            let span = Span::of(whole);
            if rec.first_use(span, 0).is_none() {
                continue; // nothing adds to it, on any rank
            }
            rec.before_first_use(span, |rec| rec.scope("gradients", |rec| zero(rec, *whole)));
            let own = ownership.shards.own_of(bucket);
            let count = own.end - own.start;
            let sum = rec.tensor(&format!("sums.{number}"), 1, count.max(4) as u32, Element::F32);
            let sum_span = Span::of(&sum).part(0, count, Element::F32);
            let parts = bucket.parts_in_bytes(Element::F32.bytes());
            let collective = Collective::ReduceScatter { own: sum_span, whole: span, parts };
            let label = format!("gradients.{number}");
            rec.exchange_early(&label, collective, &bucket.owners);
            if count > 0 {
                summed.push((sum, self.others.range(bucket.segment, own)));
            }
        }
        // At the end, so that no launch of the backward pass waits for another rank.
        for (sum, total) in summed {
            rec.scope("gradients", |rec| add(rec, sum, total, 1.0, true));
        }
    }

    /// Gathers the weights before the first launch that reads them, and again, into separate buffers, before the first
    /// launch from number `backward` on that reads them. Each bucket is gathered while the launches that read the
    /// previous bucket run.
    pub fn gather(&self, rec: &mut Recorder, ownership: &Ownership, backward: Option<usize>) {
        let (mut first, mut again) = (Vec::new(), Vec::new());
        for buffer in &self.buffers {
            if let Some(use_again) = backward.and_then(|from| rec.first_use(Span::of(&buffer.whole), from)) {
                let copy = Tensor { buffer: rec.another(buffer.whole.buffer), ..buffer.whole };
                rec.substitute(buffer.whole.buffer, copy.buffer, backward.unwrap_or(use_again));
                again.push((use_again, copy, buffer));
            }
            if let Some(use_first) = rec.first_use(Span::of(&buffer.whole), 0) {
                first.push((use_first, buffer.whole, buffer));
            }
        }
        self.gather_each(rec, ownership, first, 0);
        self.gather_each(rec, ownership, again, backward.unwrap_or(0));
    }

    fn gather_each(
        &self,
        rec: &mut Recorder,
        ownership: &Ownership,
        mut uses: Vec<(usize, Tensor, &BucketBuffer<'_>)>,
        mut at: usize,
    ) {
        uses.sort_by_key(|(first_use, ..)| *first_use);
        for (first_use, whole, BucketBuffer { number, bucket, .. }) in uses {
            let whole = Span::of(&whole);
            let own = ownership.shards.own_of(bucket);
            let own = match own.is_empty() {
                true => whole.part(0, 0, whole.element),
                false => Span::of(&self.others.range(bucket.segment, own)),
            };
            let parts = bucket.parts_in_bytes(whole.element.bytes());
            let collective = Collective::AllGather { own, whole, parts };
            rec.exchange_at(&format!("weights.{number}"), collective, &bucket.owners, at);
            at = first_use;
        }
    }
}

impl Holds for BucketBuffers<'_> {
    fn part(&self, spec: &Spec, part: &Part) -> Tensor {
        let holds = |buffer: &&BucketBuffer<'_>| {
            let Bucket { segment, range, .. } = buffer.bucket;
            *segment == part.segment && range.contains(&part.offset)
        };
        let Some(BucketBuffer { bucket, whole, .. }) = self.buffers.iter().find(holds) else {
            return self.others.part(spec, part);
        };
        let offset = (part.offset - bucket.range.start) * whole.element.bytes();
        Tensor::new(whole.buffer, offset, part.rows as u32, spec.cols as u32, whole.element)
    }
}

//! What passes between the launches of the gated delta rule, and which heads share it.

use super::{CHUNK, GatedDeltaRule, Params};
use crate::element::Element;
use crate::kernels::Tier;
use crate::record::{Binding, Recorder, Tensor};

/// The most that launches leave for each other, unless the shortest segments of one group of heads need more. At
/// 128 x 128 it holds 2,048 tokens of 32 heads in the backward pass, and nearly 4,096 in the forward pass.
pub const SCRATCH_BYTES: u64 = 256 << 20;

/// Chunks of the shortest segments into which sequences are divided before heads are.
const SHORTEST: u32 = 4;

/// Consecutive value heads that are computed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub first_head: u32,
    pub heads: u32,
}

impl Part {
    pub fn first_key_head(&self, shape: &GatedDeltaRule) -> u32 {
        self.first_head / shape.group()
    }
}

/// Consecutive chunks of each sequence that are computed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub first_chunk: u32,
    pub chunks: u32,
    pub number: u32,
    pub is_last: bool,
}

/// The parts of the heads, and the segments of the sequences for each of them.
pub(super) struct Division {
    pub parts: Vec<Part>,
    pub segments: Vec<Segment>,
}

/// The places of what shaders/gated_delta_rule/params.wgsl describes.
pub(super) struct Scratch {
    tensor: Tensor,
    places: Places,
}

/// Offsets, in groups of 4.
#[derive(Clone, Copy, Default)]
struct Places {
    gates: u64,
    inverse: u64,
    scores: u64,
    written: u64,
    states: u64,
    dwritten: u64,
    dstates: u64,
    dots: u64,
    products: u64,
    carries: u64,
    end: u64,
    /// Of the states of one chunk of all sequences.
    carry: u64,
}

/// What lies there, by the names of [`Places`].
#[derive(Clone, Copy)]
pub(super) enum Held {
    Gates,
    Inverse,
    Scores,
    Written,
    States,
    Dwritten,
    Dstates,
    Dots,
    Products,
}

impl Scratch {
    /// Room for a part of the heads of the longest of the segments of `rows` tokens; with `is_backward` also for
    /// gradients.
    #[track_caller]
    pub fn new(
        rec: &mut Recorder,
        shape: &GatedDeltaRule,
        rows: u32,
        part: &Part,
        segments: &[Segment],
        is_backward: bool,
    ) -> Self {
        let blocks = is_backward.then(|| blocks(rec, shape));
        let places = Places::of(shape, rows, part.heads, [segments[0].chunks, segments.len() as u32], blocks);
        let vectors = u32::try_from(places.end).expect("sequences and heads were divided");
        Self { tensor: rec.tensor("scratch", vectors, 4, Element::F32), places }
    }

    /// Binds all of it for a launch that reads or writes `held`.
    pub fn bind(&self, held: &[Held]) -> Binding {
        let touched = held.iter().map(|held| 16 * self.places.len(*held)).sum();
        Binding { touched: Some(touched), ..self.tensor.bind("scratch", Element::F32) }
    }

    /// The params with the places, for launches of `segment`. States are carried forward, each segment to a place of
    /// its own, and their gradients back by way of the place that no state needs.
    pub fn params(&self, params: Params, segment: &Segment, is_back: bool) -> Params {
        let Places { gates, inverse, scores, written, states, dwritten, dstates, dots, products, .. } =
            self.places;
        let carry = |number: u32| self.places.carries + u64::from(number) * self.places.carry;
        let [carry_in, carry_out] = match is_back {
            true => [carry(0); 2],
            false => [carry(segment.number), carry(segment.number + 1)],
        };
        let [gates, inverse, scores, written, states, dwritten, dstates, dots, products, carry_in, carry_out] =
            [gates, inverse, scores, written, states, dwritten, dstates, dots, products, carry_in, carry_out]
                .map(|place| place as u32);
        let (begin, chunks) = (segment.first_chunk * CHUNK, segment.chunks);
        Params {
            begin,
            chunks,
            gates,
            inverse,
            scores,
            written,
            states,
            dwritten,
            dstates,
            dots,
            products,
            carry_in,
            carry_out,
            ..params
        }
    }
}

/// Blocks of columns whose dot products are left apart, once of those of dq and once of dk.
fn blocks(rec: &Recorder, shape: &GatedDeltaRule) -> u32 {
    match rec.capabilities().tier {
        Tier::Software => 2 * (shape.key_dim / 4),
        Tier::Portable | Tier::Matrix => 2 * (shape.key_dim / 4).div_ceil(super::columns_of(shape.key_dim)),
    }
}

impl Places {
    /// For `heads` heads and so many segments of so many chunks; with `blocks` of dot products also those of the
    /// backward pass.
    fn of(
        shape: &GatedDeltaRule,
        rows: u32,
        heads: u32,
        [chunks, segments]: [u32; 2],
        blocks: Option<u32>,
    ) -> Self {
        let sequences = u64::from(rows / shape.tokens);
        let [heads, chunks] = [heads, chunks].map(u64::from);
        let all_chunks = sequences * chunks;
        let tokens = all_chunks * heads * u64::from(CHUNK);
        let square = all_chunks * heads * u64::from(CHUNK * CHUNK / 4);
        let values = tokens * u64::from(shape.value_dim / 4);
        let carry = sequences * heads * u64::from(shape.key_dim) * u64::from(shape.value_dim / 4);
        let states = (chunks + 1) * carry;
        let dots = tokens * u64::from(blocks.unwrap_or(0));
        let mut places = Self { inverse: tokens, carry, ..Self::default() };
        places.scores = places.inverse + square;
        places.written = places.scores + square;
        places.states = places.written + values;
        places.end = places.states + states;
        if blocks.is_some() {
            places.dwritten = places.end;
            places.dstates = places.dwritten + values;
            places.dots = places.dstates + states;
            places.products = places.dots + dots;
            places.end = places.products + all_chunks * heads;
        }
        places.carries = places.end;
        if segments > 1 {
            places.end += u64::from(segments) * carry;
        }
        places
    }

    /// Groups of 4 that are held there.
    fn len(&self, held: Held) -> u64 {
        match held {
            Held::Gates => self.inverse,
            Held::Inverse => self.scores - self.inverse,
            Held::Scores => self.written - self.scores,
            Held::Written | Held::Dwritten => self.states - self.written,
            Held::States if self.dwritten == 0 => self.carries - self.states,
            Held::States | Held::Dstates => self.dwritten - self.states,
            Held::Dots => self.products - self.dots,
            Held::Products => self.carries - self.products,
        }
    }
}

impl GatedDeltaRule {
    /// As few segments of all heads as leave their scratch below [`SCRATCH_BYTES`], so that a launch has as many
    /// workgroups as there are heads to give; parts of the heads if segments became too short, or on the software tier,
    /// whose invocations walk whole sequences.
    pub(super) fn division(&self, rec: &Recorder, rows: u32, is_backward: bool) -> Division {
        let blocks = is_backward.then(|| blocks(rec, self));
        let most = SCRATCH_BYTES.min(rec.capabilities().limits.binding_bytes);
        let all = self.chunks();
        let shortest = match rec.capabilities().tier {
            Tier::Software => all,
            Tier::Portable | Tier::Matrix => all.min(SHORTEST),
        };
        // Whole groups of heads that share a key.
        let unit = self.group();
        let heads_of = |parts: u32| self.key_heads.div_ceil(parts) * unit;
        let fits = |parts: u32, chunks: u32| {
            let segments = all.div_ceil(chunks);
            16 * Places::of(self, rows, heads_of(parts), [chunks, segments], blocks).end <= most
        };
        let parts = (1..self.key_heads).find(|parts| fits(*parts, shortest)).unwrap_or(self.key_heads);
        let chunks = (shortest..=all).rev().find(|chunks| fits(parts, *chunks)).unwrap_or(shortest);
        let segments = all.div_ceil(chunks);
        let (heads, chunks) = (heads_of(parts), all.div_ceil(segments));
        let parts = (0..self.heads).step_by(heads as usize);
        let parts =
            parts.map(|first_head| Part { first_head, heads: heads.min(self.heads - first_head) }).collect();
        let segments = (0..all).step_by(chunks as usize).enumerate().map(|(number, first_chunk)| Segment {
            first_chunk,
            chunks: chunks.min(all - first_chunk),
            number: number as u32,
            is_last: first_chunk + chunks >= all,
        });
        Division { parts, segments: segments.collect() }
    }
}

//! What passes between the launches of the gated delta rule, and which heads share it.

use super::{CHUNK, GatedDeltaRule, Params};
use crate::element::Element;
use crate::kernels::Tier;
use crate::record::{Binding, Recorder, Tensor};

/// The most that the launches of one part of the heads leave for each other, unless a single group of heads needs more.
/// 16 heads of 128 x 128 and 4,096 tokens take about as much in the backward pass; their states are 128 workgroups.
pub const SCRATCH_BYTES: u64 = 256 << 20;

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
    end: u64,
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
    /// Room for a part of the heads of `rows` tokens; with `is_backward` also for gradients.
    #[track_caller]
    pub fn new(
        rec: &mut Recorder,
        shape: &GatedDeltaRule,
        rows: u32,
        part: &Part,
        is_backward: bool,
    ) -> Self {
        let places = Places::of(shape, rows, part.heads, is_backward.then(|| blocks(rec, shape)));
        let vectors = u32::try_from(places.end).expect("heads were divided into parts");
        Self { tensor: rec.tensor("scratch", vectors, 4, Element::F32), places }
    }

    /// Binds all of it for a launch that reads or writes `held`.
    pub fn bind(&self, held: &[Held]) -> Binding {
        let touched = held.iter().map(|held| 16 * self.places.len(*held)).sum();
        Binding { touched: Some(touched), ..self.tensor.bind("scratch", Element::F32) }
    }

    /// The params with the places.
    pub fn params(&self, params: Params) -> Params {
        let Places { gates, inverse, scores, written, states, dwritten, dstates, dots, products, .. } =
            self.places;
        let [gates, inverse, scores, written, states, dwritten, dstates, dots, products] =
            [gates, inverse, scores, written, states, dwritten, dstates, dots, products]
                .map(|place| place as u32);
        Params { gates, inverse, scores, written, states, dwritten, dstates, dots, products, ..params }
    }
}

/// Blocks of columns whose dot products are left apart.
fn blocks(rec: &Recorder, shape: &GatedDeltaRule) -> u32 {
    match rec.capabilities().tier {
        Tier::Software => shape.key_dim / 4,
        Tier::Portable | Tier::Matrix => (shape.key_dim / 4).div_ceil(super::columns_of(shape.key_dim)),
    }
}

impl Places {
    /// For `heads` heads; with `blocks` of dot products also those of the backward pass.
    fn of(shape: &GatedDeltaRule, rows: u32, heads: u32, blocks: Option<u32>) -> Self {
        let [rows, heads] = [rows, heads].map(u64::from);
        let chunks = rows / u64::from(shape.tokens) * u64::from(shape.chunks());
        let square = chunks * heads * u64::from(CHUNK * CHUNK / 4);
        let values = rows * heads * u64::from(shape.value_dim / 4);
        let states = chunks * heads * u64::from(shape.key_dim) * u64::from(shape.value_dim / 4);
        let dots = rows * heads * u64::from(blocks.unwrap_or(0));
        let mut places = Self { inverse: rows * heads, ..Self::default() };
        places.scores = places.inverse + square;
        places.written = places.scores + square;
        places.states = places.written + values;
        places.end = places.states + states;
        if blocks.is_some() {
            places.dwritten = places.end;
            places.dstates = places.dwritten + values;
            places.dots = places.dstates + states;
            places.products = places.dots + dots;
            places.end = places.products + chunks * heads;
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
            Held::States if self.dwritten == 0 => self.end - self.states,
            Held::States | Held::Dstates => self.dwritten - self.states,
            Held::Dots => self.products - self.dots,
            Held::Products => self.end - self.products,
        }
    }
}

impl GatedDeltaRule {
    /// The parts of the heads: as few as leave their scratch below [`SCRATCH_BYTES`].
    pub(super) fn parts(&self, rec: &Recorder, rows: u32, is_backward: bool) -> Vec<Part> {
        let blocks = is_backward.then(|| blocks(rec, self));
        let most = SCRATCH_BYTES.min(rec.capabilities().limits.binding_bytes);
        let bytes = |heads: u32| 16 * Places::of(self, rows, heads, blocks).end;
        // Whole groups of heads that share a key.
        let unit = self.group();
        let fits = |count: &u32| bytes(count * unit) <= most;
        let most_units = (1..=self.key_heads).rev().find(fits).unwrap_or(1);
        let parts = self.key_heads.div_ceil(most_units);
        let heads = self.key_heads.div_ceil(parts) * unit;
        (0..self.heads)
            .step_by(heads as usize)
            .map(|first_head| Part { first_head, heads: heads.min(self.heads - first_head) })
            .collect()
    }
}

//! Parameters that ranks hold a part of each, put together on one of them for what reads them whole.

use crate::element::Element;
use crate::model::arena::{Arena, ArenaLayout, Part};
use crate::model::parameters::Spec;
use crate::ops::add::add;
use crate::ranks::{Group, RankLayout};
use crate::record::{Collective, Recorder, Span, Tensor};
use crate::sharding::ownership::Ownership;
use crate::sharding::places::{PlacedRange, places_in_parameter};
use std::ops::Range;

/// Elements of a segment, and their places in a parameter.
struct Placed {
    segment: usize,
    elements: PlacedRange,
}

impl Ownership {
    /// The ranks of this one's stage that hold a parameter together, each of its elements once; of spread experts, this rank's.
    pub(crate) fn holders(&self, spec: &Spec) -> Group {
        let owners = self.shards.owners(spec.is_spread()).ranks.into_iter();
        let matrix_group = |rank| RankLayout { rank, ..self.ranks }.matrix_group().ranks;
        Group::new(owners.flat_map(matrix_group).collect())
    }

    /// Gathers the parameter `whole` of the model over its [`holders`](Self::holders), of which this one has `parts` in `arena`. The
    /// result has a tensor for each part of `own`, which is as one rank has it, or of spread experts those of this rank. They are
    /// filled on the rank `to`.
    pub(crate) fn put_together(
        &self,
        rec: &mut Recorder,
        (layout, arena): (&ArenaLayout, &Arena),
        parts: &[Part],
        whole: &Spec,
        (own, own_parts): &(Spec, Vec<Part>),
        to: usize,
    ) -> Vec<Tensor> {
        let group = self.holders(own);
        let before = own.row_strips()[0].whole; // rows of experts of other ranks
        let element = arena.element(parts[0].segment);
        let mut tensor_of = |part: &Part| {
            let first = (before + part.first_row) as u64 * u64::from(own.stride());
            let places = first..first + part.elements(own);
            let on_rank = |&rank: &usize| self.placed_on(rank, layout, parts, whole, &places);
            let of_ranks: Vec<Vec<Placed>> = group.ranks.iter().map(on_rank).collect();
            let packed = self.gather_packed(rec, arena, &of_ranks, &group, element);
            let tensor = rec.tensor("whole", part.rows as u32, own.cols as u32, element);
            if self.ranks.rank == to {
                unpack(rec, packed, of_ranks.iter().flatten(), tensor, first);
            }
            tensor
        };
        own_parts.iter().map(&mut tensor_of).collect()
    }

    /// What `rank` has of the elements of a parameter that have these places in it.
    fn placed_on(
        &self,
        rank: usize,
        layout: &ArenaLayout,
        parts: &[Part],
        whole: &Spec,
        places: &Range<u64>,
    ) -> Vec<Placed> {
        let Some(spec) = whole.clone().held_by(&RankLayout { rank, ..self.ranks }) else { return Vec::new() };
        let mut all = Vec::new();
        for part in parts {
            let owned = self.normed_on(rank, layout, part.segment);
            for placed in places_in_parameter(&spec, part) {
                let own = owned.iter().filter_map(|owned| placed.within(owned)?.placed_in(places));
                all.extend(own.map(|elements| Placed { segment: part.segment, elements }));
            }
        }
        all
    }

    /// The elements of all ranks, one after the other.
    fn gather_packed(
        &self,
        rec: &mut Recorder,
        arena: &Arena,
        of_ranks: &[Vec<Placed>],
        group: &Group,
        element: Element,
    ) -> Tensor {
        let mut end = 0;
        let lengths = of_ranks.iter().map(|placed| placed.iter().map(Placed::length).sum::<u64>());
        let parts: Vec<Range<u64>> = lengths
            .map(|length| {
                end += element.bytes_of(length);
                end - element.bytes_of(length)..end
            })
            .collect();
        let packed = rec.tensor("packed", 1, (end / element.bytes()) as u32, element);
        let place = group.place(self.ranks.rank).unwrap_or(0);
        let mut offset = packed.offset + parts[place].start;
        for Placed { segment, elements } in &of_ranks[place] {
            let from = arena.range(*segment, elements.range.clone());
            add(rec, from, Tensor { buffer: packed.buffer, offset, ..from }, 1.0, false);
            offset += from.bytes();
        }
        let whole = Span::of(&packed);
        let Range { start, end } = parts[place];
        let own = Span { offset: whole.offset + start, bytes: end - start, ..whole };
        rec.exchange("whole", Collective::AllGather { own, whole, parts }, group);
        packed
    }
}

/// Copies elements from where they lie one after the other to their places in `tensor`, which starts at the place `first`.
fn unpack<'a>(
    rec: &mut Recorder,
    packed: Tensor,
    placed: impl Iterator<Item = &'a Placed>,
    tensor: Tensor,
    first: u64,
) {
    let mut offset = packed.offset;
    for block in placed.flat_map(|placed| placed.elements.blocks()) {
        let ([rows, cols], stride) = block.rows();
        let from = Tensor { offset, rows, cols, stride: cols, ..packed };
        let at = tensor.offset + tensor.element.bytes_of(block.place - first);
        add(rec, from, Tensor { offset: at, rows, cols, stride, ..tensor }, 1.0, false);
        offset += from.bytes();
    }
}

impl Placed {
    fn length(&self) -> u64 {
        self.elements.range.end - self.elements.range.start
    }
}

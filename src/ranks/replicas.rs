//! Checks whether ranks that hold the same weights still hold the same bits.
//!
//! Each rank updates its copy of the weights that it shares with others. The copies stay equal because the devices
//! compute alike. If one does not, because of its driver or a memory fault, a checkpoint would mix weights that have
//! drifted apart. So before each checkpoint every rank computes fingerprints of its weights on the device, in a
//! recording of its own that steps do not replay, and the first rank compares the fingerprints of weights that several
//! ranks hold. Weights that only one rank holds, its part of sharded weights or of spread experts, have nothing to be
//! compared with.
//!
//! Sums of hashes are integers, so they are exact in any order. Ranks that hold the same elements of a tensor must
//! have the same sums, or the run ends with the first tensor that differs, and the last good checkpoint stays.
//! Moments are not compared, since a difference shows in the weights one update later.

use crate::element::Element;
use crate::error::{Error, Result};
use crate::kernels::Capabilities;
use crate::model::ExpertState;
use crate::model::arena::{Arena, ArenaLayout, Part};
use crate::model::parameters::Spec;
use crate::ops::fingerprint::fingerprint;
use crate::ranks::sharding::ownership::Ownership;
use crate::record::{Persistents, Recorder, Recording, Tensor};
use crate::train::arenas::Arenas;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

/// The fingerprints of the weights that a rank holds.
pub struct Replicas {
    /// Adds the fingerprints of all weights to `sums`.
    pub recording: Recording,
    /// (N, 2): one row for each tensor.
    sums: Tensor,
    /// The tensor of each row, in the same order on all ranks.
    held: Vec<Held>,
}

/// The part of a tensor that a rank holds.
struct Held {
    /// The parameter's path, or the router.
    path: String,
    /// A hash of the rows of the whole tensor and of the elements of the segments: equal on ranks that hold the same.
    place: u64,
}

/// The fingerprint of a tensor, as a rank sends it to the first one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct Fingerprint {
    place: u64,
    sums: [u32; 2],
}

impl Replicas {
    /// Fingerprints of the weights in `arenas`, of all parameters in `whole`, and of the biases of `experts`; `None`
    /// for a single rank.
    ///
    /// # Errors
    /// A launch over WebGPU's limits.
    pub(crate) fn new(
        whole: &[Spec],
        (layout, arenas): (&ArenaLayout, &Arenas),
        experts: Option<&ExpertState>,
        ownership: &Ownership,
        persistents: &mut Persistents,
        capabilities: Capabilities,
    ) -> Result<Option<Self>> {
        if ownership.ranks.world() == 1 {
            return Ok(None);
        }
        let mut tensors: Vec<(Held, Vec<(Tensor, u32)>)> = Vec::new();
        for arena in [&arenas.weights, &arenas.copies] {
            // Parameters on other stages are listed too, so that all ranks have the same list.
            let has_stages = ownership.ranks.pipeline > 1;
            let mut own = layout.parameters.iter().peekable();
            for Spec { path, .. } in whole {
                let held = own.next_if(|(spec, _)| spec.path == *path);
                let stored = held.filter(|(_, parts)| arena.holds(parts));
                let nothing = has_stages.then(|| (Held { path: path.clone(), place: 0 }, Vec::new()));
                tensors.extend(stored.map(|(spec, parts)| held_of(arena, spec, parts)).or(nothing));
            }
        }
        if let Some(experts) = experts {
            let biases = experts.layers().filter_map(|layer| Some((layer, experts.bias(layer)?)));
            tensors.extend(biases.map(|(layer, bias)| {
                (Held { path: format!("layers.{layer}.router.bias"), place: 0 }, vec![(bias, 0)])
            }));
        }
        let sums = persistents.tensor("fingerprints", tensors.len() as u32, 2, Element::U32);
        let mut rec = Recorder::new("fingerprints", capabilities);
        for (index, (Held { path, .. }, parts)) in (0..).zip(&tensors) {
            rec.scope(path.as_str(), |rec| {
                parts.iter().for_each(|(part, first)| fingerprint(rec, *part, *first, sums, index));
            });
        }
        let held = tensors.into_iter().map(|(held, _)| held).collect();
        Ok(Some(Self { recording: rec.try_finish()?, sums, held }))
    }
}

/// The part of a parameter in `arena` that this rank holds: flat rows, each with the place of its first word.
fn held_of(arena: &Arena, spec: &Spec, parts: &[Part]) -> (Held, Vec<(Tensor, u32)>) {
    let held: Vec<(usize, Range<u64>)> = parts
        .iter()
        .flat_map(|part| {
            let whole = part.range(spec, part.first_row, part.first_row + part.rows);
            arena.held_in(part.segment, &whole).into_iter().map(|range| (part.segment, range))
        })
        .collect();
    let mut place = DefaultHasher::new(); // all ranks run the same program
    (&spec.path, spec.share.as_ref().map(|share| [&share.rows, &share.cols]), &held).hash(&mut place);
    let flat = |(segment, range): (usize, Range<u64>)| {
        let first = arena.element(segment).bytes_of(range.start) / 4;
        (arena.range(segment, range), first as u32)
    };
    (Held { path: spec.path.clone(), place: place.finish() }, held.into_iter().map(flat).collect())
}

impl Replicas {
    /// The fingerprints that the device has computed.
    pub(crate) fn sums(&self) -> Tensor {
        self.sums
    }

    /// The report for the first rank: the place of each tensor, with its fingerprint in `words`.
    pub(crate) fn fingerprints(&self, words: &[[u32; 2]]) -> Vec<Fingerprint> {
        self.held
            .iter()
            .zip(words)
            .map(|(held, sums)| Fingerprint { place: held.place, sums: *sums })
            .collect()
    }

    /// Compares the fingerprints of all `ranks` after `step`; `saved` is the step of the newest checkpoint.
    ///
    /// # Errors
    /// Two ranks that hold different weights where they should hold the same.
    pub(crate) fn compare(
        &self,
        found: &[Fingerprint],
        ranks: usize,
        step: u64,
        saved: Option<u64>,
    ) -> Result<()> {
        let Some((tensor, rank, other)) = first_difference(found, ranks) else { return Ok(()) };
        let path = &self.held[tensor].path;
        let from = saved.map_or("start again".to_string(), |saved| {
            format!("continue from the checkpoint of step {saved} with --resume_training=True")
        });
        Err(Error::Ranks(format!(
            "rank {rank} has other weights than rank {other} after step {step}, first in {path}: their replicas have drifted \
             apart, and no checkpoint of it is written; give all ranks devices and drivers of one kind that pass `gristmill \
             doctor`, and {from}"
        )))
    }
}

/// The first tensor of which two ranks hold the same elements with different bits: the tensor and the two ranks.
fn first_difference(found: &[Fingerprint], ranks: usize) -> Option<(usize, usize, usize)> {
    let tensors = found.len() / ranks;
    let of = |rank: usize, tensor: usize| found[rank * tensors + tensor];
    (0..tensors).find_map(|tensor| {
        (1..ranks).find_map(|rank| {
            let own = of(rank, tensor);
            let other = (0..rank).find(|&other| of(other, tensor).place == own.place)?;
            (of(other, tensor).sums != own.sums).then_some((tensor, rank, other))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{Fingerprint, first_difference};

    /// The place and the bits of two tensors, by rank.
    fn fingerprints(all: &[[(u64, u32); 2]]) -> Vec<Fingerprint> {
        all.iter().flatten().map(|&(place, sum)| Fingerprint { place, sums: [7, sum] }).collect()
    }

    #[test]
    fn only_what_is_held_twice_is_compared() {
        let whole = fingerprints(&[[(1, 10), (1, 20)], [(1, 10), (1, 20)], [(1, 10), (1, 20)]]);
        assert_eq!(first_difference(&whole, 3), None);
        let drifted = fingerprints(&[[(1, 10), (1, 20)], [(1, 10), (1, 20)], [(1, 10), (1, 21)]]);
        assert_eq!(first_difference(&drifted, 3), Some((1, 2, 0)));
        // Ranks 0 and 2 hold one half, 1 and 3 the other.
        let halves = [[(1, 10), (1, 20)], [(1, 10), (2, 30)], [(1, 10), (1, 20)], [(1, 10), (2, 31)]];
        assert_eq!(first_difference(&fingerprints(&halves), 4), Some((1, 3, 1)));
        assert_eq!(first_difference(&fingerprints(&halves[..3]), 3), None, "and what one has alone is not");
    }
}

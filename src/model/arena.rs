//! The memory layout of parameters: flat arenas, cut into segments.
//!
//! Weights, gradients, first and second moments and the 16-bit copies of weights are arenas of one layout, so that one
//! norm launch and one elementwise update per segment cover any number of tensors. A segment holds parameters of one
//! [`SegmentKind`] and fits one binding; an arena has no buffer for kinds that it does not need, such as gradients of
//! frozen parameters. Parts start at multiples of 128 elements, so that the same offset can be bound in f32, f16 and
//! bf16.

use super::config::ModelConfig;
use super::parameters::{Gpt, Spec, UpdateRule};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::kernels::Limits;
use crate::record::{BufferId, PersistentId, Persistents, Tensor};
use crate::tape::Parameter;
use std::collections::BTreeSet;
use std::ops::Range;

/// Parts start at multiples of this many elements of their segment.
pub(crate) const ALIGNMENT: u64 = 128;

/// Consecutive rows of a parameter in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the segment.
    pub segment: usize,
    /// Offset in the segment, in elements.
    pub offset: u64,
    /// First row of the parameter in this part.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
}

/// A segment: each arena has one buffer for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Length in elements.
    pub elements: u64,
    /// The kind of its parameters.
    pub kind: SegmentKind,
}

/// How the parameters of a segment are updated. Segments are ordered by their kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentKind {
    /// Whether the parameters are frozen, so that they have no gradient and no moments.
    pub is_frozen: bool,
    /// Parameter group.
    pub group: usize,
    /// Update rule.
    pub rule: UpdateRule,
    /// Whether the parameters are exempt from weight decay.
    pub is_exempt: bool,
    /// Storage type in which layers read them.
    pub compute: Element,
    /// Whether the parameters are experts that are spread over ranks.
    pub is_spread: bool,
    /// Whether another stage of a pipeline also holds them. Such parameters have segments of their own, which are the
    /// same on both stages.
    pub is_copied: bool,
}

impl Segment {
    /// The range of all its elements.
    pub fn whole(&self) -> Range<u64> {
        0..self.elements
    }
}

impl SegmentKind {
    fn of(spec: &Spec) -> Self {
        Self {
            is_frozen: !spec.trains,
            group: spec.group,
            rule: spec.rule,
            is_exempt: !spec.decays,
            compute: spec.compute,
            is_spread: spec.is_spread(),
            is_copied: spec.is_copied,
        }
    }
}

/// The layout of all arenas.
#[derive(Clone, Debug, PartialEq)]
pub struct ArenaLayout {
    /// The parameters and their parts, in the order of [`Gpt::declare`].
    pub parameters: Vec<(Spec, Vec<Part>)>,
    /// The segments.
    pub segments: Vec<Segment>,
}

impl ArenaLayout {
    /// Places the parameters.
    ///
    /// # Errors
    /// A parameter that no binding can hold.
    pub fn new(parameters: Vec<Spec>, limits: &Limits) -> Result<Self> {
        let binding_bytes = limits.binding_bytes.min(limits.buffer_bytes);
        let mut segments: Vec<Segment> = Vec::new();
        let kinds: BTreeSet<SegmentKind> = parameters.iter().map(SegmentKind::of).collect();
        let mut parameters: Vec<(Spec, Vec<Part>)> =
            parameters.into_iter().map(|spec| (spec, Vec::new())).collect();
        for kind in kinds {
            let mut open: Option<usize> = None; // the segment being filled; kinds do not share one
            let segment_elements = most_elements(kind, binding_bytes);
            for (spec, parts) in parameters.iter_mut().filter(|(spec, _)| SegmentKind::of(spec) == kind) {
                for (first_row, rows) in row_ranges(spec, binding_bytes)? {
                    let part = Part { segment: 0, offset: 0, first_row, rows };
                    let needed = part.elements(spec).next_multiple_of(ALIGNMENT);
                    let fits = |&s: &usize| segments[s].elements + needed <= segment_elements;
                    let segment = open.filter(fits).unwrap_or_else(|| {
                        segments.push(Segment { elements: 0, kind });
                        segments.len() - 1
                    });
                    open = Some(segment);
                    parts.push(Part { segment, offset: segments[segment].elements, ..part });
                    segments[segment].elements += needed;
                }
            }
        }
        Ok(Self { parameters, segments })
    }

    /// Adds an arena to the persistent buffers; it holds the kinds of parameters for which `element` returns a storage
    /// type.
    pub fn arena(
        &self,
        persistents: &mut Persistents,
        name: &str,
        element: impl Fn(SegmentKind) -> Option<Element>,
    ) -> Arena {
        self.arena_of(persistents, name, |_, segment| Some((element(segment.kind)?, vec![segment.whole()])))
    }

    /// Adds an arena that holds parts of segments: `held` returns a storage type, and which elements of the segment it
    /// holds, ascending.
    pub(crate) fn arena_of(
        &self,
        persistents: &mut Persistents,
        name: &str,
        held: impl Fn(usize, &Segment) -> Option<(Element, Vec<Range<u64>>)>,
    ) -> Arena {
        let buffer = |(i, segment): (usize, &Segment)| {
            let (element, held) = held(i, segment)?;
            let count: u64 = held.iter().map(|range| range.end - range.start).sum();
            let id = persistents.add(format!("{name} {i}"), element.bytes_of(count));
            Some(ArenaBuffer { id, element, held })
        };
        Arena { segments: self.segments.iter().enumerate().map(buffer).collect() }
    }

    /// The parameters of the model of `config`, which the layout was made for, on two arenas; parameters of other
    /// stages are [elsewhere](Parameter::elsewhere). If experts are spread, the model declares all of them.
    #[track_caller]
    pub fn bind(
        &self,
        config: &ModelConfig,
        weights: &dyn Holds,
        gradients: Option<&dyn Holds>,
    ) -> Gpt<Parameter> {
        let mut parameters = self.parameters.iter().peekable();
        let gpt = Gpt::declare(config, &mut |declared| {
            let Some((spec, parts)) = parameters.next_if(|(spec, _)| spec.path == declared.path) else {
                return Parameter::elsewhere();
            };
            let is_as_high = spec.rows == declared.rows || spec.is_spread();
            let is_alike = is_as_high && spec.cols == declared.cols;
            assert!(is_alike, "{} is not the model's {} in the arenas", spec.path, declared.path);
            parameter(spec, parts, weights, gradients)
        });
        assert!(parameters.next().is_none(), "the arenas hold parameters that the model does not declare");
        gpt
    }

    /// The parameter at `path` on two arenas.
    #[track_caller]
    pub fn parameter(&self, path: &str, weights: &Arena, gradients: Option<&Arena>) -> Parameter {
        let (spec, parts) = self.find(path);
        parameter(spec, parts, weights, gradients.map(|arena| arena as &dyn Holds))
    }

    /// The weights of the parameter at `path`.
    #[track_caller]
    pub(crate) fn held(&self, path: &str, weights: &dyn Holds) -> Parameter {
        let (spec, parts) = self.find(path);
        parameter(spec, parts, weights, None)
    }

    /// A parameter and its parts.
    #[track_caller]
    pub fn find(&self, path: &str) -> &(Spec, Vec<Part>) {
        let found = self.parameters.iter().find(|(spec, _)| spec.path == path);
        let Some(found) = found else { panic!("the arenas hold no parameter {path}") };
        found
    }
}

/// Storage that holds parts of parameters.
pub trait Holds {
    /// The tensor of a part of a parameter.
    fn part(&self, spec: &Spec, part: &Part) -> Tensor;
}

/// One arena: a persistent buffer for each segment that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// The buffer of each segment.
    pub segments: Vec<Option<ArenaBuffer>>,
}

/// The part of a segment that an arena holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaBuffer {
    /// The buffer.
    pub id: PersistentId,
    /// The storage type of the buffer.
    pub element: Element,
    /// The elements of the segment that it holds, one range after the other: all, or those that this rank owns.
    pub held: Vec<Range<u64>>,
}

impl Arena {
    /// All buffers.
    pub fn buffers(&self) -> impl Iterator<Item = PersistentId> + '_ {
        self.segments.iter().flatten().map(|buffer| buffer.id)
    }

    /// The segments of this arena and, where it has none, those of `other`.
    pub fn or(&self, other: &Self) -> Self {
        let pairs = self.segments.iter().zip(&other.segments);
        Self { segments: pairs.map(|(own, other)| own.as_ref().or(other.as_ref()).cloned()).collect() }
    }

    /// Whether the arena holds the parameter with these parts.
    pub fn holds(&self, parts: &[Part]) -> bool {
        parts.iter().all(|part| self.segments[part.segment].is_some())
    }

    /// The elements in `range` of a segment that the arena holds, which are this rank's share, in ascending ranges.
    /// None of them reaches across two held ranges.
    pub(crate) fn held_in(&self, segment: usize, range: &Range<u64>) -> Vec<Range<u64>> {
        let held = self.segments[segment].iter().flat_map(|buffer| &buffer.held);
        let shared = held.map(|held| held.start.max(range.start)..held.end.min(range.end));
        shared.filter(|shared| !shared.is_empty()).collect()
    }

    /// A range of a segment's elements as one flat row.
    #[track_caller]
    pub fn range(&self, segment: usize, range: Range<u64>) -> Tensor {
        let buffer = self.buffer(segment);
        let elements = (range.end - range.start) as u32;
        Tensor::new(BufferId::Persistent(buffer.id), buffer.offset(&range), 1, elements, buffer.element)
    }

    /// A part of a parameter.
    #[track_caller]
    pub fn part(&self, spec: &Spec, part: &Part) -> Tensor {
        self.rows(spec, part, part.first_row, part.first_row + part.rows)
    }

    /// Rows `first` to `end` of a parameter, which are in `part`.
    #[track_caller]
    pub fn rows(&self, spec: &Spec, part: &Part, first: usize, end: usize) -> Tensor {
        let buffer = self.buffer(part.segment);
        let offset = buffer.offset(&part.range(spec, first, end));
        let id = BufferId::Persistent(buffer.id);
        Tensor::new(id, offset, (end - first) as u32, spec.cols as u32, buffer.element)
    }

    /// The storage type of a segment.
    #[track_caller]
    pub fn element(&self, segment: usize) -> Element {
        self.buffer(segment).element
    }

    #[track_caller]
    fn buffer(&self, segment: usize) -> &ArenaBuffer {
        let Some(buffer) = &self.segments[segment] else {
            panic!("this arena does not hold segment {segment}")
        };
        buffer
    }
}

impl Holds for Arena {
    #[track_caller]
    fn part(&self, spec: &Spec, part: &Part) -> Tensor {
        self.part(spec, part)
    }
}

impl ArenaBuffer {
    /// The byte at which a range of the segment's elements starts.
    #[track_caller]
    fn offset(&self, range: &Range<u64>) -> u64 {
        let mut before = 0;
        for held in &self.held {
            if held.start <= range.start && range.end <= held.end {
                return self.element.bytes_of(before + range.start - held.start);
            }
            before += held.end - held.start;
        }
        panic!("elements {range:?} of a segment of which {:?} are held", self.held)
    }
}

impl Part {
    /// The range in the segment of rows `first` to `end` of the parameter, which must be rows of this part.
    pub fn range(&self, spec: &Spec, first: usize, end: usize) -> Range<u64> {
        let stride = u64::from(spec.stride());
        let at = |row: usize| self.offset + (row - self.first_row) as u64 * stride;
        at(first)..at(end)
    }

    /// The range in the segment of those rows in `lines` that this part has; `lines` are rows of the parameter, or
    /// columns of a vector, whose padding goes with the last ones.
    pub(crate) fn lines(&self, spec: &Spec, lines: &Range<usize>) -> Range<u64> {
        if spec.role.is_row() {
            let end = if lines.end == spec.cols { u64::from(spec.stride()) } else { lines.end as u64 };
            return self.offset + lines.start as u64..self.offset + end;
        }
        let row = |row: usize| row.clamp(self.first_row, self.first_row + self.rows);
        self.range(spec, row(lines.start), row(lines.end))
    }

    /// Elements that the part takes of its segment, including the padding of rows.
    pub fn elements(&self, spec: &Spec) -> u64 {
        self.rows as u64 * u64::from(spec.stride())
    }
}

/// A parameter on two arenas.
#[track_caller]
fn parameter(spec: &Spec, parts: &[Part], weights: &dyn Holds, gradients: Option<&dyn Holds>) -> Parameter {
    let on = |arena: &dyn Holds| parts.iter().map(|part| arena.part(spec, part)).collect();
    Parameter { weight: on(weights), gradient: gradients.filter(|_| spec.trains).map(on) }
}

/// Most elements of a segment of parameters of this kind.
fn most_elements(kind: SegmentKind, binding_bytes: u64) -> u64 {
    // Ops count elements in 32 bits.
    let most = u64::from(u32::MAX) / ALIGNMENT;
    (binding_bytes / bytes_of(kind, ALIGNMENT)).min(most) * ALIGNMENT
}

/// Bytes of `elements` elements in the largest arena that holds them: gradients and master weights are f32, and frozen
/// parameters have neither.
fn bytes_of(kind: SegmentKind, elements: u64) -> u64 {
    if kind.is_frozen { kind.compute.bytes_of(elements) } else { Element::F32.bytes_of(elements) }
}

/// (first row, rows) of each part of a parameter: one part if it fits, otherwise split where [`Spec::split_rows`]
/// allows.
fn row_ranges(spec: &Spec, binding_bytes: u64) -> Result<Vec<(usize, usize)>> {
    let kind = SegmentKind::of(spec);
    let segment_elements = most_elements(kind, binding_bytes);
    let stride = u64::from(spec.stride());
    let rows_that_fit = (segment_elements / stride) as usize;
    if spec.rows <= rows_that_fit {
        return Ok(vec![(0, spec.rows)]);
    }
    let rows = spec.split_rows().map_or(0, |multiple| rows_that_fit / multiple * multiple);
    if rows == 0 {
        let what = format!(
            "{} ({} x {}, {} MiB) does not fit the adapter's largest binding of {} MiB",
            spec.path,
            spec.rows,
            spec.cols,
            bytes_of(kind, spec.rows as u64 * stride).div_ceil(1 << 20),
            binding_bytes >> 20,
        );
        return Err(Error::too_large(
            what,
            "choose another adapter with context.device_name, or a narrower model",
        ));
    }
    Ok((0..spec.rows).step_by(rows).map(|first| (first, rows.min(spec.rows - first))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{LowRank, Sizes};

    /// In a binding of 32 KiB fit 8,192 elements of f32, and the 16,384 of gate and up in 16 bits or fewer.
    #[test]
    fn a_frozen_matrix_is_as_large_as_it_is_stored() {
        for (base, compute) in [(Some(Element::Nf4), Element::F32), (None, Element::Bf16)] {
            place_frozen(base, compute);
        }
    }

    fn place_frozen(base: Option<Element>, compute: Element) {
        let sizes = Sizes {
            vocab_size: 64,
            hidden_size: 64,
            num_layers: 1,
            num_heads: 4,
            intermediate_size: 128,
            seq_length: 8,
        };
        let modules = ["q_proj", "k_proj", "v_proj"].map(|name| format!("model.layers.0.self_attn.{name}"));
        let low_rank = LowRank { rank: 4, alpha: 8.0, base, modules: modules.into(), ..LowRank::default() };
        let model = ModelConfig { low_rank: Some(low_rank), compute, ..ModelConfig::llama(sizes) };
        let limits = Limits { binding_bytes: 32 << 10, buffer_bytes: 32 << 10 };
        let layout = ArenaLayout::new(Gpt::describe(&model), &limits).unwrap_or_else(|e| panic!("{e}"));
        let divided = layout.parameters.iter().find(|(_, parts)| parts.len() > 1);
        assert!(divided.is_none(), "{divided:?}");
        let largest = layout.segments.iter().map(|segment| bytes_of(segment.kind, segment.elements)).max();
        assert!(largest <= Some(32 << 10), "{largest:?}");
        let limits = Limits { binding_bytes: 8 << 10, buffer_bytes: 8 << 10 };
        let line = ArenaLayout::new(Gpt::describe(&model), &limits).unwrap_err().to_string();
        assert!(
            line.contains("does not fit the adapter's largest binding of 0 MiB; choose another adapter"),
            "{line}"
        );
    }
}

//! The memory layout of parameters: flat arenas, cut into segments.
//!
//! Weights, gradients, first and second moments and the 16-bit copies of weights are arenas of one layout, so that one norm
//! launch and one elementwise update per segment cover any number of tensors. A segment holds parameters of one [`Kind`] and fits one binding; an
//! arena has no buffer for kinds that it does not need, such as gradients of frozen parameters. Parts start at
//! multiples of 128 elements, so that the same offset can be bound in f32, f16 and bf16.

use super::config::ModelConfig;
use super::parameters::{Gpt, Spec, UpdateRule};
use crate::element::{Element, stride_of};
use crate::error::{Error, Result};
use crate::kernels::Limits;
use crate::record::{BufferId, PersistentId, Persistents, Tensor};
use crate::tape::Parameter;
use std::collections::BTreeSet;

const ALIGNMENT: u64 = 128;

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

/// One buffer of every arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Length in elements.
    pub elements: u64,
    /// The kind of its parameters.
    pub kind: Kind,
}

/// How the parameters of a segment are updated. Segments are in the order of their kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// Whether they are frozen: without gradient and moments.
    pub is_frozen: bool,
    /// Parameter group.
    pub group: usize,
    /// Update rule.
    pub rule: UpdateRule,
    /// Whether they are exempt from weight decay.
    pub is_exempt: bool,
    /// Storage type in which layers read them.
    pub compute: Element,
}

impl Kind {
    fn of(spec: &Spec) -> Self {
        Self {
            is_frozen: !spec.trains,
            group: spec.group,
            rule: spec.rule,
            is_exempt: !spec.decays,
            compute: spec.compute,
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
        let segment_elements = limits.binding_bytes.min(limits.buffer_bytes) / 4 / ALIGNMENT * ALIGNMENT;
        let mut segments: Vec<Segment> = Vec::new();
        let kinds: BTreeSet<Kind> = parameters.iter().map(Kind::of).collect();
        let mut parameters: Vec<(Spec, Vec<Part>)> =
            parameters.into_iter().map(|spec| (spec, Vec::new())).collect();
        for kind in kinds {
            let mut open: Option<usize> = None; // the segment being filled; kinds do not share one
            for (spec, parts) in parameters.iter_mut().filter(|(spec, _)| Kind::of(spec) == kind) {
                for (first_row, rows) in row_ranges(spec, segment_elements)? {
                    let needed =
                        (rows as u64 * stride_of(spec.cols as u32) as u64).next_multiple_of(ALIGNMENT);
                    let fits = |&s: &usize| segments[s].elements + needed <= segment_elements;
                    let segment = open.filter(fits).unwrap_or_else(|| {
                        segments.push(Segment { elements: 0, kind });
                        segments.len() - 1
                    });
                    open = Some(segment);
                    parts.push(Part { segment, offset: segments[segment].elements, first_row, rows });
                    segments[segment].elements += needed;
                }
            }
        }
        Ok(Self { parameters, segments })
    }

    /// Path and number of elements of each parameter.
    pub fn sizes(&self) -> Vec<(String, usize)> {
        self.parameters.iter().map(|(spec, _)| (spec.path.clone(), spec.rows * spec.cols)).collect()
    }

    /// Size of an arena in elements.
    pub fn elements(&self) -> u64 {
        self.segments.iter().map(|segment| segment.elements).sum()
    }

    /// Adds an arena to the persistent buffers, with the kinds of parameters for which `element` gives a storage type.
    pub fn arena(
        &self,
        persistents: &mut Persistents,
        name: &str,
        element: impl Fn(Kind) -> Option<Element>,
    ) -> Arena {
        let buffer = |(i, s): (usize, &Segment)| {
            let element = element(s.kind)?;
            Some((persistents.add(format!("{name} {i}"), element.bytes() * s.elements), element))
        };
        Arena { segments: self.segments.iter().enumerate().map(buffer).collect() }
    }

    /// The parameters of the model of `config`, which the layout was made for, on two arenas.
    #[track_caller]
    pub fn bind(&self, config: &ModelConfig, weights: &Arena, gradients: Option<&Arena>) -> Gpt<Parameter> {
        let mut parameters = self.parameters.iter();
        let gpt = Gpt::declare(config, &mut |declared| {
            let Some((spec, parts)) = parameters.next() else {
                panic!("the arenas do not hold {}", declared.path)
            };
            let is_alike =
                (&spec.path, spec.rows, spec.cols) == (&declared.path, declared.rows, declared.cols);
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
        parameter(spec, parts, weights, gradients)
    }

    /// A parameter and its parts.
    #[track_caller]
    pub fn find(&self, path: &str) -> &(Spec, Vec<Part>) {
        let found = self.parameters.iter().find(|(spec, _)| spec.path == path);
        let Some(found) = found else { panic!("the arenas hold no parameter {path}") };
        found
    }
}

/// One arena: a persistent buffer for each segment that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// The buffer of each segment, and its storage type.
    pub segments: Vec<Option<(PersistentId, Element)>>,
}

impl Arena {
    /// All buffers.
    pub fn buffers(&self) -> impl Iterator<Item = PersistentId> + '_ {
        self.segments.iter().flatten().map(|(buffer, _)| *buffer)
    }

    /// The segments of this arena and, where it has none, of `other`.
    pub fn or(&self, other: &Self) -> Self {
        let pairs = self.segments.iter().zip(&other.segments);
        Self { segments: pairs.map(|(own, other)| own.or(*other)).collect() }
    }

    /// Whether the arena holds the parameter with these parts.
    pub fn holds(&self, parts: &[Part]) -> bool {
        parts.iter().all(|part| self.segments[part.segment].is_some())
    }

    /// A whole segment as one flat row.
    #[track_caller]
    pub fn segment(&self, layout: &ArenaLayout, index: usize) -> Tensor {
        let elements = layout.segments[index].elements as u32;
        let (buffer, element) = self.buffer(index);
        Tensor::new(buffer, 0, 1, elements, element)
    }

    /// A part of a parameter.
    #[track_caller]
    pub fn part(&self, spec: &Spec, part: &Part) -> Tensor {
        let (buffer, element) = self.buffer(part.segment);
        Tensor::new(buffer, element.bytes() * part.offset, part.rows as u32, spec.cols as u32, element)
    }

    #[track_caller]
    fn buffer(&self, segment: usize) -> (BufferId, Element) {
        let Some((id, element)) = self.segments[segment] else {
            panic!("this arena does not hold segment {segment}")
        };
        (BufferId::Persistent(id), element)
    }
}

/// A parameter on two arenas.
#[track_caller]
fn parameter(spec: &Spec, parts: &[Part], weights: &Arena, gradients: Option<&Arena>) -> Parameter {
    let on = |arena: &Arena| parts.iter().map(|part| arena.part(spec, part)).collect();
    Parameter { weight: on(weights), gradient: gradients.filter(|_| spec.trains).map(on) }
}

/// (first row, rows) of each part of a parameter: one part if it fits, otherwise split where [`Spec::split_rows`]
/// allows.
fn row_ranges(spec: &Spec, segment_elements: u64) -> Result<Vec<(usize, usize)>> {
    let stride = stride_of(spec.cols as u32) as u64;
    let rows_that_fit = (segment_elements / stride) as usize;
    if spec.rows <= rows_that_fit {
        return Ok(vec![(0, spec.rows)]);
    }
    let rows = spec.split_rows().map_or(0, |multiple| rows_that_fit / multiple * multiple);
    if rows == 0 {
        return Err(Error::Plan(format!(
            "{} ({} x {}, {} MiB) does not fit the adapter's largest binding of {} MiB; make the model narrower or \
             choose another adapter with context.device_name",
            spec.path,
            spec.rows,
            spec.cols,
            (spec.rows as u64 * stride * 4) >> 20,
            (segment_elements * 4) >> 20,
        )));
    }
    Ok((0..spec.rows).step_by(rows).map(|first| (first, rows.min(spec.rows - first))).collect())
}

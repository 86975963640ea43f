//! Where parameters lie: flat arenas, cut into segments.
//!
//! Weights, gradients and both moments of AdamW are four arenas of the same layout, so one norm and one AdamW launch
//! per segment serve any number of tensors. Parameters that are updated alike lie together: group by group, those that
//! decay first, and what is frozen last. A segment is of one kind and never larger than one binding; an arena that holds
//! nothing of a kind (gradients of what is frozen, say) has no buffer for it. Each part starts at a multiple of 128 elements: the same offset binds in f32, f16
//! and bf16.

use super::config::ModelConfig;
use super::parameters::{Gpt, Spec, UpdateRule};
use crate::element::{Element, stride_of};
use crate::error::{Error, Result};
use crate::kernels::Limits;
use crate::record::{BufferId, PersistentId, Persistents, Tensor};
use crate::tape::Parameter;
use std::collections::BTreeSet;

const ALIGNMENT: u64 = 128;

/// Some whole rows of a parameter in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The segment's number.
    pub segment: usize,
    /// Elements from the segment's start.
    pub offset: u64,
    /// First row of the parameter that lies here.
    pub first_row: usize,
    /// How many.
    pub rows: usize,
}

/// One buffer of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its length.
    pub elements: u64,
    /// What lies in it.
    pub kind: Kind,
}

/// What the parameters of a segment have in common. Kinds lie in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// Whether they stay as they are: no gradient, no moments.
    pub is_frozen: bool,
    /// Their parameter group.
    pub group: usize,
    /// How they are updated.
    pub rule: UpdateRule,
    /// Whether weight decay passes them by.
    pub is_exempt: bool,
}

impl Kind {
    fn of(spec: &Spec) -> Self {
        Self { is_frozen: !spec.trains, group: spec.group, rule: spec.rule, is_exempt: !spec.decays }
    }
}

/// The layout that all arenas share.
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

    /// Elements of one arena.
    pub fn elements(&self) -> u64 {
        self.segments.iter().map(|segment| segment.elements).sum()
    }

    /// Adds one arena to the persistent buffers, for the kinds of parameters that it `holds`.
    pub fn arena(&self, persistents: &mut Persistents, name: &str, holds: impl Fn(Kind) -> bool) -> Arena {
        let buffer = |(i, s): (usize, &Segment)| {
            holds(s.kind).then(|| persistents.add(format!("{name} {i}"), 4 * s.elements))
        };
        Arena { segments: self.segments.iter().enumerate().map(buffer).collect() }
    }

    /// The parameters of the model of `config`, which the layout was made for, on two arenas.
    #[track_caller]
    pub fn bind(&self, config: &ModelConfig, weights: &Arena, gradients: Option<&Arena>) -> Gpt<Parameter> {
        let mut count = 0;
        let gpt = Gpt::declare(config, &mut |declared| {
            count += 1;
            let (spec, _) = self.find(&declared.path);
            let is_alike = (spec.rows, spec.cols) == (declared.rows, declared.cols);
            assert!(is_alike, "{} has another shape in the arenas than in the model", spec.path);
            self.parameter(&spec.path, weights, gradients)
        });
        assert!(count == self.parameters.len(), "the arenas hold parameters that the model does not declare");
        gpt
    }

    /// The parameter at `path` on two arenas.
    #[track_caller]
    pub fn parameter(&self, path: &str, weights: &Arena, gradients: Option<&Arena>) -> Parameter {
        let (spec, parts) = self.find(path);
        let on = |arena: &Arena| parts.iter().map(|part| arena.part(spec, part)).collect();
        Parameter { weight: on(weights), gradient: gradients.filter(|_| spec.trains).map(on) }
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
    /// By segment.
    pub segments: Vec<Option<PersistentId>>,
}

impl Arena {
    /// The buffers there are.
    pub fn buffers(&self) -> impl Iterator<Item = PersistentId> + '_ {
        self.segments.iter().copied().flatten()
    }

    /// Whether the arena holds a parameter.
    pub fn holds(&self, parts: &[Part]) -> bool {
        parts.iter().all(|part| self.segments[part.segment].is_some())
    }

    /// A whole segment as one flat row.
    #[track_caller]
    pub fn segment(&self, layout: &ArenaLayout, index: usize) -> Tensor {
        let elements = layout.segments[index].elements as u32;
        Tensor::new(self.buffer(index), 0, 1, elements, Element::F32)
    }

    /// A part of a parameter.
    #[track_caller]
    pub fn part(&self, spec: &Spec, part: &Part) -> Tensor {
        let buffer = self.buffer(part.segment);
        Tensor::new(buffer, 4 * part.offset, part.rows as u32, spec.cols as u32, Element::F32)
    }

    #[track_caller]
    fn buffer(&self, segment: usize) -> BufferId {
        let Some(id) = self.segments[segment] else { panic!("this arena does not hold segment {segment}") };
        BufferId::Persistent(id)
    }
}

/// (first row, rows) of each part of a parameter: one, if it fits; else parts start where it may be split.
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

//! The weights that a run starts with, portion by portion, and the memory that writing them takes.

use super::recordings::Recordings;
use crate::device::{Buffers, Gpu};
use crate::model::parameters::Spec;
use crate::record::Tensor;
use std::cell::Cell;
use std::ops::Range;

/// Bytes that are written between two submissions: until a submission has run, wgpu keeps a copy of everything that was
/// written, in addition to the target buffers.
pub(super) const PORTION: u64 = 16 << 20;

/// Elements of a parameter that are written at once: whole rows, except that rows at the ends may be partial if ranks
/// share them.
pub(super) struct RowGroup<'a> {
    /// The parameter.
    pub spec: &'a Spec,
    /// The rows that contain the elements.
    pub rows: Range<usize>,
    /// Elements of the first row that precede the written elements.
    pub skipped: u64,
    /// The place of the elements in the arena, one flat row.
    pub place: Tensor,
}

/// The most bytes of copies that wgpu keeps of data written before the first step: params, which are waited for, then
/// tables and initial weights portion by portion. The first step frees the last of them.
pub(crate) fn start_bytes(recordings: &Recordings) -> u64 {
    let capacities = recordings.tensors.model.experts.iter().flat_map(|experts| {
        let rows = experts.layers().filter_map(|layer| experts.capacities(layer));
        rows.map(|row| row.bytes()).collect::<Vec<_>>()
    });
    let rotary: u64 = recordings.tensors.model.cos_sin.iter().flatten().map(|table| table.bytes()).sum();
    let scaler = recordings.tensors.scaler.map_or(0, |scaler| scaler.windows.bytes() + scaler.state.bytes());
    let tables = recordings.tensors.schedule.bytes() + recordings.tensors.state.bytes();
    let mut kept = tables + rotary + scaler + capacities.sum::<u64>();
    let (mut most, mut written) = (kept.max(recordings.params_bytes()), 0);
    for group in RowGroup::all(recordings) {
        kept += group.place.bytes();
        written += group.place.bytes();
        most = most.max(kept);
        if written >= PORTION {
            (kept, written) = (0, 0);
        }
    }
    most
}

/// Writes to the persistent tensors of `buffers`, and submits each portion, without waiting for it.
pub(crate) fn portions(gpu: &Gpu, buffers: &Buffers) -> impl Fn(Tensor, &[u8]) {
    let written = Cell::new(0);
    move |tensor, bytes| {
        let Some(id) = tensor.buffer.persistent() else { return };
        gpu.write(buffers, id, tensor.offset, bytes);
        written.set(written.get() + bytes.len() as u64);
        if written.get() >= PORTION {
            gpu.submit_writes();
            written.set(0);
        }
    }
}

impl<'a> RowGroup<'a> {
    /// The weights that this rank holds, in groups of at most [`PORTION`] bytes, unless a single row has more.
    pub fn all(recordings: &'a Recordings) -> impl Iterator<Item = Self> {
        let weights = &recordings.arenas.weights;
        let parameters = recordings.layout.parameters.iter();
        let parts = parameters.flat_map(|(spec, parts)| parts.iter().map(move |part| (spec, part)));
        parts.flat_map(move |(spec, part)| {
            let stride = spec.stride();
            let count = (PORTION / (4 * u64::from(stride))).max(1) as usize;
            let end = part.first_row + part.rows;
            let groups = (part.first_row..end).step_by(count).flat_map(move |first| {
                let rows = part.range(spec, first, end.min(first + count));
                weights.held_in(part.segment, &rows)
            });
            groups.map(move |held| {
                let row_of = |place: u64| part.first_row + (place / u64::from(stride)) as usize;
                let [start, end] = [held.start, held.end].map(|place| place - part.offset);
                Self {
                    spec,
                    rows: row_of(start)..row_of(end.next_multiple_of(stride.into())),
                    skipped: start % u64::from(stride),
                    place: weights.range(part.segment, held),
                }
            })
        })
    }
}

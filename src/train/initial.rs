//! What the device holds before the first step: schedules, tables, weights.

use super::recordings::Recordings;
use super::schedule::Schedule;
use super::schedule_table::schedule_table;
use super::trainer::Trainer;
use crate::element::stride_of;
use crate::error::Result;
use crate::model::init::initial_row;
use crate::model::parameters::Spec;
use crate::record::Tensor;
use std::cell::Cell;
use std::ops::Range;

/// Bytes that are written between two submissions: until a submission has run, wgpu keeps a copy of everything that was
/// written, beside the buffers it is for.
const PORTION: u64 = 16 << 20;

/// Elements of a parameter that are written at once: whole rows, but where ranks share it those at its ends perhaps in part.
struct RowGroup<'a> {
    spec: &'a Spec,
    /// The rows that they are in.
    rows: Range<usize>,
    /// Elements of the first row before them.
    skipped: u64,
    /// Where they lie: one flat row.
    place: Tensor,
}

/// The most bytes of copies that wgpu keeps of what is written before the first step: params, which are waited for, then tables
/// and initial weights portion by portion. The first step frees the last of them.
pub(super) fn start_bytes(recordings: &Recordings) -> u64 {
    let capacities = recordings.tensors.model.experts.iter().flat_map(|experts| {
        let rows = experts.layers().filter_map(|layer| experts.capacities(layer));
        rows.map(|row| row.bytes()).collect::<Vec<_>>()
    });
    let rotary = recordings.tensors.model.cos_sin.map_or(0, |table| table.bytes());
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

impl Trainer<'_> {
    /// Writes the learning rates of `steps` steps, a schedule per parameter group, and with `betas` the corrections of
    /// the moments' bias.
    pub(super) fn write_schedules(&self, steps: u64, schedules: &[&Schedule], betas: Option<[f64; 2]>) {
        let rates: Vec<_> = schedules.iter().map(|schedule| |step| schedule.lr_at(step)).collect();
        let rates: Vec<&dyn Fn(u64) -> f64> =
            rates.iter().map(|lr_at| lr_at as &dyn Fn(u64) -> f64).collect();
        let table = schedule_table(steps, &rates, betas);
        self.write(self.recordings.tensors.schedule, bytemuck::cast_slice(&table));
    }

    /// Writes the rotary table and the capacities that experts start with, for a model that has them.
    pub(super) fn write_tables(&self) {
        let Recordings { tensors, model, .. } = &self.recordings;
        if let Some((table, values)) = tensors.model.rotary_table(model) {
            self.write(table, bytemuck::cast_slice(&values));
        }
        if let Some(experts) = &self.recordings.tensors.model.experts {
            let capacities = experts.initial_capacities();
            let rows = experts.layers().filter_map(|layer| experts.capacities(layer));
            rows.for_each(|row| self.write(row, bytemuck::cast_slice(&capacities)));
        }
    }

    /// Writes the weights that a run starts with, drawn from `seed`, portion by portion: the device takes over each before
    /// the next one is drawn.
    ///
    /// # Errors
    /// A device that fails.
    pub(super) async fn write_initial_weights(&self, seed: u64) -> Result<()> {
        let mut written = 0;
        for RowGroup { spec, rows, skipped, place } in RowGroup::all(&self.recordings) {
            let mut bytes = Vec::new();
            rows.for_each(|row| place.element.encode_row(&initial_row(spec, row, seed), &mut bytes));
            let start = (skipped * place.element.bytes()) as usize;
            let bytes = &bytes[start..start + place.bytes() as usize];
            self.write(place, bytes);
            written += bytes.len() as u64;
            if written >= PORTION {
                self.gpu.encoder().submit().await?;
                self.gpu.wait().await?;
                written = 0;
            }
        }
        Ok(())
    }

    /// Writes like [`write`](Self::write), and submits each portion, without waiting for it: for loading checkpoints.
    pub(super) fn portions(&self) -> impl Fn(Tensor, &[u8]) {
        let written = Cell::new(0);
        move |tensor, bytes| {
            self.write(tensor, bytes);
            written.set(written.get() + bytes.len() as u64);
            if written.get() >= PORTION {
                self.gpu.submit_writes();
                written.set(0);
            }
        }
    }
}

impl<'a> RowGroup<'a> {
    /// The weights that this rank holds, in groups of at most [`PORTION`] bytes where a row has no more.
    fn all(recordings: &'a Recordings) -> impl Iterator<Item = Self> {
        let weights = &recordings.arenas.weights;
        let parameters = recordings.layout.parameters.iter();
        let parts = parameters.flat_map(|(spec, parts)| parts.iter().map(move |part| (spec, part)));
        parts.flat_map(move |(spec, part)| {
            let stride = stride_of(spec.cols as u32);
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

//! What the device holds before the first step: schedules, tables, weights.

use super::schedule::Schedule;
use super::schedule_table::schedule_table;
use super::trainer::Trainer;
use crate::error::Result;
use crate::model::init::initial_row;
use crate::record::Tensor;
use std::cell::Cell;

/// Bytes that are written between two submissions: until a submission, wgpu keeps a copy of everything that was written,
/// beside the buffers it is for. A forecast does not count these copies.
const PORTION: u64 = 16 << 20;

impl Trainer<'_> {
    /// Writes the learning rates of `steps` steps, a schedule per parameter group, and with `betas` the corrections of
    /// the moments' bias.
    pub(super) fn write_schedules(&self, steps: u64, schedules: &[&Schedule], betas: Option<[f64; 2]>) {
        let rates: Vec<_> = schedules.iter().map(|schedule| |step| schedule.lr_at(step)).collect();
        let rates: Vec<&dyn Fn(u64) -> f64> =
            rates.iter().map(|lr_at| lr_at as &dyn Fn(u64) -> f64).collect();
        let table = schedule_table(steps, &rates, betas);
        self.write(self.recordings.schedule, bytemuck::cast_slice(&table));
    }

    /// Writes the rotary table and the capacities that experts start with, for a model that has them.
    pub(super) fn write_tables(&self) {
        if let Some((table, values)) = &self.recordings.rotary {
            self.write(*table, bytemuck::cast_slice(values));
        }
        if let Some(experts) = &self.recordings.experts {
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
        for (index, (spec, parts)) in self.recordings.layout.parameters.iter().enumerate() {
            for part in parts {
                let tensor = self.recordings.arenas.weights.part(spec, part);
                let group = (PORTION / (4 * u64::from(tensor.stride))).max(1) as u32;
                for first in (0..tensor.rows).step_by(group as usize) {
                    let rows = tensor.rows(first, group.min(tensor.rows - first));
                    let mut bytes = Vec::with_capacity(rows.bytes() as usize);
                    for row in first..first + rows.rows {
                        let values = initial_row(spec, index, part.first_row + row as usize, seed);
                        tensor.element.encode_row(&values, &mut bytes);
                    }
                    self.write(rows, &bytes);
                    written += bytes.len() as u64;
                    if written >= PORTION {
                        self.gpu.encoder().submit().await?;
                        self.gpu.wait().await?;
                        written = 0;
                    }
                }
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

//! What the device holds before the first step: schedules, tables, weights.

use super::schedule::Schedule;
use super::schedule_table::schedule_table;
use super::trainer::Trainer;
use crate::element::Element;
use crate::model::init::initial_row;

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

    /// Writes the weights that a run starts with, drawn from `seed`.
    pub(super) fn write_initial_weights(&self, seed: u64) {
        let parameters = self.recordings.layout.parameters.iter();
        for (index, (spec, parts)) in parameters.into_iter().enumerate() {
            for part in parts {
                let mut bytes = Vec::new();
                for row in part.first_row..part.first_row + part.rows {
                    Element::F32.encode_row(&initial_row(spec, index, row, seed), &mut bytes);
                }
                self.write(self.recordings.arenas.weights.part(spec, part), &bytes);
            }
        }
    }
}

//! Cooperative matrices: each belongs to a subgroup, whose lane `i % lanes` holds element i, row by row.

use crate::control::Mask;
use crate::machine::{Machine, Value};
use crate::memory::{Kind, Sharing};

impl Machine<'_> {
    /// Where element `i` of a subgroup's matrix is among the scalars of a value.
    fn held(&self, subgroup: usize, i: usize) -> usize {
        let size = self.launch.subgroup;
        i / size * self.lanes + subgroup * size + i % size
    }

    /// The subgroups that take part. A matrix needs all lanes of its subgroup.
    fn subgroups(&mut self, site: u32, mask: Mask) -> Vec<usize> {
        let size = self.launch.subgroup;
        assert!(self.lanes.is_multiple_of(size), "subgroups of {size} do not divide {} lanes", self.lanes);
        let is_part = |first: usize| (first..first + size).any(|lane| mask.has(lane) != mask.has(first));
        if (0..self.lanes).step_by(size).any(is_part) {
            self.fault(format!("a subgroup does not take part as a whole in `{}`", self.line(site)));
        }
        (0..self.lanes / size).filter(|subgroup| mask.has(subgroup * size)).collect()
    }

    /// The scalars of memory that hold a subgroup's matrix, row by row.
    fn places(
        &self,
        subgroup: usize,
        [rows, columns]: [usize; 2],
        is_by_row: bool,
        place: [&Value; 2],
    ) -> Vec<usize> {
        let first = subgroup * self.launch.subgroup;
        let [start, stride] = place.map(|value| value.cells[first] as usize);
        let elements = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        elements
            .map(|(row, column)| {
                start + if is_by_row { row * stride + column } else { column * stride + row }
            })
            .collect()
    }

    /// Loads a matrix from `place`, a pointer and a stride.
    pub fn load_matrix(
        &mut self,
        shape: [usize; 2],
        is_by_row: bool,
        place: [&Value; 2],
        site: u32,
        mask: Mask,
    ) -> Vec<u64> {
        let memory = place[0].memory;
        let mut loaded = vec![0; (shape[0] * shape[1]).div_ceil(self.launch.subgroup) * self.lanes];
        for subgroup in self.subgroups(site, mask) {
            for (i, cell) in self.places(subgroup, shape, is_by_row, place).into_iter().enumerate() {
                if self.has(memory, cell, site) {
                    self.note(memory, cell, Kind::Read, self.lanes + subgroup, site);
                    loaded[self.held(subgroup, i)] = self.memories[memory].cells[cell];
                }
            }
        }
        loaded
    }

    pub fn store_matrix(
        &mut self,
        value: &[u64],
        shape: [usize; 2],
        is_by_row: bool,
        place: [&Value; 2],
        site: u32,
        mask: Mask,
    ) {
        let memory = place[0].memory;
        for subgroup in self.subgroups(site, mask) {
            for (i, cell) in self.places(subgroup, shape, is_by_row, place).into_iter().enumerate() {
                if self.has(memory, cell, site) {
                    self.note(memory, cell, Kind::Write, self.lanes + subgroup, site);
                    self.memories[memory].cells[cell] = value[self.held(subgroup, i)];
                }
            }
        }
    }

    /// Whether a memory has the scalar; if not, that is a fault.
    fn has(&mut self, memory: usize, cell: usize, site: u32) -> bool {
        let of = &self.memories[memory];
        assert!(of.sharing != Sharing::Invocation, "matrices are in memory that lanes share");
        let count = of.cells.len();
        if cell >= count {
            self.fault(format!("a matrix ends past {count} scalars in `{}`", self.line(site)));
        }
        cell < count
    }

    /// a · b + c, where `a` is `shapes[0]` and `b` is `shapes[1]`, rows and columns.
    pub fn multiply_add(
        &self,
        [a, b, c]: [&[u64]; 3],
        [[rows, depth], [_, columns]]: [[usize; 2]; 2],
    ) -> Vec<u64> {
        let mut result = c.to_vec();
        let float = |value: &[u64], at: usize| f32::from_bits(value[at] as u32);
        for subgroup in 0..self.lanes / self.launch.subgroup {
            let dense = |value: &[u64], count: usize| -> Vec<f32> {
                (0..count).map(|i| float(value, self.held(subgroup, i))).collect()
            };
            let (a, b) = (dense(a, rows * depth), dense(b, depth * columns));
            for i in 0..rows * columns {
                let (row, column) = (i / columns, i % columns);
                let terms = (0..depth).map(|k| a[row * depth + k] * b[k * columns + column]);
                let at = self.held(subgroup, i);
                result[at] = u64::from((float(c, at) + terms.sum::<f32>()).to_bits());
            }
        }
        result
    }
}

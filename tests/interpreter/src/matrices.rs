//! Cooperative matrices: each belongs to a subgroup, whose lane `i % lanes` holds element i, row by row.

use crate::control::Mask;
use crate::machine::{Code, Frame, Machine, Value};
use crate::memory::{Kind, Sharing};
use naga::{CooperativeData, Scalar};

/// A matrix in memory.
pub struct Place<'v> {
    /// Rows and columns.
    shape: [usize; 2],
    is_by_row: bool,
    pointer: &'v Value,
    /// From one row to the next, or from one column to the next, in units of what the pointer points to.
    stride: &'v Value,
    unit: usize,
    scalar: Scalar,
}

impl<'m> Machine<'m> {
    /// The place of a matrix of `shape` that is loaded or stored.
    pub fn place_of<'v>(
        &self,
        code: Code<'m>,
        frame: &'v Frame,
        shape: [usize; 2],
        data: &CooperativeData,
    ) -> Place<'v> {
        let [pointer, stride] = [data.pointer, data.stride].map(|handle| &frame.values[handle.index()]);
        let (unit, _) = self.loaded(code, data.pointer);
        let scalar = self.pointee(self.inner(code, data.pointer)).scalar().expect("a pointer to scalars");
        Place { shape, is_by_row: data.row_major, pointer, stride, unit, scalar }
    }

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

    /// The scalars of memory that hold a subgroup's matrix, row by row. Vulkan demands that its rows in memory start at
    /// multiples of 16 bytes, if they are as long.
    fn places(&mut self, subgroup: usize, place: &Place, site: u32) -> Vec<usize> {
        let Place { shape: [rows, columns], is_by_row, .. } = *place;
        let first = subgroup * self.launch.subgroup;
        let start = place.pointer.cells[first] as usize;
        let stride = place.stride.cells[first] as usize * place.unit;
        let bytes = usize::from(place.scalar.width);
        let length = bytes * if is_by_row { columns } else { rows };
        if [start, stride].iter().any(|at| !(at * bytes).is_multiple_of(length.min(16))) {
            self.fault(format!("a matrix is not at multiples of 16 bytes in `{}`", self.line(site)));
        }
        let elements = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        elements
            .map(|(row, column)| {
                start + if is_by_row { row * stride + column } else { column * stride + row }
            })
            .collect()
    }

    pub fn load_matrix(&mut self, place: &Place, site: u32, mask: Mask) -> Vec<u64> {
        let memory = place.pointer.memory;
        let count: usize = place.shape.iter().product();
        let mut loaded = vec![0; count.div_ceil(self.launch.subgroup) * self.lanes];
        for subgroup in self.subgroups(site, mask) {
            for (i, cell) in self.places(subgroup, place, site).into_iter().enumerate() {
                if self.has(memory, cell, site) {
                    self.note(memory, cell, Kind::Read, self.lanes + subgroup, site);
                    loaded[self.held(subgroup, i)] = self.memories[memory].cells[cell];
                }
            }
        }
        loaded
    }

    pub fn store_matrix(&mut self, value: &[u64], place: &Place, site: u32, mask: Mask) {
        let memory = place.pointer.memory;
        for subgroup in self.subgroups(site, mask) {
            for (i, cell) in self.places(subgroup, place, site).into_iter().enumerate() {
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

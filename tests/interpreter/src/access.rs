//! Accesses to memory, and what is wrong with them.

use crate::control::Mask;
use crate::machine::{Code, Frame, Machine, Value};
use crate::memory::{Kind, Mark, Sharing};
use naga::{Expression, Handle};

impl<'m> Machine<'m> {
    /// Adds what is at `pointer` to `out`.
    pub fn load(
        &mut self,
        pointer: &Value,
        size: usize,
        is_atomic: bool,
        site: u32,
        mask: Mask,
        out: &mut Vec<u64>,
    ) {
        let (lanes, starts) = (self.lanes, &pointer.cells);
        if self.memories[pointer.memory].sharing == Sharing::Invocation {
            let cells = &self.memories[pointer.memory].cells;
            for i in 0..size {
                out.extend((0..lanes).map(|lane| cells[(starts[lane] as usize + i) * lanes + lane]));
            }
            return;
        }
        out.resize(size * lanes, 0);
        let kind = if is_atomic { Kind::Atomic } else { Kind::Read };
        for lane in mask.lanes() {
            let of = &self.memories[pointer.memory];
            if of.sharing == Sharing::Workgroup
                && (0..size).all(|i| of.is_unwritten(starts[lane] as usize + i))
            {
                let fault = format!("`{}` is read before it is written in `{}`", of.name, self.line(site));
                self.fault(fault);
            }
            for i in 0..size {
                let cell = starts[lane] as usize + i;
                self.note(pointer.memory, cell, kind, lane, site);
                out[i * lanes + lane] = self.memories[pointer.memory].cells[cell];
            }
        }
    }

    pub fn store(&mut self, pointer: &Value, value: &[u64], is_atomic: bool, site: u32, mask: Mask) {
        let lanes = self.lanes;
        let is_own = self.memories[pointer.memory].sharing == Sharing::Invocation;
        let kind = if is_atomic { Kind::Atomic } else { Kind::Write };
        for lane in mask.lanes() {
            for (i, scalar) in value.chunks(lanes).enumerate() {
                let cell = pointer.cells[lane] as usize + i;
                if is_own {
                    self.memories[pointer.memory].cells[cell * lanes + lane] = scalar[lane];
                } else {
                    self.note(pointer.memory, cell, kind, lane, site);
                    self.memories[pointer.memory].cells[cell] = scalar[lane];
                }
            }
        }
    }

    /// Notes that `lane`, or a subgroup behind the last lane, accesses a shared scalar.
    pub fn note(&mut self, memory: usize, cell: usize, kind: Kind, lane: usize, site: u32) {
        let of = &mut self.memories[memory];
        if of.sharing == Sharing::ReadOnly {
            return;
        }
        self.report.accesses += 1;
        let epoch = self.epochs[usize::from(of.sharing == Sharing::Grid)];
        let now = Mark { workgroup: self.workgroup, epoch, lane: lane as u32, site };
        let race = of.note(cell, kind, now);
        if let Some((earlier, mark)) = race
            && self.known.insert((memory, earlier, mark.site, kind, site))
        {
            let name = &self.memories[memory].name;
            let who = if mark.workgroup == self.workgroup { "invocations" } else { "workgroups" };
            let (first, second) = (self.line(mark.site), self.line(site));
            let fault = format!(
                "race of {who} on `{name}`: {} in `{first}` and {} in `{second}`",
                earlier.past(),
                kind.past()
            );
            self.fault(fault);
        }
    }

    pub fn fault(&mut self, what: String) {
        self.report.faults.insert(what);
    }

    /// The line of the source at `site`.
    pub fn line(&self, site: u32) -> &'m str {
        let (before, after) = self.launch.source.split_at(site as usize);
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let end = after.find('\n').map_or(self.launch.source.len(), |at| site as usize + at);
        self.launch.source[start..end].trim()
    }

    /// Whether a pointer is to an atomic.
    pub fn is_atomic(&self, code: Code<'m>, pointer: Handle<Expression>) -> bool {
        self.loaded(code, pointer).1
    }

    /// Loads what a pointer points to.
    pub fn load_from(
        &mut self,
        code: Code<'m>,
        frame: &Frame,
        pointer: Handle<Expression>,
        site: u32,
        mask: Mask,
    ) -> Vec<u64> {
        let (size, is_atomic) = self.loaded(code, pointer);
        let mut loaded = Vec::new();
        self.load(&frame.values[pointer.index()], size, is_atomic, site, mask, &mut loaded);
        loaded
    }
}

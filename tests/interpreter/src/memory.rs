//! Memory as scalars, and who has accessed each of them.

use naga::proc::Alignment;
use naga::{ArraySize, Handle, Module, Scalar, ScalarKind, Type, TypeInner};

/// Who shares a memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sharing {
    /// Nobody: each invocation has its own.
    Invocation,
    Workgroup,
    /// All workgroups, and somebody writes it.
    Grid,
    /// All workgroups, which only read it.
    ReadOnly,
}

/// How an access treats a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Read,
    Write,
    Atomic,
}

impl Kind {
    /// What an access is named in a fault.
    pub fn past(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "written",
            Self::Atomic => "accessed atomically",
        }
    }
}

/// Several lanes, or several workgroups.
pub const MANY: u32 = u32::MAX;

/// The last accesses of one kind.
#[derive(Clone, Copy, Default)]
pub struct Mark {
    pub workgroup: u32,
    /// Barriers that the workgroup had passed, from 1; 0: there was no access.
    pub epoch: u32,
    pub lane: u32,
    /// Where the access is in the source.
    pub site: u32,
}

impl Mark {
    /// Whether nothing orders these accesses and one `now`.
    fn is_unordered(self, now: Self) -> bool {
        let is_together = self.epoch == now.epoch && self.lane != now.lane;
        self.epoch != 0 && (self.workgroup != now.workgroup || is_together)
    }

    /// These accesses and one `now`. What earlier epochs of the same workgroup did no longer matters.
    fn and(self, now: Self) -> Self {
        let workgroup = if self.epoch == 0 || self.workgroup == now.workgroup { now.workgroup } else { MANY };
        Self { workgroup, lane: if self.is_unordered(now) { MANY } else { now.lane }, ..now }
    }
}

/// Scalars, each in 64 bits: floats as the bits of an f32, whatever they are stored as. Of an invocation's own memory
/// scalar i of lane l is at i · lanes + l.
pub struct Memory {
    pub name: String,
    pub cells: Vec<u64>,
    pub sharing: Sharing,
    /// Of each shared scalar, the last accesses of each [`Kind`].
    marks: Vec<[Mark; 3]>,
}

impl Memory {
    pub fn new(name: String, cells: Vec<u64>, sharing: Sharing) -> Self {
        let is_watched = matches!(sharing, Sharing::Workgroup | Sharing::Grid);
        let marks = vec![Default::default(); if is_watched { cells.len() } else { 0 }];
        Self { name, cells, sharing, marks }
    }

    /// Forgets what a workgroup left.
    pub fn clear(&mut self) {
        self.cells.fill(0);
        self.marks.fill(Default::default());
    }

    /// Notes an access. Returns an earlier one that it races with, with its kind.
    pub fn note(&mut self, cell: usize, kind: Kind, now: Mark) -> Option<(Kind, Mark)> {
        let marks = self.marks.get_mut(cell)?;
        let conflicting: &[Kind] = match kind {
            Kind::Read => &[Kind::Write, Kind::Atomic],
            Kind::Write => &[Kind::Write, Kind::Read, Kind::Atomic],
            Kind::Atomic => &[Kind::Write, Kind::Read],
        };
        let other = conflicting.iter().find(|other| marks[**other as usize].is_unordered(now));
        let found = other.map(|other| (*other, marks[*other as usize]));
        marks[kind as usize] = marks[kind as usize].and(now);
        found
    }

    /// Whether no invocation has written a scalar.
    pub fn is_unwritten(&self, cell: usize) -> bool {
        let of = |kind: Kind| self.marks[cell][kind as usize].epoch;
        of(Kind::Write) == 0 && of(Kind::Atomic) == 0
    }
}

/// The scalars of a type in a buffer: where each starts, in bytes. An array without a size takes what is left.
pub fn layout(module: &Module, ty: Handle<Type>, bytes: u32) -> Vec<(u32, Scalar)> {
    let mut scalars = Vec::new();
    add_layout(module, ty, 0, bytes, &mut scalars);
    scalars
}

fn add_layout(module: &Module, ty: Handle<Type>, at: u32, bytes: u32, scalars: &mut Vec<(u32, Scalar)>) {
    let vector = |scalars: &mut Vec<(u32, Scalar)>, at: u32, size: u32, scalar: Scalar| {
        scalars.extend((0..size).map(|i| (at + i * u32::from(scalar.width), scalar)));
    };
    match &module.types[ty].inner {
        TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => vector(scalars, at, 1, *scalar),
        TypeInner::Vector { size, scalar } => vector(scalars, at, *size as u32, *scalar),
        TypeInner::Matrix { columns, rows, scalar } => {
            let stride = Alignment::from(*rows) * u32::from(scalar.width);
            (0..*columns as u32).for_each(|i| vector(scalars, at + i * stride, *rows as u32, *scalar));
        }
        TypeInner::Array { base, size, stride } => {
            let count = match size {
                ArraySize::Constant(count) => count.get(),
                _ => (bytes - at) / stride,
            };
            (0..count).for_each(|i| add_layout(module, *base, at + i * stride, bytes, scalars));
        }
        TypeInner::Struct { members, .. } => {
            members.iter().for_each(|m| add_layout(module, m.ty, at + m.offset, bytes, scalars));
        }
        other => panic!("the interpreter cannot bind {other:?}"),
    }
}

/// The scalar at the start of `bytes`.
pub fn read(scalar: Scalar, bytes: &[u8]) -> u64 {
    match (scalar.kind, scalar.width) {
        (ScalarKind::Float, 2) => {
            u64::from(half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32().to_bits())
        }
        (_, 4) => u64::from(u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"))),
        (ScalarKind::Uint, 8) => u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")),
        other => panic!("the interpreter cannot load {other:?}"),
    }
}

/// Stores a scalar at the start of `bytes`.
pub fn write(scalar: Scalar, cell: u64, bytes: &mut [u8]) {
    match (scalar.kind, scalar.width) {
        (ScalarKind::Float, 2) => {
            bytes[..2].copy_from_slice(&half::f16::from_f32(f32::from_bits(cell as u32)).to_le_bytes());
        }
        (_, width) => bytes[..usize::from(width)].copy_from_slice(&cell.to_le_bytes()[..usize::from(width)]),
    }
}

//! A tensor as a recording knows it: rows of numbers in a buffer that does not exist yet.

use super::recording::Binding;
use crate::element::{Element, stride_of};

/// A buffer that outlives a recording: an arena, the batch, the step's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PersistentId(pub u32);

/// A buffer that lives between its first and last use in one recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransientId(pub u32);

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BufferId {
    /// Given to the device when a recording is prepared.
    Persistent(PersistentId),
    /// Assigned from the pool when a recording is prepared.
    Transient(TransientId),
}

/// Offsets of bindings are multiples of this many bytes: the largest `min_storage_buffer_offset_alignment` there is.
pub const BINDING_ALIGNMENT: u64 = 256;

/// A matrix: `rows` rows of `cols` elements, `stride` elements apart (the pad between is zero).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The buffer it lies in.
    pub buffer: BufferId,
    /// Bytes from the buffer's start to the first element; a multiple of 4 elements.
    pub offset: u64,
    /// Number of rows.
    pub rows: u32,
    /// Elements in a row.
    pub cols: u32,
    /// Elements from one row to the next: a multiple of 4, at least `cols`.
    pub stride: u32,
    /// How an element is stored.
    pub element: Element,
}

impl Tensor {
    /// A tensor at `offset` of `buffer`, its rows as close as they may be.
    pub fn new(buffer: BufferId, offset: u64, rows: u32, cols: u32, element: Element) -> Self {
        Self { buffer, offset, rows, cols, stride: stride_of(cols), element }
    }

    /// Bytes from the first element to the end of the last row's pad.
    pub fn bytes(&self) -> u64 {
        let gap = (self.stride - stride_of(self.cols)) as u64;
        (self.rows as u64 * self.stride as u64 - gap.min(self.rows as u64 * self.stride as u64))
            * self.element.bytes()
    }

    /// Rows `first..first + count`.
    #[track_caller]
    pub fn rows(&self, first: u32, count: u32) -> Self {
        assert!(first + count <= self.rows, "rows {first}..{} of a tensor of {}", first + count, self.rows);
        let offset = self.offset + first as u64 * self.stride as u64 * self.element.bytes();
        Self { offset, rows: count, ..*self }
    }

    /// Columns `first..first + count` of every row; `first` is a multiple of 4.
    #[track_caller]
    pub fn columns(&self, first: u32, count: u32) -> Self {
        assert!(first.is_multiple_of(4), "a column range starts at a multiple of 4, not at {first}");
        assert!(first + count <= self.cols, "columns {first}..{} of {}", first + count, self.cols);
        Self { offset: self.offset + first as u64 * self.element.bytes(), cols: count, ..*self }
    }

    /// Stride in groups of 4, as shaders count.
    pub fn stride4(&self) -> u32 {
        self.stride / 4
    }

    /// The binding for a kernel that takes no offset.
    #[track_caller]
    pub fn binding(&self) -> Binding {
        let (binding, offset4) = self.offset_binding();
        assert!(offset4 == 0, "a tensor at byte {} cannot be bound without an offset", self.offset);
        binding
    }

    /// An aligned binding that covers the tensor, and where in it the tensor starts, in groups of 4 elements.
    pub fn offset_binding(&self) -> (Binding, u32) {
        let start = self.offset / BINDING_ALIGNMENT * BINDING_ALIGNMENT;
        let rest = self.offset - start;
        let binding = Binding { buffer: self.buffer, offset: start, bytes: rest + self.bytes() };
        (binding, (rest / (4 * self.element.bytes())) as u32)
    }
}

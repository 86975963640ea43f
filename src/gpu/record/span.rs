//! Ranges of bytes in the buffers of a recording.

use super::tensor::{BufferId, Tensor};
use crate::element::Element;

/// Consecutive elements in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The buffer.
    pub buffer: BufferId,
    /// Byte offset, a multiple of 4.
    pub offset: u64,
    /// Length in bytes, a multiple of 4.
    pub bytes: u64,
    /// Storage type.
    pub element: Element,
}

impl Span {
    /// The bytes of `tensor` in its buffer, padding included.
    pub fn of(tensor: &Tensor) -> Self {
        let Tensor { buffer, offset, element, .. } = *tensor;
        Self { buffer, offset, bytes: tensor.bytes(), element }
    }

    /// `count` elements from element `first` on, read as `element`, which must have the same size.
    #[track_caller]
    pub fn part(&self, first: u64, count: u64, element: Element) -> Self {
        let size = self.element.bytes();
        assert!(element.bytes() == size, "{} is not as long as {}", element.name(), self.element.name());
        assert!((first + count) * size <= self.bytes, "elements {first}.. of a span of {} bytes", self.bytes);
        Self { offset: self.offset + first * size, bytes: count * size, element, ..*self }
    }

    /// Whether the two have a byte in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        let is_before = |one: &Self, other: &Self| one.offset < other.offset + other.bytes;
        self.buffer == other.buffer && is_before(self, other) && is_before(other, self)
    }
}

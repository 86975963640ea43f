//! The buffers that the host reads after a step or an evaluation, copied one after the other, and the place of each in
//! the bytes.

use crate::record::{PersistentId, Tensor};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::ops::Range;

/// Slots of a ring. The host is at most 3 submissions ahead of the device, so one slot is always free.
pub(crate) const RING: usize = 5;

/// Buffers that are read together, with the number of bytes from the start of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadBuffers {
    /// The buffers, in the order in which they arrive.
    pub list: Vec<(PersistentId, u64)>,
    bytes: usize,
}

/// The place of a buffer's values in the bytes that arrive.
#[derive(Clone, Debug)]
pub(crate) struct Slot<T> {
    range: Range<usize>,
    values: PhantomData<T>,
}

impl ReadBuffers {
    /// Adds the first `count` values of a buffer.
    pub fn add<T: Pod>(&mut self, buffer: PersistentId, count: usize) -> Slot<T> {
        let (start, bytes) = (self.bytes, count * size_of::<T>());
        self.bytes += bytes;
        self.list.push((buffer, bytes as u64));
        Slot { range: start..self.bytes, values: PhantomData }
    }

    /// Adds the first `count` values of a tensor.
    ///
    /// # Panics
    ///
    /// If the tensor does not outlive its recording.
    #[track_caller]
    pub fn add_tensor<T: Pod>(&mut self, tensor: Tensor, count: usize) -> Slot<T> {
        let buffer = tensor.buffer.persistent().expect("what is read back outlives its recording");
        self.add(buffer, count)
    }

    /// Total bytes of the buffers.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

impl<T: Pod> Slot<T> {
    /// The values in the bytes that have arrived.
    pub fn values(&self, bytes: &[u8]) -> Vec<T> {
        bytemuck::pod_collect_to_vec(&bytes[self.range.clone()])
    }

    /// The only value.
    pub fn value(&self, bytes: &[u8]) -> T {
        bytemuck::pod_read_unaligned(&bytes[self.range.clone()])
    }
}

/// The values of a slot; empty if there is no slot.
pub(super) fn values<T: Pod>(slot: Option<&Slot<T>>, bytes: &[u8]) -> Vec<T> {
    slot.map_or(Vec::new(), |slot| slot.values(bytes))
}

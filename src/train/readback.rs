//! What the host reads after a step or an evaluation: buffers that are copied one after the other, and where each is among the bytes.

use crate::record::{PersistentId, Tensor};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::ops::Range;

/// Slots of a ring. The host is at most 3 submissions ahead of the device, so that one is always free.
pub(crate) const RING: usize = 5;

/// Buffers that are read together: how many bytes from the start of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// In the order in which they arrive.
    pub list: Vec<(PersistentId, u64)>,
    bytes: usize,
}

/// Where the values of a buffer are among the bytes that arrive.
#[derive(Clone, Debug)]
pub(crate) struct Slot<T> {
    range: Range<usize>,
    values: PhantomData<T>,
}

impl Sources {
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

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

impl<T: Pod> Slot<T> {
    /// The values in what has arrived.
    pub fn values(&self, bytes: &[u8]) -> Vec<T> {
        bytemuck::pod_collect_to_vec(&bytes[self.range.clone()])
    }

    /// The only value.
    pub fn value(&self, bytes: &[u8]) -> T {
        bytemuck::pod_read_unaligned(&bytes[self.range.clone()])
    }
}

/// The values of a slot; none where nothing is read.
pub(super) fn values<T: Pod>(slot: Option<&Slot<T>>, bytes: &[u8]) -> Vec<T> {
    slot.map_or(Vec::new(), |slot| slot.values(bytes))
}

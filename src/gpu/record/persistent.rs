//! Buffers that outlive a recording.

use super::tensor::{BufferId, PersistentId, Tensor};
use crate::element::Element;

/// The list of persistent buffers: arenas, batch, step state. The device allocates them, zero-filled, before step 1.
#[derive(Clone, Debug, Default)]
pub struct Persistents {
    buffers: Vec<(String, u64)>,
}

impl Persistents {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a buffer of `bytes` bytes, at least 16.
    pub fn add(&mut self, label: impl Into<String>, bytes: u64) -> PersistentId {
        self.buffers.push((label.into(), bytes.max(16)));
        PersistentId(self.buffers.len() as u32 - 1)
    }

    /// Adds a buffer that holds a single tensor.
    pub fn tensor(&mut self, label: impl Into<String>, rows: u32, cols: u32, element: Element) -> Tensor {
        let id = self.add(label, element.bytes_of(rows as u64 * element.stride(cols) as u64));
        Tensor::new(BufferId::Persistent(id), 0, rows, cols, element)
    }

    /// Adds a buffer for what `lay` places in it. `lay` returns that and how many bytes it takes.
    pub fn laid_out<T>(&mut self, label: impl Into<String>, lay: impl FnOnce(BufferId) -> (T, u64)) -> T {
        let (placed, bytes) = lay(BufferId::Persistent(PersistentId(self.buffers.len() as u32)));
        self.add(label, bytes);
        placed
    }

    /// (label, bytes) of each buffer, indexed by id.
    pub fn buffers(&self) -> &[(String, u64)] {
        &self.buffers
    }

    /// Total bytes.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(|(_, bytes)| bytes).sum()
    }
}

//! Buffers that outlive recordings.

use super::tensor::{BufferId, PersistentId, Tensor};
use crate::element::{Element, stride_of};

/// The list of persistent buffers: arenas, batch, step state. The device makes them, zero-filled, before step 1.
#[derive(Clone, Debug, Default)]
pub struct Persistents {
    buffers: Vec<(String, u64)>,
}

impl Persistents {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a buffer of `bytes`.
    pub fn add(&mut self, label: impl Into<String>, bytes: u64) -> PersistentId {
        self.buffers.push((label.into(), bytes.max(16)));
        PersistentId(self.buffers.len() as u32 - 1)
    }

    /// Adds a buffer that holds one tensor.
    pub fn tensor(&mut self, label: impl Into<String>, rows: u32, cols: u32, element: Element) -> Tensor {
        let id = self.add(label, rows as u64 * stride_of(cols) as u64 * element.bytes());
        Tensor::new(BufferId::Persistent(id), 0, rows, cols, element)
    }

    /// Labels and sizes, by id.
    pub fn buffers(&self) -> &[(String, u64)] {
        &self.buffers
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(|(_, bytes)| bytes).sum()
    }
}

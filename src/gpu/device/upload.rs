//! Uploads through a ring of staging buffers, so that nothing is allocated per step.

use super::buffers::Buffers;
use super::encoder::Encoder;
use super::gpu::Gpu;
use super::prepare::DeviceRange;
use super::staging::ToDevice;
use crate::error::Result;
use crate::record::PersistentId;

/// A ring of mapped staging buffers. A slot can be written again once the copy out of it has run.
pub struct UploadRing {
    slots: Vec<ToDevice>,
    next: usize,
}

impl UploadRing {
    /// A ring of `depth` slots of `bytes` each. With one slot more than submissions in flight it never has to wait.
    ///
    /// # Errors
    /// Out of memory.
    pub async fn new(gpu: &Gpu, bytes: u64, depth: usize) -> Result<Self> {
        let mut slots = Vec::with_capacity(depth);
        for _ in 0..depth {
            slots.push(ToDevice::new(gpu, "upload", bytes).await?);
        }
        Ok(Self { slots, next: 0 })
    }

    /// Appends a copy of `data` to the start of the persistent buffer `to`. Call [`recycle`](Self::recycle) once the
    /// encoder is submitted.
    ///
    /// # Errors
    /// A device failure.
    pub async fn upload(
        &mut self,
        gpu: &Gpu,
        encoder: &mut Encoder<'_>,
        data: &[u8],
        buffers: &Buffers,
        to: PersistentId,
    ) -> Result<()> {
        let target = buffers.target(to)?;
        let range = DeviceRange { buffer: &target.buffer, start: target.start, bytes: data.len() as u64 };
        self.slots[self.next].copy(gpu, encoder, data, [range].into_iter()).await?;
        self.next = (self.next + 1) % self.slots.len();
        Ok(())
    }

    /// Requests the remapping of the slot that was copied from last.
    pub fn recycle(&mut self, gpu: &Gpu) {
        let last = (self.next + self.slots.len() - 1) % self.slots.len();
        self.slots[last].recycle(gpu);
    }
}

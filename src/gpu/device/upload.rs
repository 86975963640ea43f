//! Uploads through a ring of staging buffers, so that nothing is allocated per step.

use super::buffers::Buffers;
use super::encoder::Encoder;
use super::gpu::Gpu;
use super::mapping::Mapping;
use crate::error::{Error, Result};
use crate::record::PersistentId;

/// A ring of mapped staging buffers. A slot can be written again once the copy out of it has run.
pub struct UploadRing {
    slots: Vec<Slot>,
    next: usize,
}

struct Slot {
    buffer: wgpu::Buffer,
    /// The pending remapping after a copy; `None` while the slot is mapped.
    mapping: Option<Mapping>,
}

impl UploadRing {
    /// A ring of `depth` slots of `bytes` each. With one slot more than submissions in flight it never has to wait.
    ///
    /// # Errors
    /// Out of memory.
    pub async fn new(gpu: &Gpu, bytes: u64, depth: usize) -> Result<Self> {
        let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        let mut slots = Vec::with_capacity(depth);
        for _ in 0..depth {
            slots.push(Slot { buffer: gpu.buffer("upload", bytes, usage, Vec::new).await?, mapping: None });
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
        let slot = &mut self.slots[self.next];
        if let Some(mut mapping) = slot.mapping.take()
            && mapping.done_at()?.is_none()
        {
            mapping.done(gpu).await?;
        }
        let view = slot.buffer.slice(..data.len() as u64).get_mapped_range_mut();
        view.map_err(|e| Error::Device(format!("an upload buffer is not mapped: {e}")))?
            .copy_from_slice(data);
        slot.buffer.unmap();
        encoder.copy(&slot.buffer, 0, &target.buffer, target.start, data.len() as u64);
        self.next = (self.next + 1) % self.slots.len();
        Ok(())
    }

    /// Requests the remapping of the slot that was copied from last.
    pub fn recycle(&mut self, gpu: &Gpu) {
        let last = (self.next + self.slots.len() - 1) % self.slots.len();
        let slot = &mut self.slots[last];
        let bytes = slot.buffer.size();
        slot.mapping = Some(Mapping::request(gpu, &slot.buffer, wgpu::MapMode::Write, bytes));
    }
}

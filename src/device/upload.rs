//! Data for the device, through staging buffers of our own: nothing is allocated per step.

use super::encoder::Encoder;
use super::gpu::Gpu;
use super::mapping::Mapping;
use super::prepare::Buffers;
use crate::error::{Error, Result};
use crate::record::PersistentId;

/// A few mapped buffers used in turn. One is writable again when the copy out of it has run.
pub struct UploadRing {
    slots: Vec<Slot>,
    next: usize,
}

struct Slot {
    buffer: wgpu::Buffer,
    /// On its way back to the host after a copy; `None` if it is there.
    mapping: Option<Mapping>,
}

impl UploadRing {
    /// `depth` slots of `bytes` each: one more than the submissions in flight, so that none is waited for.
    pub fn new(gpu: &Gpu, bytes: u64, depth: usize) -> Self {
        let slot = |_| Slot {
            buffer: gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("upload"),
                size: bytes.next_multiple_of(4),
                usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: true,
            }),
            mapping: None,
        };
        Self { slots: (0..depth).map(slot).collect(), next: 0 }
    }

    /// Copies `data` to the start of persistent buffer `to`, before whatever `encoder` does next. Call
    /// [`recycle`](Self::recycle) once the encoder is submitted.
    pub async fn upload(
        &mut self,
        gpu: &Gpu,
        encoder: &mut Encoder<'_>,
        data: &[u8],
        buffers: &Buffers,
        to: PersistentId,
    ) -> Result<()> {
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
        encoder.copy(&slot.buffer, 0, &buffers.buffers[to.0 as usize], 0, data.len() as u64);
        self.next = (self.next + 1) % self.slots.len();
        Ok(())
    }

    /// Asks for the slot that was last copied from to be mapped again, when its copy has run.
    pub fn recycle(&mut self, gpu: &Gpu) {
        let last = (self.next + self.slots.len() - 1) % self.slots.len();
        let slot = &mut self.slots[last];
        let bytes = slot.buffer.size();
        slot.mapping = Some(Mapping::request(gpu, &slot.buffer, wgpu::MapMode::Write, bytes));
    }
}

impl Gpu {
    /// Writes `data` at byte `at` of a persistent buffer. For set-up and tests: wgpu makes its own staging buffer.
    pub fn write(&self, buffers: &Buffers, to: PersistentId, at: u64, data: &[u8]) {
        self.queue.write_buffer(&buffers.buffers[to.0 as usize], at, data);
    }
}

//! Staging memory on the way from the host to the device.

use super::encoder::Encoder;
use super::gpu::Gpu;
use super::mapping::Mapping;
use super::prepare::DeviceRange;
use crate::error::{Error, Result};

/// A staging buffer that the host writes.
pub(super) struct ToDevice {
    buffer: wgpu::Buffer,
    /// Whether the buffer is mapped, or about to be.
    is_mapped: bool,
    /// The pending remapping.
    remapping: Option<Mapping>,
}

impl ToDevice {
    /// A buffer of `bytes` bytes, or a few more.
    ///
    /// # Errors
    /// Out of memory.
    pub async fn new(gpu: &Gpu, label: &str, bytes: u64) -> Result<Self> {
        let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        let buffer = gpu.buffer(label, bytes.max(16), usage, Vec::new).await?;
        Ok(Self { buffer, is_mapped: true, remapping: None })
    }

    /// Adds copies of `bytes` to `ranges`, one after the other. There may be fewer bytes than the ranges hold.
    ///
    /// # Errors
    /// A device failure.
    pub async fn copy(
        &mut self,
        gpu: &Gpu,
        encoder: &mut Encoder<'_>,
        bytes: &[u8],
        ranges: impl Iterator<Item = DeviceRange<'_>>,
    ) -> Result<()> {
        if let Some(mut remapping) = self.remapping.take()
            && remapping.done_at()?.is_none()
        {
            remapping.arrived(gpu).await?;
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let view = self.buffer.slice(..bytes.len() as u64).get_mapped_range_mut();
        view.map_err(|e| Error::Device(format!("a staging buffer is not mapped: {e}")))?
            .copy_from_slice(bytes);
        self.buffer.unmap();
        self.is_mapped = false;
        let mut at = 0;
        for range in ranges {
            let count = range.bytes.min(bytes.len() as u64 - at);
            encoder.copy(&self.buffer, at, range.buffer, range.start, count);
            at += count;
        }
        Ok(())
    }

    /// Requests the remapping, once the copies out of the buffer are submitted.
    pub fn recycle(&mut self, gpu: &Gpu) {
        if !self.is_mapped {
            let bytes = self.buffer.size();
            self.remapping = Some(Mapping::request(gpu, &self.buffer, wgpu::MapMode::Write, bytes));
            self.is_mapped = true;
        }
    }
}

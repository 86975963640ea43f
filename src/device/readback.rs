//! Data from the device: a ring for what each step reports, a reader for everything else.

use super::encoder::Encoder;
use super::gpu::Gpu;
use super::mapping::Mapping;
use super::prepare::{Buffers, Prepared};
use crate::error::{Error, Result};
use crate::record::{BufferId, PersistentId, Tensor};
use std::collections::VecDeque;
use std::time::Instant;

/// Staging buffers that carry some small buffers to the host, of a GPU a step or two late and never waited for.
pub struct ReadbackRing {
    free: Vec<wgpu::Buffer>,
    pending: VecDeque<Pending>,
    copied: Option<(u64, wgpu::Buffer)>,
    sources: Vec<(PersistentId, u64)>,
    bytes: u64,
}

/// A copy that has reached the host.
pub struct Arrival {
    /// What it was called.
    pub tag: u64,
    /// When the device had done everything before it.
    pub at: Instant,
    /// The bytes.
    pub bytes: Vec<u8>,
}

struct Pending {
    tag: u64,
    buffer: wgpu::Buffer,
    mapping: Mapping,
}

impl ReadbackRing {
    /// `depth` slots for the first bytes of each of `sources`, one after the other.
    pub fn new(gpu: &Gpu, sources: &[(PersistentId, u64)], depth: usize) -> Self {
        let bytes = sources.iter().map(|(_, bytes)| bytes).sum();
        let free = (0..depth).map(|_| staging(gpu, bytes)).collect();
        Self { free, pending: VecDeque::new(), copied: None, sources: sources.to_vec(), bytes }
    }

    /// Copies the sources out, after whatever `encoder` did so far; `tag` comes back with them. Call
    /// [`request`](Self::request) once the encoder is submitted.
    pub fn copy(&mut self, encoder: &mut Encoder<'_>, tag: u64, buffers: &Buffers) -> Result<()> {
        // More slots than submissions in flight: only a host that never collects gets here.
        let Some(slot) = self.free.pop() else {
            return Err(Error::Device("the readback ring is full: collect results after every step".into()));
        };
        let mut at = 0;
        for &(from, bytes) in &self.sources {
            encoder.copy(&buffers.buffers[from.0 as usize], 0, &slot, at, bytes);
            at += bytes;
        }
        self.copied = Some((tag, slot));
        Ok(())
    }

    /// Asks for the copied slot to be mapped when its copy has run.
    pub fn request(&mut self, gpu: &Gpu) {
        let Some((tag, buffer)) = self.copied.take() else { return };
        let mapping = Mapping::request(gpu, &buffer, wgpu::MapMode::Read, self.bytes);
        self.pending.push_back(Pending { tag, buffer, mapping });
    }

    /// What has arrived, oldest first. Never blocks.
    pub fn collect(&mut self, gpu: &Gpu) -> Result<Vec<Arrival>> {
        gpu.check()?;
        let mut arrived = Vec::new();
        while let Some(front) = self.pending.front_mut() {
            let Some(at) = front.mapping.done_at()? else { break };
            let Some(front) = self.pending.pop_front() else { break };
            arrived.push(Arrival { tag: front.tag, at, bytes: mapped_bytes(&front.buffer, self.bytes)? });
            self.free.push(front.buffer);
        }
        Ok(arrived)
    }

    /// How many copies have not arrived yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }
}

/// Reads and writes whole persistent buffers through one staging buffer, made once: checkpoints and tests.
pub struct Reader {
    staging: wgpu::Buffer,
}

impl Reader {
    /// A reader that moves at most `bytes` at a time.
    pub fn new(gpu: &Gpu, bytes: u64) -> Self {
        Self { staging: staging(gpu, bytes.next_multiple_of(4)) }
    }

    /// Most bytes it moves at a time.
    pub fn bytes(&self) -> u64 {
        self.staging.size()
    }

    /// Hands `bytes` of a persistent buffer, from byte `at` on, to `take`, piece by piece.
    ///
    /// # Errors
    /// A device that fails; those of `take`.
    pub async fn read(
        &self,
        gpu: &Gpu,
        buffers: &Buffers,
        from: PersistentId,
        at: u64,
        bytes: u64,
        take: impl AsyncFnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.read_buffer(gpu, &buffers.buffers[from.0 as usize], at, bytes, take).await
    }

    pub(super) async fn read_buffer(
        &self,
        gpu: &Gpu,
        from: &wgpu::Buffer,
        at: u64,
        bytes: u64,
        mut take: impl AsyncFnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut done = 0;
        while done < bytes {
            let piece = (bytes - done).min(self.staging.size());
            let mut encoder = gpu.encoder();
            encoder.copy(from, at + done, &self.staging, 0, piece.next_multiple_of(4));
            encoder.submit().await?;
            let bytes = piece.next_multiple_of(4);
            Mapping::request(gpu, &self.staging, wgpu::MapMode::Read, bytes).done(gpu).await?;
            let data = mapped_bytes(&self.staging, piece)?;
            take(&data).await?;
            done += piece;
        }
        Ok(())
    }

    /// The bytes of `tensor`, pads included. For a transient, `index` is the number of its recording.
    pub async fn tensor(
        &self,
        gpu: &Gpu,
        buffers: &Buffers,
        prepared: &Prepared,
        index: usize,
        tensor: &Tensor,
    ) -> Result<Vec<u8>> {
        self.around(gpu, buffers, prepared, index, tensor, 0).await
    }

    /// The same with `margin` bytes on both sides: what a test of guard zones looks at.
    pub async fn around(
        &self,
        gpu: &Gpu,
        buffers: &Buffers,
        prepared: &Prepared,
        index: usize,
        tensor: &Tensor,
        margin: u64,
    ) -> Result<Vec<u8>> {
        let (buffer, start) = match tensor.buffer {
            BufferId::Persistent(id) => (&buffers.buffers[id.0 as usize], 0),
            transient => prepared
                .place(index, transient)
                .ok_or_else(|| Error::Device("the tensor was never written by its recording".into()))?,
        };
        let mut all = Vec::new();
        let at = start + tensor.offset - margin;
        let take = async |piece: &[u8]| {
            all.extend_from_slice(piece);
            Ok(())
        };
        self.read_buffer(gpu, buffer, at, tensor.bytes() + 2 * margin, take).await?;
        Ok(all)
    }
}

fn staging(gpu: &Gpu, bytes: u64) -> wgpu::Buffer {
    gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("readback"),
        size: bytes,
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

fn mapped_bytes(buffer: &wgpu::Buffer, bytes: u64) -> Result<Vec<u8>> {
    let view = buffer.slice(..bytes).get_mapped_range();
    let data = view.map_err(|e| Error::Device(format!("a readback buffer is not mapped: {e}")))?.to_vec();
    buffer.unmap();
    Ok(data)
}

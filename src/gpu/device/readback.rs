//! Readback: a ring of staging buffers for the state that each step reports, and a reader for everything else.

use super::buffers::Buffers;
use super::encoder::Encoder;
use super::gpu::Gpu;
use super::mapping::{Mapping, copy_mapped};
use super::prepare::Prepared;
use crate::error::{Error, Result};
use crate::record::{BufferId, PersistentId, Tensor};
use std::collections::VecDeque;
use std::time::Instant;

/// A ring of staging buffers that brings small buffers to the host without waiting. From a GPU their contents arrive a
/// step or two late.
pub struct ReadbackRing {
    free: Vec<wgpu::Buffer>,
    pending: VecDeque<Pending>,
    copied: Option<(u64, wgpu::Buffer)>,
    sources: Vec<(PersistentId, u64)>,
    bytes: u64,
}

/// A copy that has arrived on the host.
pub struct Arrival {
    /// The tag passed to [`ReadbackRing::copy`].
    pub tag: u64,
    /// When the copy completed, and with it all work submitted before it.
    pub at: Instant,
    /// The first bytes of each source, concatenated.
    pub bytes: Vec<u8>,
}

struct Pending {
    tag: u64,
    buffer: wgpu::Buffer,
    mapping: Mapping,
}

impl ReadbackRing {
    /// A ring of `depth` slots. `sources` are (buffer, bytes): how many bytes to copy from the start of each.
    ///
    /// # Errors
    /// Out of memory.
    pub async fn new(gpu: &Gpu, sources: &[(PersistentId, u64)], depth: usize) -> Result<Self> {
        let bytes = sources.iter().map(|(_, bytes)| bytes).sum();
        let mut free = Vec::with_capacity(depth);
        for _ in 0..depth {
            free.push(staging(gpu, bytes).await?);
        }
        Ok(Self { free, pending: VecDeque::new(), copied: None, sources: sources.to_vec(), bytes })
    }

    /// Appends copies of the sources to `encoder`; `tag` identifies their arrival. Call [`request`](Self::request) once
    /// the encoder is submitted.
    ///
    /// # Errors
    /// All slots are in use.
    pub fn copy(&mut self, encoder: &mut Encoder<'_>, tag: u64, buffers: &Buffers) -> Result<()> {
        // There are more slots than submissions in flight, so a full ring means that the host has stopped collecting.
        let Some(slot) = self.free.pop() else {
            return Err(Error::Device("the readback ring is full: collect results after every step".into()));
        };
        let mut at = 0;
        for &(from, bytes) in &self.sources {
            let source = buffers.source(from)?;
            encoder.copy(&source.buffer, source.start, &slot, at, bytes);
            at += bytes;
        }
        self.copied = Some((tag, slot));
        Ok(())
    }

    /// Requests the mapping of the slot of the last [`copy`](Self::copy).
    pub fn request(&mut self, gpu: &Gpu) {
        let Some((tag, buffer)) = self.copied.take() else { return };
        let mapping = Mapping::request(gpu, &buffer, wgpu::MapMode::Read, self.bytes);
        self.pending.push_back(Pending { tag, buffer, mapping });
    }

    /// The copies that have arrived, oldest first. Never blocks.
    ///
    /// # Errors
    /// A device failure.
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
}

/// Reads buffers of any size through one staging buffer, allocated once; for checkpoints, generation and tests.
pub struct Reader {
    staging: wgpu::Buffer,
}

impl Reader {
    /// A reader with a staging buffer of `bytes`.
    ///
    /// # Errors
    /// Out of memory.
    pub async fn new(gpu: &Gpu, bytes: u64) -> Result<Self> {
        Ok(Self { staging: staging(gpu, bytes).await? })
    }

    /// Size of the staging buffer in bytes.
    pub fn bytes(&self) -> u64 {
        self.staging.size()
    }

    /// `bytes` bytes of a persistent buffer, starting at byte `at`.
    ///
    /// # Errors
    /// A device failure.
    pub async fn read(
        &self,
        gpu: &Gpu,
        buffers: &Buffers,
        from: PersistentId,
        at: u64,
        bytes: u64,
    ) -> Result<Vec<u8>> {
        let source = buffers.source(from)?;
        self.read_buffer(gpu, &source.buffer, source.start + at, bytes).await
    }

    pub(super) async fn read_buffer(
        &self,
        gpu: &Gpu,
        from: &wgpu::Buffer,
        at: u64,
        bytes: u64,
    ) -> Result<Vec<u8>> {
        let mut all = Vec::with_capacity(bytes as usize);
        while (all.len() as u64) < bytes {
            let done = all.len() as u64;
            let piece = (bytes - done).min(self.staging.size());
            let copied = piece.next_multiple_of(4);
            let mut encoder = gpu.encoder();
            encoder.copy(from, at + done, &self.staging, 0, copied);
            encoder.submit().await?;
            Mapping::request(gpu, &self.staging, wgpu::MapMode::Read, copied).done(gpu).await?;
            all.extend(mapped_bytes(&self.staging, piece)?);
        }
        Ok(all)
    }

    /// The bytes of `tensor`, padding included. For a transient tensor, `index` is the index of its recording.
    ///
    /// # Errors
    /// A transient tensor that its recording does not use, or a device failure.
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

    /// The bytes of `tensor`, as [`tensor`](Self::tensor) reads them, with `margin` more bytes on both sides: for tests
    /// of guard zones.
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
            BufferId::Persistent(id) => {
                let source = buffers.source(id)?;
                (&source.buffer, source.start)
            }
            transient => prepared
                .place(index, transient)
                .ok_or_else(|| Error::Device("no dispatch of its recording uses the tensor".into()))?,
        };
        let at = start + tensor.offset - margin;
        self.read_buffer(gpu, buffer, at, tensor.bytes() + 2 * margin).await
    }
}

async fn staging(gpu: &Gpu, bytes: u64) -> Result<wgpu::Buffer> {
    let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    gpu.buffer("readback", bytes, usage, Vec::new).await
}

fn mapped_bytes(buffer: &wgpu::Buffer, bytes: u64) -> Result<Vec<u8>> {
    let mut data = vec![0; bytes as usize];
    copy_mapped(buffer, &mut data, 0, |_| None)?;
    Ok(data)
}

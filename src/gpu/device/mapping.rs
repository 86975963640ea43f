//! Mapping of staging buffers into host memory.

use super::gpu::Gpu;
use crate::error::{Error, Result};
use futures_channel::oneshot::{Receiver, channel};
use std::time::Instant;

/// A pending buffer mapping. It completes when all work submitted before it has run, and gives the time at which that
/// happened.
pub(super) struct Mapping(Receiver<std::result::Result<Instant, wgpu::BufferAsyncError>>);

impl Mapping {
    /// Requests a mapping of the first `bytes` of `buffer`, whose last use must have been submitted.
    pub fn request(gpu: &Gpu, buffer: &wgpu::Buffer, mode: wgpu::MapMode, bytes: u64) -> Self {
        let (sender, receiver) = channel();
        buffer.map_async(mode, ..bytes, move |result| {
            // The receiver is gone if the ring was dropped.
            let _ = sender.send(result.map(|()| Instant::now()));
        });
        gpu.submissions.run_callbacks(); // the last use may have completed already
        Self(receiver)
    }

    /// The time at which the buffer was mapped, or `None` while that is pending.
    ///
    /// # Errors
    /// A device failure.
    pub fn done_at(&mut self) -> Result<Option<Instant>> {
        match self.0.try_recv() {
            Ok(None) => Ok(None),
            Ok(Some(Ok(at))) => Ok(Some(at)),
            _ => Err(failed()),
        }
    }

    /// Completes when the buffer is mapped.
    ///
    /// # Errors
    /// A device failure.
    pub async fn done(self, gpu: &Gpu) -> Result<()> {
        gpu.wait().await?; // reports a device that hangs or is lost
        self.0.await.map_err(|_| failed())?.map_err(|_| failed()).map(drop)
    }

    /// Completes when the buffer is mapped, without waiting for work that was submitted after its last use.
    ///
    /// # Errors
    /// A device failure.
    pub async fn arrived(&mut self, gpu: &Gpu) -> Result<()> {
        let arrival = gpu.submissions.unless_failed(&mut self.0).await?;
        arrival.map_err(|_| failed())?.map_err(|_| failed()).map(drop)
    }
}

fn failed() -> Error {
    Error::Device("a staging buffer could not be mapped".into())
}

/// Replaces the contents of `to` by the first bytes of a mapped buffer, and unmaps the buffer. If `used` finds in the
/// first `head` bytes that only some bytes count, only these are copied.
pub(super) fn copy_mapped(
    buffer: &wgpu::Buffer,
    to: &mut Vec<u8>,
    head: usize,
    used: impl Fn(&[u8]) -> Option<usize>,
) -> Result<()> {
    let view = buffer.slice(..to.len() as u64).get_mapped_range();
    let view = view.map_err(|e| Error::Device(format!("a readback buffer is not mapped: {e}")))?;
    let used = used(&view[..head]).map_or(to.len(), |used| used.min(to.len()));
    to.truncate(used);
    to.copy_from_slice(&view[..used]);
    drop(view);
    buffer.unmap();
    Ok(())
}

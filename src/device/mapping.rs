//! Staging buffers on their way to the host.

use super::gpu::Gpu;
use crate::error::{Error, Result};
use futures_channel::oneshot::{Receiver, channel};
use std::time::Instant;

/// A buffer that has been asked to be mapped. The device does so when it has done what was submitted before, and then says
/// when that was.
pub(super) struct Mapping(Receiver<std::result::Result<Instant, wgpu::BufferAsyncError>>);

impl Mapping {
    /// Asks for the first `bytes` of `buffer`, after its last use was submitted.
    pub fn request(gpu: &Gpu, buffer: &wgpu::Buffer, mode: wgpu::MapMode, bytes: u64) -> Self {
        let (sender, receiver) = channel();
        buffer.map_async(mode, ..bytes, move |result| {
            // Where nobody listens any more the ring was dropped.
            let _ = sender.send(result.map(|()| Instant::now()));
        });
        gpu.submissions.run_callbacks(); // its last use may be done already
        Self(receiver)
    }

    /// When it was mapped, if it is by now.
    ///
    /// # Errors
    /// A device that fails.
    pub fn done_at(&mut self) -> Result<Option<Instant>> {
        match self.0.try_recv() {
            Ok(None) => Ok(None),
            Ok(Some(Ok(at))) => Ok(Some(at)),
            _ => Err(failed()),
        }
    }

    /// Completes when it is mapped.
    ///
    /// # Errors
    /// A device that fails.
    pub async fn done(self, gpu: &Gpu) -> Result<()> {
        gpu.wait().await?; // a device that hangs or is lost says so here
        self.0.await.map_err(|_| failed())?.map_err(|_| failed()).map(drop)
    }
}

fn failed() -> Error {
    Error::Device("a staging buffer could not be mapped".into())
}

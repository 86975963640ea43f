//! Work handed to the queue: how much is in flight, and what it was if the device fails.

use super::gpu::Gpu;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The host runs at most this many submissions ahead of the device: enough to keep it busy, few enough that an
/// interrupt, a metric or an error is never far behind.
const MAX_IN_FLIGHT: usize = 3;

/// A hang, not slowness: the slowest single submission we know, a large step on a software adapter, takes minutes.
const TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(super) struct Submissions {
    in_flight: Mutex<VecDeque<(wgpu::SubmissionIndex, String)>>,
}

impl Submissions {
    /// Notes a submission; blocks while more than [`MAX_IN_FLIGHT`] are running.
    pub fn add(&self, gpu: &Gpu, index: wgpu::SubmissionIndex, ops: String) -> Result<()> {
        self.lock().push_back((index, ops));
        while self.lock().len() > MAX_IN_FLIGHT {
            self.wait_oldest(gpu)?;
        }
        gpu.check()
    }

    pub fn wait_all(&self, gpu: &Gpu) -> Result<()> {
        while !self.lock().is_empty() {
            self.wait_oldest(gpu)?;
        }
        gpu.poll()
    }

    /// The oldest unfinished submission: its first and last op.
    pub fn oldest(&self) -> Option<String> {
        self.lock().front().map(|(_, ops)| ops.clone())
    }

    fn wait_oldest(&self, gpu: &Gpu) -> Result<()> {
        let Some((index, ops)) = self.lock().front().cloned() else { return Ok(()) };
        let wait = wgpu::PollType::Wait { submission_index: Some(index), timeout: Some(TIMEOUT) };
        let finished = gpu.device.poll(wait);
        gpu.check()?;
        finished.map_err(|e| Error::Device(format!("the device did not finish {ops}: {e}")))?;
        self.lock().pop_front();
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(wgpu::SubmissionIndex, String)>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

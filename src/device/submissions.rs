//! Work handed to the queue: how much is in flight, and what it was if the device fails.

use super::gpu::Gpu;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The host runs at most this many submissions ahead of the device: enough to keep it busy, few enough that an
/// interrupt, a metric or an error is never far behind.
const MAX_IN_FLIGHT: usize = 3;

/// A hang, not slowness: the slowest single submission we know, a large step on a software adapter, takes minutes.
const TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(super) struct Submissions {
    in_flight: Mutex<VecDeque<Submission>>,
    count: AtomicU64,
}

#[derive(Clone)]
struct Submission {
    number: u64,
    index: wgpu::SubmissionIndex,
    ops: String,
}

impl Submissions {
    /// Notes a submission; blocks while more than [`MAX_IN_FLIGHT`] are running.
    pub fn add(&self, gpu: &Gpu, index: wgpu::SubmissionIndex, ops: String) -> Result<()> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        self.lock().push_back(Submission { number, index, ops });
        self.wait_until(gpu, MAX_IN_FLIGHT)?;
        gpu.check()
    }

    pub fn wait_all(&self, gpu: &Gpu) -> Result<()> {
        self.wait_until(gpu, 0)?;
        gpu.poll()
    }

    /// The oldest unfinished submission: its first and last op.
    pub fn oldest(&self) -> Option<String> {
        self.lock().front().map(|submission| submission.ops.clone())
    }

    /// Waits, oldest first, until at most `rest` are in flight.
    fn wait_until(&self, gpu: &Gpu, rest: usize) -> Result<()> {
        loop {
            let in_flight = self.lock();
            if in_flight.len() <= rest {
                return Ok(());
            }
            let Submission { number, index, ops } = in_flight[0].clone();
            drop(in_flight); // an error report reads the list
            let wait = wgpu::PollType::Wait { submission_index: Some(index), timeout: Some(TIMEOUT) };
            let finished = gpu.device.poll(wait);
            gpu.check()?;
            finished.map_err(|e| Error::Device(format!("the device did not finish {ops}: {e}")))?;
            let mut in_flight = self.lock();
            if in_flight.front().is_some_and(|front| front.number == number) {
                in_flight.pop_front(); // unless another thread waited for the same one
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Submission>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

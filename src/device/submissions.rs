//! Work handed to the queue: how much is in flight, when it is done, and what it was if the device fails.
//!
//! One thread waits for the device, and nothing else does: whoever waits is a future that this thread wakes. Callbacks of
//! wgpu run there, or where one is asked for after the fact. In a browser the event loop does both.

use super::gpu::Fault;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

/// The host runs at most this many submissions ahead of a GPU: enough to keep it busy, few enough that an interrupt, a
/// metric or an error is never far behind.
pub(super) const MAX_AHEAD: usize = 3;

/// A hang, not slowness: the slowest single submission we know, a large step on a software adapter, takes minutes.
const TIMEOUT: Duration = Duration::from_secs(600);

pub(super) struct Submissions {
    device: wgpu::Device,
    /// How many submissions the host may run ahead of the device.
    ahead: usize,
    /// `None` only while dropped.
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
    progress: Arc<Mutex<Progress>>,
}

/// What the waiting thread is asked for.
enum Request {
    /// Wait until this submission has run.
    Finish(wgpu::SubmissionIndex),
    /// Wait until everything submitted has run.
    FinishAll,
}

/// Shared with the waiting thread. Requests are numbered from 1 and answered in order.
#[derive(Default)]
struct Progress {
    asked: u64,
    answered: u64,
    submitted: u64,
    /// Submissions that have not finished, as far as is known: the request that waits for each, and its ops.
    in_flight: VecDeque<(u64, String)>,
    failure: Option<String>,
    waiting: Vec<Waker>,
}

impl Submissions {
    /// Starts the thread that waits for `device`; `ahead` submissions may be in flight when one is added.
    pub fn new(device: &wgpu::Device, ahead: usize, fault: &Fault) -> Self {
        let (requests, inbox) = mpsc::channel();
        let progress = Arc::new(Mutex::new(Progress::default()));
        let (polled, fault, shared) = (device.clone(), fault.clone(), progress.clone());
        let thread = std::thread::Builder::new().name("gristmill wait".into());
        let thread = thread.spawn(move || answer(&polled, &fault, &inbox, &shared)).ok();
        if thread.is_none() {
            lock(&progress).failure =
                Some("the thread that waits for the device could not be started".into());
        }
        Self { device: device.clone(), ahead, requests: Some(requests), thread, progress }
    }

    /// Notes a submission.
    pub fn add(&self, index: wgpu::SubmissionIndex, ops: String) {
        let mut progress = lock(&self.progress);
        let number = self.ask(&mut progress, Request::Finish(index));
        progress.submitted += 1;
        progress.in_flight.push_back((number, ops));
    }

    /// Completes when one more submission may be in flight.
    pub async fn room(&self) -> Result<()> {
        let number = {
            let progress = lock(&self.progress);
            let excess = progress.in_flight.len().saturating_sub(self.ahead);
            excess.checked_sub(1).map(|last| progress.in_flight[last].0)
        };
        match number {
            None => Ok(()),
            Some(number) => self.answered(number).await,
        }
    }

    /// Completes when everything submitted so far has run.
    pub async fn all(&self) -> Result<()> {
        let number = self.ask(&mut lock(&self.progress), Request::FinishAll);
        self.answered(number).await
    }

    /// Runs the callbacks that are ready: of a mapping asked for after its submission has finished, for example.
    pub fn run_callbacks(&self) {
        let _ = poll(&self.device, wgpu::PollType::Poll); // a device that fails says so to the thread too
    }

    /// The oldest unfinished submission: its first and last op.
    pub fn oldest(&self) -> Option<String> {
        lock(&self.progress).in_flight.front().map(|(_, ops)| ops.clone())
    }

    /// How many submissions there were.
    pub fn count(&self) -> u64 {
        lock(&self.progress).submitted
    }

    fn ask(&self, progress: &mut Progress, request: Request) -> u64 {
        progress.asked += 1;
        if let Some(requests) = &self.requests {
            let _ = requests.send(request); // a thread that ended has left its failure behind
        }
        progress.asked
    }

    async fn answered(&self, number: u64) -> Result<()> {
        poll_fn(|context| {
            let mut progress = lock(&self.progress);
            if progress.answered >= number {
                return Poll::Ready(Ok(()));
            }
            if let Some(failure) = &progress.failure {
                return Poll::Ready(Err(Error::Device(failure.clone())));
            }
            progress.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Submissions {
    fn drop(&mut self) {
        self.requests = None; // ends the thread
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers requests until nobody can ask any more, or the device fails.
fn answer(device: &wgpu::Device, fault: &Fault, inbox: &mpsc::Receiver<Request>, progress: &Mutex<Progress>) {
    for (number, request) in (1..).zip(inbox) {
        let wait = |submission_index| wgpu::PollType::Wait { submission_index, timeout: Some(TIMEOUT) };
        let polled = match request {
            Request::Finish(index) => poll(device, wait(Some(index))),
            Request::FinishAll => poll(device, wait(None)),
        };
        let mut progress = lock(progress);
        match polled {
            Ok(()) => progress.answered = number,
            Err(error) => {
                let ops = progress.in_flight.front().map_or("its work", |(_, ops)| ops.as_str());
                // A lost device says so itself, with more of a reason.
                let failure =
                    fault.get().unwrap_or_else(|| format!("the device did not finish {ops}: {error}"));
                progress.failure = Some(failure);
            }
        }
        while progress.in_flight.front().is_some_and(|(asked, _)| *asked <= progress.answered) {
            progress.in_flight.pop_front();
        }
        progress.waiting.drain(..).for_each(Waker::wake);
        if progress.failure.is_some() {
            return;
        }
    }
}

/// wgpu panics when the device is lost while it is polled: that, too, is an error for whoever waits.
fn poll(device: &wgpu::Device, kind: wgpu::PollType) -> std::result::Result<(), String> {
    caught(|| device.poll(kind).map(drop).map_err(|error| error.to_string()))
}

fn caught(poll: impl FnOnce() -> std::result::Result<(), String>) -> std::result::Result<(), String> {
    // What the closure leaves behind is wgpu's, and is not used again after a panic.
    std::panic::catch_unwind(AssertUnwindSafe(poll)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("the device is lost").to_string())
    })
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::caught;

    #[test]
    fn a_panic_of_the_device_is_an_error() {
        assert_eq!(caught(|| Ok(())), Ok(()));
        assert_eq!(caught(|| panic!("device {}", "lost")), Err("device lost".to_string()));
        assert_eq!(caught(|| panic!("lost")), Err("lost".to_string()));
    }
}

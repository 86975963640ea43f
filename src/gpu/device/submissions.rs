//! Submissions in flight: how many, when they complete, and which ops they contain if the device fails.
//!
//! One thread polls the device, from the first submission on; all other waiting is a future that this thread wakes.
//! wgpu's callbacks run on that thread, or on one that requests a callback for work already completed. In a browser the
//! event loop does both. With [`Polling::Application`] there is no thread, and the application's polls wake the
//! futures.
//!
//! The host runs up to three submissions ahead of a GPU. A software adapter executes a submission inside the submit
//! call, so there the host is never ahead. A wait for the device ends with an error after `context.hang_timeout`.

use super::fault::Fault;
use super::polling::poll;
use crate::error::{Error, Result};
use crate::gpu::device::submission_split::Timed;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most submissions in flight when the host continues: enough to keep a GPU busy, and few enough that interrupts,
/// metrics and errors arrive soon.
pub(super) const MAX_AHEAD: usize = 3;

/// How the host keeps up with the device.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// Most submissions in flight when the host continues.
    pub ahead: usize,
    /// Longest wait for one of them before the device is assumed to hang.
    pub hang_timeout: Duration,
}

/// Who polls the device. No future of this crate completes unless someone polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Polling {
    /// A thread of this crate, started by the first submission. Recordings that an application encodes and submits
    /// itself do not start it.
    #[default]
    Thread,
    /// The application, by `wgpu::Device::poll` in its event loop or on a thread of its own. Blocking on one of this
    /// crate's futures on the only thread that polls waits forever.
    Application,
}

pub(super) struct Submissions {
    device: wgpu::Device,
    queue: wgpu::Queue,
    polling: Polling,
    pace: Pace,
    fault: Fault,
    thread: OnceLock<PollingThread>,
    state: Arc<Mutex<QueueState>>,
}

struct PollingThread {
    /// `None` only during drop.
    requests: Option<mpsc::Sender<Request>>,
    handle: Option<JoinHandle<()>>,
}

/// A request to the polling thread.
enum Request {
    /// Wait until this submission has run.
    Finish(wgpu::SubmissionIndex),
    /// Wait until everything submitted has run.
    FinishAll,
}

struct InFlight {
    /// Number of the request that waits for this submission.
    number: u64,
    /// The first and last op of the submission.
    ops: String,
    begin: Instant,
    timed: Vec<Timed>,
}

/// State shared with the polling thread. Requests are numbered from 1 and completed in order.
#[derive(Default)]
struct QueueState {
    requested: u64,
    completed: u64,
    submitted: u64,
    /// Submissions not known to have finished.
    in_flight: VecDeque<InFlight>,
    /// When the last finished submission had finished.
    finished: Option<Instant>,
    failure: Option<Error>,
    waiting: Vec<Waker>,
}

impl Submissions {
    /// No submissions yet.
    pub fn new(
        device: &wgpu::Device,
        queue: &wgpu::Queue,
        polling: Polling,
        pace: Pace,
        fault: &Fault,
    ) -> Self {
        Self {
            device: device.clone(),
            queue: queue.clone(),
            polling,
            pace,
            fault: fault.clone(),
            thread: OnceLock::new(),
            state: Arc::default(),
        }
    }

    /// Registers a submission, which began at `begin`: `ops` is its first and last op, and `timed` its launches to be
    /// timed.
    pub fn add(&self, index: wgpu::SubmissionIndex, ops: String, begin: Instant, timed: Vec<Timed>) {
        // An application may poll long after a submission has finished.
        let timed = if self.polling == Polling::Thread { timed } else { Vec::new() };
        self.request(Request::Finish(index), Some((ops, begin, timed)));
    }

    /// Completes when at most `ahead` submissions are in flight.
    pub async fn room(&self) -> Result<()> {
        let number = {
            let state = lock(&self.state);
            let excess = state.in_flight.len().saturating_sub(self.pace.ahead);
            excess.checked_sub(1).map(|last| state.in_flight[last].number)
        };
        match number {
            None => Ok(()),
            Some(number) => self.completion(number).await,
        }
    }

    /// Completes when everything submitted so far has run.
    pub async fn all(&self) -> Result<()> {
        let number = self.request(Request::FinishAll, None);
        self.completion(number).await
    }

    /// The output of `future`, which is completed by a callback of the device.
    ///
    /// # Errors
    /// The device fails before the future completes.
    pub async fn unless_failed<T>(&self, future: impl Future<Output = T> + Unpin) -> Result<T> {
        let mut future = future;
        poll_fn(|context| {
            if let Poll::Ready(output) = Pin::new(&mut future).poll(context) {
                return Poll::Ready(Ok(output));
            }
            let mut state = lock(&self.state);
            if let Some(failure) = &state.failure {
                return Poll::Ready(Err(failure.clone()));
            }
            state.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Runs callbacks that are ready, for example of a mapping requested after its submission has finished. Does
    /// nothing if the application polls.
    pub fn run_callbacks(&self) {
        if self.polling == Polling::Thread {
            let _ = poll(&self.device, wgpu::PollType::Poll); // the polling thread sees a device failure too
        }
    }

    /// First and last op of the oldest submission in flight.
    pub fn oldest(&self) -> Option<String> {
        lock(&self.state).in_flight.front().map(|submission| submission.ops.clone())
    }

    /// Number of submissions so far.
    pub fn count(&self) -> u64 {
        lock(&self.state).submitted
    }

    /// Requests completion of `request`, whose submission, if it is one, is described by `submission`.
    fn request(&self, request: Request, submission: Option<(String, Instant, Vec<Timed>)>) -> u64 {
        let thread = self.thread();
        let mut state = lock(&self.state);
        state.requested += 1;
        let number = state.requested;
        if let Some((ops, begin, timed)) = submission {
            state.submitted += 1;
            state.in_flight.push_back(InFlight { number, ops, begin, timed });
        }
        match thread.and_then(|thread| thread.requests.as_ref()) {
            // Under the lock, so that the thread receives requests in the order of their numbers.
            Some(requests) => {
                let _ = requests.send(request); // a thread that has ended has stored its failure
            }
            None => {
                drop(state); // the callback takes it
                let state = self.state.clone();
                self.queue.on_submitted_work_done(move || lock(&state).complete(number));
            }
        }
        number
    }

    /// The polling thread, started on the first call; `None` if the application polls.
    fn thread(&self) -> Option<&PollingThread> {
        (self.polling == Polling::Thread).then(|| {
            self.thread.get_or_init(|| {
                let (requests, inbox) = mpsc::channel();
                let (device, fault, state) = (self.device.clone(), self.fault.clone(), self.state.clone());
                let thread = std::thread::Builder::new().name("gristmill wait".into());
                let timeout = self.pace.hang_timeout;
                let handle = thread.spawn(move || serve(&device, &fault, &inbox, &state, timeout)).ok();
                if handle.is_none() {
                    let failure = "the thread that polls the device could not be started".to_string();
                    lock(&self.state).failure = Some(Error::Device(failure));
                }
                PollingThread { requests: Some(requests), handle }
            })
        })
    }

    /// Completes with request `number`.
    async fn completion(&self, number: u64) -> Result<()> {
        poll_fn(|context| {
            let mut state = lock(&self.state);
            if state.completed >= number {
                return Poll::Ready(Ok(()));
            }
            if let Some(failure) = &state.failure {
                return Poll::Ready(Err(failure.clone()));
            }
            state.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl QueueState {
    /// Notes that request `number`, and so every earlier one, is complete.
    fn complete(&mut self, number: u64) {
        self.completed = self.completed.max(number);
        let now = Instant::now();
        let completed = self.completed;
        while self.in_flight.front().is_some_and(|submission| submission.number <= completed)
            && let Some(done) = self.in_flight.pop_front()
        {
            // A submission that waited for the previous one began when that one ended.
            let begin = self.finished.map_or(done.begin, |finished| finished.max(done.begin));
            self.finished = Some(now);
            if !done.timed.is_empty() {
                Timed::note(done.timed, now.saturating_duration_since(begin));
            }
        }
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

impl Drop for PollingThread {
    fn drop(&mut self) {
        self.requests = None; // ends the thread
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

/// The polling thread: completes requests in order until the channel closes or the device fails.
fn serve(
    device: &wgpu::Device,
    fault: &Fault,
    inbox: &mpsc::Receiver<Request>,
    state: &Mutex<QueueState>,
    timeout: Duration,
) {
    for (number, request) in (1..).zip(inbox) {
        let wait = |submission_index| wgpu::PollType::Wait { submission_index, timeout: Some(timeout) };
        let polled = match request {
            Request::Finish(index) => poll(device, wait(Some(index))),
            Request::FinishAll => poll(device, wait(None)),
        };
        let mut state = lock(state);
        match polled {
            Ok(()) => state.complete(number),
            Err(end) => {
                let ops = state.in_flight.front().map_or("its work", |submission| submission.ops.as_str());
                // A lost device's callback has the better message.
                let failure = fault.get().unwrap_or_else(|| Error::Device(end.line(ops, timeout)));
                state.failure = Some(failure);
                state.waiting.drain(..).for_each(Waker::wake);
                return;
            }
        }
    }
}

fn lock(state: &Mutex<QueueState>) -> MutexGuard<'_, QueueState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

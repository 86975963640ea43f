//! The communication thread: it owns the transport, so that exchanges run concurrently with the device and MPI sees one
//! thread.

use super::Transport;
use super::transport::Alone;
use crate::error::{Error, Result};
use futures_channel::oneshot;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll};
use std::thread::{Builder, JoinHandle};

/// The ranks of a run, from the view of one of them. Clones share the communication thread, which ends with the last
/// clone, after the jobs that were submitted.
#[derive(Clone)]
pub struct Ranks {
    rank: usize,
    size: usize,
    local_rank: usize,
    /// `None` for a single rank, whose jobs run where they are submitted.
    thread: Option<Arc<CommunicationThread>>,
}

/// The result of a job on the communication thread: a future.
pub struct Pending<T> {
    result: oneshot::Receiver<Result<T>>,
}

struct CommunicationThread {
    /// `None` only during drop.
    jobs: Option<Sender<Job>>,
    handle: Option<JoinHandle<()>>,
}

type Job = Box<dyn FnOnce(&mut dyn Transport) + Send>;

/// What the thread reports once it is connected: rank, size and local rank.
type Identity = (usize, usize, usize);

impl Ranks {
    /// A single rank, without a thread.
    pub fn alone() -> Self {
        Self { rank: 0, size: 1, local_rank: 0, thread: None }
    }

    /// Starts the communication thread and waits until `connect`, which runs on it, has connected the ranks.
    ///
    /// # Errors
    /// As `connect`; no thread can be started.
    pub fn start(connect: impl FnOnce() -> Result<Box<dyn Transport>> + Send + 'static) -> Result<Self> {
        let ((jobs, inbox), (report, place)) = (channel(), channel());
        let thread = Builder::new().name("ranks".into()).spawn(move || communicate(connect, &report, &inbox));
        let handle = thread.map_err(|error| {
            Error::Ranks(format!(
                "cannot start the communication thread ({error}); raise the limit of threads"
            ))
        })?;
        let thread = CommunicationThread { jobs: Some(jobs), handle: Some(handle) };
        let (rank, size, local_rank) = place.recv().unwrap_or_else(|_| Err(thread_ended()))?;
        Ok(Self { rank, size, local_rank, thread: Some(Arc::new(thread)) })
    }

    /// This rank's number, below [`Ranks::size`].
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks of the run.
    pub fn size(&self) -> usize {
        self.size
    }

    /// This rank's number among the ranks on this machine, from 0: chooses the adapter.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// Runs `job` on the communication thread after all earlier jobs; the future completes with its result. A single
    /// rank runs the job at once. All ranks submit matching jobs in the same order.
    ///
    /// # Errors
    /// The future fails with the error of `job`, or because the thread has ended after an earlier job panicked.
    pub fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut dyn Transport) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (sender, result) = oneshot::channel();
        // The receiver may be gone if nobody waits for the result any more.
        let job = move |transport: &mut dyn Transport| drop(sender.send(job(transport)));
        match &self.thread {
            Some(thread) => thread.submit(Box::new(job)),
            None => job(&mut Alone),
        }
        Pending { result }
    }

    /// Ends the other ranks, after the jobs submitted before: for a rank that cannot continue. If ranks are processes,
    /// this may end this process too, with exit code 2, so print messages before.
    pub fn abort(&self) {
        drop(self.run(|transport| {
            transport.abort();
            Ok(())
        }));
    }
}

impl std::fmt::Debug for Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.size)
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let result = Pin::new(&mut self.result).poll(context);
        result.map(|result| result.unwrap_or_else(|oneshot::Canceled| Err(thread_ended())))
    }
}

impl CommunicationThread {
    /// If the thread has ended the job is dropped, which its future reports.
    fn submit(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
    }
}

impl Drop for CommunicationThread {
    /// Waits for the jobs that were submitted, so that the transport is closed in order. A rank that panics ends the
    /// others.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.submit(Box::new(|transport| transport.abort()));
        }
        self.jobs = None;
        let handle = self.handle.take().expect("dropped once");
        // A job may hold the last clone.
        if handle.thread().id() != std::thread::current().id() {
            let _ = handle.join();
        }
    }
}

/// The thread: connects, reports the rank's place, and does jobs until all clones are dropped or a job panics.
fn communicate(
    connect: impl FnOnce() -> Result<Box<dyn Transport>>,
    report: &Sender<Result<Identity>>,
    inbox: &Receiver<Job>,
) {
    let mut transport = match connect() {
        Ok(transport) => transport,
        Err(error) => return drop(report.send(Err(error))),
    };
    let _ = report.send(Ok((transport.rank(), transport.size(), transport.local_rank())));
    let guard = AbortOnPanic(transport.as_mut());
    inbox.iter().for_each(|job| job(guard.0));
}

/// A job that panics ends all ranks, since the others wait for its messages.
struct AbortOnPanic<'a>(&'a mut dyn Transport);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort();
        }
    }
}

fn thread_ended() -> Error {
    Error::Ranks("the communication thread has ended; the panic above says why".into())
}

#[cfg(test)]
mod tests;

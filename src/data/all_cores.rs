//! Work on all cores, whose results are taken in the order of the items.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::error::Result;

/// Chunks for each thread that are read ahead of the chunk whose results are taken next.
const AHEAD: usize = 4;
/// A chunk takes no further item once it has this many bytes.
const CHUNK_BYTES: usize = 1 << 18;

/// Items, and the channel to which their results go.
type Job<I, O> = (Vec<I>, Sender<Vec<O>>);

/// Calls `produce` on this thread, `work` on all cores, and `take` on this thread. `produce` gets a function that takes
/// an item and says whether more are wanted; `work` is called with each item; `take` is called with each result, in the
/// order of the items, until it returns false. Threads take `chunk` items at once, so that handing them over costs
/// little beside the work, or fewer items where these have 256 kB by `bytes_of`. The items in memory are bounded in
/// number of chunks and in bytes, except for one chunk of each thread, however large its items are.
///
/// # Errors
/// The error of `produce`, unless nothing more was wanted.
pub(super) fn on_all_cores<I: Send, O: Send>(
    chunk: usize,
    bytes_of: impl Fn(&I) -> usize,
    produce: impl FnOnce(&mut dyn FnMut(I) -> bool) -> Result<()>,
    work: impl Fn(I) -> O + Sync,
    take: &mut dyn FnMut(O) -> bool,
) -> Result<()> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let (jobs, queue) = channel::<Job<I, O>>();
    let queue = Mutex::new(queue);
    let run = || {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((items, results)) = next else { break };
            // After an end, nobody takes the results.
            let _ = results.send(items.into_iter().map(&work).collect());
        }
    };
    thread::scope(|scope| {
        // Threads are named: a panic in an unnamed thread of a library's pool is the library's.
        let started = (0..threads).filter(|number| {
            let named = thread::Builder::new().name(format!("data {number}"));
            named.spawn_scoped(scope, run).is_ok()
        });
        let is_alone = started.count() == 0;
        let (items, pending) = (Vec::new(), VecDeque::new());
        let mut line = Line { jobs, chunk: (items, 0), pending, pending_bytes: 0, ended: false, take };
        let done = produce(&mut |item| {
            if is_alone {
                line.ended = !(line.take)(work(item));
            } else {
                let bytes = bytes_of(&item);
                line.add(item, bytes, chunk, threads);
            }
            !line.ended
        });
        line.send();
        while !line.ended && line.take_next(true) {}
        if line.ended { Ok(()) } else { done }
    })
}

/// The items that are worked on, in order.
struct Line<'a, I, O> {
    jobs: Sender<Job<I, O>>,
    /// The items of the next chunk, and their bytes.
    chunk: (Vec<I>, usize),
    /// The channels that deliver the results of chunks, and the bytes of these chunks.
    pending: VecDeque<(Receiver<Vec<O>>, usize)>,
    pending_bytes: usize,
    /// Whether no more items are wanted.
    ended: bool,
    take: &'a mut dyn FnMut(O) -> bool,
}

impl<I, O> Line<'_, I, O> {
    /// Adds an item of `bytes` bytes to the chunk, which is sent once it has `chunk` items or enough bytes. Takes the
    /// results that are there, and waits for others where too much is pending for `threads`.
    fn add(&mut self, item: I, bytes: usize, chunk: usize, threads: usize) {
        self.chunk.0.push(item);
        self.chunk.1 += bytes;
        if self.chunk.0.len() < chunk && self.chunk.1 < CHUNK_BYTES {
            return;
        }
        self.send();
        while !self.ended && self.take_next(self.has_enough(threads)) {}
    }

    /// Whether as much is pending as may be. One chunk for each thread is never too much, because otherwise threads
    /// would wait for one another.
    fn has_enough(&self, threads: usize) -> bool {
        let (most, chunks) = (AHEAD * threads, self.pending.len());
        chunks >= most || (chunks > threads && self.pending_bytes >= most * CHUNK_BYTES)
    }

    fn send(&mut self) {
        let (items, bytes) = std::mem::take(&mut self.chunk);
        let (results, receiver) = channel();
        if !items.is_empty() && self.jobs.send((items, results)).is_ok() {
            self.pending.push_back((receiver, bytes));
            self.pending_bytes += bytes;
        }
    }

    /// Takes the results of the next chunk if they are there, or waits for them if `waits`. Returns whether it took
    /// any.
    fn take_next(&mut self, waits: bool) -> bool {
        let Some((receiver, bytes)) = self.pending.front() else { return false };
        let results =
            if waits { receiver.recv().map_err(|_| TryRecvError::Disconnected) } else { receiver.try_recv() };
        let results = match results {
            Ok(results) => results,
            Err(TryRecvError::Empty) => return false,
            // A thread that panicked has sent no results; the scope passes the panic on.
            Err(TryRecvError::Disconnected) => {
                self.ended = true;
                return false;
            }
        };
        self.pending_bytes -= bytes;
        self.pending.pop_front();
        for result in results {
            if !self.ended {
                self.ended = !(self.take)(result);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    /// The results that are taken for the numbers below `count`, up to `last`, and whether the reader's fault is passed
    /// on.
    fn taken(count: u64, last: u64, fails: bool) -> (Vec<u64>, bool) {
        let mut taken = Vec::new();
        let done = on_all_cores(
            16,
            |_| 1,
            |give| {
                let _ = (0..count).all(give);
                if fails { Err(Error::Plan("broken".to_string())) } else { Ok(()) }
            },
            |number| {
                // Later items are done first.
                thread::sleep(Duration::from_micros(200 - number.min(20) * 10));
                number * number
            },
            &mut |square| {
                taken.push(square);
                square < last * last
            },
        );
        (taken, done.is_err())
    }

    #[test]
    fn results_are_in_order_up_to_an_end_or_a_fault() {
        let squares = |count: u64| (0..count).map(|number| number * number).collect::<Vec<_>>();
        for count in [0, 1, 15, 16, 17, 1000] {
            assert_eq!(taken(count, u64::from(u32::MAX), false), (squares(count), false));
            assert_eq!(taken(count, u64::from(u32::MAX), true), (squares(count), true));
        }
        // Items that were read ahead of the end do not count, nor does a fault there.
        assert_eq!(taken(1000, 30, true), (squares(31), false));
        assert_eq!(taken(25, 24, true), (squares(25), false));
    }

    /// The number of items is not what is bounded: a few large items are as much as many small ones.
    #[test]
    fn what_is_in_memory_is_bounded_in_bytes() {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let bound = (AHEAD * threads + 1) * CHUNK_BYTES;
        for (size, most) in [
            (1 << 16, bound),
            // One chunk for each thread, one that is being read, and one that waits.
            (CHUNK_BYTES << 4, bound.max((threads + 2) * (CHUNK_BYTES << 4))),
        ] {
            let (held, highest) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let give_all = |give: &mut dyn FnMut(usize) -> bool| {
                for _ in 0..40 * threads {
                    highest.fetch_max(held.fetch_add(size, Ordering::Relaxed) + size, Ordering::Relaxed);
                    give(size);
                }
                Ok(())
            };
            let work = |size| {
                thread::sleep(Duration::from_millis(1));
                size
            };
            let mut count = 0;
            on_all_cores(16, |size| *size, give_all, work, &mut |size| {
                held.fetch_sub(size, Ordering::Relaxed);
                count += 1;
                true
            })
            .unwrap();
            assert_eq!(count, 40 * threads);
            assert!(highest.into_inner() <= most, "items of {size} bytes");
        }
    }
}

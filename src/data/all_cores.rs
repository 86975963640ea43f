//! Work on all cores whose results are taken in the order of what is worked on.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::error::Result;

/// Chunks for each thread that are read ahead of the one whose results are taken next.
const AHEAD: usize = 4;

/// Items, and where their results go.
type Job<I, O> = (Vec<I>, Sender<Vec<O>>);

/// Calls `produce` here with a function that takes an item and says whether more are wanted; `work` on all cores with each item; and
/// `take` here with each result, in the order of the items, until it returns false. Threads take `chunk` items at once, so that taking
/// them costs nothing beside the work, and a bounded number of chunks is in memory.
///
/// # Errors
/// That of `produce`, unless nothing more was wanted.
pub(super) fn on_all_cores<I: Send, O: Send>(
    chunk: usize,
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
            // Nobody takes them after an end.
            let _ = results.send(items.into_iter().map(&work).collect());
        }
    };
    thread::scope(|scope| {
        // A panic in a thread of a library's pool, which has no name, is the library's.
        let started = (0..threads).filter(|number| {
            let named = thread::Builder::new().name(format!("data {number}"));
            named.spawn_scoped(scope, run).is_ok()
        });
        let is_alone = started.count() == 0;
        let mut line = Line { jobs, chunk: Vec::new(), pending: VecDeque::new(), ended: false, take };
        let done = produce(&mut |item| {
            if is_alone {
                line.ended = !(line.take)(work(item));
            } else {
                line.add(item, chunk, AHEAD * threads);
            }
            !line.ended
        });
        line.send();
        while !line.ended && line.take_next() {}
        if line.ended { Ok(()) } else { done }
    })
}

/// What is worked on, in order.
struct Line<'a, I, O> {
    jobs: Sender<Job<I, O>>,
    chunk: Vec<I>,
    pending: VecDeque<Receiver<Vec<O>>>,
    /// Whether no more is wanted.
    ended: bool,
    take: &'a mut dyn FnMut(O) -> bool,
}

impl<I, O> Line<'_, I, O> {
    /// Adds an item, once fewer than `ahead` chunks of so many are pending.
    fn add(&mut self, item: I, chunk: usize, ahead: usize) {
        self.chunk.push(item);
        if self.chunk.len() >= chunk {
            self.send();
            while self.pending.len() >= ahead && !self.ended && self.take_next() {}
        }
    }

    fn send(&mut self) {
        let items = std::mem::take(&mut self.chunk);
        let (results, receiver) = channel();
        if !items.is_empty() && self.jobs.send((items, results)).is_ok() {
            self.pending.push_back(receiver);
        }
    }

    /// Takes the results of the next chunk. Returns whether there is one.
    fn take_next(&mut self) -> bool {
        let Some(results) = self.pending.pop_front() else { return false };
        // A thread that panicked has sent none: the scope passes it on.
        let Ok(results) = results.recv() else {
            self.ended = true;
            return false;
        };
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
    use std::time::Duration;

    /// What is taken of the numbers below `count`, of which the last is `last`; and whether the reader's fault is passed on.
    fn taken(count: u64, last: u64, fails: bool) -> (Vec<u64>, bool) {
        let mut taken = Vec::new();
        let done = on_all_cores(
            16,
            |give| {
                let _ = (0..count).all(give);
                if fails { Err(Error::Plan("broken".to_string())) } else { Ok(()) }
            },
            |number| {
                // Later ones are done first.
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
        // What was read ahead of the end does not count, nor does a fault there.
        assert_eq!(taken(1000, 30, true), (squares(31), false));
        assert_eq!(taken(25, 24, true), (squares(25), false));
    }
}

use super::{Pending, Ranks};
use crate::error::{Error, Result};
use crate::ranks::{Transport, in_process};
use pollster::block_on;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// Two ranks, each with its own thread.
fn pair() -> [Ranks; 2] {
    let ends = in_process::connect(2).into_iter();
    let started = ends.map(|end| Ranks::start(|| Ok(Box::new(end) as Box<dyn Transport>)).expect("a thread"));
    started.collect::<Vec<_>>().try_into().expect("two ranks")
}

/// A job that swaps a byte with the other of two ranks.
fn swap(byte: u8) -> impl FnOnce(&mut dyn Transport) -> Result<u8> + Send + 'static {
    move |transport| {
        let (peer, mut received) = (1 - transport.rank(), [0]);
        transport.exchange(&[(peer, &[byte])], &mut [(peer, &mut received)])?;
        Ok(received[0])
    }
}

/// The result of a job if it has arrived, without waiting.
fn poll<T>(pending: Pin<&mut Pending<T>>) -> Poll<Result<T>> {
    pending.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_single_rank_needs_no_thread() {
    let ranks = Ranks::alone();
    assert_eq!((ranks.rank(), ranks.size(), ranks.local_rank()), (0, 1, 0));
    let pending = pin!(ranks.run(|transport| Ok(transport.size())));
    assert!(matches!(poll(pending), Poll::Ready(Ok(1))), "done at once");
}

#[test]
fn jobs_run_in_order() {
    let [a, b] = pair();
    assert_eq!((b.rank(), b.size(), b.local_rank()), (1, 2, 1));
    let (first, second) = (a.run(swap(1)), a.run(swap(2)));
    let (third, fourth) = (b.run(swap(3)), b.run(swap(4)));
    let results = [second, first, fourth, third].map(|pending| block_on(pending).expect("a byte"));
    assert_eq!(results, [4, 3, 2, 1]);
}

#[test]
fn a_result_is_taken_once_it_is_there() {
    let [a, b] = pair();
    let mut pending = pin!(a.run(swap(1)));
    assert!(poll(pending.as_mut()).is_pending(), "the other rank has not submitted its job");
    block_on(b.run(swap(2))).expect("a byte");
    block_on(a.run(|_| Ok(()))).expect("an empty job");
    assert!(matches!(poll(pending), Poll::Ready(Ok(2))));
}

#[test]
fn dropped_ranks_finish_their_jobs() {
    let [a, b] = pair();
    let pending = b.run(swap(5));
    drop(a.run(swap(6)));
    drop(a);
    assert_eq!(block_on(pending).expect("a byte"), 6);
}

#[test]
fn a_rank_that_has_ended_is_an_error_of_the_others() {
    let [a, b] = pair();
    drop(a);
    let error = block_on(b.run(swap(1))).expect_err("rank 0 has ended");
    assert!(error.to_string().starts_with("rank 0 has ended"), "{error}");
}

#[test]
fn an_abort_follows_the_jobs_before_it() {
    let [a, b] = pair();
    let (before, fails) = (b.run(swap(1)), b.run(swap(2)));
    drop(a.run(swap(3)));
    a.abort();
    assert_eq!(block_on(before).expect("a byte"), 3);
    block_on(fails).expect_err("rank 0 has aborted");
}

#[test]
fn a_job_that_panics_ends_its_rank() {
    let [a, b] = pair();
    let panics = a.run(|_| -> Result<()> { panic!("a panic of a job, as this test wants it") });
    let error = block_on(panics).expect_err("the job has no result");
    assert!(error.to_string().starts_with("the communication thread has ended"), "{error}");
    block_on(a.run(swap(1))).expect_err("its thread has ended");
    let error = block_on(b.run(swap(2))).expect_err("rank 0 has ended");
    assert!(error.to_string().starts_with("rank 0 has ended"), "{error}");
}

#[test]
fn a_rank_that_panics_ends_the_others() {
    let [a, b] = pair();
    let panicked = std::thread::spawn(move || {
        let _a = a;
        panic!("a panic of a rank, as this test wants it");
    });
    panicked.join().expect_err("it panics");
    let error = block_on(b.run(swap(2))).expect_err("rank 0 has ended");
    assert!(error.to_string().starts_with("rank 0 has ended"), "{error}");
}

#[test]
fn an_error_while_connecting_is_returned() {
    let error = Ranks::start(|| Err(Error::Ranks("no connection".into()))).expect_err("not connected");
    assert_eq!(error.to_string(), "no connection");
}

#[test]
fn a_job_may_hold_the_last_clone() {
    let [a, b] = pair();
    let held = a.clone();
    let pending = a.run(move |transport| {
        drop(held);
        swap(1)(transport)
    });
    // before `a` is dropped, which may be the last clone after all and then waits for the job
    let answer = b.run(swap(2));
    drop(a);
    block_on(answer).expect("a byte");
    assert_eq!(block_on(pending).expect("a byte"), 2);
}

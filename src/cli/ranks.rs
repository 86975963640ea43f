//! Starts the ranks of a run: threads of this process, or the processes that `mpirun` has started.
//!
//! An error that all ranks would find is printed only by the first one. Launchers end a job as soon as one process
//! fails, so the others give it 2 s to print.

use crate::error::{Error, Result};
use crate::ranks::{Ranks, Transport, in_process, launcher, mpi};
use std::process::exit;
use std::thread::{Builder, ScopedJoinHandle, scope, sleep};
use std::time::Duration;

/// The time that the other processes give the first one to print an error that they have too: launchers end all
/// processes when one ends with an error.
pub(super) const FIRST_SPEAKS: Duration = Duration::from_secs(2);

/// The time that a process waits for its own end after it has aborted the others.
const ABORT: Duration = Duration::from_secs(10);

/// Runs `run` on each rank: on `threads` threads, as one of the processes of `mpirun`, or without either on a single
/// rank.
///
/// # Errors
/// The error of the first rank that failed by itself. Among processes the first one prints it, and all exit with code
/// 2.
pub fn on_ranks(threads: Option<usize>, run: impl Fn(Ranks) -> Result<()> + Sync) -> Result<()> {
    match (launcher::processes(), threads.unwrap_or(1)) {
        (1, 1) => run(Ranks::alone()),
        (1, count) => on_threads(count, run),
        (_, 1) => as_process(run),
        (_, _) => Err(of_all(Error::config(
            "--ranks",
            "starts ranks as threads where there is no mpirun, which has started this process; leave it out",
        ))),
    }
}

/// Runs `run` on `count` threads. The others end when one ends with an error or panics.
fn on_threads(count: usize, run: impl Fn(Ranks) -> Result<()> + Sync) -> Result<()> {
    let run = |end: in_process::InProcess| run(Ranks::start(|| Ok(Box::new(end) as Box<dyn Transport>))?);
    let results = scope(|scope| {
        let spawn = |end: in_process::InProcess| {
            let thread = Builder::new().name(format!("rank {}", end.rank()));
            thread.spawn_scoped(scope, || run(end)).map_err(|error| {
                Error::config("--ranks", format!("cannot start a thread ({error}); start fewer ranks"))
            })
        };
        let threads: Vec<_> = in_process::connect(count).into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.and_then(result)).collect::<Vec<_>>()
    });
    match first_cause(results) {
        None => Ok(()),
        Some((0, error)) => Err(error),
        Some((rank, error)) => Err(of_rank(rank, &error)),
    }
}

/// The result of a rank's thread. Its panic is resumed here; the message has already been printed.
fn result(thread: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The first error that is not about another rank's end, or otherwise the first error.
fn first_cause(results: Vec<Result<()>>) -> Option<(usize, Error)> {
    let errors = results.into_iter().enumerate().filter_map(|(rank, result)| Some((rank, result.err()?)));
    errors.min_by_key(|(rank, error)| (matches!(error, Error::Ranks(_)), *rank))
}

/// Runs `run` as one of several processes.
fn as_process(run: impl Fn(Ranks) -> Result<()>) -> Result<()> {
    let ranks = Ranks::start(mpi::connect).map_err(of_all)?;
    check_number(launcher::processes(), ranks.size()).map_err(of_all)?;
    let Err(error) = run(ranks.clone()) else { return Ok(()) };
    let line = match ranks.rank() {
        0 => error,
        rank => {
            sleep(FIRST_SPEAKS);
            of_rank(rank, &error)
        }
    };
    super::print_error(&line);
    ranks.abort();
    sleep(ABORT);
    exit(2)
}

/// Fails if MPI connects another number of processes than the launcher has `started`: each would train by itself, all
/// in the same folder.
fn check_number(started: usize, connected: usize) -> Result<()> {
    if started == connected {
        return Ok(());
    }
    Err(Error::Ranks(format!(
        "the launcher has started {started} processes, of which MPI connects {connected}; start them by the mpirun of the MPI library \
         that this program was built with, or build it with the one of this launcher"
    )))
}

/// On the first process, returns an error that all processes find before they are connected; the others exit without a
/// message.
fn of_all(error: Error) -> Error {
    if launcher::process() > 0 {
        sleep(FIRST_SPEAKS);
        exit(2);
    }
    error
}

fn of_rank(rank: usize, error: &Error) -> Error {
    Error::Ranks(format!("rank {rank}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::{check_number, first_cause, on_threads};
    use crate::error::{Error, Result};
    use crate::ranks::{Group, Ranks, collectives};
    use std::sync::Mutex;

    /// An exchange with all others.
    fn sum(ranks: &Ranks) -> Result<u32> {
        let sum = ranks.run(|transport| {
            let (group, mut data) = (Group::all(transport.size()), 1u32.to_ne_bytes());
            let sum = collectives::Reduction::SumU32;
            collectives::all_reduce(transport, &group, &mut data, sum, &mut Vec::new())?;
            Ok(u32::from_ne_bytes(data))
        });
        pollster::block_on(sum)
    }

    #[test]
    fn each_thread_is_a_rank() {
        let seen = Mutex::new(Vec::new());
        let run = |ranks: Ranks| {
            let sum = sum(&ranks)?; // before the lock, since the others need it to get there
            seen.lock().expect("no panic").push((ranks.rank(), sum));
            Ok(())
        };
        on_threads(3, run).expect("no rank fails");
        let mut seen = seen.into_inner().expect("no panic");
        seen.sort_unstable();
        assert_eq!(seen, [(0, 3), (1, 3), (2, 3)]);
    }

    #[test]
    fn a_rank_that_fails_is_named_and_ends_the_others() {
        let error = on_threads(3, |ranks| match ranks.rank() {
            1 => Err(Error::Plan("no such adapter".into())),
            _ => loop {
                sum(&ranks)?;
            },
        });
        assert_eq!(error.expect_err("rank 1 fails").to_string(), "rank 1: no such adapter");
    }

    #[test]
    fn a_panic_ends_the_others_and_goes_on() {
        let panics = std::panic::catch_unwind(|| {
            on_threads(3, |ranks| match ranks.rank() {
                2 => panic!("a panic of a rank, as this test wants it"),
                _ => loop {
                    sum(&ranks)?;
                },
            })
        });
        panics.expect_err("the panic of the rank");
    }

    #[test]
    fn processes_that_are_not_connected_are_refused() {
        check_number(4, 4).expect("all are connected");
        let line = check_number(4, 1).expect_err("each would be alone").to_string();
        assert!(
            line.starts_with("the launcher has started 4 processes, of which MPI connects 1; "),
            "{line}"
        );
    }

    #[test]
    fn a_cause_comes_before_its_effects() {
        let results =
            vec![Ok(()), Err(Error::Ranks("rank 2 has ended".into())), Err(Error::Plan("cause".into()))];
        let (rank, error) = first_cause(results).expect("an error");
        assert_eq!((rank, error.to_string().as_str()), (2, "cause"));
    }
}

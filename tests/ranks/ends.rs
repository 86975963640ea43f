//! A rank that ends takes the others with it, at once and with a reason. Threads are tested in `src/ranks`.
#![cfg(feature = "mpi")]

use crate::noted::is_running;
use crate::transports::{Ended, is_process, run_processes};
use gristmill::error::Result;
use gristmill::ranks::collectives::{Reduction, all_reduce};
use gristmill::ranks::{Group, Ranks, Transport, mpi};
use std::process::Command;

/// Runs `body` on the processes of `mpirun`, and returns on the test itself how they ended.
fn on_processes(test: &str, body: fn(&Ranks)) -> Option<Ended> {
    if !is_process() {
        return Some(run_processes(3, test));
    }
    body(&Ranks::start(mpi::connect).expect("a process of mpirun"));
    None
}

fn sum(transport: &mut dyn Transport) -> Result<()> {
    let group = Group::all(transport.size());
    all_reduce(transport, &group, &mut vec![0; 100_000], Reduction::SumF32, &mut Vec::new())
}

/// Exchanges until something ends this process; rank 1 does `end` instead of the tenth time.
fn exchange_until(ranks: &Ranks, end: fn(&Ranks)) {
    for round in 0.. {
        if (ranks.rank(), round) == (1, 10) {
            end(ranks);
        }
        pollster::block_on(ranks.run(sum)).expect("MPI ends the process instead");
    }
}

#[test]
fn a_killed_rank_ends_the_others() {
    let ended = on_processes("ends::a_killed_rank_ends_the_others", |ranks| {
        println!("process {}", std::process::id());
        exchange_until(ranks, |_| {
            let own = std::process::id().to_string();
            Command::new("kill").args(["-KILL", &own]).status().expect("no process is left to see it");
        });
    });
    let Some(Ended { exit_code, stdout, .. }) = ended else { return };
    assert_ne!(exit_code, Some(0));
    let processes: Vec<&str> = stdout.lines().filter_map(|line| line.strip_prefix("process ")).collect();
    assert_eq!(processes.len(), 3, "{stdout}");
    for process in processes {
        assert!(!is_running(process), "process {process} outlives the job");
    }
}

#[test]
fn an_abort_has_exit_code_2() {
    let ended = on_processes("ends::an_abort_has_exit_code_2", |ranks| exchange_until(ranks, Ranks::abort));
    let Some(Ended { exit_code, stderr, .. }) = ended else { return };
    assert_eq!(exit_code, Some(2), "{stderr}");
}

#[test]
fn a_rank_that_panics_ends_the_others() {
    let ended = on_processes("ends::a_rank_that_panics_ends_the_others", |ranks| {
        exchange_until(ranks, |_| panic!("a panic of a rank, as this test wants it"));
    });
    let Some(Ended { exit_code, stderr, .. }) = ended else { return };
    assert_eq!(exit_code, Some(2), "{stderr}");
    assert!(stderr.contains("a panic of a rank, as this test wants it"), "{stderr}");
}

#[test]
fn a_job_that_panics_ends_the_others() {
    let ended = on_processes("ends::a_job_that_panics_ends_the_others", |ranks| {
        exchange_until(ranks, |ranks| {
            drop(ranks.run(|_| -> Result<()> { panic!("a panic of a job, as this test wants it") }));
        });
    });
    let Some(Ended { exit_code, stderr, .. }) = ended else { return };
    assert_eq!(exit_code, Some(2), "{stderr}");
    assert!(stderr.contains("a panic of a job, as this test wants it"), "{stderr}");
}

#[test]
fn a_message_of_another_length_names_the_rank() {
    let swap = |ranks: &Ranks| {
        let swap = ranks.run(|transport| {
            // Each sends 8 bytes, and only the first expects them.
            let (peer, expected) = [(1, 8), (0, 12), (2, 0)][transport.rank()];
            match peer {
                2 => Ok(()),
                peer => transport.exchange(&[(peer, &[0; 8])], &mut [(peer, &mut vec![0; expected])]),
            }
        });
        pollster::block_on(swap).expect("MPI ends the process instead");
        // The others wait for the one that fails.
        pollster::block_on(ranks.run(sum)).expect("MPI ends the process instead");
    };
    let ended = on_processes("ends::a_message_of_another_length_names_the_rank", swap);
    let Some(Ended { exit_code, stderr, .. }) = ended else { return };
    assert_eq!(exit_code, Some(2), "{stderr}");
    assert!(stderr.contains("error: rank 1: rank 0 sent 8 bytes where 12 were expected"), "{stderr}");
}

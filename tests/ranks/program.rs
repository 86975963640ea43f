//! The program, started on several ranks.

use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_gristmill");

/// The lines that we print: launchers add some of their own.
fn errors(stderr: &str) -> Vec<&str> {
    stderr.lines().filter(|line| line.starts_with("error: ")).collect()
}

fn output(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().expect("the program");
    (status.code(), String::from_utf8(stderr).expect("UTF-8"))
}

/// The program as a launcher of two processes would start it.
fn as_process(rank: &str, arguments: &[&str]) -> (Option<i32>, String) {
    output(Command::new(PROGRAM).args(arguments).env("PMI_SIZE", "2").env("PMI_RANK", rank))
}

#[test]
fn an_error_of_all_threads_is_printed_once() {
    let (code, stderr) = output(Command::new(PROGRAM).args(["train", "nowhere.yaml", "--ranks", "3"]));
    let errors = errors(&stderr);
    assert_eq!((code, errors.len()), (Some(2), 1), "{stderr}");
    assert!(errors[0].starts_with("error: nowhere.yaml: "), "{stderr}");
}

#[test]
fn a_wrong_number_of_threads_is_one_line() {
    for wrong in ["0", "257", "two"] {
        let (code, stderr) = output(Command::new(PROGRAM).args(["train", "nowhere.yaml", "--ranks", wrong]));
        assert_eq!((code, stderr.lines().count()), (Some(2), 1), "{stderr}");
        assert!(stderr.contains("--ranks") && stderr.contains("1 to 256, each a thread"), "{stderr}");
    }
}

#[test]
fn threads_and_processes_exclude_each_other() {
    let arguments = ["train", "nowhere.yaml", "--ranks", "2"];
    let (code, stderr) = as_process("0", &arguments);
    assert_eq!((code, errors(&stderr).len()), (Some(2), 1), "{stderr}");
    assert!(stderr.starts_with("error: --ranks: "), "{stderr}");
    assert_eq!(as_process("1", &arguments), (Some(2), String::new()));
}

#[test]
#[cfg_attr(feature = "mpi", ignore = "the program is built with MPI")]
fn a_program_without_mpi_says_how_to_build_it() {
    let arguments = ["train", "nowhere.yaml"];
    let (code, stderr) = as_process("0", &arguments);
    assert_eq!((code, stderr.lines().count()), (Some(2), 1), "{stderr}");
    assert!(stderr.contains("--features mpi"), "{stderr}");
    assert_eq!(as_process("1", &arguments), (Some(2), String::new()));
}

#[cfg(feature = "mpi")]
#[test]
fn an_error_of_all_processes_is_printed_once() {
    let ended = crate::transports::run_mpirun(3, &[PROGRAM, "train", "nowhere.yaml"]);
    let errors = errors(&ended.stderr);
    assert_eq!((ended.exit_code, errors.len()), (Some(2), 1), "{}", ended.stderr);
    assert!(errors[0].starts_with("error: nowhere.yaml: "), "{}", ended.stderr);
}

#[cfg(feature = "mpi")]
#[test]
fn a_single_process_of_mpirun_is_a_run_without_ranks() {
    let ended = crate::transports::run_mpirun(1, &[PROGRAM, "train", "nowhere.yaml"]);
    assert_eq!((ended.exit_code, errors(&ended.stderr).len()), (Some(2), 1), "{}", ended.stderr);
}

/// A launcher of another MPI library than the program's: MPI then finds each process alone.
#[cfg(feature = "mpi")]
#[test]
fn processes_that_mpi_does_not_connect_are_one_line() {
    let of_two = |rank: &str| {
        let mut program = Command::new(PROGRAM);
        program.args(["train", "nowhere.yaml"]);
        output(program.env("OMPI_COMM_WORLD_SIZE", "2").env("OMPI_COMM_WORLD_RANK", rank))
    };
    // Open MPI adds lines of its own.
    let (code, stderr) = of_two("0");
    assert_eq!((code, errors(&stderr).len()), (Some(2), 1), "{stderr}");
    let line =
        "error: the launcher has started 2 processes, of which MPI connects 1; start them by the mpirun of ";
    assert!(errors(&stderr)[0].starts_with(line), "{stderr}");
    let (code, stderr) = of_two("1");
    assert_eq!((code, errors(&stderr).len()), (Some(2), 0), "{stderr}");
}

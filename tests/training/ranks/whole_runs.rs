//! Runs on several ranks from a configuration file to a run folder.

use crate::runs::{FolderRun, Setup, metrics, on_ranks};
use gristmill::error::Result;
use gristmill::train::run::{Summary, run_on_ranks};
use pollster::block_on;
use std::path::Path;
use std::sync::Arc;

/// A run of two layers, with few steps.
fn small(overrides: &[&str]) -> FolderRun {
    FolderRun::new(Setup::new("ranked", "").with(overrides))
}

/// Runs `config` on as many ranks as there are lists of arguments.
fn run_each(config: &Path, arguments: &[Vec<String>]) -> Vec<Result<Summary>> {
    on_ranks(arguments.len(), |ranks| {
        let of_rank = &arguments[ranks.rank()];
        block_on(run_on_ranks(config, of_rank, Arc::default(), ranks))
    })
}

fn lines(results: Vec<Result<Summary>>) -> Vec<String> {
    results.into_iter().map(|result| result.expect_err("a refusal").to_string()).collect()
}

#[test]
fn one_rank_writes_for_all() {
    let run = small(&[]);
    let config = run.setup.write(run.home.path());
    let results = run_each(&config, &vec![run.arguments(3); 2]);
    let summaries: Vec<Summary> = results.into_iter().map(|result| result.expect("a run")).collect();
    assert_eq!(summaries[0], summaries[1]);
    let steps: Vec<u64> = metrics(&run.folder()).iter().map(|line| line.step).collect();
    assert_eq!(steps, [1, 2, 3]);
}

#[test]
fn ranks_that_differ_end_with_one_line() {
    let run = small(&[]);
    let config = run.setup.write(run.home.path());
    let mut arguments = vec![run.arguments(3); 3];
    arguments[1].push("--lr_schedule.learning_rate=1.e-4".into());
    let refused = lines(run_each(&config, &arguments));
    assert_eq!(
        refused[0],
        "rank 1: its settings have `learning_rate: 0.0001` where those of rank 0 have `learning_rate: 0.003`; start all ranks \
         with the same program, files and flags"
    );
    assert_eq!(refused[2], refused[0]);
    arguments[1].push("--lr_schedule.learning_rat=1.e-4".into());
    let refused = lines(run_each(&config, &arguments));
    assert!(refused[0].starts_with("rank 1: ") && refused[0].contains("learning_rat"), "{refused:?}");
    assert!(!run.folder().exists(), "a run that is refused makes no folder");
}

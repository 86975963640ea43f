//! Everything that shows a run, in one that is killed and goes on, and in one whose disk is full.
#![cfg(unix)] // kills, and limits the size of files

use crate::event_files::EventFiles;
use crate::launch::{in_repository, program, run, train_gpt};
use crate::place::Place;
use crate::runs::{FolderRun, Setup, evaluated};
use gristmill::report::metrics::StepMetrics;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Steps of a run that is killed.
const STEPS: u64 = 20;

/// A small mixture, of whose numbers none is left out.
fn everything() -> FolderRun {
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, aux_loss_types: [expert], aux_loss_factors: [0.01], \
                   z_loss_factor: 0.001, callback_moe_droprate: True, save_token_distribution: True";
    let setup = Setup::experts("watched", routing, "mtp_depth: 1, mtp_loss_factor: 0.3");
    let both = "[log, tensorboard]";
    let monitor = format!(
        "--monitor_config={{monitor_on: True, step_interval: 3, local_norm_format: {both}, \
         local_loss_format: tensorboard, optimizer_state_format: {both}, weight_state_format: {both}}}"
    );
    let tensorboard = "--tensorboard={log_timers_to_tensorboard: True, log_loss_scale_to_tensorboard: True, \
                       log_expert_load_to_tensorboard: True}";
    evaluated(setup, 4, &[&monitor, tensorboard, "--metric=[{type: PerplexityMetric}, {type: Accuracy}]"])
}

fn train(run: &FolderRun) -> Command {
    let config = run.setup.write(run.home.path());
    train_gpt([config.display().to_string()].into_iter().chain(run.arguments(STEPS)))
}

fn lines(folder: &Path) -> Vec<StepMetrics> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn a_killed_run_goes_on_without_a_gap_or_a_double() {
    let want = everything();
    run(&mut train(&want)).succeeded();
    let killed = everything();
    for steps in [5, 9, 14] {
        // Nobody reads what it prints, which would stop it.
        let mut command = train(&killed);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program");
        while lines(&killed.folder()).len() < steps && child.try_wait().expect("the process").is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().expect("the process");
        assert_eq!(child.wait().expect("the process").code(), None, "killed after step {steps}");
    }
    assert!(killed.newest() < Some(STEPS), "nothing is left to do");
    run(&mut train(&killed)).succeeded();
    killed.left().assert_equals("killed three times", &want.left());

    let page = std::fs::read_to_string(killed.folder().join("report.html")).expect("a report");
    assert!(page.contains(&format!("\"step\":{STEPS},")), "the report ends with another step");
    let folder = killed.folder().join("tensorboard/rank_0");
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 1, "all in one file");
    if let Some(files) = EventFiles::read(&folder) {
        files.assert_hold(&lines(&killed.folder()), &[0, 1, 2]);
    }
}

/// Files may have 8 KiB, which the configuration stays below.
#[test]
fn a_full_disk_stops_files_and_not_the_run() {
    let place = Place::new();
    let keys = [
        "--stop_step=60",
        "--callbacks=[]",
        "--save_final=False",
        "--tensorboard={log_timers_to_tensorboard: True}",
    ];
    // An oversized write fails if its signal is ignored, which exec preserves.
    let mut shell = Command::new("bash");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$@\"", "bash"]).arg(program());
    let ended = run(in_repository_with(&mut shell, &place.arguments(&keys))).succeeded();
    for file in ["metrics.jsonl", "tensorboard/rank_0/events.out"] {
        let notices = ended.stderr.lines().filter(|line| {
            line.contains(file)
                && line.contains("cannot write")
                && line.ends_with("training goes on without it")
        });
        assert_eq!(notices.count(), 1, "{file}: {}", ended.stderr);
    }
    assert!(ended.stderr.contains("60/"), "{}", ended.stderr);
    let steps: Vec<u64> = lines(&place.folder()).iter().map(|line| line.step).collect();
    assert!(steps.len() < 60 && steps.iter().copied().eq(1..=steps.len() as u64), "{steps:?}");
}

fn in_repository_with<'a>(command: &'a mut Command, arguments: &[String]) -> &'a mut Command {
    in_repository(command.args(arguments));
    command
}

/// A resumed run warms up again, and this one has no steps left for that. The log of a process is its own.
#[test]
fn a_run_that_ends_before_is_not_profiled() {
    let profiled = FolderRun::new(Setup::new("profiled", "").with(&["--profile=2"]));
    let train = |stop_step: u64| {
        let config = profiled.setup.write(profiled.home.path());
        let arguments = [config.display().to_string()].into_iter().chain(profiled.arguments(stop_step));
        run(&mut train_gpt(arguments)).succeeded();
    };
    train(6);
    let file = profiled.folder().join("profile.jsonl");
    std::fs::remove_file(&file).expect("a profile");
    train(9);
    assert!(!file.exists());
    let log = std::fs::read_to_string(profiled.folder().join("log.txt")).expect("a log");
    let said = "no profile: the run has ended after step 9, and steps 10 to 11 were to be timed";
    assert!(log.contains(said), "{log}");
}

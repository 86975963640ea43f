//! Processes that are killed at any moment: the whole job ends, and the run goes on from its newest checkpoint as if
//! nothing had happened.
#![cfg(all(feature = "mpi", unix))]

use crate::noted::{is_there, note, signal};
use crate::runs::{FolderRun, MORTAL_RANKS, live_through_deaths, mortal_stages};
use crate::transports::{Ended, Job};
use std::cell::OnceCell;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

const PROGRAM: &str = env!("CARGO_BIN_EXE_gristmill");
const STEPS: u64 = 24;

/// What a run was doing when one of its processes was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Starting,
    Training,
    Saving,
}

/// When a process is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    AfterStart(Duration),
    AfterFirstStep(Duration),
}

/// How long a run takes that nothing ends.
struct Undisturbed {
    to_first_step: Duration,
    in_all: Duration,
}

impl Undisturbed {
    /// A moment of it: as many before the first step as after it, since starting takes most of the time.
    fn moment(&self, life: u64, random: u32) -> Moment {
        let share = f64::from(random) / f64::from(u32::MAX);
        match life % 2 {
            0 => Moment::AfterStart(self.to_first_step.mul_f64(share)),
            _ => Moment::AfterFirstStep((self.in_all - self.to_first_step).mul_f64(share)),
        }
    }
}

/// A run on processes.
struct Life<'a> {
    run: &'a FolderRun,
    job: Job,
    /// The step that it began with, and when the metrics were written before.
    resumed: u64,
    metrics_written: Option<SystemTime>,
}

impl<'a> Life<'a> {
    /// Starts `run` from its newest checkpoint on.
    fn start(run: &'a FolderRun) -> Self {
        let metrics_written = metrics_written(run);
        let config = run.setup.write(run.home.path()).display().to_string();
        let flags = run.setup.overrides.iter().map(String::as_str);
        let program: Vec<&str> = [PROGRAM, "train", &config].into_iter().chain(flags).collect();
        (0..MORTAL_RANKS)
            .for_each(|rank| drop(std::fs::remove_file(note(run.home.path(), &rank.to_string()))));
        let job = Job::start_noted(MORTAL_RANKS, run.home.path(), &program);
        Self { run, job, resumed: run.newest().unwrap_or(0), metrics_written }
    }

    /// Whether it has reported a step.
    fn has_reported(&self) -> bool {
        let metrics = std::fs::read(self.run.folder().join("metrics.jsonl")).unwrap_or_default();
        let lines = metrics.iter().filter(|byte| **byte == b'\n').count();
        metrics_written(self.run) != self.metrics_written && lines as u64 > self.resumed
    }

    fn phase(&self) -> Phase {
        let entries = std::fs::read_dir(self.run.folder().join("checkpoint")).into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        match self.has_reported() {
            false => Phase::Starting,
            true if names.any(|name| name.ends_with(".tmp")) => Phase::Saving,
            true => Phase::Training,
        }
    }

    /// Waits until `is_there`, or the run has ended.
    fn wait_until(&mut self, is_there: impl Fn(&Self) -> bool) {
        while !is_there(self) && self.job.is_running() {
            sleep(Duration::from_millis(2));
        }
    }

    /// Kills the process of `victim` and waits until the others have ended. Returns what the run was doing then, unless
    /// it was complete before.
    fn kill(mut self, victim: usize, moment: Moment) -> Option<Phase> {
        let home = self.run.home.path();
        self.wait_until(|_| is_there(home, victim));
        let delay = match moment {
            Moment::AfterStart(delay) => delay,
            Moment::AfterFirstStep(delay) => {
                self.wait_until(Self::has_reported);
                delay
            }
        };
        sleep(delay);
        let phase = self.phase();
        let (is_killed, since) = (signal(home, "-KILL", victim), Instant::now());
        let Ended { exit_code, stderr, .. } = self.job.end();
        println!(
            "rank {victim}, {moment:.1?}: {phase:?}, killed {is_killed}, the others took {:.1?}",
            since.elapsed()
        );
        assert_eq!(left_behind(home), [""; 0], "processes outlive the job");
        if exit_code == Some(0) {
            // The process had done all it had to, though it may have been there to be killed.
            assert_eq!(self.run.newest(), Some(STEPS), "{stderr}");
            return None;
        }
        assert!(is_killed, "{stderr}");
        Some(phase)
    }

    /// Waits for its end, which nothing disturbs.
    fn complete(mut self) -> Undisturbed {
        let since = Instant::now();
        self.wait_until(Self::has_reported);
        let to_first_step = since.elapsed();
        let Ended { exit_code, stderr, .. } = self.job.end();
        assert_eq!(exit_code, Some(0), "{stderr}");
        Undisturbed { to_first_step, in_all: since.elapsed() }
    }
}

/// When the metrics of `run` were last written.
fn metrics_written(run: &FolderRun) -> Option<SystemTime> {
    run.folder().join("metrics.jsonl").metadata().and_then(|file| file.modified()).ok()
}

/// The processes of this machine whose command names `home`.
fn left_behind(home: &Path) -> Vec<String> {
    let home = home.display().to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let commands = processes.filter_map(|path| std::fs::read(path.join("cmdline")).ok());
    commands
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&home))
        .collect()
}

#[test]
fn the_process_of_a_stage_may_be_killed_at_any_moment() {
    let undisturbed = OnceCell::new();
    live_through_deaths(
        || mortal_stages(STEPS),
        12,
        |run| {
            let whole = Life::start(run).complete();
            drop(undisturbed.set(whole));
        },
        |run, life, [victim, moment, ..]| {
            let undisturbed = undisturbed.get().expect("it comes first");
            Life::start(run).kill(victim as usize % MORTAL_RANKS, undisturbed.moment(life, moment))
        },
    );
}

//! Ranks that end at any moment: the others end too, and the run goes on from its newest checkpoint as if nothing had
//! happened.
//!
//! That includes a panic and a rank that cannot write its part of a checkpoint; a line names the rank, and resuming
//! is bit-identical.

use crate::runs::{
    FolderRun, MORTAL_RANKS as RANKS, live_through_deaths, mortal, mortal_hot_experts, mortal_matrices,
    mortal_stages, run_on_rank,
};
use gristmill::error::{Error, Result};
use gristmill::ranks::{Ranks, Transport, in_process};
use gristmill::train::run::Summary;
use pollster::block_on;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

const STEPS: u64 = 12;

/// How long the others may take to end.
const WITHIN: Duration = Duration::from_secs(30);

/// The line of a rank that cannot go on without `victim`.
fn ended(victim: usize) -> String {
    format!("rank {victim} has ended, and the run cannot go on without it")
}

/// How a rank ends, in the order of what it gets done before.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// Lives on.
    Spared,
    /// Its connection is closed instead of its exchange of this number: its messages so far arrive, then nothing.
    Exchange(u64),
    /// Its thread panics as it goes on with the run for this time, between two exchanges.
    Panic(u64),
    /// The same, counted from when it has begun to write its file of a checkpoint.
    PanicWriting(u64),
    /// It cannot write its file of the checkpoint of this number.
    Unwritable(u64),
}

impl Fate {
    /// The fate number `death` of a list without an end.
    fn of(death: u64, random: u32) -> Self {
        let random = u64::from(random);
        match death % 5 {
            0 | 1 => Self::Exchange(20 + random % 120),
            2 => Self::Panic(random % 160),
            3 => Self::PanicWriting(random % 8),
            _ => Self::Unwritable(random % 3),
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Spared => "spared",
            Self::Exchange(_) => "exchange",
            Self::Panic(_) => "panic",
            Self::PanicWriting(_) => "panic while writing",
            Self::Unwritable(_) => "unwritable",
        }
    }
}

/// The checkpoint that is being written into `folder`.
fn unfinished(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder.join("checkpoint")).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "tmp") && path.is_dir())
}

/// The last file that `rank` writes of a checkpoint.
fn moments(rank: usize) -> String {
    format!("optimizer-{:05}-of-{RANKS:05}.safetensors", rank + 1)
}

/// The connection of a rank that is closed, or that has a folder put in the place of a file, at one of its exchanges.
struct Mortal {
    end: Option<in_process::InProcess>,
    rank: usize,
    fate: Fate,
    folder: PathBuf,
    /// The last checkpoint that was seen.
    seen: Option<PathBuf>,
}

impl Mortal {
    /// Puts a folder in the place of this rank's file, where its fate says so: every checkpoint begins with exchanges.
    fn obstruct(&mut self) {
        let Fate::Unwritable(left) = &mut self.fate else { return };
        let Some(checkpoint) = unfinished(&self.folder) else { return };
        if self.seen.as_ref() == Some(&checkpoint) {
            return;
        }
        let place = checkpoint.join(moments(self.rank));
        if place.is_file() {
            return; // left by an earlier life, and removed before the next checkpoint begins
        }
        if *left == 0 {
            std::fs::create_dir_all(place).expect("a folder");
        }
        *left = left.wrapping_sub(1);
        self.seen = Some(checkpoint);
    }
}

impl Transport for Mortal {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        RANKS
    }

    fn local_rank(&self) -> usize {
        self.rank
    }

    fn exchange(&mut self, outgoing: &[(usize, &[u8])], incoming: &mut [(usize, &mut [u8])]) -> Result<()> {
        self.obstruct();
        if let Fate::Exchange(left) = &mut self.fate {
            if *left == 0 {
                self.end = None;
            }
            *left = left.saturating_sub(1);
        }
        match &mut self.end {
            Some(end) => end.exchange(outgoing, incoming),
            None => Err(Error::Ranks("this rank has died".into())),
        }
    }
}

/// A run whose thread panics, where its fate says so, when it is to go on after it has waited.
struct Fragile<'a, F> {
    run: Pin<&'a mut F>,
    fate: Fate,
    rank: usize,
    folder: PathBuf,
}

impl<F: Future> Future for Fragile<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let is_writing = || {
            unfinished(&self.folder).is_some_and(|checkpoint| checkpoint.join(moments(self.rank)).exists())
        };
        let counts = match self.fate {
            Fate::Panic(_) => true,
            Fate::PanicWriting(_) => is_writing(),
            _ => false,
        };
        if let Fate::Panic(left) | Fate::PanicWriting(left) = &mut self.fate
            && counts
        {
            assert!(*left > 0, "a panic, as this test wants it");
            *left -= 1;
        }
        self.run.as_mut().poll(context)
    }
}

/// How a rank's part in a run ended; `None` if its thread panicked.
type End = Option<Result<Summary>>;

/// One life of the run: `victim` has the `fate`, if the run lasts so long.
fn live(run: &FolderRun, victim: usize, fate: Fate) -> Vec<End> {
    let config = run.setup.write(run.home.path());
    let of_rank = |end: in_process::InProcess| {
        let rank = end.rank();
        let fate = if rank == victim { fate } else { Fate::Spared };
        let mortal = Mortal { end: Some(end), rank, fate, folder: run.folder(), seen: None };
        let ranks = Ranks::start(move || Ok(Box::new(mortal) as Box<_>)).expect("a thread");
        let training = pin!(run_on_rank(&config, &run.setup.overrides, ranks));
        block_on(Fragile { run: training, fate, rank, folder: run.folder() })
    };
    std::thread::scope(|scope| {
        let of_rank = &of_rank;
        let threads: Vec<ScopedJoinHandle<'_, Result<Summary>>> =
            in_process::connect(RANKS).into_iter().map(|end| scope.spawn(move || of_rank(end))).collect();
        threads.into_iter().map(|thread| thread.join().ok()).collect()
    })
}

/// Lives to the end.
fn live_on(run: &FolderRun) {
    live(run, 0, Fate::Spared).into_iter().for_each(|end| drop(end.expect("no panic").expect("a whole run")));
}

/// Checks that all ranks ended because of `victim`, each with the line that belongs to its `fate`.
fn check_ends(run: &FolderRun, victim: usize, fate: Fate, ends: Vec<End>) {
    let line = |end: End| end.map(|result| result.expect_err("no rank goes on alone").to_string());
    let mut lines: Vec<Option<String>> = ends.into_iter().map(line).collect();
    let own = lines.remove(victim);
    assert_eq!(own.is_none(), matches!(fate, Fate::Panic(_) | Fate::PanicWriting(_)), "{own:?}");
    for line in lines {
        let line = line.expect("one rank panics");
        match fate {
            // An error that all agree on.
            Fate::Unwritable(_) => {
                let file = format!("{}: cannot create: a folder has this name", moments(victim));
                assert!(
                    line.contains(&file) && own.as_ref().is_some_and(|own| line.ends_with(own)),
                    "{line}"
                );
                assert_eq!(unfinished(&run.folder()), None, "a checkpoint that failed is removed");
            }
            _ => assert!(line.ends_with(&ended(victim)), "{line}"),
        }
    }
}

#[test]
#[ignore = "long; `a_rank_with_copies_of_experts_may_end_at_any_moment`"]
fn a_rank_may_end_at_any_moment() {
    lives_through_deaths(mortal, 7);
}

#[test]
fn a_stage_may_end_at_any_moment() {
    lives_through_deaths(mortal_stages, 8);
}

#[test]
#[ignore = "long; `a_stage_may_end_at_any_moment`"]
fn a_rank_with_a_part_of_matrices_may_end_at_any_moment() {
    lives_through_deaths(mortal_matrices, 9);
}

#[test]
fn a_rank_with_copies_of_experts_may_end_at_any_moment() {
    lives_through_deaths(mortal_hot_experts, 10);
}

fn lives_through_deaths(mortal: fn(u64) -> FolderRun, seed: u64) {
    live_through_deaths(
        || mortal(STEPS),
        seed,
        live_on,
        |run, life, [victim, moment, ..]| {
            let (victim, fate) = (victim as usize % RANKS, Fate::of(life, moment));
            let since = Instant::now();
            let ends = live(run, victim, fate);
            let took = since.elapsed();
            println!("rank {victim}, {fate:?}: {took:.1?}, newest checkpoint {:?}", run.newest());
            assert!(took < WITHIN, "the others took {took:?}");
            if ends[victim].as_ref().is_some_and(Result::is_ok) {
                // The run was shorter than its life.
                ends.into_iter().for_each(|end| drop(end.expect("no panic").expect("a whole run")));
                return None;
            }
            check_ends(run, victim, fate, ends);
            Some(fate.kind())
        },
    );
}

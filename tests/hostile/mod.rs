//! The kinds of files listed below, damaged in ways that a seed decides: each input must give a result or an error that
//! a user can act on, without a panic, within seconds, and without memory beyond what a file of its size can need.
//!
//! CI tries [`FEW`] of each kind, `GRISTMILL_LONG=1` [`MANY`]. Input number n of a kind is the same at each run; one
//! that fails is left in `target/tmp/hostile`.

mod kinds;
mod memory;
mod mutate;

use gristmill::error::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Inputs of each kind in CI, and by hand.
const FEW: u64 = 250;
const MANY: u64 = 3_000;

/// How long one input may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What one input may take of memory at any time, and what one allocation may. The seeds have some kilobytes.
const MOST_BYTES: usize = 1 << 30;
const LARGEST: usize = 256 << 20;

/// Characters of an error's line.
const LONGEST_LINE: usize = 2_000;

/// A kind of file: a folder with sound files, of which one at a time is damaged, and what reads them.
pub struct Kind {
    pub name: &'static str,
    /// The files to damage, below the folder.
    pub targets: &'static [&'static str],
    /// Writes the sound files into a folder.
    pub prepare: fn(&Path),
    /// Reads the folder as a command does.
    pub read: fn(&Path) -> Result<()>,
}

/// What came of an input.
enum Outcome {
    Accepted,
    Refused(String),
    Failed(String),
}

/// Tries the inputs of a kind.
///
/// # Panics
/// With the first input that fails.
pub fn try_all(kind: &'static Kind) {
    let count = if std::env::var_os("GRISTMILL_LONG").is_some() { MANY } else { FEW };
    let (sender, outcomes) = channel();
    // Threads of ranks have the same small stack.
    std::thread::spawn(move || run(kind, count, &sender));
    let (accepted, refused) = collect(kind, count, &outcomes);
    println!("{}: {count} inputs, {accepted} accepted, {refused} refused", kind.name);
    assert!(refused > 0, "{}: nothing was refused, so nothing was read", kind.name);
}

fn run(kind: &Kind, count: u64, outcomes: &Sender<Outcome>) {
    let home = tempfile::tempdir().expect("a folder");
    (kind.prepare)(home.path());
    if let Outcome::Refused(error) | Outcome::Failed(error) = attempt(kind, home.path()) {
        return drop(outcomes.send(Outcome::Failed(format!("the sound files: {error}"))));
    }
    for number in 0..count {
        let target = home.path().join(kind.targets[number as usize % kind.targets.len()]);
        let sound = std::fs::read(&target).expect("a sound file");
        std::fs::write(&target, mutate::mutated(&sound, number)).expect("a file");
        let kept = keep(kind, number, &target);
        let outcome = attempt(kind, home.path());
        std::fs::write(&target, &sound).expect("a file");
        if !matches!(outcome, Outcome::Failed(_)) {
            let _ = std::fs::remove_file(kept);
        }
        if outcomes.send(outcome).is_err() {
            return;
        }
    }
}

/// Leaves the input where it can be found after an abort.
fn keep(kind: &Kind, number: u64, target: &Path) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hostile");
    std::fs::create_dir_all(&folder).expect("a folder");
    let name = target.file_name().expect("a name").to_string_lossy().into_owned();
    let kept = folder.join(format!("{}-{number}-{name}", kind.name));
    std::fs::copy(target, &kept).expect("a copy");
    kept
}

fn attempt(kind: &Kind, folder: &Path) -> Outcome {
    memory::start();
    let done = catch_unwind(AssertUnwindSafe(|| (kind.read)(folder)));
    let (largest, most) = memory::end();
    if largest > LARGEST || most > MOST_BYTES {
        return Outcome::Failed(format!("takes {most} bytes, at most {largest} at once"));
    }
    match done {
        Ok(Ok(())) => Outcome::Accepted,
        Ok(Err(error)) => match fault_of(&error) {
            Some(fault) => Outcome::Failed(format!("{fault}: {error:?}")),
            None => Outcome::Refused(error.to_string()),
        },
        Err(_) => Outcome::Failed("panics".to_string()),
    }
}

/// What is wrong with an error: it has more lines than faults, or one that nobody would read.
fn fault_of(error: &Error) -> Option<&'static str> {
    let text = error.to_string();
    let is_one = !matches!(error, Error::Several(_));
    if is_one && text.lines().count() != 1 {
        return Some("is not one line");
    }
    let is_long = text.lines().any(|line| line.chars().count() > LONGEST_LINE);
    is_long.then_some("has a line that is too long")
}

/// How many inputs were accepted and refused.
fn collect(kind: &Kind, count: u64, outcomes: &Receiver<Outcome>) -> (u64, u64) {
    let (mut accepted, mut refused) = (0, 0);
    for number in 0..count {
        let since = Instant::now();
        match outcomes.recv_timeout(PATIENCE) {
            Ok(Outcome::Accepted) => accepted += 1,
            Ok(Outcome::Refused(_)) => refused += 1,
            Ok(Outcome::Failed(what)) => panic!("{} {number} {what}", kind.name),
            Err(RecvTimeoutError::Timeout) => {
                panic!("{} {number} hangs for {:?}", kind.name, since.elapsed())
            }
            Err(RecvTimeoutError::Disconnected) => panic!("{} {number}: the thread has ended", kind.name),
        }
    }
    (accepted, refused)
}

/// A test of each kind.
macro_rules! kinds {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            try_all(&kinds::$name);
        })*
    };
}

kinds! {
    shader
    configuration
    tokenizer
    chat_template
    tokenizer_config
    conversations
    prompts
    questions
    json_text
    parquet_plain
    parquet_snappy
    token_files
    megatron
    mindrecord
    safetensors
    weight_index
    adapters
    base_note
    published_names
    generation_config
    config_json
    wrapper
    best_checkpoint
    trainer_state
    run_folder
    event_file
    numpy
    profile
}

//! The command line of a run, from which the command lines that continue it are built.

use super::length::RunLength;
use crate::error::shell_word;
use crate::settings::{RunPlan, Runner};
use std::path::Path;

/// The names of a command's flags that continue its run.
#[derive(Clone, Copy, Debug)]
pub struct GoingOn {
    /// Continues the run as it is.
    pub resume: &'static str,
    /// Continues the run with another length or rate.
    pub extend: &'static str,
    /// Sets the run's length in steps.
    pub steps: &'static str,
    /// Whether `steps` sets the run's epochs as well; otherwise the run ends at its epochs if they come first.
    pub steps_are_length: bool,
}

/// The flags of `train`.
pub const TRAIN: GoingOn = GoingOn {
    resume: "--resume_training=True",
    extend: "--resume_training=extend",
    steps: "--stop_step",
    steps_are_length: false,
};

/// The flags and keys that set the length of a run.
const LENGTHS: [&str; 5] =
    ["epochs", "runner_config.epochs", "steps", "stop_step", "runner_config.stop_step"];
/// The entries of [`LENGTHS`] that count steps.
const STEPS: &[&str] = LENGTHS.split_at(2).1;
/// The key that a length in steps also sets, if it is the length of the run.
const SCHEDULE: &str = "lr_schedule.total_steps";
/// The flag that precedes pairs without hyphens.
const OPTIONS: &str = "--options";

/// The name of this crate's program, which has commands besides `train`; copies of it may have a name that begins with
/// it.
const PROGRAM: &str = "gristmill";

/// The command line that has started a run. The command line of a launcher is not known here.
#[derive(Clone, Debug)]
pub struct CommandLine {
    words: Vec<String>,
    flags: GoingOn,
}

impl Default for CommandLine {
    /// The command line of a run that no command has started: lines that continue it consist only of flags of `train`.
    fn default() -> Self {
        Self { words: Vec::new(), flags: TRAIN }
    }
}

impl CommandLine {
    /// The command line of this process, whose command has these flags.
    pub fn of_process(flags: GoingOn) -> Self {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        Self { words: words.collect(), flags }
    }

    /// The program as it was called, to name another of its commands.
    pub(crate) fn program(&self) -> String {
        let called = self.words.first().filter(|word| {
            Path::new(word).file_stem().is_some_and(|name| name.to_string_lossy().starts_with(PROGRAM))
        });
        called.map_or(PROGRAM.to_string(), |word| shell_word(word))
    }

    /// The words without the flags that continue a run and without `others`, for a file that notes the command that
    /// made it.
    #[cfg(feature = "cli")]
    pub(crate) fn begun(&self, others: &[&str]) -> String {
        let words = self.words.iter().skip(1).cloned().collect();
        let words = without(words, &[self.flags.resume, self.flags.extend]);
        [vec![PROGRAM.to_string()], without(words, others)]
            .concat()
            .iter()
            .map(|word| shell_word(word))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// The line that continues the run. A flag that continues it in another way stays: only if there is a checkpoint,
    /// or with another length.
    pub fn resumed(&self) -> String {
        let GoingOn { resume, extend, .. } = self.flags;
        if self.words.iter().any(|word| word == extend) {
            return joined(&self.words);
        }
        let (name, value) = split(resume);
        let continues = |text: &str| ["true", "auto", "extend"].contains(&&*text.to_lowercase());
        let (mut words, mut again, mut has_it) = (placed(&self.words).peekable(), Vec::new(), false);
        while let Some(Word { mut word, is_option }) = words.next() {
            let (own, given) = split(&word);
            if is_flag(&word, is_option, name) {
                has_it = true;
                // A switch of a command takes no value from the next word.
                let next = words.next_if(|next| value.is_some() && given.is_none() && next.is_value());
                let given = next.as_ref().map(|next| next.word.as_str()).or(given);
                if let Some((value, given)) = value.zip(given) {
                    let value = if continues(given) { given } else { value };
                    word = format!("{own}={value}");
                }
            }
            again.push(word);
        }
        again.extend((!has_it).then(|| resume.to_string()));
        joined(&again)
    }

    /// The line that continues the run with the length and the rates of its configuration.
    pub fn extended(&self) -> String {
        let GoingOn { resume, extend, .. } = self.flags;
        joined(&[without(self.words.clone(), &[resume, extend]), vec![extend.to_string()]].concat())
    }

    /// The line that doubles the length of a run that has done all its steps, `done` of them. `runner` has its length,
    /// and `steps_per_epoch` converts epochs.
    pub(crate) fn longer(&self, done: u64, runner: &Runner, steps_per_epoch: u64) -> String {
        let GoingOn { resume, extend, steps, steps_are_length } = self.flags;
        let Runner { epochs, stop_step: stop, .. } = *runner;
        let words = without(self.words.clone(), &[resume, extend]);
        let epochs_steps = epochs.saturating_mul(steps_per_epoch);
        let twice = stop.max(done).saturating_mul(2);
        // Beside a section that is written whole, a flag would decide its key a second time.
        let is_whole = |one: Word| is_flag(&one.word, one.is_option, "--runner_config");
        let [epochs_flag, steps] = match placed(&self.words).any(is_whole) {
            true => ["--runner_config.epochs", "--runner_config.stop_step"],
            false => ["--epochs", steps],
        };
        let (replaced, more) = match stop {
            1.. if steps_are_length => ([&LENGTHS[..], &[SCHEDULE]].concat(), format!("{steps} {twice}")),
            1.. if stop.max(done) < epochs_steps => {
                (STEPS.to_vec(), format!("{steps} {}", twice.min(epochs_steps)))
            }
            _ => {
                let never = if stop > 0 && !steps_are_length { format!(" {steps} 0") } else { String::new() };
                let epochs = epochs.max(done.div_ceil(steps_per_epoch.max(1)));
                (LENGTHS.to_vec(), format!("{epochs_flag} {}{never}", epochs.saturating_mul(2)))
            }
        };
        format!("{} {more}", joined(&[without(words, &replaced), vec![extend.to_string()]].concat()))
    }

    /// The line that continues a run of `done` steps with the rates and the length of `plan`, or a longer run if that
    /// length is used up.
    pub(crate) fn beyond(&self, done: u64, plan: &RunPlan, length: &RunLength) -> String {
        match length.total_steps > done {
            true => self.extended(),
            false => self.longer(done, &plan.settings.runner, length.steps_per_epoch),
        }
    }

    /// The line that continues a run with another value of a key.
    pub(crate) fn resumed_with(&self, key: &str, value: impl std::fmt::Display) -> String {
        let line =
            Self { words: without(self.words.clone(), &[&format!("--{key}=")]), ..self.clone() }.resumed();
        format!("{line} --{key}={value}")
    }
}

/// A flag and the value behind its `=`.
fn split(word: &str) -> (&str, Option<&str>) {
    word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)))
}

fn plain(text: &str) -> String {
    text.trim_start_matches('-').replace('-', "_")
}

/// A word of a command line.
struct Word {
    word: String,
    /// Whether the word follows `--options`, where pairs without hyphens set keys; elsewhere such pairs are no flags.
    is_option: bool,
}

impl Word {
    /// Whether the word may be the value of the flag before it.
    fn is_value(&self) -> bool {
        !self.word.starts_with("--")
    }
}

/// `words` with their positions; `--options=PAIR` is split in two.
fn placed(words: &[String]) -> impl Iterator<Item = Word> {
    let apart = words.iter().flat_map(|word| match split(word) {
        (OPTIONS, Some(pair)) => vec![OPTIONS, pair],
        _ => vec![word.as_str()],
    });
    apart.scan(false, |follows, word| {
        let is_flag = word.starts_with("--");
        *follows = if is_flag { word == OPTIONS } else { *follows };
        Some(Word { word: word.to_string(), is_option: *follows && !is_flag })
    })
}

/// Whether `word` is the flag `name`; the words of a flag are joined by `_` or `-`.
fn is_flag(word: &str, is_option: bool, name: &str) -> bool {
    let (own, value) = split(word);
    plain(own) == plain(name) && if is_option { value.is_some() } else { own.starts_with("--") }
}

/// `words` without the flags called `names` and without their values: a name with `=`, and that of a key, takes a value
/// from the next word. `--options` is removed if no pair is left after it.
fn without(words: Vec<String>, names: &[&str]) -> Vec<String> {
    let (mut words, mut left) = (placed(&words).peekable(), Vec::<Word>::new());
    while let Some(one) = words.next() {
        match names.iter().find(|name| is_flag(&one.word, one.is_option, split(name).0)) {
            None => left.push(one),
            Some(name) => {
                let takes_value = (name.contains('=') || !name.starts_with("--")) && !one.word.contains('=');
                let _ = words.next_if(|next| takes_value && next.is_value());
            }
        }
        if words.peek().is_none_or(|next| !next.is_option) {
            let _ = left.pop_if(|last| last.word == OPTIONS);
        }
    }
    left.into_iter().map(|one| one.word).collect()
}

fn joined(words: &[String]) -> String {
    words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINETUNE: GoingOn =
        GoingOn { resume: "--resume", extend: "--extend", steps: "--steps", steps_are_length: true };

    fn line(text: &str, flags: GoingOn) -> CommandLine {
        CommandLine { words: text.split(' ').map(str::to_string).collect(), flags }
    }

    #[test]
    fn the_line_that_goes_on_has_the_flag_once_and_says_yes() {
        for (text, expected) in [
            ("g train x.yaml", "g train x.yaml --resume_training=True"),
            ("g train x.yaml --resume_training", "g train x.yaml --resume_training"),
            ("g train x.yaml --resume_training=auto --a=1", "g train x.yaml --resume_training=auto --a=1"),
            ("g train x.yaml --resume_training=extend", "g train x.yaml --resume_training=extend"),
            ("g train x.yaml --resume_training=False --a=1", "g train x.yaml --resume_training=True --a=1"),
            ("g train x.yaml --resume-training False --a 1", "g train x.yaml --resume-training=True --a 1"),
            ("g train x.yaml --resume_training=step_0000002", "g train x.yaml --resume_training=True"),
            (
                "g train x.yaml --options a=1 resume_training=False b=2",
                "g train x.yaml --options a=1 resume_training=True b=2",
            ),
            (
                "g train x.yaml --options=resume_training=False b=2 --seed 1 --resume-training=False",
                "g train x.yaml --options resume_training=True b=2 --seed 1 --resume-training=True",
            ),
            // No flag, but a file.
            ("g train resume_training=no.yaml", "g train resume_training=no.yaml --resume_training=True"),
        ] {
            assert_eq!(line(text, TRAIN).resumed(), expected);
        }
        for (text, expected) in [
            ("g finetune m --resume d", "g finetune m --resume d"),
            ("g finetune m d", "g finetune m d --resume"),
            ("g finetune m --extend d", "g finetune m --extend d"),
        ] {
            assert_eq!(line(text, FINETUNE).resumed(), expected);
        }
        assert_eq!(CommandLine::default().resumed(), "--resume_training=True");
    }

    #[test]
    fn the_line_that_is_longer_says_its_length_once() {
        let runner = |epochs, stop_step| Runner { epochs, stop_step, ..Runner::default() };
        // Each epoch has six steps.
        for (text, flags, runner, done, expected) in [
            ("g train x", TRAIN, runner(2, 0), 12, "g train x --resume_training=extend --epochs 4"),
            (
                "g train x --resume_training --epochs 2",
                TRAIN,
                runner(2, 0),
                12,
                "g train x --resume_training=extend --epochs 4",
            ),
            (
                "g train x --stop-step=4 --seed 1",
                TRAIN,
                runner(2, 4),
                4,
                "g train x --seed 1 --resume_training=extend --stop_step 8",
            ),
            (
                "g train x --options stop_step=12 a=1",
                TRAIN,
                runner(2, 12),
                12,
                "g train x --options a=1 --resume_training=extend --epochs 4 --stop_step 0",
            ),
            ("g finetune m --resume d", FINETUNE, runner(3, 0), 18, "g finetune m d --extend --epochs 6"),
            ("g finetune m d --steps 10", FINETUNE, runner(2, 10), 10, "g finetune m d --extend --steps 20"),
            // More steps are done than are asked for.
            (
                "g train x --stop_step 5 --resume_training",
                TRAIN,
                runner(9, 5),
                17,
                "g train x --resume_training=extend --stop_step 34",
            ),
            (
                "g train x --stop_step 5",
                TRAIN,
                runner(2, 5),
                17,
                "g train x --resume_training=extend --epochs 6 --stop_step 0",
            ),
            (
                "g train x --epochs=1",
                TRAIN,
                runner(1, 0),
                17,
                "g train x --resume_training=extend --epochs 6",
            ),
            ("g finetune m d --steps 5", FINETUNE, runner(1, 5), 17, "g finetune m d --extend --steps 34"),
            ("g finetune m d --epochs 1", FINETUNE, runner(1, 0), 17, "g finetune m d --extend --epochs 6"),
            // No pair is left after `--options`.
            (
                "g train x --options epochs=2 stop_step=4 --seed 1",
                TRAIN,
                runner(2, 4),
                12,
                "g train x --seed 1 --resume_training=extend --epochs 4 --stop_step 0",
            ),
            (
                "g train x --options=epochs=2",
                TRAIN,
                runner(2, 0),
                12,
                "g train x --resume_training=extend --epochs 4",
            ),
            (
                "g train x --options=epochs=2 a=1 --b 2",
                TRAIN,
                runner(2, 0),
                12,
                "g train x --options a=1 --b 2 --resume_training=extend --epochs 4",
            ),
            // `--steps` also sets these keys.
            (
                "g finetune m d --lr_schedule.total_steps=6 --runner_config.stop_step 6",
                FINETUNE,
                runner(1, 6),
                6,
                "g finetune m d --extend --steps 12",
            ),
            (
                "g finetune m d --lr_schedule.total_steps 6",
                FINETUNE,
                runner(1, 0),
                6,
                "g finetune m d --lr_schedule.total_steps 6 --extend --epochs 2",
            ),
            // A section that is written whole.
            (
                "g finetune m d --runner_config={epochs:1} --resume",
                FINETUNE,
                runner(1, 0),
                6,
                "g finetune m d '--runner_config={epochs:1}' --extend --runner_config.epochs 2",
            ),
            (
                "g train x --runner_config={stop_step:4}",
                TRAIN,
                runner(2, 4),
                4,
                "g train x '--runner_config={stop_step:4}' --resume_training=extend --runner_config.stop_step 8",
            ),
            // These are files, not flags.
            (
                "g finetune m epochs=3.jsonl --resume",
                FINETUNE,
                runner(1, 0),
                6,
                "g finetune m epochs=3.jsonl --extend --epochs 2",
            ),
            (
                "g train steps=4.yaml --run_name stop_step=4",
                TRAIN,
                runner(1, 0),
                6,
                "g train steps=4.yaml --run_name stop_step=4 --resume_training=extend --epochs 2",
            ),
        ] {
            assert_eq!(line(text, flags).longer(done, &runner, 6), expected);
        }
        let rate = line("g finetune m d --resume --learning-rate 1e-3", FINETUNE);
        assert_eq!(rate.extended(), "g finetune m d --learning-rate 1e-3 --extend");
        let patient = line("g finetune m d --patience 2", FINETUNE);
        assert_eq!(patient.resumed_with("patience", 4), "g finetune m d --resume --patience=4");
        assert_eq!(CommandLine::default().extended(), "--resume_training=extend");
    }

    #[test]
    fn a_program_is_called_as_it_was() {
        for (called, expected) in [
            ("gristmill", "gristmill"),
            ("./bin/gristmill", "./bin/gristmill"),
            ("my bin/gristmill", "'my bin/gristmill'"),
            ("target/train_gpt", "gristmill"),
        ] {
            let command = CommandLine { words: vec![called.to_string()], flags: TRAIN };
            assert_eq!(command.program(), expected);
        }
        let begun = line("target/gristmill finetune m d --resume --memory 8GB --watch=80 --a=1", FINETUNE);
        assert_eq!(begun.begun(&["--memory=", "--watch"]), "gristmill finetune m d --a=1");
    }
}

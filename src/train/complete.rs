//! A run that is complete: its folder shows it, and starting it again neither reads its data nor opens a device.
//!
//! A run is complete if its configuration is the one that it ended with, its last event is its end, and all files that
//! it reads were put there before its last start, which wrote `config.yaml` after reading them: each file of its data,
//! which must be named individually, its tokenizer and its chat template. All other cases are handled like any run:
//! other settings, data that may have changed or that a folder or a pattern names, a note that is missing because the
//! process was killed.

use super::announce::{Summary, announce_complete, announce_files};
use super::command::CommandLine;
use super::length::RunLength;
use crate::durable::changed;
use crate::error::Result;
use crate::report::events::{Event, Line};
use crate::settings::{Dataset, Resume, RunPlan};
use crate::store::checkpoint::STATE;
use crate::store::checkpoint_folder::{Best, CheckpointFolder};
use crate::store::model_assets;
use crate::store::run_folder::{CONFIG, EVENTS, REPORT, open_file};
use crate::store::trainer_state::TrainerState;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A complete run, as its folder describes it.
#[derive(Serialize, Deserialize)]
pub(super) struct Complete {
    step: u64,
    steps_per_epoch: u64,
    checkpoint: PathBuf,
    best: Option<Best>,
    evaluations_since: u64,
}

impl Complete {
    /// The run of `plan`, if it is to be continued and is already complete.
    ///
    /// # Errors
    /// A checkpoint that cannot be read.
    pub fn find(plan: &RunPlan) -> Result<Option<Self>> {
        let run = &plan.settings.run;
        // Every start writes a sample at its end.
        if plan.settings.sample.is_some()
            || !matches!(run.resume_training, Resume::Latest | Resume::Auto | Resume::Extended)
        {
            return Ok(None);
        }
        let folder = run.folder();
        let checkpoints = CheckpointFolder::of_run(&folder);
        let Some((step, checkpoint)) = checkpoints.latest()? else { return Ok(None) };
        let read = |name: &str| open_file(&folder.join(name)).and_then(std::io::read_to_string).ok();
        let is_same = read(CONFIG).is_some_and(|there| settings_of(&there).eq(settings_of(&plan.to_yaml())));
        let Some(steps_per_epoch) = read(EVENTS).filter(|_| is_same).and_then(|all| end_of(&all)) else {
            return Ok(None);
        };
        let [started, ended] = [CONFIG, EVENTS].map(|name| modified(&folder.join(name)));
        let Some(started) = started.filter(|started| ended.is_some_and(|ended| *started <= ended)) else {
            return Ok(None); // the process was killed between the acceptance of a start and its note
        };
        let state = TrainerState::load(&checkpoint.join(STATE))?;
        let is_over = step >= RunLength::new(plan, steps_per_epoch).total_steps
            || run.stops_after(state.evaluations_since);
        let is_noted = !run.keep_best || checkpoints.best()?.map(|(best, _)| best) == state.best;
        let datasets = [Some(&plan.settings.train_dataset), plan.settings.eval_dataset.as_ref()];
        let is_unchanged = datasets.into_iter().flatten().all(|data| is_older(data, started));
        let TrainerState { best, evaluations_since, .. } = state;
        let complete = Self { step, steps_per_epoch, checkpoint, best, evaluations_since };
        Ok(Some(complete).filter(|_| is_over && is_noted && is_unchanged))
    }

    /// Logs that the run is complete, how `command` continues it, and which files it has left.
    pub fn announce(self, plan: &RunPlan, command: &CommandLine) -> Summary {
        let Self { step, steps_per_epoch, checkpoint, .. } = &self;
        // The process may have been killed between the last checkpoint and its note.
        let checkpoints = CheckpointFolder::of_run(plan.settings.run.folder());
        checkpoints.with_meta(*steps_per_epoch).note_newest(*step, checkpoint);
        let length = RunLength::new(plan, *steps_per_epoch);
        announce_complete(plan, &length, *step, self.evaluations_since, checkpoint, command);
        let report = Some(plan.settings.run.folder().join(REPORT)).filter(|report| report.exists());
        let summary = self.summary(plan);
        announce_files(plan, command, &summary, report.as_deref());
        summary
    }

    /// The outcome of the run.
    pub fn summary(self, plan: &RunPlan) -> Summary {
        Summary {
            steps: self.step,
            best: self.best.filter(|_| plan.settings.run.judges_evaluations()),
            is_stopped: plan.settings.run.stops_after(self.evaluations_since),
            checkpoint: Some(self.checkpoint),
            ..Summary::default()
        }
    }
}

/// The lines of a configuration, except the one that says whether the run continues.
fn settings_of(yaml: &str) -> impl Iterator<Item = &str> {
    yaml.lines().filter(|line| !line.starts_with("resume_training:"))
}

/// Steps per epoch, if the last of the `events` of a run is its end.
fn end_of(events: &str) -> Option<u64> {
    let mut events = events.lines().rev().map(|line| serde_json::from_str::<Line>(line).ok());
    let last = events.next()??;
    let start = events.flatten().find_map(|line| match line.event {
        Event::Start { steps_per_epoch, .. } => steps_per_epoch,
        _ => None,
    });
    start.filter(|_| last.event == Event::Complete)
}

/// Whether everything that `data` reads was put there before `since`, as far as that can be determined without listing
/// folders.
fn is_older(data: &Dataset, since: SystemTime) -> bool {
    let tokenizer = data.keys.tokenizer.as_ref().map(|tokenizer| Path::new(&tokenizer.tokenizer_file));
    let Some(files) = data.named_files() else { return false };
    let is_older = |file: &Path| changed(file).is_some_and(|time| time < since);
    let beside = tokenizer.map(|file| file.parent().unwrap_or(Path::new("")));
    files.into_iter().chain(tokenizer).all(is_older)
        && beside.is_none_or(|folder| model_assets::are_older(folder, since))
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|data| data.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RunConfig;
    use std::fs;
    use std::time::Duration;

    /// Changes of a file are detected whatever its modification time, and data that cannot be checked without listing
    /// folders never counts as unchanged.
    #[test]
    fn data_that_may_have_changed_are_read() {
        let text = "type: TextDataLoader, dataset_files: [HOME/a.txt, HOME/b.txt]";
        let blend = "type: TextDataLoader, data_path: [0.5, HOME/a.txt, 0.5, HOME/b.txt]";
        let chat = "type: SFTDataLoader, dataset_files: HOME/a.txt, chat_template: HOME/own.jinja";
        let named = "type: HFDataLoader, path: json, data_files: HOME/a.txt";
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let remove = |path: &Path| fs::remove_file(path);
        let write = |path: &Path| fs::write(path, "other");
        // Replaces the file as `cp -p` and `rsync` do.
        let replace = |path: &Path| {
            fs::write(path.with_extension("new"), "other")?;
            fs::File::options().append(true).open(path.with_extension("new"))?.set_modified(old)?;
            fs::rename(path.with_extension("new"), path)
        };
        type Change<'a> = &'a dyn Fn(&Path) -> std::io::Result<()>;
        let cases: [(&str, &str, Option<Change<'_>>, bool); 23] = [
            (text, "a.txt", None, true),
            (blend, "a.txt", None, true),
            (chat, "a.txt", None, true),
            (named, "a.txt", None, true),
            (text, "c.txt", Some(&write), true),
            (text, "b.txt", Some(&write), false),
            (text, "b.txt", Some(&remove), false),
            (text, "b.txt", Some(&replace), false),
            (blend, "b.txt", Some(&write), false),
            (blend, "a.txt", Some(&remove), false),
            (named, "a.txt", Some(&replace), false),
            (chat, "own.jinja", Some(&write), false),
            (chat, "own.jinja", Some(&remove), false),
            (chat, "t/tokenizer.json", Some(&replace), false),
            (chat, "t/tokenizer.json", Some(&remove), false),
            (chat, "t/tokenizer_config.json", Some(&write), false),
            (chat, "t/tokenizer_config.json", Some(&remove), false),
            (chat, "t/chat_template.jinja", Some(&write), false),
            ("type: TextDataLoader, dataset_dir: HOME", "a.txt", None, false),
            ("type: TextDataLoader, dataset_files: 'HOME/*.txt'", "a.txt", None, false),
            ("type: TextDataLoader, data_path: 'HOME/[ab].txt'", "a.txt", None, false),
            ("type: BlendedMegatronDatasetDataLoader, config: { data_path: [HOME/a] }", "a.txt", None, false),
            ("type: CargoRegistryDataLoader", "a.txt", None, false),
        ];
        for (loader, name, change, expected) in cases {
            let home = tempfile::tempdir().unwrap();
            let of = |name: &str| home.path().join(name);
            fs::create_dir(of("t")).unwrap();
            for name in ["a.txt", "b.txt", "own.jinja", "t/tokenizer.json", "t/tokenizer_config.json"] {
                fs::write(of(name), "{}").unwrap();
            }
            let wait = || std::thread::sleep(Duration::from_millis(30)); // longer than a tick of file systems
            wait();
            fs::write(of("config.yaml"), "").unwrap();
            let since = modified(&of("config.yaml")).unwrap();
            wait();
            if let Some(change) = change {
                change(&of(name)).unwrap();
            }
            let tokenizer = if loader == chat { "tokenizer: HOME/t/tokenizer.json" } else { "seed: 1" };
            let config = format!(
                "model:\n  model_config: {{ vocab_size: 256, hidden_size: 64, num_layers: 2, num_heads: 4, seq_length: 32 }}\n\
                 lr_schedule: {{ learning_rate: 1e-3 }}\n\
                 train_dataset:\n  {tokenizer}\n  data_loader: {{ {loader} }}\n"
            );
            let config = config.replace("HOME", &home.path().display().to_string());
            let plan = RunConfig::parse(&config, Path::new("x.yaml"), &[]).unwrap().plan;
            let is_older = is_older(&plan.settings.train_dataset, since);
            assert_eq!(is_older, expected, "{loader}: {name}, changed: {}", change.is_some());
        }
    }

    /// The length comes from the configuration, and not from an earlier start: the process may be killed between an
    /// extension and its note.
    #[test]
    fn a_run_is_over_where_its_last_event_is_its_end() {
        let start = "{\"time\":\"\",\"kind\":\"start\",\"step\":0,\"total_steps\":9,\"steps_per_epoch\":3,\"announced\":[]}\n";
        let of = |kind: &str| format!("{{\"time\":\"\",\"kind\":\"{kind}\"}}\n");
        for (events, expected) in [
            (format!("{start}{}", of("complete")), Some(3)),
            (start.to_string(), None),
            (format!("{start}{}{start}", of("complete")), None),
            (of("complete"), None),
        ] {
            assert_eq!(end_of(&events), expected, "{events}");
        }
    }
}

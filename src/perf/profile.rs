//! The time of each launch of a step, by the device's clock: `train --profile N` measures and logs it, and writes
//! profile.jsonl.
//!
//! The first line of the file says what was measured and on which adapter. Then there is a line for each launch of a
//! micro-batch, of an update, and of the copies of weights after it: its path, its kernel, and the means of its time
//! and of the time since the previous launch.

use super::roofline::{Line, Shaders, Table, lines, seconds};
use crate::data::Batches;
use crate::device::{Gpu, LaunchTime};
use crate::durable::read_error;
use crate::error::{Error, Result};
use crate::kernels::{Capabilities, PublishedGpu, Tier};
use crate::record::Recording;
use crate::settings::RunPlan;
use crate::store::OUTPUT_DIR;
use crate::train::recordings::Recordings;
use crate::train::trainer::Trainer;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Steps before those that are profiled: the first one is cut into submissions, and a GPU should run at its working
/// clocks.
const WARM_UP: u64 = 3;

/// The times of the launches of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The adapter's name.
    pub adapter: String,
    /// The capabilities that the step was recorded for.
    pub capabilities: Capabilities,
    /// Number of measured steps.
    pub steps: u64,
    #[serde(skip)]
    launches: Vec<Launch>,
}

/// A launch of a program, and its mean times in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Launch {
    program: String,
    path: String,
    kernel: String,
    us: f64,
    gap_us: f64,
    #[serde(skip)]
    replays: f64,
}

impl Profile {
    /// A profile without times, for the steps that `recordings` have on `gpu`.
    pub fn new(gpu: &Gpu, recordings: &Recordings) -> Self {
        let launches = programs(recordings).flat_map(launches_of).collect();
        Self { adapter: gpu.report().name.clone(), capabilities: gpu.capabilities(), steps: 0, launches }
    }

    /// Adds the times of a replay of `program`; programs that are not part of every step are left out.
    pub(crate) fn add(&mut self, program: &str, times: &[LaunchTime]) {
        let launches = self.launches.iter_mut().filter(|launch| launch.program == program);
        for (launch, LaunchTime { time, gap }) in launches.zip(times) {
            launch.replays += 1.0;
            launch.us += (1e6 * time.as_secs_f64() - launch.us) / launch.replays;
            launch.gap_us += (1e6 * gap.unwrap_or_default().as_secs_f64() - launch.gap_us) / launch.replays;
        }
    }

    /// Writes the profile of a run to `path`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        OUTPUT_DIR.write(path, self.lines().as_bytes())
    }

    fn lines(&self) -> String {
        let line = |text: serde_json::Result<String>| text.expect("numbers and text") + "\n";
        let launches = self.launches.iter().map(|launch| line(serde_json::to_string(launch)));
        std::iter::once(line(serde_json::to_string(self))).chain(launches).collect()
    }

    /// Reads the profile of a run.
    ///
    /// # Errors
    /// A file that is missing, cannot be read, or is not a profile.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| read_error(path, "read", &error))?;
        Self::parse(&text).map_err(|error| {
            Error::file(path, format!("is not the profile.jsonl of a run with --profile ({error})"))
        })
    }

    fn parse(text: &str) -> serde_json::Result<Self> {
        let mut lines = text.lines();
        let profile: Self = serde_json::from_str(lines.next().unwrap_or_default())?;
        let launches = lines.map(serde_json::from_str).collect::<serde_json::Result<_>>()?;
        Ok(Self { launches, ..profile })
    }

    /// The seconds of the launches of `recording`.
    ///
    /// # Errors
    /// Times of other launches.
    fn seconds(&self, recording: &Recording) -> Result<Vec<f64>> {
        let measured: Vec<&Launch> = self.of(recording.name).collect();
        let expected: Vec<Launch> = launches_of(recording).collect();
        let is_same = |(a, b): (&&Launch, &Launch)| a.path == b.path && a.kernel == b.kernel;
        match measured.len() == expected.len() && measured.iter().zip(&expected).all(is_same) {
            true => Ok(measured.iter().map(|launch| 1e-6 * launch.us).collect()),
            false => Err(Error::Plan(format!(
                "the profile is of another {}: give the configuration and the overrides of its run, as in the config.yaml beside it",
                recording.name
            ))),
        }
    }

    fn of(&self, program: &str) -> impl Iterator<Item = &Launch> {
        self.launches.iter().filter(move |launch| launch.program == program)
    }

    /// A table for each program, with the model's times on `gpu` beside the measured ones.
    ///
    /// # Errors
    /// Times of other launches than those of `recordings`.
    pub fn tables(
        &self,
        recordings: &Recordings,
        shaders: &mut Shaders,
        gpu: Option<&PublishedGpu>,
        is_detailed: bool,
    ) -> Result<String> {
        let mut text =
            format!("launches of {} steps on {}, {}, means", self.steps, self.adapter, self.capabilities);
        match gpu {
            Some(gpu) => text += &format!("; the model is of {}", gpu.model),
            None => text += "; no model, which is of published GPUs on tier portable",
        }
        for recording in programs(recordings) {
            let measured = self.seconds(recording)?;
            let lines = lines(recordings, recording, shaders, gpu, Some(&measured));
            text += &format!(
                "\n{}: {:.2} ms in {} launches",
                recording.name,
                1e3 * seconds(&lines),
                measured.len()
            );
            let gaps: f64 = self.of(recording.name).map(|launch| launch.gap_us).sum();
            text += &format!(", {:.1} us between two", gaps / (measured.len().max(2) - 1) as f64);
            let modelled: f64 = lines.iter().map(Line::modelled_seconds).sum();
            if gpu.is_some() {
                text += &format!("; by the model {:.2} ms", 1e3 * modelled);
            }
            text += &format!("\n{}", Table { lines: &lines, is_detailed });
        }
        Ok(text)
    }
}

/// The recordings that every step replays.
fn programs(recordings: &Recordings) -> impl Iterator<Item = &Recording> {
    recordings.chunks().chain([&recordings.update]).chain(&recordings.copy)
}

/// The launches of a recording, without times.
fn launches_of(recording: &Recording) -> impl Iterator<Item = Launch> + '_ {
    recording.dispatches.iter().map(|dispatch| Launch {
        program: recording.name.to_string(),
        path: dispatch.path.clone(),
        kernel: dispatch.kernel.to_string(),
        us: 0.0,
        gap_us: 0.0,
        replays: 0.0,
    })
}

/// The steps of a run that are profiled.
pub(crate) struct Profiling {
    first: u64,
    /// One past the last step.
    end: u64,
    file: PathBuf,
    profile: Option<Profile>,
}

impl Profiling {
    /// Checks that a run of `total_steps` on `gpu` can be profiled, if `plan` asks for that.
    ///
    /// # Errors
    /// An adapter without timestamps; too few steps.
    pub fn check(plan: &RunPlan, total_steps: u64, gpu: &Gpu) -> Result<()> {
        let steps = plan.settings.runner.profile_steps;
        if steps == 0 {
            return Ok(());
        }
        gpu.check_timestamps()?;
        let enough = steps.saturating_add(WARM_UP);
        match total_steps >= enough {
            true => Ok(()),
            false => Err(Error::config(
                "runner_config.profile_steps",
                format!(
                    "the run has {total_steps} steps; {WARM_UP} that warm up and {steps} that are timed are {enough}"
                ),
            )),
        }
    }

    /// The steps that `plan` asks for in a run that continues after step `done`; their times go to `file`.
    pub fn new(plan: &RunPlan, done: u64, file: PathBuf) -> Self {
        let (first, steps) = (done + WARM_UP + 1, plan.settings.runner.profile_steps);
        Self { first, end: first.saturating_add(steps), file, profile: None }
    }

    /// Step number `step` of `trainer`, timed if it is one of the profiled steps. After the last of these, shows and
    /// writes the profile; a file that cannot be written is a warning.
    ///
    /// # Errors
    /// As [`Trainer::profiled_step`].
    pub async fn step(
        &mut self,
        trainer: &mut Trainer<'_>,
        step: u64,
        data: &Batches,
        first_micro_step: u64,
    ) -> Result<()> {
        if !(self.first..self.end).contains(&step) {
            return trainer.step(step, data, first_micro_step).await;
        }
        let profile = self.profile.take().unwrap_or_else(|| Profile::new(trainer.gpu, trainer.recordings()));
        let profile = trainer.profiled_step(step, data, first_micro_step, profile).await?;
        if step + 1 < self.end {
            self.profile = Some(profile);
            return Ok(());
        }
        let gpu = PublishedGpu::named(&profile.adapter);
        let gpu = gpu.filter(|_| profile.capabilities.tier != Tier::Software);
        let tables = profile.tables(trainer.recordings(), &mut Shaders::default(), gpu.as_ref(), false)?;
        tracing::info!("{tables}");
        match profile.write(&self.file) {
            Ok(()) => tracing::info!("each launch of them is in {}", self.file.display()),
            Err(error) => tracing::warn!("{error}"),
        }
        Ok(())
    }

    /// Logs it if the run has ended after step `last`, before the steps that were to be timed.
    pub fn finish(&self, last: u64) {
        if self.first < self.end && last + 1 < self.end {
            let Self { first, end, .. } = self;
            tracing::warn!(
                "no profile: the run has ended after step {last}, and steps {first} to {} were to be timed",
                end - 1
            );
        }
    }
}

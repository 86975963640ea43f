//! Event files for TensorBoard: the numbers of each step under MindFormers' tags, the load of experts as histograms,
//! the configuration as text.
//!
//! One file per run, in `tensorboard_dir/rank_0`. A resumed run continues in it from its checkpoint's step.

mod event;
mod records;

use self::event::{Event, Value, What};
use super::instrument::{Instrument, StepReport};
use super::metrics::MonitorFormats;
use super::metrics::{StartMetrics, StepMetrics};
use super::mindformers_log::LossParts;
use crate::durable::{AppendFile, PathOrigin, read_error};
use crate::error::Result;
use prost::Message;
use std::fs::{self, File, OpenOptions};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The setting that chose the folder.
const TENSORBOARD_DIR: PathOrigin = PathOrigin("tensorboard.tensorboard_dir");

/// The prefix of all event files' names, which TensorBoard looks for.
const PREFIX: &str = "events.out.tfevents.";

/// The folder of the only rank that writes events.
const RANK: &str = "rank_0";

/// Suffix of the tags of values that are plotted against the number of samples instead of the step.
const BY_SAMPLES: &str = " vs samples";

/// The numbers that are written for a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scalars {
    /// Samples per step, on all ranks.
    pub samples_per_step: u64,
    /// Number of ranks that share a step.
    pub ranks: u64,
    /// Floating-point operations per token on a rank.
    pub flops_per_token: f64,
    /// Whether the loss scale is written.
    pub has_loss_scale: bool,
    /// Whether times and speeds are written.
    pub has_timers: bool,
    /// Whether histograms of the load of experts are written.
    pub has_expert_load: bool,
    /// Which numbers of `monitor_config` are written.
    pub monitors: MonitorFormats,
    /// The parts of the loss in MindFormers' form, if they are asked for.
    pub loss_parts: Option<LossParts>,
}

/// The event file of a run.
#[derive(Debug)]
pub struct TensorBoard {
    scalars: Scalars,
    file: AppendFile,
}

impl TensorBoard {
    /// Creates the folder of event files below `folder`, and checks that files can be written there.
    ///
    /// # Errors
    /// They cannot be written.
    pub(crate) fn prepare_folder(folder: &Path) -> Result<()> {
        TENSORBOARD_DIR.create_folder(&folder.join(RANK))?;
        TENSORBOARD_DIR.begin(&folder.join(RANK).join("writable")).map(drop) // which removes it again
    }

    /// Opens the event file of the run called `run_name` below `folder`. `sections` are names and texts of the
    /// configuration. A run that begins `after` a step continues in its existing file, without the later events in it;
    /// `None` begins a new file.
    ///
    /// # Errors
    /// The folder or the file cannot be read or written.
    pub fn open(
        folder: &Path,
        run_name: &str,
        after: Option<u64>,
        scalars: Scalars,
        sections: &[(String, String)],
    ) -> Result<Self> {
        let folder = folder.join(RANK);
        TENSORBOARD_DIR.create_folder(&folder)?;
        let newest =
            after.map_or(Ok(None), |step| Ok(newest(&folder, run_name)?.map(|path| (path, step))))?;
        if let Some((path, step)) = newest {
            cut_after(&path, step)?;
            return Ok(Self { scalars, file: AppendFile::open(TENSORBOARD_DIR, &path)? });
        }
        let now = since_1970();
        let path = folder.join(format!("{PREFIX}{:010}.{}", now.as_secs(), own_name(run_name)));
        let mut board = Self { scalars, file: AppendFile::open(TENSORBOARD_DIR, &path)? };
        board.begin(now.as_secs_f64(), sections)?;
        Ok(board)
    }

    fn begin(&mut self, now: f64, sections: &[(String, String)]) -> Result<()> {
        let version = What::FileVersion("brain.Event:2".into());
        self.write(&Event { wall_time: now, step: 0, what: Some(version) })?;
        // Markdown shows indented lines verbatim.
        let indented = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
        let texts = sections.iter().map(|(name, text)| Value::text(name, &indented(text)));
        self.write(&Event::values(now, 0, texts.collect()))
    }

    fn write(&mut self, event: &Event) -> Result<()> {
        self.file.append(&records::record(&event.encode_to_vec()))
    }
}

impl Instrument for TensorBoard {
    fn start(&mut self, evaluation: &StartMetrics) -> Result<()> {
        let StartMetrics { step, eval_loss, eval_perplexity, eval_accuracy, .. } = *evaluation;
        let numbers = [
            ("eval-loss", Some(eval_loss)),
            ("eval-perplexity", eval_perplexity),
            ("eval-accuracy", eval_accuracy),
            ("eval-rewards-margin", evaluation.eval_rewards_margin),
            ("eval-rewards-accuracy", evaluation.eval_rewards_accuracy),
        ];
        let numbers = numbers.into_iter().filter_map(|(tag, number)| Some((tag, f64::from(number?))));
        let values = numbers.map(|(tag, number)| Value::scalar(tag, number)).collect();
        self.write(&Event::values(since_1970().as_secs_f64(), step, values))
    }

    fn step(&mut self, report: &StepReport<'_>) -> Result<()> {
        let (now, step) = (since_1970().as_secs_f64(), report.metrics.step);
        let mut values = self.scalars.by_step(report.metrics);
        if self.scalars.has_expert_load {
            let layers = report.loads.unwrap_or_default().iter();
            values.extend(
                layers.map(|layer| Value::counts(format!("expert_load/{}", layer.layer), &layer.chosen)),
            );
        }
        // In this order: events that follow the values of a step belong to it.
        self.write(&Event::values(now, step, values))?;
        let by_samples = self.scalars.by_samples(report.metrics);
        self.write(&Event::values(now, step * self.scalars.samples_per_step, by_samples))
    }
}

impl Scalars {
    /// The numbers that are plotted against the step.
    fn by_step(&self, metrics: &StepMetrics) -> Vec<Value> {
        let mut values = self.of_both(metrics);
        let seconds = metrics.step_ms / 1e3;
        let computed = metrics.computed_tokens_per_second.unwrap_or(metrics.tokens_per_second);
        let flops = self.flops_per_token * computed;
        values.push(("model-flops-throughput-per-npu", flops / 1e12));
        if self.has_timers {
            let samples_per_day = self.samples_per_step as f64 / seconds * 86_400.0;
            values.push(("B-samples-per-day", samples_per_day / 1e9));
        }
        values.push(("tokens-per-second", metrics.tokens_per_second));
        let parts = self.loss_parts.map(|parts| parts.of(metrics));
        let (balance, mtp) = match parts {
            Some(parts) => (parts.load_balancing, parts.mtp),
            None => (metrics.load_balancing_loss, metrics.mtp_loss),
        };
        let optional = [
            ("lm-loss", parts.map(|parts| parts.lm)),
            ("load-balancing-loss", balance),
            ("z-loss", metrics.z_loss),
            ("mtp-loss", mtp),
            ("eval-loss", metrics.eval_loss),
            ("eval-perplexity", metrics.eval_perplexity),
            ("eval-accuracy", metrics.eval_accuracy),
            ("rewards-chosen", metrics.rewards_chosen),
            ("rewards-rejected", metrics.rewards_rejected),
            ("rewards-margin", metrics.rewards_margin),
            ("rewards-accuracy", metrics.rewards_accuracy),
            ("logps-chosen", metrics.logps_chosen),
            ("logps-rejected", metrics.logps_rejected),
            ("eval-rewards-margin", metrics.eval_rewards_margin),
            ("eval-rewards-accuracy", metrics.eval_rewards_accuracy),
            ("device-memory-mib", metrics.device_memory_mib),
            ("host-memory-mib", metrics.host_memory_mib),
        ];
        values.extend(optional.into_iter().filter_map(|(tag, number)| Some((tag, f64::from(number?)))));
        let mut values: Vec<Value> =
            values.into_iter().map(|(tag, number)| Value::scalar(tag, number)).collect();
        let watched = metrics.monitor.iter().flatten().filter(|(tag, _)| self.monitors.of(tag).tensorboard);
        values.extend(watched.map(|(tag, number)| Value::scalar(tag.as_str(), f64::from(*number))));
        let layers =
            [("drop-rate", &metrics.drop_rate), ("expert-load-entropy", &metrics.expert_load_entropy)];
        for (tag, numbers) in layers {
            let numbers = numbers.iter().flatten().enumerate();
            values
                .extend(numbers.map(|(at, number)| Value::scalar(format!("{tag}/{at}"), f64::from(*number))));
        }
        values
    }

    /// The numbers that are plotted against the number of samples.
    fn by_samples(&self, metrics: &StepMetrics) -> Vec<Value> {
        let values = self.of_both(metrics).into_iter();
        values.map(|(tag, number)| Value::scalar(format!("{tag}{BY_SAMPLES}"), number)).collect()
    }

    /// The numbers that are plotted against both.
    fn of_both(&self, metrics: &StepMetrics) -> Vec<(&'static str, f64)> {
        let mut values = vec![
            ("learning-rate", f64::from(metrics.lr)),
            ("batch-size", self.samples_per_step as f64),
            ("loss", f64::from(metrics.loss)),
            ("grad-norm", f64::from(metrics.global_norm)),
        ];
        if self.has_loss_scale {
            values.push(("loss-scale", metrics.loss_scale));
        }
        if self.has_timers {
            let of_rank = self.samples_per_step as f64 / self.ranks as f64;
            values.push(("iteration-time", metrics.step_ms));
            values.push(("throughput", of_rank * 1e3 / metrics.step_ms));
        }
        values
    }
}

/// The suffix of a run's file name.
fn own_name(run_name: &str) -> String {
    format!("{run_name}.gristmill")
}

/// The newest event file of the run in `folder`. Names begin with the time, with equally many digits.
fn newest(folder: &Path, run_name: &str) -> Result<Option<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(|error| read_error(folder, "read", &error))?;
    let is_own = |name: &str| {
        let time =
            name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix(&format!(".{}", own_name(run_name))));
        time.is_some_and(|time| time.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| is_own(name)).max().map(|name| folder.join(name)))
}

/// Removes the events after `last_step`, and any incomplete event that a kill left.
fn cut_after(path: &Path, last_step: u64) -> Result<()> {
    let open = OpenOptions::new().read(true).write(true).open(path);
    let file = open.map_err(|error| TENSORBOARD_DIR.error(path, "open for writing", &error))?;
    let length = length_until(&file, last_step).map_err(|error| read_error(path, "read", &error))?;
    file.set_len(length).map_err(|error| TENSORBOARD_DIR.error(path, "write", &error))
}

/// Bytes of the events up to and including those of `last_step`.
fn length_until(file: &File, last_step: u64) -> std::io::Result<u64> {
    let (mut file, mut length) = (BufReader::new(file), 0);
    while let Some((data, bytes)) = records::next(&mut file)? {
        match Event::decode(&data[..]) {
            Ok(event) if !is_after(&event, last_step) => length += bytes,
            _ => break,
        }
    }
    Ok(length)
}

fn is_after(event: &Event, last_step: u64) -> bool {
    let Some(What::Summary(summary)) = &event.what else { return false };
    let is_by_step = summary.values.iter().all(|value| !value.tag.ends_with(BY_SAMPLES));
    is_by_step && event.step > last_step as i64
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::event::Content;
    use super::*;

    fn scalars() -> Scalars {
        Scalars {
            samples_per_step: 8,
            ranks: 2,
            flops_per_token: 1e6,
            has_timers: true,
            ..Scalars::default()
        }
    }

    fn metrics(step: u64) -> StepMetrics {
        StepMetrics { step, loss: 3.5, step_ms: 500.0, tokens_per_second: 2e6, ..StepMetrics::default() }
    }

    fn show(board: &mut TensorBoard, steps: impl Iterator<Item = u64>) {
        for step in steps {
            board.step(&StepReport { metrics: &metrics(step), loads: None, watched: &[] }).unwrap();
        }
    }

    /// Step and tag of each value.
    fn read(path: &Path) -> Vec<(i64, String)> {
        let (mut file, mut read) = (File::open(path).unwrap(), Vec::new());
        while let Some((data, _)) = records::next(&mut file).unwrap() {
            let event = Event::decode(&data[..]).unwrap();
            if let Some(What::Summary(summary)) = event.what {
                read.extend(summary.values.into_iter().map(|value| (event.step, value.tag)));
            }
        }
        read
    }

    #[test]
    fn a_resumed_run_goes_on_after_its_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let open = |after| {
            let sections = [("runner_config".into(), "epochs: 2\n".into())];
            TensorBoard::open(folder.path(), "small", after, scalars(), &sections).unwrap()
        };
        show(&mut open(None), 1..=5);
        let path = newest(&folder.path().join("rank_0"), "small").unwrap().unwrap();
        // Killed within a record.
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 3);
        fs::write(&path, bytes).unwrap();
        show(&mut open(Some(3)), 4..=6);
        let of = |tag: &str| -> Vec<i64> {
            read(&path).iter().filter(|(_, name)| name == tag).map(|(step, _)| *step).collect()
        };
        assert_eq!(of("loss"), [1, 2, 3, 4, 5, 6]);
        assert_eq!(of("loss vs samples"), [8, 16, 24, 32, 40, 48]);
        assert_eq!(of("runner_config"), [0]);
        assert_eq!(fs::read_dir(folder.path().join("rank_0")).unwrap().count(), 1);
        assert_eq!(newest(&folder.path().join("rank_0"), "mall").unwrap(), None, "of another run");
    }

    #[test]
    fn speeds_are_those_of_the_original() {
        let values = scalars().by_step(&metrics(1));
        let number = |tag: &str| {
            values.iter().find(|value| value.tag == tag).map(|value| match value.content {
                Some(Content::Scalar(number)) => number,
                _ => panic!("{tag} is a scalar"),
            })
        };
        // 8 samples in half a second on two ranks.
        assert_eq!((number("iteration-time"), number("throughput")), (Some(500.0), Some(8.0)));
        assert_eq!(number("B-samples-per-day"), Some(16.0 * 86_400.0 / 1e9));
        assert_eq!(number("model-flops-throughput-per-npu"), Some(2.0));
        assert_eq!((number("loss-scale"), number("mtp-loss")), (None, None));
    }

    #[test]
    fn the_parts_of_the_loss_are_scaled_where_they_are_asked_for() {
        let metrics = StepMetrics { load_balancing_loss: Some(0.5), mtp_loss: Some(2.0), ..metrics(1) };
        let of = |loss_parts| {
            let values = Scalars { loss_parts, ..scalars() }.by_step(&metrics);
            ["lm-loss", "load-balancing-loss", "mtp-loss"].map(|tag| {
                values.iter().find(|value| value.tag == tag).and_then(|value| match value.content {
                    Some(Content::Scalar(number)) => Some(number),
                    _ => None,
                })
            })
        };
        assert_eq!(of(None), [None, Some(0.5), Some(2.0)]);
        let parts = LossParts { balance_scale: Some(0.25), mtp_factor: Some(0.5) };
        assert_eq!(of(Some(parts)), [Some(3.5), Some(2.0), Some(1.0)]);
    }

    #[test]
    fn a_histogram_counts_experts() {
        let Some(Content::Histogram(histogram)) = Value::counts("load", &[0, 3, 0, 1]).content else {
            panic!()
        };
        assert_eq!((histogram.min, histogram.max, histogram.num), (1.0, 3.0, 4.0));
        assert_eq!((histogram.sum, histogram.sum_squares), (6.0, 12.0));
        assert_eq!(histogram.bucket_limits, [0.5, 1.5, 2.5, 3.5]);
    }
}

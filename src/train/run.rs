//! A whole training run: from a configuration file to a trained model in its run folder.

pub(crate) mod data_watch;
mod run_loop;

use self::data_watch::DataWatch;
use self::run_loop::{Results, RunLoop};
pub use super::announce::{Milestone, Summary};
use super::announce::{
    announce, announce_end, announce_files, announce_parameters, announce_resume, entropy, warn_of_warmup,
};
use super::clocks::SaveClock;
use super::command::CommandLine;
use super::complete::Complete;
use super::evaluation::Evaluation;
use super::health::Health;
use super::instruments::{expert_metrics, instruments, log_plan, prepare_folders, scale_windows, work};
use super::lacking_tokens::lacking_tokens;
use super::length::RunLength;
use super::monitors::MonitorReport;
use super::open_device::{check_tier, open_device};
use super::references::set_references;
use super::reporter::{Losses, Reporter};
use super::resume::{Restored, fresh_state, open_folder, restore, start_of};
use super::trainer::Trainer;
use crate::data::LoadedData;
use crate::device::Gpu;
use crate::error::Result;
use crate::perf::peak::Peak;
use crate::perf::profile::Profiling;
use crate::ranks::Ranks;
use crate::ranks::consistency::{
    agree_on_units, agree_on_widening, check_devices, check_division, check_run,
};
use crate::ranks::rank_status::StatusExchange;
use crate::report::events::Event;
use crate::report::instrument::Instruments;
use crate::report::log::{FILE_TARGET, Log};
use crate::report::metrics_writer::MetricsWriter;
use crate::report::page;
use crate::report::progress::Progress;
use crate::settings::{Override, RunConfig, RunPlan};
use crate::store::run_folder::{EVENTS, LOG, METRICS, PROFILE, RunFolder, Start};
use crate::train::pretrained::{base_of, check_tokenizer, check_weights, load_weights};
use crate::train::sample::check_sample;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

/// Trains as configured in the file at `config`, with `overrides` (`--a.b.c=value`) applied. Once `interrupt` is set,
/// finishes the step, saves a checkpoint and ends.
///
/// # Errors
/// One line that names the culprit and the remedy: configuration, data, adapter, run folder, disk; steps whose
/// gradients or losses are not finite, 20 in a row or at the end, or whose norm spikes, while checkpoints from before
/// them are kept.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::AtomicBool;
///
/// # fn main() -> gristmill::error::Result<()> {
/// # pollster::block_on(async {
/// # let home = tempfile::tempdir().expect("a folder");
/// # let (config, text) = (home.path().join("small.yaml"), home.path().join("mill.txt"));
/// # std::fs::write(&text, "The mill grinds, and the wheel turns. ".repeat(20)).expect("a text");
/// # let yaml = format!("
/// # model: {{model_config: {{vocab_size: 256, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: 16}}}}
/// # train_dataset: {{data_loader: {{type: TextDataLoader, dataset_files: {:?}}}}}
/// # lr_schedule: {{learning_rate: 1.0e-2}}
/// # ", text.display().to_string());
/// # std::fs::write(&config, yaml).expect("a configuration");
/// # let folder = format!("--output_dir={}", home.path().join("output").display());
/// let interrupt = Arc::new(AtomicBool::new(false)); // a handler of Ctrl-C sets it
/// let flags = ["--stop_step=2".to_string(), folder];
/// let summary = gristmill::train::run(&config, &flags, interrupt).await?;
/// assert_eq!(summary.steps, 2);
/// println!("loss {:?}, saved in {:?}", summary.loss, summary.checkpoint);
/// # Ok(())
/// # })
/// # }
/// ```
pub async fn run(config: &Path, overrides: &[String], interrupt: Arc<AtomicBool>) -> Result<Summary> {
    TrainingRun { interrupt, ..TrainingRun::new(config, overrides) }.train().await
}

/// A run that has not started yet: [`run()`] with everything that may be chosen.
pub struct TrainingRun<'a> {
    /// The configuration file.
    pub config: &'a Path,
    /// Flags (`--a.b.c=value`), which take precedence over the file.
    pub overrides: &'a [String],
    /// Ends the run once it is set; if it is set on any rank, all ranks end after the same step.
    pub interrupt: Arc<AtomicBool>,
    /// The ranks that the run is spread over; all of them start the same run. The first rank writes the run folder and
    /// the log; the others log nothing.
    pub ranks: Ranks,
    /// A device that is already open, such as an application's, or that of an earlier run, whose kernels are compiled.
    /// The keys of `context` that choose a device and say how it is opened then have no effect
    /// ([`device_options`](super::device_options) returns them). By default the run opens its own.
    pub gpu: Option<&'a mut Gpu>,
    /// The command line that has started the run, for the lines that say how to continue it.
    pub command: CommandLine,
    /// Called on every rank when it reaches a milestone.
    pub on_milestone: Box<dyn FnMut(Milestone<'_>) + 'a>,
}

impl<'a> TrainingRun<'a> {
    /// A run of one rank, on a device of its own, without an interrupt.
    pub fn new(config: &'a Path, overrides: &'a [String]) -> Self {
        Self {
            config,
            overrides,
            interrupt: Arc::default(),
            ranks: Ranks::alone(),
            gpu: None,
            command: CommandLine::default(),
            on_milestone: Box::new(|_| ()),
        }
    }

    /// Trains.
    ///
    /// # Errors
    /// As [`run`], in one line that is the same on all ranks; a rank that has ended; ranks that were not started alike;
    /// a `context.tier` that is not the tier of `gpu`.
    pub async fn train(self) -> Result<Summary> {
        if self.ranks.is_first() {
            let log = Log::start();
            return self.train_logged(Some(log)).await;
        }
        self.train_logged(None).with_subscriber(NoSubscriber::default()).await
    }

    /// Loads, opens the device, and trains on it. Everything that can fail early does so before the run folder exists,
    /// because an existing folder makes the next start fail.
    async fn train_logged(self, log: Option<Log>) -> Result<Summary> {
        let Self { config, overrides, interrupt, ranks, gpu, command, mut on_milestone } = self;
        let config = ranks.agree(load_config(config, overrides, &ranks)).await?;
        let plan = &config.plan;
        if let Some(complete) = ranks.by_first(|| Complete::find(plan)).await? {
            return Ok(match ranks.is_first() {
                true => complete.announce(plan, &command),
                false => complete.summary(plan),
            });
        }
        let data = ranks.agree(load_data(plan)).await?;
        let length = RunLength::new(plan, data.train.steps_per_epoch());
        if plan.settings.monitor.print_struct {
            announce_parameters(plan);
            return Ok(Summary::default());
        }
        let reads_first_files = check_run(&ranks, plan, &data).await?;
        ranks
            .by_first(|| {
                check_weights(plan).and_then(|()| check_tokenizer(plan, Some("train_dataset.tokenizer")))
            })
            .await?;

        let mut opened;
        let gpu = match gpu {
            Some(gpu) => ranks.agree(check_tier(plan, gpu)).await.map(|()| gpu)?,
            None => {
                opened = ranks.agree(open_device(plan, ranks.local_rank()).await).await?;
                &mut opened
            }
        };
        agree_on_widening(&ranks, gpu).await?;
        agree_on_units(&ranks, gpu).await?;
        check_devices(&ranks, plan, gpu).await?;
        ranks.agree(Profiling::check(plan, length.total_steps, gpu)).await?;
        // Before the trainer, so that a probe's tensors do not lie beside it.
        let peak = ranks.agree(Peak::of(gpu).await).await?;

        let mut trainer = ranks.agree(Trainer::on_rank(gpu, plan, &length, ranks.clone()).await).await?;
        check_division(&ranks, gpu, trainer.recordings()).await?;
        let mut loaded = Loaded { config, command, data, length, ranks, log, reads_first_files };
        let trained = loaded.train_on(&mut trainer, peak, interrupt, &mut *on_milestone).await;
        trained.map_err(|error| trainer.explain(error))
    }
}

fn load_config(file: &Path, overrides: &[String], ranks: &Ranks) -> Result<RunConfig> {
    RunConfig::load_on_rank(file, &Override::parse_all(overrides)?, ranks.rank(), ranks.size())
}

/// The data of `plan`, checked to have a tokenizer that can write its sample.
fn load_data(plan: &RunPlan) -> Result<LoadedData> {
    let data = plan.load_data()?;
    if let Some(sample) = &plan.settings.sample {
        check_sample(sample, plan.has_text(), &data.codec, &plan.model)?;
    }
    Ok(data)
}

/// Everything that a run knows before its first step.
struct Loaded {
    config: RunConfig,
    command: CommandLine,
    data: LoadedData,
    length: RunLength,
    ranks: Ranks,
    /// The log, on the first rank.
    log: Option<Log>,
    /// Whether this rank reads the same data files as the first rank.
    reads_first_files: bool,
}

impl Loaded {
    /// The evaluations of the run, if it makes any.
    fn evaluation(&self) -> Option<Evaluation<'_>> {
        Evaluation::new(&self.config.plan.settings.run, self.data.eval.as_ref()?, &self.length)
    }

    /// Runs on a trainer, from the run folder to the summary.
    async fn train_on(
        &mut self,
        trainer: &mut Trainer<'_>,
        peak: Peak,
        interrupt: Arc<AtomicBool>,
        on_milestone: &mut dyn FnMut(Milestone<'_>),
    ) -> Result<Summary> {
        let opened = self.open(trainer, on_milestone).await?;
        set_references(trainer, &self.ranks, &opened.folder, &mut self.data).await?;
        let Self { config, data, length, ranks, log, reads_first_files, .. } = &*self;
        let (plan, settings) = (&config.plan, &config.plan.settings);
        let board =
            MonitorReport::new(plan, &trainer.recordings().monitors, trainer.recordings().whole.len());
        let mounted = log.as_ref().map(|log| {
            let mounted = self.mount(&opened, log, trainer, peak, &board)?;
            on_milestone(Milestone::FolderOpened(opened.folder.path()));
            Ok(mounted)
        });
        let mounted = ranks.agree(mounted.transpose()).await?;
        let memory_by_rank = match settings.monitor.device_local_metrics {
            true => Some(memory_by_rank(ranks, trainer).await?),
            false => None,
        };
        let Opened { folder, restored: Restored { state, base, .. }, .. } = opened;
        let checkpoints = trainer.checkpoints(&folder, base);
        if let Some((step, newest)) = folder.resume_point().filter(|_| ranks.is_first()) {
            checkpoints.note_newest(step, newest);
            // The process may have been killed between the best checkpoint and its note.
            if let Some(best) = state.best.filter(|_| settings.run.keep_best) {
                let noted = checkpoints.note_best(best);
                noted.unwrap_or_else(|error| tracing::warn!("{error}; training goes on without it"));
            }
        }
        let (evaluation, checkpoint) = (self.evaluation(), settings.callbacks.checkpoint.as_ref());
        let save_seconds = checkpoint.map_or(0, |config| config.save_checkpoint_seconds);
        let mut run_loop = RunLoop {
            reporter: Reporter {
                instruments: mounted.unwrap_or_default(),
                experts: expert_metrics(&plan.model),
                evaluation,
                train: &data.train,
                tokens_per_step: plan.tokens_per_step,
                metric: settings.metric,
                skips_spikes: settings.wrapper.spike_norm().is_some(),
                device_memory_mib: device_memory_mib(trainer),
                memory_by_rank,
                board,
                hot_experts: trainer.hot_experts().await?,
                scale_windows: scale_windows(plan),
                waiting: VecDeque::new(),
                losses: Losses::default(),
            },
            results: Results::new(),
            status: StatusExchange::new(ranks.clone()),
            checkpoints,
            save_clock: SaveClock::new(if ranks.is_first() { save_seconds } else { 0 }, Instant::now()),
            is_interrupted: false,
            is_stopped: settings.run.stops_after(state.evaluations_since),
            profiling: Profiling::new(plan, state.step, folder.path().join(PROFILE)),
            health: Health::new(settings.monitor.global_norm_spike_count_threshold),
            is_save_due: false,
            saved: folder.resume_point().map(|(step, _)| step),
            plan,
            total_steps: length.total_steps,
            data,
            data_watch: DataWatch::start(
                data,
                // Ranks of one machine read the same files, unless their flags name others.
                ranks.local_rank() == 0 || !*reads_first_files,
                folder.resume_point().map(|(_, newest)| newest.to_path_buf()),
            ),
            evaluation,
            interrupt,
            state,
            ranks: ranks.clone(),
        };
        let evaluated = run_loop.evaluate_on_start(trainer).await;
        on_milestone(Milestone::TrainingStarted);
        let trained = match evaluated {
            Ok(()) => run_loop.train(trainer).await,
            failed => failed,
        };
        let trained = match trained {
            Ok(()) => run_loop.finish(trainer).await,
            failed => {
                drop(run_loop); // with the progress bar
                failed.map(|()| Summary::default())
            }
        };
        if let Some(log) = log {
            self.conclude(log, trainer, &folder, &trained);
        }
        trained
    }

    /// Opens the folder, and loads the weights of its checkpoint, or those that the run starts from.
    async fn open(
        &self,
        trainer: &mut Trainer<'_>,
        on_milestone: &mut dyn FnMut(Milestone<'_>),
    ) -> Result<Opened> {
        let (plan, ranks) = (&self.config.plan, &self.ranks);
        let start = ranks.by_first(|| start_of(&plan.settings.run)).await?;
        let (loaded_weights, base) = match start {
            Start::Resume => (None, None),
            Start::New | Start::Again => {
                (ranks.agree(load_weights(trainer, plan)).await?, ranks.by_first(|| base_of(plan)).await?)
            }
        };
        ranks.by_first(|| prepare_folders(&plan.model, &plan.settings)).await?;
        let path = plan.settings.run.folder();
        let folder = open_folder(ranks, &path, &plan.to_yaml(), start, on_milestone).await?;
        let fresh = fresh_state(plan, &self.length, &self.data.train, self.data.hashes());
        let restored = restore(trainer, ranks, &folder, (fresh, base), &self.command).await?;
        Ok(Opened { start, folder, restored, loaded_weights })
    }

    /// Announces the run, and creates the instruments that show its steps. Only the first rank does.
    fn mount(
        &self,
        opened: &Opened,
        log: &Log,
        trainer: &Trainer<'_>,
        peak: Peak,
        board: &MonitorReport,
    ) -> Result<Instruments> {
        let Self { config, command, data, length, .. } = self;
        let (plan, size) = (&config.plan, self.ranks.size());
        let metrics = open_log(log, &opened.folder, config)?;
        let mut announced = Vec::new();
        let mut say = |line: String| {
            tracing::info!("{line}");
            announced.push(line);
        };
        data.summary.iter().chain(&opened.loaded_weights).cloned().for_each(&mut say);
        announce(trainer, plan.tokens_per_step, peak, scale_windows(plan), &mut say);
        if size > 1 {
            say(format!(
                "ranks: {size} share a step; memory, throughput and MFU are those of each, and this is rank 0"
            ));
        }
        // A loss of pairs is not one of tokens.
        let evaluation = self.evaluation().filter(|_| plan.settings.preference.is_none());
        evaluation.iter().map(|evaluation| entropy(evaluation.data)).for_each(say);
        warn_of_warmup(plan, length);
        let template = plan.conversations().and_then(|form| form.template);
        let lacking = template.map(|file| lacking_tokens(&file, &data.codec)).transpose()?.flatten();
        lacking.iter().for_each(|line| tracing::warn!("{line}"));
        let Opened { start, folder, restored: Restored { state, changes, .. }, .. } = opened;
        if let Some((_, checkpoint)) = folder.resume_point() {
            announced.extend(announce_resume(plan, length, state, checkpoint, changes, command));
        }
        let RunLength { total_steps, steps_per_epoch, .. } = *length;
        log.note(Event::Start {
            step: state.step,
            total_steps,
            steps_per_epoch: Some(steps_per_epoch),
            announced,
        });
        let (work, parameters) = (work(plan, peak), trainer.recordings().sizes());
        let progress = Progress::new(state.step, total_steps, work, log);
        let lines = log_plan(plan, length, state.step, work, parameters, board.formats().clone());
        let after = (*start != Start::New).then_some(state.step);
        let steps = plan.settings.runner.epochs.saturating_mul(length.steps_per_epoch);
        instruments(plan, progress, lines, metrics, after, steps)
    }

    /// Logs how the run has ended, and writes its report.
    fn conclude(&self, log: &Log, trainer: &Trainer<'_>, folder: &RunFolder, trained: &Result<Summary>) {
        let (plan, command) = (&self.config.plan, &self.command);
        match trained {
            Ok(summary) => announce_end(log, plan, command, summary),
            Err(error) => {
                let text = trainer.explain(error.clone()).to_string();
                tracing::error!(target: FILE_TARGET, "{text}");
                log.note(Event::Failed { text });
            }
        }
        let report = page::write_at_end(folder.path());
        if let Ok(summary) = trained {
            announce_files(plan, command, summary, report.as_deref());
        }
    }
}

/// A run whose folder is open and whose weights are on the device.
struct Opened {
    start: Start,
    folder: RunFolder,
    restored: Restored,
    /// A line about the loaded weights, unless the run resumes.
    loaded_weights: Option<String>,
}

/// The device memory of each rank's model in MiB, on the first rank.
async fn memory_by_rank(ranks: &Ranks, trainer: &Trainer<'_>) -> Result<Vec<f32>> {
    let all = ranks.at_first(device_memory_mib(trainer).to_le_bytes().to_vec()).await?;
    Ok(bytemuck::pod_collect_to_vec(&all))
}

fn device_memory_mib(trainer: &Trainer<'_>) -> f32 {
    (trainer.persistent_bytes() + trainer.pool_bytes()) as f32 / 1048576.0
}

/// Makes `log` continue in the folder, with what is known of the configuration, and opens the metrics there.
fn open_log(log: &Log, folder: &RunFolder, config: &RunConfig) -> Result<MetricsWriter> {
    log.attach(&folder.path().join(LOG), &folder.path().join(EVENTS))?;
    config.notices.iter().for_each(|notice| tracing::info!("{notice}"));
    MetricsWriter::open(&folder.path().join(METRICS))
}

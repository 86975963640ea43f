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
use super::reporter::{Losses, Reporter};
use super::resume::{Restored, fresh_state, open_folder, restore, start_of};
use super::trainer::Trainer;
use crate::data::Dataset;
use crate::device::{Gpu, GpuOptions};
use crate::error::{Error, Result};
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
use crate::settings::{Context, Override, RunConfig, RunPlan};
use crate::store::run_folder::{RunFolder, Start};
use crate::train::pretrained::{base_of, check_tokenizer, check_weights, load_weights};
use crate::train::sample::check_sample;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

/// Trains as configured in the file at `config`, with `overrides` (`--a.b.c=value`) applied. Once `interrupt` is set,
/// finishes the step, saves a checkpoint and ends.
///
/// # Errors
/// One line that names the culprit and the remedy: configuration, data, adapter, run folder, disk; steps whose gradients or
/// losses are not finite, 20 in a row or at the end, or whose norm spikes, while checkpoints from before them are kept.
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
    run_on_ranks(config, overrides, interrupt, Ranks::alone()).await
}

/// The same as one of the ranks of a run: all call it with the same file and overrides, and an `interrupt` of any ends all after the
/// same step. The first one writes the run folder and the log; the others log nothing.
///
/// # Errors
/// Those of [`run`], which are one line, the same on all ranks; a rank that has ended; ranks that were not started alike.
pub async fn run_on_ranks(
    config: &Path,
    overrides: &[String],
    interrupt: Arc<AtomicBool>,
    ranks: Ranks,
) -> Result<Summary> {
    run_watched(config, overrides, interrupt, ranks, &CommandLine::default(), &mut |_| {}).await
}

/// The same on a device that is open, such as an application's or that of an earlier run, whose kernels are compiled. The keys of
/// `context` that choose a device and say how it is opened have no effect; [`device_options`] has them.
///
/// # Errors
/// Those of [`run_on_ranks`]; a `context.tier` that is not the tier of `gpu`.
pub async fn run_on_device(
    gpu: &mut Gpu,
    config: &Path,
    overrides: &[String],
    interrupt: Arc<AtomicBool>,
    ranks: Ranks,
) -> Result<Summary> {
    train_logged(config, overrides, interrupt, ranks, Some(gpu), &CommandLine::default(), &mut |_| {}).await
}

/// The same, and every rank calls `on_milestone` where it gets to one. `command` has started the run, for the lines that say how it goes on.
///
/// # Errors
/// Those of [`run_on_ranks`].
pub async fn run_watched(
    config: &Path,
    overrides: &[String],
    interrupt: Arc<AtomicBool>,
    ranks: Ranks,
    command: &CommandLine,
    on_milestone: &mut dyn FnMut(Milestone<'_>),
) -> Result<Summary> {
    train_logged(config, overrides, interrupt, ranks, None, command, on_milestone).await
}

/// Trains on `gpu`, or on the device that the configuration asks for. The first rank logs.
async fn train_logged(
    config: &Path,
    overrides: &[String],
    interrupt: Arc<AtomicBool>,
    ranks: Ranks,
    gpu: Option<&mut Gpu>,
    command: &CommandLine,
    on_milestone: &mut dyn FnMut(Milestone<'_>),
) -> Result<Summary> {
    let started = Started { config, overrides, command };
    // Whatever can fail early fails before the run folder exists, which would refuse the next start.
    if ranks.is_first() {
        let log = Some(Log::start());
        return train(started, interrupt, ranks, gpu, log, on_milestone).await;
    }
    train(started, interrupt, ranks, gpu, None, on_milestone).with_subscriber(NoSubscriber::default()).await
}

/// By what a run was started.
struct Started<'a> {
    config: &'a Path,
    overrides: &'a [String],
    command: &'a CommandLine,
}

async fn train(
    started: Started<'_>,
    interrupt: Arc<AtomicBool>,
    ranks: Ranks,
    gpu: Option<&mut Gpu>,
    log: Option<Log>,
    on_milestone: &mut dyn FnMut(Milestone<'_>),
) -> Result<Summary> {
    let Started { config, overrides, command } = started;
    let config = ranks.agree(config_of(config, overrides, &ranks)).await?;
    if let Some(complete) = ranks.by_first(|| Complete::find(&config.plan)).await? {
        return Ok(match ranks.is_first() {
            true => complete.announce(&config.plan, command),
            false => complete.summary(&config.plan),
        });
    }
    let mut loaded = ranks.agree(Loaded::load(config, command)).await?;
    if loaded.config.plan.settings.monitor.print_struct {
        announce_parameters(&loaded.config.plan);
        return Ok(Summary::default());
    }
    loaded.reads_first_files = check_run(&ranks, &loaded.config.plan, &loaded.data).await?;
    let (plan, length) = (&loaded.config.plan, &loaded.length);
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
    let peak = ranks.agree(Peak::of(gpu).await).await?; // before the trainer, so that a probe's tensors do not lie beside it
    let mut trainer = ranks.agree(Trainer::on_rank(gpu, plan, length, ranks.clone()).await).await?;
    check_division(&ranks, gpu, trainer.recordings()).await?;
    let trained = train_on(&mut trainer, &loaded, log, peak, interrupt, ranks, on_milestone).await;
    trained.map_err(|error| trainer.explain(error))
}

fn config_of(file: &Path, overrides: &[String], ranks: &Ranks) -> Result<RunConfig> {
    RunConfig::load_on_rank(file, &Override::parse_all(overrides)?, ranks.rank(), ranks.size())
}

/// What a run needs to know before it opens a device.
struct Loaded<'a> {
    config: RunConfig,
    command: &'a CommandLine,
    data: Dataset,
    length: RunLength,
    /// Whether this rank reads the data where the first one does.
    reads_first_files: bool,
}

impl<'a> Loaded<'a> {
    fn load(config: RunConfig, command: &'a CommandLine) -> Result<Self> {
        let plan = &config.plan;
        let data = plan.load_data()?;
        if let Some(sample) = &plan.settings.sample {
            check_sample(sample, plan.has_text(), &data.codec, plan.model.vocab_size)?;
        }
        let length = RunLength::new(plan, data.train.steps_per_epoch());
        Ok(Self { config, command, data, length, reads_first_files: true })
    }

    /// When the run evaluates, if it does.
    fn evaluation(&self) -> Option<Evaluation<'_>> {
        Evaluation::new(&self.config.plan.settings.run, self.data.eval.as_ref()?, &self.length)
    }
}

/// Fails if `plan` names another tier than that of an open device.
fn check_tier(plan: &RunPlan, gpu: &Gpu) -> Result<()> {
    let (named, has) = (plan.settings.context.tier, gpu.capabilities().tier);
    match named.filter(|named| *named != has) {
        None => Ok(()),
        Some(named) => Err(Error::NoAdapter(format!(
            "{} was opened for tier {}, but `context.tier` is {}; leave it out",
            gpu.report().name,
            has.name(),
            named.name()
        ))),
    }
}

/// Opens the device that `plan` asks for, on the rank `local_rank` of this machine.
pub(super) async fn open_device(plan: &RunPlan, local_rank: usize) -> Result<Gpu> {
    open_device_with(&device_options(plan, local_rank), plan).await
}

/// The options with which a run of `plan` opens its device, on the rank `local_rank` of this machine.
pub fn device_options(plan: &RunPlan, local_rank: usize) -> GpuOptions {
    let Context { device_name, device_id, tier, hang_timeout, validation, robust_buffers, .. } =
        plan.settings.context.clone();
    GpuOptions {
        device_name,
        device_id,
        local_rank,
        tier,
        hang_timeout: Some(Duration::from_secs(hang_timeout)),
        validation,
        unchecked_buffers: !robust_buffers,
        ..GpuOptions::default()
    }
}

/// Opens a device for what `plan` stores: for f16 matrices are tried, and conversions unless the plan says otherwise, and how it is
/// widened is tested.
///
/// # Errors
/// Those of [`Gpu::request`].
pub async fn open_device_with(options: &GpuOptions, plan: &RunPlan) -> Result<Gpu> {
    let options = GpuOptions { tries_matrices: plan.stores_f16(), ..options.clone() };
    let mut gpu = Gpu::request(&options).await?;
    if plan.tries_native_f16() {
        gpu.try_native_f16().await;
    }
    if plan.stores_f16() {
        gpu.check_widening().await;
    }
    Ok(gpu)
}

/// The run on a trainer before its first step, from its folder to its summary.
async fn train_on(
    trainer: &mut Trainer<'_>,
    loaded: &Loaded<'_>,
    log: Option<Log>,
    peak: Peak,
    interrupt: Arc<AtomicBool>,
    ranks: Ranks,
    on_milestone: &mut dyn FnMut(Milestone<'_>),
) -> Result<Summary> {
    let Loaded { config, command, data, length, reads_first_files } = loaded;
    let (plan, settings) = (&config.plan, &config.plan.settings);
    let opened = Opened::open(trainer, loaded, &ranks, on_milestone).await?;
    let evaluation = loaded.evaluation();
    let board = MonitorReport::new(plan, &trainer.recordings().monitors, trainer.recordings().whole.len());
    let mounted = log.as_ref().map(|log| {
        let mounted = opened.mount(log, loaded, trainer, peak, &board, ranks.size())?;
        on_milestone(Milestone::FolderOpened(opened.folder.path()));
        Ok(mounted)
    });
    let mounted = ranks.agree(mounted.transpose()).await?;
    let memory_by_rank = match settings.monitor.device_local_metrics {
        true => Some(memory_by_rank(&ranks, trainer).await?),
        false => None,
    };
    let Opened { folder, restored: Restored { state, base, .. }, .. } = opened;
    let checkpoint = settings.callbacks.checkpoint.as_ref();
    let checkpoints = trainer.checkpoints(&folder, base);
    if let Some((step, newest)) = folder.resume_point().filter(|_| ranks.is_first()) {
        checkpoints.note_newest(step, newest);
        // A kill may have come between the best checkpoint and its note.
        if let Some(best) = state.best.filter(|_| settings.run.keep_best) {
            let noted = checkpoints.note_best(best);
            noted.unwrap_or_else(|error| tracing::warn!("{error}; training goes on without it"));
        }
    }
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
        profiling: Profiling::new(plan, state.step, folder.profile_path()),
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
        ranks,
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
        conclude(&log, command, plan, trainer, &folder, &trained);
    }
    trained
}

/// A run whose folder is open and whose weights are on the device.
struct Opened {
    start: Start,
    folder: RunFolder,
    restored: Restored,
    /// What was loaded, in a line, unless the run resumes.
    loaded_weights: Option<String>,
}

impl Opened {
    async fn open(
        trainer: &mut Trainer<'_>,
        loaded: &Loaded<'_>,
        ranks: &Ranks,
        on_milestone: &mut dyn FnMut(Milestone<'_>),
    ) -> Result<Self> {
        let plan = &loaded.config.plan;
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
        let fresh = fresh_state(plan, &loaded.length, &loaded.data.train, loaded.data.hashes());
        let restored = restore(trainer, ranks, &folder, (fresh, base), loaded.command).await?;
        Ok(Self { start, folder, restored, loaded_weights })
    }

    /// Announces the run, of `size` ranks, and makes what shows its steps. Only the first rank does.
    fn mount(
        &self,
        log: &Log,
        loaded: &Loaded<'_>,
        trainer: &Trainer<'_>,
        peak: Peak,
        board: &MonitorReport,
        size: usize,
    ) -> Result<Instruments> {
        let Loaded { config, command, data, length, .. } = loaded;
        let plan = &config.plan;
        let metrics = open_log(log, &self.folder, config)?;
        let mut announced = Vec::new();
        let mut say = |line: String| {
            tracing::info!("{line}");
            announced.push(line);
        };
        data.summary.iter().chain(&self.loaded_weights).cloned().for_each(&mut say);
        announce(trainer, plan.tokens_per_step, peak, scale_windows(plan), &mut say);
        if size > 1 {
            say(format!(
                "ranks: {size} share a step; memory, throughput and MFU are those of each, and this is rank 0"
            ));
        }
        loaded.evaluation().iter().map(|evaluation| entropy(evaluation.data)).for_each(say);
        warn_of_warmup(plan, length);
        let template = plan.conversations().and_then(|form| form.template.as_deref());
        let lacking = template.map(|file| lacking_tokens(file, &data.codec)).transpose()?.flatten();
        lacking.iter().for_each(|line| tracing::warn!("{line}"));
        let Self { folder, restored: Restored { state, changes, .. }, .. } = self;
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
        let after = (self.start != Start::New).then_some(state.step);
        let steps = plan.settings.runner.epochs.saturating_mul(length.steps_per_epoch);
        instruments(plan, progress, lines, metrics, after, steps)
    }
}

/// Says how the run has ended, and writes its report.
fn conclude(
    log: &Log,
    command: &CommandLine,
    plan: &RunPlan,
    trainer: &Trainer<'_>,
    folder: &RunFolder,
    trained: &Result<Summary>,
) {
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

/// The device memory of each rank's model in MiB, on the first rank.
async fn memory_by_rank(ranks: &Ranks, trainer: &Trainer<'_>) -> Result<Vec<f32>> {
    let all = ranks.at_first(device_memory_mib(trainer).to_le_bytes().to_vec()).await?;
    Ok(bytemuck::pod_collect_to_vec(&all))
}

fn device_memory_mib(trainer: &Trainer<'_>) -> f32 {
    (trainer.persistent_bytes() + trainer.pool_bytes()) as f32 / 1048576.0
}

/// Lets `log` go on in the folder, with what is known of the configuration, and opens the metrics there.
fn open_log(log: &Log, folder: &RunFolder, config: &RunConfig) -> Result<MetricsWriter> {
    log.attach(&folder.log_path(), &folder.events_path())?;
    config.notices.iter().for_each(|notice| tracing::info!("{notice}"));
    MetricsWriter::open(&folder.metrics_path())
}

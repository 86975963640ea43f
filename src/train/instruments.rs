//! Selects the instruments that a run's model and configuration ask for.

use super::length::RunLength;
use crate::error::Result;
use crate::model::config::{MixtureConfig, ModelConfig, TokenDispatch};
use crate::model::count;
use crate::perf::peak::Peak;
use crate::report::experts::{CollectedSteps, DropRates, ExpertMetrics, HotChoices, TokenDistribution};
use crate::report::instrument::Instruments;
use crate::report::metrics::MonitorFormats;
use crate::report::metrics_writer::MetricsWriter;
use crate::report::mindformers_log::{LogPlan, LossParts, MindFormersLog};
use crate::report::pace::Work;
use crate::report::progress::Progress;
use crate::report::scale_changes::ScaleChanges;
use crate::report::tensorboard::{Scalars, TensorBoard};
use crate::settings::{RunPlan, Settings};

/// The instruments of a run of `plan`, in the order of MindFormers' callbacks; the file with all numbers comes last. A
/// run that continues does so `after` a step. Its epochs have `steps` steps in total.
///
/// # Errors
/// A file that cannot be opened.
pub(super) fn instruments(
    plan: &RunPlan,
    progress: Progress,
    lines: LogPlan,
    metrics: MetricsWriter,
    after: Option<u64>,
    steps: u64,
) -> Result<Instruments> {
    let settings = &plan.settings;
    let mut instruments = Instruments::default();
    instruments.push(progress);
    let monitors = lines.formats.clone();
    instruments.push(MindFormersLog::new(lines));
    if settings.moe.as_ref().is_some_and(|moe| moe.callback_moe_droprate) {
        instruments.push(DropRates);
    }
    instruments.push(HotChoices::default());
    instruments.push(ScaleChanges::default());
    if let Some(distribution) = token_distribution(&plan.model, settings, steps) {
        instruments.push(distribution);
    }
    if let Some(board) = tensor_board(plan, monitors, after)? {
        instruments.push(board);
    }
    instruments.push(metrics);
    Ok(instruments)
}

/// Creates the folders beside the run folder in which instruments write.
///
/// # Errors
/// A folder that cannot be written.
pub(super) fn prepare_folders(model: &ModelConfig, settings: &Settings) -> Result<()> {
    token_distribution(model, settings, 0).iter().try_for_each(TokenDistribution::create_folder)?;
    settings.tensorboard.iter().try_for_each(|asked| TensorBoard::prepare_folder(&asked.tensorboard_dir))
}

/// The files about the experts of `model`, if they are asked for, of a run whose epochs have `steps` steps in total.
fn token_distribution(model: &ModelConfig, settings: &Settings, steps: u64) -> Option<TokenDistribution> {
    let summary = settings.callbacks.summary.as_ref().filter(|_| model.mixture.is_some())?;
    let steps = CollectedSteps::new(summary.collect_freq, summary.collect_tensor_freq, steps);
    Some(TokenDistribution::new(&summary.summary_dir, &settings.run.run_name, steps))
}

/// The event file, if one is asked for.
fn tensor_board(plan: &RunPlan, monitors: MonitorFormats, after: Option<u64>) -> Result<Option<TensorBoard>> {
    let settings = &plan.settings;
    let Some(asked) = &settings.tensorboard else { return Ok(None) };
    let scalars = Scalars {
        samples_per_step: plan.samples_per_step() as u64,
        ranks: plan.layout.world() as u64,
        flops_per_token: count::training_flops_per_token(&plan.model) / plan.layout.world() as f64,
        has_loss_scale: asked.log_loss_scale_to_tensorboard,
        has_timers: asked.log_timers_to_tensorboard,
        has_expert_load: asked.log_expert_load_to_tensorboard,
        monitors,
        loss_parts: loss_parts(plan),
    };
    let (folder, run_name) = (&asked.tensorboard_dir, &settings.run.run_name);
    TensorBoard::open(folder, run_name, after, scalars, &sections(&settings.to_yaml())).map(Some)
}

/// The parts of the loss that are shown, if they are asked for. A model whose loss has a single part shows none.
pub(super) fn loss_parts(plan: &RunPlan) -> Option<LossParts> {
    let model = &plan.model;
    let balance = |mixture: &MixtureConfig| {
        let layers = (0..model.num_layers).filter(|layer| model.mixture_of(*layer).is_some()).count();
        let factor = mixture.losses.expert + mixture.losses.sequence;
        (factor > 0.0).then_some((factor * layers as f64) as f32)
    };
    let parts = LossParts {
        balance_scale: model.mixture.as_ref().and_then(balance),
        mtp_factor: model.multi_token.map(|ahead| ahead.loss_factor as f32),
    };
    let has_parts = model.mixture.is_some() || model.multi_token.is_some();
    (plan.settings.run.print_separate_loss == Some(true) && has_parts).then_some(parts)
}

/// Name and text of each section of a configuration, as `RunPlan::to_yaml` writes it.
fn sections(yaml: &str) -> Vec<(String, String)> {
    let mut sections: Vec<(String, String)> = Vec::new();
    for line in yaml.lines() {
        match (line.split_once(':'), sections.last_mut()) {
            (Some((name, value)), _) if !line.starts_with([' ', '-', '#']) => {
                sections.push((name.into(), format!("{}\n", value.trim())));
            }
            (_, Some((_, text))) => *text += &format!("{line}\n"),
            (_, None) => {}
        }
    }
    sections
}

/// The list of windows of a loss scale that has several.
pub(super) fn scale_windows(plan: &RunPlan) -> Option<Vec<u32>> {
    let adaptation = plan.settings.wrapper.scale_sense.adaptation()?;
    Some(adaptation.windows).filter(|windows| windows.len() > 1)
}

/// Which numbers about experts a step of `model` has; `None` for a dense model.
pub(super) fn expert_metrics(model: &ModelConfig) -> Option<ExpertMetrics> {
    let mixture = model.mixture.as_ref()?;
    let capacity = match mixture.dispatch {
        TokenDispatch::Capacity(capacity) => Some(capacity),
        TokenDispatch::Dropless { .. } => None,
    };
    Some(ExpertMetrics {
        capacity_factor: capacity.map(|capacity| capacity.factor),
        cold_share: capacity.and_then(|capacity| capacity.hot).map_or(1.0, |hot| hot.cold_token_share),
        has_balance_loss: mixture.losses.expert > 0.0 || mixture.losses.sequence > 0.0,
        has_z_loss: mixture.losses.z > 0.0,
    })
}

/// The numbers that throughput is computed from. As in MindFormers, it counts the operations of one rank.
pub(super) fn work(plan: &RunPlan, peak: Peak) -> Work {
    Work {
        tokens_per_step: plan.tokens_per_step as u64,
        flops_per_token: count::training_flops_per_token(&plan.model) / plan.layout.world() as f64,
        peak_flops: peak.flops(),
    }
}

/// The settings for MindFormers' log lines, for a run that has done `start_step` steps and whose parameters have these
/// paths and numbers of elements.
pub(super) fn log_plan(
    plan: &RunPlan,
    length: &RunLength,
    start_step: u64,
    work: Work,
    parameters: Vec<(String, usize)>,
    formats: MonitorFormats,
) -> LogPlan {
    let settings = &plan.settings;
    LogPlan {
        total_steps: length.total_steps,
        start_step,
        epochs: settings.runner.epochs,
        steps_per_epoch: length.steps_per_epoch,
        samples_per_rank: plan.samples_per_rank(),
        work,
        log_every: settings.callbacks.loss.as_ref().map_or(1, |lines| lines.per_print_times),
        loss_parts: loss_parts(plan),
        parameters,
        spike_norm: settings.wrapper.spike_norm(),
        formats,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{BalanceLosses, Capacity, DropOrder, Sizes};
    use crate::ops::route::{GateNorm, RouterConfig, Score};
    use crate::settings::{Callbacks, Run, SummaryMonitor};
    use std::path::Path;

    fn model(dispatch: TokenDispatch, losses: BalanceLosses) -> ModelConfig {
        let route = RouterConfig {
            experts: 4,
            chosen: 2,
            score: Score::Softmax,
            groups: None,
            norm: Some(GateNorm::SUM),
            scaling: 1.0,
        };
        let mixture = MixtureConfig {
            route,
            has_bias: false,
            bias_update_rate: 0.0,
            intermediate_size: 8,
            is_beside_dense: false,
            first_dense_layers: 1,
            shared: None,
            losses,
            dispatch,
            router_init_std: 0.01,
        };
        ModelConfig { mixture: Some(mixture), ..dense() }
    }

    fn dense() -> ModelConfig {
        ModelConfig::llama(Sizes {
            vocab_size: 8,
            hidden_size: 8,
            num_layers: 2,
            num_heads: 2,
            intermediate_size: 8,
            seq_length: 8,
        })
    }

    #[test]
    fn losses_and_capacities_decide_what_is_measured() {
        let of = |model: &ModelConfig| expert_metrics(model).unwrap();
        let capacity = Capacity { factor: 1.5, order: DropOrder::Choice, renormalises: false, hot: None };
        let expert = BalanceLosses { expert: 0.1, ..BalanceLosses::default() };
        let limited = of(&model(TokenDispatch::Capacity(capacity), expert));
        assert_eq!((limited.capacity_factor, limited.has_balance_loss), (Some(1.5), true));
        let z = BalanceLosses { z: 0.1, ..BalanceLosses::default() };
        let dropless = of(&model(TokenDispatch::Dropless { safe_tokens: false }, z));
        assert_eq!((dropless.capacity_factor, dropless.has_z_loss), (None, true));
        let sequence = BalanceLosses { sequence: 0.1, ..BalanceLosses::default() };
        assert!(of(&model(TokenDispatch::Dropless { safe_tokens: false }, sequence)).has_balance_loss);
    }

    #[test]
    fn a_dense_model_has_none() {
        let summary = Some(SummaryMonitor {
            summary_dir: "nowhere".into(),
            collect_freq: 5,
            collect_tensor_freq: Some(7),
        });
        let shown = Settings {
            run: Run { run_name: "small".into(), ..Run::default() },
            callbacks: Callbacks { summary, ..Callbacks::default() },
            ..Settings::default()
        };
        assert_eq!((expert_metrics(&dense()), token_distribution(&dense(), &shown, 9)), (None, None));
        let mixture = model(TokenDispatch::Dropless { safe_tokens: false }, BalanceLosses::default());
        let steps = CollectedSteps::new(5, Some(7), 9);
        let written = TokenDistribution::new(Path::new("nowhere"), "small", steps);
        assert_eq!(token_distribution(&mixture, &shown, 9), Some(written));
        assert_eq!(token_distribution(&mixture, &Settings::default(), 9), None, "nothing asked for it");
    }

    #[test]
    fn a_configuration_has_its_sections() {
        let yaml = "# a comment\nseed: 3\ncallbacks:\n- type: MFLossMonitor\n  per_print_times: 1\nrunner_config:\n  epochs: 2\n";
        let sections = sections(yaml);
        let names: Vec<&str> = sections.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["seed", "callbacks", "runner_config"]);
        assert_eq!(sections[0].1, "3\n");
        assert_eq!(sections[1].1, "\n- type: MFLossMonitor\n  per_print_times: 1\n");
    }
}

//! Reports about the experts of a run: numbers in `metrics.jsonl`, log lines, and the files that `gristmill
//! token-distribution` plots.

use std::path::{Path, PathBuf};

use super::expert_load::LayerLoad;
use super::instrument::{Instrument, StepReport};
use super::metrics::StepMetrics;
use crate::durable::PathOrigin;
use crate::error::Result;
use crate::store::npy;

/// Which numbers about experts the steps of a run have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertMetrics {
    /// Slots of an expert relative to an equal share of the choices; `None` if no token is dropped.
    pub capacity_factor: Option<f64>,
    /// Slots of a cold expert as a share of those of a hot one; 1 if no expert is hot.
    pub cold_share: f64,
    /// Whether the objective has a balance loss.
    pub has_balance_loss: bool,
    /// Whether the objective has a z-loss.
    pub has_z_loss: bool,
}

/// A log line for each layer with the share of its choices that were dropped.
#[derive(Clone, Copy, Debug)]
pub struct DropRates;

/// The setting that chose the folder of these files.
const SUMMARY_DIR: PathOrigin = PathOrigin("summary_dir of SummaryMonitor");

/// Files with the choices of each expert, `layer-L_STEP.npy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenDistribution {
    folder: PathBuf,
    steps: CollectedSteps,
}

/// The steps after which MindSpore's `SummaryCollector` collects tensors: the first one, and a number of multiples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectedSteps {
    every_steps: u64,
    last: u64,
}

/// The most steps for which it collects tensors if no frequency is set.
const MOST_COLLECTED: u64 = 20;

impl CollectedSteps {
    /// The steps of a run of `total` steps: every `tensor_freq` or, without it, every `freq`, but then at most 20 in
    /// total, evenly spread; if that would be more than every second step, the first 20.
    pub fn new(freq: u64, tensor_freq: Option<u64>, total: u64) -> Self {
        let spread = total / (MOST_COLLECTED - 1);
        match tensor_freq {
            Some(every_steps) => Self { every_steps, last: total },
            // The collector also counts step 0.
            None if total / freq < MOST_COLLECTED => Self { every_steps: freq, last: total },
            None if spread > 1 => Self { every_steps: spread, last: spread * (MOST_COLLECTED - 1) },
            None => Self { every_steps: 1, last: MOST_COLLECTED },
        }
    }

    /// Whether tensors are collected after `step`.
    pub fn contains(&self, step: u64) -> bool {
        step == 1 || (step <= self.last && step.is_multiple_of(self.every_steps))
    }
}

/// A log line when other experts become hot.
#[derive(Clone, Debug, Default)]
pub struct HotChoices {
    last: Vec<Vec<u32>>,
}

impl Instrument for HotChoices {
    fn step(&mut self, report: &StepReport<'_>) -> Result<()> {
        let (Some(hot), Some(loads)) = (&report.metrics.hot_experts, report.loads) else { return Ok(()) };
        hot_lines(report.metrics.step, loads, &self.last, hot)
            .iter()
            .for_each(|line| tracing::info!("{line}"));
        self.last.clone_from(hot);
        Ok(())
    }
}

/// The lines of a step after which the experts `hot` of each layer are hot; before it those of `last` were, if there
/// were any.
fn hot_lines(step: u64, loads: &[LayerLoad], last: &[Vec<u32>], hot: &[Vec<u32>]) -> Vec<String> {
    if last.is_empty() {
        let layers = loads.iter().zip(hot).map(|(load, hot)| format!("{} {hot:?}", load.layer));
        return vec![format!("step {step}: hot experts by layer: {}", layers.collect::<Vec<_>>().join(", "))];
    }
    let changed = loads.iter().zip(hot).zip(last).filter(|((_, hot), last)| hot != last);
    changed
        .map(|((load, hot), last)| {
            format!("step {step}: hot experts of layer {}: {hot:?} after {last:?}", load.layer)
        })
        .collect()
}

impl ExpertMetrics {
    /// Fills in the numbers about experts; `hot` are the experts of each layer that were hot.
    pub fn measure(&self, loads: &[LayerLoad], hot: Option<&[Vec<u32>]>, metrics: &mut StepMetrics) {
        let each = |number: &dyn Fn(&LayerLoad) -> f32| Some(loads.iter().map(number).collect());
        let sum = |is_on: bool, loss: fn(&LayerLoad) -> f32| is_on.then(|| loads.iter().map(loss).sum());
        metrics.drop_rate = each(&LayerLoad::drop_rate);
        let estimates = loads.iter().enumerate().map(|(row, layer)| {
            let hot = hot.and_then(|hot| hot.get(row)).map(Vec::as_slice);
            layer.drop_rate_estimate(self.capacity_factor, hot, self.cold_share)
        });
        metrics.drop_rate_estimate = Some(estimates.collect());
        metrics.expert_load_entropy = each(&LayerLoad::entropy);
        metrics.expert_load_max_over_mean = each(&LayerLoad::max_over_mean);
        metrics.load_balancing_loss = sum(self.has_balance_loss, |layer| layer.balance_loss);
        metrics.z_loss = sum(self.has_z_loss, |layer| layer.z_loss);
    }
}

impl Instrument for DropRates {
    fn step(&mut self, report: &StepReport<'_>) -> Result<()> {
        report.loads.unwrap_or_default().iter().for_each(|layer| tracing::info!("{}", drop_rate_line(layer)));
        Ok(())
    }
}

impl TokenDistribution {
    /// The distribution of the run called `run_name`, written below `summary_dir` after `steps`.
    pub fn new(summary_dir: &Path, run_name: &str, steps: CollectedSteps) -> Self {
        // In MindFormers the folder name ends with a time, so that a resumed run has two folders.
        Self { folder: summary_dir.join(format!("export_{run_name}")).join("tensor"), steps }
    }

    /// Creates the folder, so that a folder that cannot be written is found before the first step.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn create_folder(&self) -> Result<()> {
        SUMMARY_DIR.create_folder(&self.folder)
    }

    /// One vector per layer: how often each expert was chosen. A float32 holds counts up to 2^24 exactly.
    fn write(&self, step: u64, loads: &[LayerLoad]) -> Result<()> {
        self.create_folder()?;
        for layer in loads {
            let counts: Vec<f32> = layer.chosen.iter().map(|count| *count as f32).collect();
            npy::write(SUMMARY_DIR, &self.folder.join(format!("layer-{}_{step}.npy", layer.layer)), &counts)?;
        }
        Ok(())
    }
}

impl Instrument for TokenDistribution {
    fn step(&mut self, report: &StepReport<'_>) -> Result<()> {
        let step = report.metrics.step;
        let due = report.loads.filter(|_| self.steps.contains(step));
        due.map_or(Ok(()), |loads| self.write(step, loads))
    }
}

/// The line of MindFormers' `MoEDropRateCallback`, with the share that was actually dropped.
pub(crate) fn drop_rate_line(load: &LayerLoad) -> String {
    format!("layer: {}, drop_rate: {:.5}", load.layer, load.drop_rate())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads() -> Vec<LayerLoad> {
        let layer = |layer, chosen: [u32; 4], dropped| LayerLoad {
            layer,
            chosen: chosen.to_vec(),
            last: vec![5, 3, 1, 1],
            dropped,
            choices: 20,
            balance_loss: 0.25,
            z_loss: 0.5,
        };
        vec![layer(1, [5, 5, 5, 5], 0), layer(2, [0, 20, 0, 0], 5)]
    }

    #[test]
    fn metrics_have_a_number_a_layer() {
        let measured = |which: ExpertMetrics| {
            let mut metrics = StepMetrics { step: 4, ..StepMetrics::default() };
            which.measure(&loads(), None, &mut metrics);
            metrics
        };
        let none = ExpertMetrics {
            capacity_factor: None,
            cold_share: 1.0,
            has_balance_loss: false,
            has_z_loss: false,
        };
        let limited = ExpertMetrics { capacity_factor: Some(1.5), has_balance_loss: true, ..none };
        let metrics = measured(limited);
        assert_eq!(metrics.drop_rate, Some(vec![0.0, 0.25]));
        assert_eq!(metrics.drop_rate_estimate, Some(vec![0.125; 2]));
        assert_eq!(metrics.expert_load_entropy, Some(vec![1.0, 0.0]));
        assert_eq!(metrics.expert_load_max_over_mean, Some(vec![1.0, 4.0]));
        assert_eq!((metrics.load_balancing_loss, metrics.z_loss), (Some(0.5), None));
        let metrics = measured(ExpertMetrics { has_z_loss: true, ..none });
        assert_eq!(metrics.drop_rate_estimate, Some(vec![0.0; 2]));
        assert_eq!((metrics.load_balancing_loss, metrics.z_loss), (None, Some(1.0)));
        let line = serde_json::to_string(&metrics).unwrap();
        let expected = "\"drop_rate\":[0.0,0.25],\"drop_rate_estimate\":[0.0,0.0],\"expert_load_entropy\":[1.0,0.0],\
            \"expert_load_max_over_mean\":[1.0,4.0],\"z_loss\":1.0}";
        assert!(line.ends_with(expected), "{line}");
        assert_eq!(serde_json::from_str::<StepMetrics>(&line).unwrap(), metrics);
    }

    #[test]
    fn the_line_is_the_originals() {
        let lines: Vec<String> = loads().iter().map(drop_rate_line).collect();
        assert_eq!(lines, ["layer: 1, drop_rate: 0.00000", "layer: 2, drop_rate: 0.25000"]);
    }

    /// The worked examples in the documentation of MindSpore's `SummaryCollector`, 600 and 20 steps, and cases around
    /// its limits.
    #[test]
    fn tensors_are_collected_as_in_the_original() {
        let steps = |freq, tensor_freq, total| {
            let collected = CollectedSteps::new(freq, tensor_freq, total);
            (1..=total).filter(|step| collected.contains(*step)).collect::<Vec<_>>()
        };
        assert_eq!(steps(1, Some(4), 9), [1, 4, 8]);
        assert_eq!(steps(10, Some(1), 3), [1, 2, 3]);
        assert_eq!(steps(10, None, 20), [1, 10, 20]);
        let spread: Vec<u64> = [1].into_iter().chain((1..20).map(|part| part * 31)).collect();
        assert_eq!(steps(10, None, 600), spread);
        assert_eq!(steps(10, None, 199).len(), 20, "1, 10, ... 190: as often as the rest");
        assert_eq!(
            steps(10, None, 200),
            [1].into_iter().chain((1..20).map(|part| part * 10)).collect::<Vec<_>>()
        );
        assert_eq!(steps(1, None, 37), (1..=20).collect::<Vec<_>>());
        assert_eq!(
            steps(1, None, 38),
            [1].into_iter().chain((1..20).map(|part| part * 2)).collect::<Vec<_>>()
        );
        assert_eq!(steps(1, None, 19), (1..=19).collect::<Vec<_>>());
    }

    #[test]
    fn a_line_says_which_experts_became_hot() {
        let lines = |last: &[Vec<u32>], hot: &[Vec<u32>]| hot_lines(7, &loads(), last, hot);
        let (first, then) = ([vec![0, 1], vec![0, 1]], [vec![0, 1], vec![1, 3]]);
        assert_eq!(lines(&[], &first), ["step 7: hot experts by layer: 1 [0, 1], 2 [0, 1]"]);
        assert_eq!(lines(&first, &then), ["step 7: hot experts of layer 2: [1, 3] after [0, 1]"]);
        assert!(lines(&then, &then).is_empty());
    }

    #[test]
    fn the_distribution_is_written_every_so_often() {
        let folder = tempfile::tempdir().unwrap();
        let steps = CollectedSteps::new(1, Some(5), 10);
        let mut distribution = TokenDistribution::new(folder.path(), "small", steps);
        for step in 1..=10 {
            let metrics = StepMetrics { step, ..StepMetrics::default() };
            distribution
                .step(&StepReport { metrics: &metrics, loads: Some(&loads()), watched: &[] })
                .unwrap();
        }
        let tensors = folder.path().join("export_small/tensor");
        let mut names: Vec<_> =
            std::fs::read_dir(&tensors).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
        let of = |layer| [1, 10, 5].map(|step| format!("layer-{layer}_{step}.npy"));
        assert_eq!(names, [of(1), of(2)].concat());
        assert_eq!(npy::read(&tensors.join("layer-2_5.npy")).unwrap(), [0.0, 20.0, 0.0, 0.0]);
    }
}

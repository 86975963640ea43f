//! What a run reports about its experts: numbers in `metrics.jsonl`, log lines, and the files that `gristmill token-distribution`
//! plots.

use std::path::{Path, PathBuf};

use super::expert_load::{LayerLoad, MixtureReport};
use super::instrument::{Instrument, StepReport};
use super::metrics::StepMetrics;
use crate::durable::ChosenBy;
use crate::error::Result;
use crate::store::npy;

/// Which numbers about experts a step has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpertMetrics {
    /// Slots of an expert relative to an equal share of the choices; `None` where no token is dropped.
    pub capacity_factor: Option<f64>,
    /// Whether the objective has a balance loss.
    pub has_balance_loss: bool,
    /// Whether the objective has a z-loss.
    pub has_z_loss: bool,
}

/// A log line for each layer with the share of its choices that were dropped.
#[derive(Clone, Copy, Debug)]
pub struct DropRates;

/// What chose the folder of these files.
const SUMMARY_DIR: ChosenBy = ChosenBy("summary_dir of SummaryMonitor");

/// Files with the choices of each expert, `layer-L_STEP.npy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenDistribution {
    folder: PathBuf,
    every_steps: u64,
}

impl ExpertMetrics {
    /// Fills in the numbers about experts.
    pub fn measure(&self, report: &MixtureReport, metrics: &mut StepMetrics) {
        let each = |number: &dyn Fn(&LayerLoad) -> f32| Some(report.layers.iter().map(number).collect());
        let sum =
            |is_on: bool, loss: fn(&LayerLoad) -> f32| is_on.then(|| report.layers.iter().map(loss).sum());
        metrics.drop_rate = each(&LayerLoad::drop_rate);
        metrics.drop_rate_estimate = each(&|layer| layer.drop_rate_estimate(self.capacity_factor));
        metrics.expert_load_entropy = each(&LayerLoad::entropy);
        metrics.expert_load_max_over_mean = each(&LayerLoad::max_over_mean);
        metrics.load_balancing_loss = sum(self.has_balance_loss, |layer| layer.balance_loss);
        metrics.z_loss = sum(self.has_z_loss, |layer| layer.z_loss);
    }
}

impl Instrument for DropRates {
    fn step(&mut self, report: &StepReport<'_>) -> Result<()> {
        let layers = report.mixture.iter().flat_map(|mixture| &mixture.layers);
        layers.for_each(|layer| tracing::info!("{}", drop_rate_line(layer)));
        Ok(())
    }
}

impl TokenDistribution {
    /// The distribution of the run called `run_name`, written every `every_steps` steps below `summary_dir`.
    pub fn new(summary_dir: &Path, run_name: &str, every_steps: u64) -> Self {
        // MindFormers' folder name ends with a time, so a resumed run has two folders there.
        Self { folder: summary_dir.join(format!("export_{run_name}")).join("tensor"), every_steps }
    }

    /// Creates the folder, so that one that cannot be written is found before the first step.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn create_folder(&self) -> Result<()> {
        SUMMARY_DIR.create_folder(&self.folder)
    }

    /// One vector per layer: how often each expert was chosen. A float32 holds counts up to 2^24 exactly.
    fn write(&self, step: u64, report: &MixtureReport) -> Result<()> {
        self.create_folder()?;
        for layer in &report.layers {
            let counts: Vec<f32> = layer.chosen.iter().map(|count| *count as f32).collect();
            npy::write(SUMMARY_DIR, &self.folder.join(format!("layer-{}_{step}.npy", layer.layer)), &counts)?;
        }
        Ok(())
    }
}

impl Instrument for TokenDistribution {
    fn step(&mut self, report: &StepReport<'_>) -> Result<()> {
        let step = report.metrics.step;
        let due = report.mixture.filter(|_| step.is_multiple_of(self.every_steps));
        due.map_or(Ok(()), |mixture| self.write(step, mixture))
    }
}

/// The line of MindFormers' `MoEDropRateCallback`, with the share that was in fact dropped.
pub(crate) fn drop_rate_line(load: &LayerLoad) -> String {
    format!("layer: {}, drop_rate: {:.5}", load.layer, load.drop_rate())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> MixtureReport {
        let layer = |layer, chosen: [u32; 4], dropped| LayerLoad {
            layer,
            chosen: chosen.to_vec(),
            last: vec![5, 3, 1, 1],
            dropped,
            choices: 20,
            balance_loss: 0.25,
            z_loss: 0.5,
        };
        MixtureReport { layers: vec![layer(1, [5, 5, 5, 5], 0), layer(2, [0, 20, 0, 0], 5)] }
    }

    #[test]
    fn metrics_have_a_number_a_layer() {
        let measured = |which: ExpertMetrics| {
            let mut metrics = StepMetrics { step: 4, ..StepMetrics::default() };
            which.measure(&report(), &mut metrics);
            metrics
        };
        let limited = ExpertMetrics { capacity_factor: Some(1.5), has_balance_loss: true, has_z_loss: false };
        let metrics = measured(limited);
        assert_eq!(metrics.drop_rate, Some(vec![0.0, 0.25]));
        assert_eq!(metrics.drop_rate_estimate, Some(vec![0.125; 2]));
        assert_eq!(metrics.expert_load_entropy, Some(vec![1.0, 0.0]));
        assert_eq!(metrics.expert_load_max_over_mean, Some(vec![1.0, 4.0]));
        assert_eq!((metrics.load_balancing_loss, metrics.z_loss), (Some(0.5), None));
        let metrics = measured(ExpertMetrics { has_z_loss: true, ..ExpertMetrics::default() });
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
        let lines: Vec<String> = report().layers.iter().map(drop_rate_line).collect();
        assert_eq!(lines, ["layer: 1, drop_rate: 0.00000", "layer: 2, drop_rate: 0.25000"]);
    }

    #[test]
    fn the_distribution_is_written_every_so_often() {
        let folder = tempfile::tempdir().unwrap();
        let mut distribution = TokenDistribution::new(folder.path(), "small", 5);
        for step in 1..=10 {
            let metrics = StepMetrics { step, ..StepMetrics::default() };
            distribution
                .step(&StepReport { metrics: &metrics, mixture: Some(&report()), watched: &[] })
                .unwrap();
        }
        let tensors = folder.path().join("export_small/tensor");
        let mut names: Vec<_> =
            std::fs::read_dir(&tensors).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["layer-1_10.npy", "layer-1_5.npy", "layer-2_10.npy", "layer-2_5.npy"]);
        assert_eq!(npy::read(&tensors.join("layer-2_5.npy")).unwrap(), [0.0, 20.0, 0.0, 0.0]);
    }
}

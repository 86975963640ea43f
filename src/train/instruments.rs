//! What a run shows of its experts: numbers in `metrics.jsonl`, a log line, files for `gristmill token-distribution`.

use std::path::PathBuf;

use super::durable::create_folder_of;
use super::expert_load::{LayerLoad, MixtureReport};
use super::metrics::StepMetrics;
use super::npy;
use crate::error::Result;
use crate::model::config::Dispatch;
use crate::settings::RunPlan;

/// The instruments of a run whose model has experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertInstruments {
    dispatch: Dispatch,
    has_balance_loss: bool,
    has_z_loss: bool,
    logs_drop_rate: bool,
    distribution: Option<TokenDistribution>,
}

/// Where and when each layer's choices are written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TokenDistribution {
    folder: PathBuf,
    every_steps: u64,
}

impl ExpertInstruments {
    /// Those that `plan` asks for; `None` for a dense model.
    pub fn new(plan: &RunPlan) -> Option<Self> {
        let mixture = plan.model.mixture.as_ref()?;
        let distribution = plan.instruments.token_distribution.as_ref().map(|summary| TokenDistribution {
            // The original's folder ends with the time, so that a resumed run has two.
            folder: summary.folder.join(format!("export_{}", plan.settings.run.run_name)).join("tensor"),
            every_steps: summary.every_steps,
        });
        Some(Self {
            dispatch: mixture.dispatch,
            has_balance_loss: mixture.losses.expert > 0.0 || mixture.losses.sequence > 0.0,
            has_z_loss: mixture.losses.z > 0.0,
            logs_drop_rate: plan.instruments.logs_drop_rate,
            distribution,
        })
    }

    /// Makes the folder of the distribution, so that a wrong one is found before the first step.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn prepare(&self) -> Result<()> {
        self.distribution.as_ref().map_or(Ok(()), |distribution| {
            create_folder_of("summary_dir of SummaryMonitor", &distribution.folder)
        })
    }

    /// Shows `report` of step number `step`: logs the drop rates where asked for, and writes the distribution where the step
    /// is one of those.
    ///
    /// # Errors
    /// A file of the distribution cannot be written.
    pub fn show(&self, report: &MixtureReport, step: u64) -> Result<()> {
        if self.logs_drop_rate {
            report.layers.iter().for_each(|layer| tracing::info!("{}", drop_rate_line(layer)));
        }
        match &self.distribution {
            Some(distribution) if step.is_multiple_of(distribution.every_steps) => {
                distribution.write(step, report)
            }
            _ => Ok(()),
        }
    }

    /// Fills in the numbers of the step that `metrics` is about.
    pub fn measure(&self, report: &MixtureReport, metrics: &mut StepMetrics) {
        let each = |number: &dyn Fn(&LayerLoad) -> f32| Some(report.layers.iter().map(number).collect());
        let sum =
            |is_on: bool, loss: fn(&LayerLoad) -> f32| is_on.then(|| report.layers.iter().map(loss).sum());
        metrics.drop_rate = each(&LayerLoad::drop_rate);
        metrics.drop_rate_estimate = each(&|layer| layer.drop_rate_estimate(&self.dispatch));
        metrics.expert_load_entropy = each(&LayerLoad::entropy);
        metrics.expert_load_max_over_mean = each(&LayerLoad::max_over_mean);
        metrics.load_balancing_loss = sum(self.has_balance_loss, |layer| layer.balance_loss);
        metrics.z_loss = sum(self.has_z_loss, |layer| layer.z_loss);
    }
}

/// The line of the original's `MoEDropRateCallback`, with the share that really was dropped.
pub fn drop_rate_line(load: &LayerLoad) -> String {
    format!("layer: {}, drop_rate: {:.5}", load.layer, load.drop_rate())
}

impl TokenDistribution {
    fn create_folder(&self) -> Result<()> {
        create_folder_of("summary_dir of SummaryMonitor", &self.folder)
    }

    /// One vector a layer: how often each expert was chosen. A float32 holds counts to 2^24 exactly.
    fn write(&self, step: u64, report: &MixtureReport) -> Result<()> {
        self.create_folder()?;
        for layer in &report.layers {
            let counts: Vec<f32> = layer.chosen.iter().map(|count| *count as f32).collect();
            npy::write(&self.folder.join(format!("layer-{}_{step}.npy", layer.layer)), &counts)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::settings::{Override, RunConfig};

    fn plan(moe: &str, folder: &Path) -> RunPlan {
        let text = format!(
            "model: {{model_config: {{vocab_size: 256, hidden_size: 64, num_layers: 3, num_heads: 4, seq_length: 32}}}}\n\
             moe_config: {{expert_num: 4, first_k_dense_replace: 1, {moe}}}\n\
             lr_schedule: {{learning_rate: 1e-3}}\n\
             train_dataset: {{data_loader: {{type: CargoRegistryDataLoader}}}}\n\
             callbacks: [{{type: SummaryMonitor, summary_dir: '{}', collect_freq: 5}}]\n",
            folder.display()
        );
        let overrides = Override::parse_all([""; 0]).unwrap();
        RunConfig::parse(&text, Path::new("small.yaml"), &overrides).unwrap().plan
    }

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
        let folder = tempfile::tempdir().unwrap();
        let shown = |moe: &str| {
            let mut metrics = StepMetrics { step: 4, ..StepMetrics::default() };
            ExpertInstruments::new(&plan(moe, folder.path())).unwrap().measure(&report(), &mut metrics);
            metrics
        };
        let metrics = shown("capacity_factor: 1.5, aux_loss_types: [expert], aux_loss_factors: [0.1]");
        assert_eq!(metrics.drop_rate, Some(vec![0.0, 0.25]));
        assert_eq!(metrics.drop_rate_estimate, Some(vec![0.125; 2]));
        assert_eq!(metrics.expert_load_entropy, Some(vec![1.0, 0.0]));
        assert_eq!(metrics.expert_load_max_over_mean, Some(vec![1.0, 4.0]));
        assert_eq!((metrics.load_balancing_loss, metrics.z_loss), (Some(0.5), None));
        let metrics = shown("use_gmm: True, z_loss_factor: 0.1");
        assert_eq!(metrics.drop_rate_estimate, Some(vec![0.0; 2]));
        assert_eq!((metrics.load_balancing_loss, metrics.z_loss), (None, Some(1.0)));
        let line = serde_json::to_string(&metrics).unwrap();
        let expected = "\"drop_rate\":[0.0,0.25],\"drop_rate_estimate\":[0.0,0.0],\"expert_load_entropy\":[1.0,0.0],\
            \"expert_load_max_over_mean\":[1.0,4.0],\"z_loss\":1.0}";
        assert!(line.ends_with(expected), "{line}");
        assert_eq!(serde_json::from_str::<StepMetrics>(&line).unwrap(), metrics);
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            0,
            "nothing asked for the distribution"
        );
    }

    #[test]
    fn the_line_is_the_originals() {
        let lines: Vec<String> = report().layers.iter().map(drop_rate_line).collect();
        assert_eq!(lines, ["layer: 1, drop_rate: 0.00000", "layer: 2, drop_rate: 0.25000"]);
    }

    #[test]
    fn the_distribution_is_written_every_so_often() {
        let folder = tempfile::tempdir().unwrap();
        let instruments =
            ExpertInstruments::new(&plan("save_token_distribution: True", folder.path())).unwrap();
        for step in 1..=10 {
            instruments.show(&report(), step).unwrap();
        }
        let tensors = folder.path().join("export_small/tensor");
        let mut names: Vec<_> =
            std::fs::read_dir(&tensors).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["layer-1_10.npy", "layer-1_5.npy", "layer-2_10.npy", "layer-2_5.npy"]);
        assert_eq!(npy::read(&tensors.join("layer-2_5.npy")).unwrap(), [0.0, 20.0, 0.0, 0.0]);
    }

    #[test]
    fn a_dense_model_has_none() {
        let mut plan = plan("use_gmm: True", Path::new("nowhere"));
        plan.model.mixture = None;
        assert_eq!(ExpertInstruments::new(&plan), None);
    }
}

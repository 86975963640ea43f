//! What a run in this process leaves.

use super::{Setup, Weights, tensors};
use gristmill::device::Gpu;
use gristmill::ops::step_state::StepState;
use gristmill::ranks::Ranks;
use gristmill::report::expert_load::LayerLoad;
use gristmill::report::metrics::MonitorValue;
use gristmill::settings::RunPlan;
use gristmill::train::length::RunLength;
use gristmill::train::monitors::MonitorReport;
use gristmill::train::{FinishedStep, Trainer};
use pollster::block_on;
use std::path::Path;

/// What a run leaves: the state after each step, and for mixtures what the experts did in it; weights and the last
/// step's gradients.
#[derive(Debug, PartialEq)]
pub struct Trained {
    pub states: Vec<StepState>,
    pub reports: Vec<Vec<LayerLoad>>,
    /// The sums of squares of each parameter's gradients, where they are asked for.
    pub local_norms: Vec<Vec<f32>>,
    /// The numbers of `monitor_config` after each step.
    pub watched: Vec<Vec<MonitorValue>>,
    pub weights: Weights,
    pub gradients: Weights,
}

impl Trained {
    /// The choices that were dropped in the whole run.
    pub fn dropped(&self) -> u32 {
        self.reports.iter().flatten().map(|layer| layer.dropped).sum()
    }
}

impl Setup {
    /// Trains `steps` steps.
    pub fn train(&self, steps: u64) -> Trained {
        self.train_plan(&self.plan(), None, steps)
    }

    /// Trains `steps` steps of `plan`, which may differ from this setup's own, from the weights in the file `load`
    /// where one is given.
    pub fn train_plan(&self, plan: &RunPlan, load: Option<&Path>, steps: u64) -> Trained {
        self.train_plan_on(plan, load, steps, Ranks::alone())
    }

    /// The same as one of `ranks`.
    pub fn train_plan_on(&self, plan: &RunPlan, load: Option<&Path>, steps: u64, ranks: Ranks) -> Trained {
        let gpu = self.gpu_for(plan);
        self.train_on_device(&gpu, plan, load, steps, ranks)
    }

    /// The same on a device that is open.
    pub fn train_on_device(
        &self,
        gpu: &Gpu,
        plan: &RunPlan,
        load: Option<&Path>,
        steps: u64,
        ranks: Ranks,
    ) -> Trained {
        self.train_watched(gpu, plan, load, steps, ranks, |_, _| {})
    }

    /// The same, and `watch` is shown the trainer after each step.
    pub fn train_watched(
        &self,
        gpu: &Gpu,
        plan: &RunPlan,
        load: Option<&Path>,
        steps: u64,
        ranks: Ranks,
        mut watch: impl FnMut(&mut Trainer<'_>, u64),
    ) -> Trained {
        let data = plan.load_data().unwrap_or_else(|e| panic!("{e}"));
        let length = RunLength::new(plan, data.train.steps_per_epoch());
        let trainer = block_on(Trainer::on_rank(gpu, plan, &length, ranks));
        let mut trainer = trainer.unwrap_or_else(|e| panic!("{e}"));
        if let Some(path) = load {
            trainer.load_weights(path, false).unwrap_or_else(|e| panic!("{e}"));
        }
        let mut finished: Vec<FinishedStep> = Vec::new();
        for step in 0..steps {
            let first = step * plan.settings.runner.gradient_accumulation_steps as u64;
            block_on(trainer.step(step + 1, &data.train, first)).unwrap_or_else(|e| panic!("{e}"));
            finished.extend(trainer.finished_steps().expect("states"));
            watch(&mut trainer, step + 1);
        }
        block_on(trainer.wait()).expect("the device");
        finished.extend(trainer.finished_steps().expect("states"));
        assert_eq!(finished.len() as u64, steps, "each step gives one state");
        let board =
            MonitorReport::new(plan, &trainer.recordings().monitors, trainer.recordings().whole.len());
        Trained {
            states: finished.iter().map(|step| step.state).collect(),
            local_norms: finished.iter().filter_map(|step| board.squares(step)).collect(),
            watched: finished.iter().map(|step| board.values(step)).collect(),
            reports: finished.into_iter().filter_map(|step| step.loads).collect(),
            weights: tensors(&trainer, |arenas| &arenas.weights),
            gradients: tensors(&trainer, |arenas| &arenas.gradients),
        }
    }
}

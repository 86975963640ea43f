//! How long a run is, once its data is known.

use super::schedule::Schedule;
use crate::settings::RunPlan;

/// The length of a run and of its schedules.
///
/// # Examples
///
/// ```
/// use gristmill::settings::RunConfig;
/// use gristmill::train::length::RunLength;
///
/// # fn main() -> gristmill::error::Result<()> {
/// let text = "
/// model:
///   model_config: {vocab_size: 32, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: 8}
/// runner_config: {epochs: 3}
/// lr_schedule: {type: LinearWithWarmUpLR, learning_rate: 1.0e-2, warmup_steps: 2}
/// ";
/// let length = RunLength::new(&RunConfig::in_memory(text, &[])?.plan, 10); // steps of an epoch
/// assert_eq!(length.total_steps, 30);
/// assert_eq!(length.schedule.lr_at(2), 1e-2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RunLength {
    /// Whole steps in an epoch.
    pub steps_per_epoch: u64,
    /// Steps that the run takes.
    pub total_steps: u64,
    /// The learning rate of every step.
    pub schedule: Schedule,
    /// The learning rates of the parameter groups that have schedules of their own.
    pub group_schedules: Vec<Schedule>,
}

impl RunLength {
    /// The length of `plan` on data with `steps_per_epoch`.
    ///
    /// The schedule spans `lr_schedule.total_steps` or, without it, all epochs: a `stop_step` ends the run early
    /// without changing the rates before it, so that a run that is stopped and resumed equals one that never stopped.
    pub fn new(plan: &RunPlan, steps_per_epoch: u64) -> Self {
        let runner = &plan.settings.runner;
        let run_steps = runner.epochs.saturating_mul(steps_per_epoch);
        let stop = Some(runner.stop_step).filter(|step| *step > 0);
        let resolve = |schedule| Schedule::new(schedule, run_steps, steps_per_epoch);
        let groups = plan.settings.groups.iter().map(|group| resolve(&group.schedule));
        let pet = plan.settings.model.pet_config.as_ref().filter(|pet| pet.has_own_rate_of_b());
        let of_second_factors = pet.map(|pet| resolve(&plan.settings.schedule).times(pet.loraplus_lr_ratio));
        Self {
            steps_per_epoch,
            total_steps: stop.map_or(run_steps, |stop| run_steps.min(stop)),
            schedule: resolve(&plan.settings.schedule),
            group_schedules: groups.chain(of_second_factors).collect(),
        }
    }

    /// A line that says that the run continues beyond the end of a schedule, which its `total_steps` sets.
    pub(crate) fn outlived(&self) -> Option<String> {
        let schedules = [&self.schedule].into_iter().chain(&self.group_schedules);
        let ends = |schedule: &&Schedule| {
            schedule.depends_on_length() && (1..self.total_steps).contains(&schedule.total_steps())
        };
        schedules.into_iter().find(ends).map(|schedule| {
            let (end, last) = (schedule.total_steps(), schedule.lr_at(self.total_steps - 1));
            let last = if last == 0.0 { "0".to_string() } else { format!("{last:e}") };
            format!(
                "the learning rate stays at {last} after step {end}, where its schedule ends as `total_steps` says, and the run \
                 has {} steps: write as many there, or leave it out",
                self.total_steps
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Override, RunConfig};
    use std::path::Path;

    const TEXT: &str = "
model:
  model_config: { vocab_size: 256, hidden_size: 64, num_layers: 2, num_heads: 4, seq_length: 32 }
runner_config: { epochs: 2 }
train_dataset:
  data_loader: { type: CargoRegistryDataLoader }
";

    fn length(schedule: &str, flags: &[&str], steps_per_epoch: u64) -> RunLength {
        let overrides = Override::parse_all(flags.iter().copied()).unwrap();
        let config = RunConfig::parse(&format!("{TEXT}{schedule}"), Path::new("x.yaml"), &overrides).unwrap();
        RunLength::new(&config.plan, steps_per_epoch)
    }

    #[test]
    fn stopping_early_does_not_change_the_schedule() {
        let rates = |stop: &str| {
            let length =
                length("lr_schedule: { type: cosine, learning_rate: 1e-3 }", &["--stop_step", stop], 100);
            (length.total_steps, (0..10).map(|step| length.schedule.lr_at(step)).collect::<Vec<_>>())
        };
        assert_eq!((rates("0").0, rates("10").0), (200, 10));
        assert_eq!(rates("0").1, rates("10").1);
    }

    #[test]
    fn a_schedule_that_the_run_outlives_is_told() {
        let of = |kind: &str, more: &str, flags: &[&str]| {
            length(&format!("lr_schedule: {{ type: {kind}, learning_rate: 1e-3{more} }}"), flags, 6)
                .outlived()
        };
        for (kind, more, flags, expected) in [
            ("linear", ", total_steps: 6", &[][..], Some("stays at 0 after step 6")),
            ("cosine", ", total_steps: 6, lr_end: 1e-4", &[], Some("stays at 1e-4 after step 6")),
            ("linear", ", total_steps: 6", &["--epochs=1"], None),
            ("linear", ", total_steps: 6", &["--stop_step=6"], None),
            ("linear", "", &[], None),
            ("constant_with_warmup", ", warmup_steps: 2, total_steps: 6", &[], None),
        ] {
            let line = of(kind, more, flags);
            assert_eq!(line.is_some(), expected.is_some(), "{kind}{more} {flags:?}: {line:?}");
            assert!(
                expected.is_none_or(|said| line.as_ref().is_some_and(|line| line.contains(said))),
                "{line:?}"
            );
        }
    }

    #[test]
    fn epochs_and_groups_become_steps() {
        let megatron =
            "lr_schedule: { type: linear, learning_rate: 1e-3, warmup_epochs: 1, total_steps: 50 }";
        let length = length(megatron, &["--epochs=3", "--stop_step=9"], 7);
        let schedule = &length.schedule;
        assert_eq!((length.total_steps, schedule.total_steps(), schedule.warmup_steps()), (9, 50, 7));
        let grouped = "grouped_lr_schedule:
  default: { type: ConstantWarmUpLR, learning_rate: 2e-4, warmup_steps: 20 }
  grouped:
    - { type: linear, params: [embedding], learning_rate: 1e-4, warmup_ratio: 0.1 }
    - { type: LearningRateWiseLayer, params: [layers.1], lr_scale: 0.5, base_lr: { learning_rate: 4e-4 } }";
        let length = self::length(grouped, &[], 50);
        let rates: Vec<f64> = length.group_schedules.iter().map(|schedule| schedule.lr_at(10)).collect();
        assert_eq!((length.schedule.lr_at(10), rates), (1e-4, vec![1e-4, 2e-4]));
    }
}

//! How long a run is, once its data is known.

use super::schedule::Schedule;
use crate::settings::RunPlan;

/// The length of a run and of its schedules.
#[derive(Clone, Debug, PartialEq)]
pub struct RunLength {
    /// Whole steps in an epoch.
    pub steps_per_epoch: u64,
    /// Steps that the run takes.
    pub total_steps: u64,
    /// The learning rate of every step.
    pub schedule: Schedule,
    /// Those of the parameter groups that have one of their own.
    pub group_schedules: Vec<Schedule>,
}

impl RunLength {
    /// The length of `plan` on data with `steps_per_epoch`.
    ///
    /// The schedule spans `lr_schedule.total_steps` or, without it, all epochs: a `stop_step` ends the run early without
    /// changing the rates before it, so that a run stopped and resumed is the run that never stopped.
    pub fn new(plan: &RunPlan, steps_per_epoch: u64) -> Self {
        let runner = &plan.settings.runner;
        let run_steps = runner.epochs.saturating_mul(steps_per_epoch);
        let stop = Some(runner.stop_step).filter(|step| *step > 0);
        let resolve = |config| Schedule::new(config, run_steps, steps_per_epoch);
        Self {
            steps_per_epoch,
            total_steps: stop.map_or(run_steps, |stop| run_steps.min(stop)),
            schedule: resolve(&plan.schedule),
            group_schedules: plan.group_schedules.iter().map(resolve).collect(),
        }
    }
}

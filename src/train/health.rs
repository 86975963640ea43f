//! Whether training makes progress: a run whose steps fail one after the other ends with an error.

use crate::error::{Error, Result};
use crate::ops::step_state::{HALTED, SKIPPED, StepState};
use crate::train::step_results::FinishedStep;

/// Number of failed steps in a row that ends a run. A step fails if a gradient is not finite, so that its update is
/// skipped, or if its loss is not finite. The weights do not move then, so a run survives a few faulty batches, and
/// nothing else. A step after which the loss scale falls is not counted: an adaptive scale may take 32 steps from 2^32
/// to its minimum of 1. From there on it no longer falls, and steps count. A loss that is not finite always counts,
/// since no scale mends it.
pub(super) const MAX_FAILED_STEPS: u64 = 20;

/// Counts of the steps of this process, as far as the host knows them: on a GPU a few steps late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Health {
    /// Number of steps in a row, skipped because of their norm, that ends a run.
    max_spikes: u64,
    /// Steps that did not fail.
    sound: u64,
    /// Failed steps since the last one that did not fail.
    failed: u64,
    /// Failed steps among these that a falling loss scale does not explain.
    unexplained: u64,
    /// Steps skipped because of their norm since the last one that was not.
    spikes: u64,
    /// The last step.
    last: u64,
    /// Whether the loss of the last step is a number.
    has_loss: bool,
    /// The first step from which on the device makes no updates, with its loss and its norm.
    halted: Option<(u64, f32, f32)>,
}

impl Health {
    /// The state of a run that ends after `max_spikes` steps in a row that were skipped because of their norm.
    pub fn new(max_spikes: u64) -> Self {
        Self { max_spikes, ..Self::default() }
    }

    /// Counts a step.
    pub fn note(&mut self, finished: &FinishedStep) {
        let FinishedStep {
            step,
            state: StepState { loss, loss_scale, halt, is_overflow, grad_norm, .. },
            ..
        } = *finished;
        self.last = step;
        self.has_loss = loss.is_finite();
        self.spikes = if halt == SKIPPED { self.spikes + 1 } else { 0 };
        if is_overflow == 0 && self.has_loss {
            (self.sound, self.failed, self.unexplained) = (self.sound + 1, 0, 0);
        } else {
            let falls = finished.scaler.is_some_and(|scaler| scaler.loss_scale < loss_scale);
            self.failed += 1;
            self.unexplained += u64::from(!falls || !self.has_loss);
        }
        if halt == HALTED {
            self.halted.get_or_insert((step, loss, grad_norm));
        }
    }

    /// Whether the last step failed.
    pub fn is_failing(&self) -> bool {
        self.failed > 0
    }

    /// Fails if too many steps in a row have failed or were skipped because of their norm, or if the device has halted;
    /// `newest` finds the step of the newest checkpoint.
    ///
    /// # Errors
    /// One line: the steps, and what to do.
    pub fn check(&self, newest: impl FnOnce() -> Option<u64>) -> Result<()> {
        if let Some(halted) = self.halted {
            return Err(halt_error(halted, newest()));
        }
        if self.max_spikes > 0 && self.spikes >= self.max_spikes {
            return Err(self.spike_error(newest()));
        }
        if self.unexplained < MAX_FAILED_STEPS { Ok(()) } else { Err(self.error(newest())) }
    }

    /// Fails at the end of a run if no step was sound, or if the last step had no loss.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_end(&self, newest: impl FnOnce() -> Option<u64>) -> Result<()> {
        if self.is_lost() { Err(self.error(newest())) } else { Ok(()) }
    }

    /// Whether a checkpoint of the last step would be worthless: the step failed, and either no step of this process
    /// was sound or the step has no loss.
    pub fn is_lost(&self) -> bool {
        self.is_failing() && (self.sound == 0 || !self.has_loss)
    }

    fn error(&self, newest: Option<u64>) -> Error {
        let what = if self.has_loss { "gradients were not finite" } else { "loss was not finite" };
        let (steps, rest) = (self.steps(self.failed), again(newest));
        Error::Diverged(format!(
            "training stopped because the {what} in {steps}; lower lr_schedule.learning_rate or runner_wrapper.scale_sense, \
             clip gradients, or look at the data, and {rest}"
        ))
    }

    fn spike_error(&self, newest: Option<u64>) -> Error {
        let (steps, rest) = (self.steps(self.spikes), again(newest));
        Error::Diverged(format!(
            "training stopped because {steps} had a gradient norm of runner_wrapper.global_norm_spike_threshold or more and \
             were skipped, as many as monitor_config.global_norm_spike_count_threshold says; raise one of them, lower \
             lr_schedule.learning_rate, or look at the data, and {rest}"
        ))
    }

    /// A phrase for the last `count` steps.
    fn steps(&self, count: u64) -> String {
        match count {
            1 => format!("step {}", self.last),
            count => format!("steps {} to {}", self.last + 1 - count, self.last),
        }
    }
}

fn halt_error((step, loss, norm): (u64, f32, f32), newest: Option<u64>) -> Error {
    // The norm is NaN or infinite if a gradient is.
    let (what, value) = if loss.is_finite() { ("global norm", norm) } else { ("loss", loss) };
    Error::Diverged(format!(
        "training stopped because the {what} of step {step} is {value} and check_for_nan_in_loss_and_grad is on; no weight has changed since the step before; look at the data, or write `False`, and {}",
        again(newest)
    ))
}

fn again(newest: Option<u64>) -> String {
    match newest {
        Some(step) => format!("start again from the checkpoint of step {step} with load_checkpoint"),
        None => "start again; no checkpoint was written before".to_string(),
    }
}

#[cfg(test)]
mod tests;

//! Whether training still gets anywhere: a run whose steps fail one after the other ends with an error.

use crate::error::{Error, Result};
use crate::ops::step_state::StepState;

/// Failed steps in a row that end a run. A step fails if a gradient is not finite, so that its update is skipped, or if its
/// loss is not. Neither the loss scale nor the weights move then, so a few batches at fault are survived, and nothing else.
pub(super) const MAX_FAILED_STEPS: u64 = 20;

/// The steps of this process, as they are known to the host: on a GPU a few steps late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Health {
    /// Steps that did not fail.
    sound: u64,
    /// Steps that failed since the last one that did not.
    failed: u64,
    /// The last step.
    last: u64,
    /// Whether the loss of the last step is a number.
    has_loss: bool,
}

impl Health {
    /// Takes in the state after step number `step`.
    pub fn note(&mut self, step: u64, state: &StepState) {
        self.last = step;
        self.has_loss = state.loss.is_finite();
        if state.is_overflow == 0 && self.has_loss {
            (self.sound, self.failed) = (self.sound + 1, 0);
        } else {
            self.failed += 1;
        }
    }

    /// Whether the last step failed.
    pub fn is_failing(&self) -> bool {
        self.failed > 0
    }

    /// Fails if too many steps have failed in a row; `newest` finds the step of the newest checkpoint.
    ///
    /// # Errors
    /// One line: the steps, and what to do.
    pub fn check(&self, newest: impl FnOnce() -> Option<u64>) -> Result<()> {
        if self.failed < MAX_FAILED_STEPS { Ok(()) } else { Err(self.error(newest())) }
    }

    /// Fails at the end of a run if no step was sound, or the last one had no loss.
    ///
    /// # Errors
    /// That of [`check`](Self::check).
    pub fn check_end(&self, newest: impl FnOnce() -> Option<u64>) -> Result<()> {
        if self.is_lost() { Err(self.error(newest())) } else { Ok(()) }
    }

    /// Whether a checkpoint of the last step would be worthless: it failed, and no step of this process was sound, or it has
    /// no loss.
    pub fn is_lost(&self) -> bool {
        self.is_failing() && (self.sound == 0 || !self.has_loss)
    }

    fn error(&self, newest: Option<u64>) -> Error {
        let what = if self.has_loss { "gradients were not finite" } else { "loss was not finite" };
        let steps = match self.failed {
            1 => format!("step {}", self.last),
            failed => format!("steps {} to {}", self.last + 1 - failed, self.last),
        };
        let rest = match newest {
            Some(step) => format!("start again from the checkpoint of step {step} with load_checkpoint"),
            None => "start again; no checkpoint was written before".to_string(),
        };
        Error::Diverged(format!(
            "training stopped because the {what} in {steps}; lower lr_schedule.learning_rate or runner_wrapper.scale_sense, \
             clip gradients, or look at the data, and {rest}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(steps: impl IntoIterator<Item = (bool, f32)>) -> Health {
        let mut health = Health::default();
        for (step, (overflows, loss)) in (1..).zip(steps) {
            health.note(step, &StepState { is_overflow: overflows.into(), loss, ..StepState::default() });
        }
        health
    }

    fn failures(count: u64) -> impl Iterator<Item = (bool, f32)> {
        (0..count).map(|_| (true, 2.0))
    }

    #[test]
    fn a_run_ends_after_so_many_failed_steps_in_a_row() {
        let sound = [(false, 2.0)];
        assert!(health(failures(MAX_FAILED_STEPS - 1)).check(|| None).is_ok());
        assert!(
            health(failures(MAX_FAILED_STEPS - 1).chain(sound).chain(failures(1))).check(|| None).is_ok()
        );
        let line = health(sound.into_iter().chain(failures(MAX_FAILED_STEPS))).check(|| Some(1)).unwrap_err();
        assert_eq!(
            line.to_string(),
            "training stopped because the gradients were not finite in steps 2 to 21; lower lr_schedule.learning_rate or \
             runner_wrapper.scale_sense, clip gradients, or look at the data, and start again from the checkpoint of step 1 \
             with load_checkpoint"
        );
    }

    #[test]
    fn a_short_run_may_not_end_without_a_sound_step_or_a_loss() {
        let end = |steps: &[(bool, f32)]| health(steps.iter().copied()).check_end(|| None);
        assert!(end(&[]).is_ok(), "nothing was left to do");
        assert!(end(&[(true, 2.0), (false, 2.0)]).is_ok());
        assert!(end(&[(false, 2.0), (true, 2.0)]).is_ok(), "one skipped update");
        assert!(end(&[(true, 2.0), (true, 2.0)]).is_err());
        let line = end(&[(false, 2.0), (false, f32::NAN)]).unwrap_err().to_string();
        assert!(line.starts_with("training stopped because the loss was not finite in step 2; "), "{line}");
        assert!(line.ends_with("start again; no checkpoint was written before"), "{line}");
    }
}

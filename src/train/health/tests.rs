//! Which steps end a run.

use super::*;
use crate::ops::loss_scale::LossScaleState;
use crate::train::monitors::WatchedStep;
use std::time::Instant;

const MAX_SPIKES: u64 = 3;

fn finished(state: StepState) -> FinishedStep {
    FinishedStep {
        step: 0,
        state,
        scaler: None,
        watched: WatchedStep::default(),
        ahead_loss: None,
        preference: None,
        loads: None,
        hot_experts: None,
        at: Instant::now(),
    }
}

fn health_of(steps: impl IntoIterator<Item = FinishedStep>) -> Health {
    let mut health = Health::new(MAX_SPIKES);
    for (step, finished) in (1..).zip(steps) {
        health.note(&FinishedStep { step, ..finished });
    }
    health
}

fn step((overflows, loss): (bool, f32)) -> FinishedStep {
    finished(StepState { is_overflow: overflows.into(), loss, ..StepState::default() })
}

fn health(steps: impl IntoIterator<Item = (bool, f32)>) -> Health {
    health_of(steps.into_iter().map(step))
}

fn failures(count: u64) -> impl Iterator<Item = (bool, f32)> {
    (0..count).map(|_| (true, 2.0))
}

/// Steps that overflow while the scale falls from 2^32 to 1, and `more` at 1.
fn falling(loss: f32, more: usize) -> impl Iterator<Item = FinishedStep> {
    let scales = (0..=32).rev().map(|power| 2f32.powi(power)).chain(std::iter::repeat_n(1.0, more));
    scales.map(move |loss_scale| {
        let scaler =
            Some(LossScaleState { loss_scale: (loss_scale / 2.0).max(1.0), ..LossScaleState::default() });
        FinishedStep {
            scaler,
            ..finished(StepState { loss_scale, loss, is_overflow: 1, ..StepState::default() })
        }
    })
}

#[test]
fn a_run_ends_after_so_many_failed_steps_in_a_row() {
    let sound = [(false, 2.0)];
    assert!(health(failures(MAX_FAILED_STEPS - 1)).check(|| None).is_ok());
    assert!(health(failures(MAX_FAILED_STEPS - 1).chain(sound).chain(failures(1))).check(|| None).is_ok());
    let line = health(sound.into_iter().chain(failures(MAX_FAILED_STEPS))).check(|| Some(1)).unwrap_err();
    assert_eq!(
        line.to_string(),
        "training stopped because the gradients were not finite in steps 2 to 21; lower lr_schedule.learning_rate or \
         runner_wrapper.scale_sense, clip gradients, or look at the data, and start again from the checkpoint of step 1 \
         with load_checkpoint"
    );
}

/// 32 steps from 2^32 to 1, then the 33rd step at 1, which is the first that counts.
#[test]
fn steps_after_which_the_loss_scale_falls_do_not_end_a_run() {
    let more = MAX_FAILED_STEPS as usize - 1;
    assert!(health_of(falling(2.0, more - 1)).check(|| None).is_ok());
    let line = health_of(falling(2.0, more)).check(|| None).unwrap_err().to_string();
    assert!(line.contains("the gradients were not finite in steps 1 to 52; "), "{line}");
    let line = health_of(falling(f32::NAN, 0).take(20)).check(|| None).unwrap_err().to_string();
    assert!(line.contains("the loss was not finite in steps 1 to 20; "), "{line}");
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

#[test]
fn steps_that_spike_in_a_row_end_a_run() {
    let halts = |halts: &[u32]| {
        let steps = halts.iter().map(|&halt| finished(StepState { halt, ..StepState::default() }));
        health_of(steps).check(|| None).map_err(|error| error.to_string())
    };
    assert!(halts(&[1, 1, 0, 1, 1]).is_ok());
    let line = halts(&[0, 1, 1, 1]).unwrap_err();
    assert!(line.starts_with("training stopped because steps 2 to 4 had a gradient norm of"), "{line}");
}

/// Later steps are known before the run ends; the error is about the first one.
#[test]
fn a_device_that_has_halted_ends_a_run() {
    let halted =
        |loss, grad_norm| finished(StepState { halt: HALTED, loss, grad_norm, ..StepState::default() });
    let line = |steps: [FinishedStep; 3]| health_of(steps).check(|| Some(4)).unwrap_err().to_string();
    let norm = line([step((false, 2.0)), halted(2.0, f32::INFINITY), halted(f32::NAN, 1.0)]);
    assert!(norm.starts_with("training stopped because the global norm of step 2 is inf and "), "{norm}");
    let loss = line([step((false, 2.0)), step((false, 2.0)), halted(f32::NAN, 1.0)]);
    assert!(loss.starts_with("training stopped because the loss of step 3 is NaN and "), "{loss}");
}

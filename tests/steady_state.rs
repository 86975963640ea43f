//! Once a run is under way it makes nothing new: replay only encodes, and the host waits for no result.

mod runs;

use gristmill::device::GpuCounters;
use gristmill::store::checkpoint_folder::CheckpointFolder;
use gristmill::store::trainer_state::{FORMAT_VERSION, TrainerState};
use gristmill::train::{FinishedStep, Trainer};
use pollster::block_on;
use runs::Setup;

const STEPS: u64 = 100;
const EVALUATION_AT: u64 = 40;
const CHECKPOINT_AT: u64 = 70;

/// Submissions the host may be ahead of the device are 3, and a step has at least 2: so a result is at most 2 steps late.
const LATEST: u64 = 2;

/// A run of 100 steps, one evaluation and one checkpoint in it.
#[test]
fn nothing_is_made_and_nothing_waited_for_after_the_second_step() {
    let mut setup = Setup::new("steady", "").with(&["--train_dataset.eval_fraction=0.3"]);
    setup.gpu_options.ahead = Some(3); // as on a GPU
    let (plan, data, length) = setup.data();
    let eval = data.eval.as_ref().expect("evaluation data");
    let gpu = setup.gpu();
    let mut trainer = block_on(Trainer::new(&gpu, &plan, &length)).unwrap_or_else(|e| panic!("{e}"));
    let folder = tempfile::tempdir().expect("a folder");
    let mut at_start: Option<GpuCounters> = None;
    let mut lags = Vec::new();
    let mut arrived = 0;
    let mut eval_losses = Vec::new();
    for step in 1..=STEPS {
        let first = (step - 1) * plan.settings.runner.gradient_accumulation_steps as u64;
        block_on(trainer.step(step, &data.train, first)).expect("a step");
        if step == EVALUATION_AT {
            let evaluation = trainer.evaluate(step, eval, eval.micro_steps_per_epoch(), |_| Ok(()));
            block_on(evaluation).expect("an evaluation");
        }
        for FinishedStep { step: number, state, .. } in trainer.finished_steps().expect("states") {
            assert_eq!(number, arrived + 1, "results come in order, each once");
            assert!(state.loss.is_finite() && state.step as u64 == number, "step {number}: {state:?}");
            arrived = number;
        }
        eval_losses
            .extend(trainer.finished_evaluations().expect("evaluations").iter().map(|e| (e.tag, e.loss)));
        lags.push(step - arrived);
        if step == CHECKPOINT_AT {
            save(&trainer, step, folder.path());
        }
        if step == 2 {
            // wgpu drops what is no longer used when it is polled.
            block_on(trainer.wait()).expect("the device");
            at_start = Some(gpu.counters());
        }
        // Looked at while steps are in flight, so that a buffer that lives for one step only is counted too.
        if let Some(before) = at_start {
            assert_eq!(
                gpu.counters(),
                before,
                "step {step}: pipelines, buffers or bind groups were made or dropped"
            );
        }
    }
    let late = lags.iter().filter(|&&lag| lag > 0).count();
    println!(
        "results came {:.2} steps late on average, at most {:?}",
        lags.iter().sum::<u64>() as f64 / STEPS as f64,
        lags.iter().max()
    );
    // A host that waited for each result would have every one at once.
    assert!(late as u64 >= STEPS / 2, "{late} of {STEPS} results were not waited for");
    // The evaluation's submissions come before the result of its step is asked for, so it counts as no delay.
    assert!(lags.iter().all(|&lag| lag <= LATEST), "results are up to {:?} steps late", lags.iter().max());
    assert_eq!(eval_losses.len(), 1, "one evaluation, never waited for");
    assert_eq!(eval_losses[0].0, EVALUATION_AT);

    let before = at_start.expect("step 2 is done");
    println!("after each of the steps 2 to {STEPS}: {before:?}");
    // Counters that count nothing prove nothing: wgpu is built with them, and this run has at least that much.
    assert!(before.pipelines > 10 && before.bind_groups > 50 && before.buffers > 10, "{before:?}");
    assert!(before.buffer_bytes as u64 > trainer.persistent_bytes() + trainer.pool_bytes(), "{before:?}");
}

fn save(trainer: &Trainer<'_>, step: u64, folder: &std::path::Path) {
    let state = TrainerState {
        format_version: FORMAT_VERSION,
        step,
        global_step: step,
        micro_step: 0,
        loss_scale: 1.0,
        data_fingerprint: 0,
        decisions: Default::default(),
    };
    let pending = CheckpointFolder::new(folder, 1).begin(step).expect("a folder");
    block_on(trainer.save(&state, &pending)).expect("a checkpoint");
    pending.commit().expect("a checkpoint");
}

//! What follows from evaluations: the checkpoint of the best one is kept and stands for the run, a run without a better
//! one ends, and both stay so through a resume and on several ranks.

use crate::runs::{FolderRun, STEPS, Setup, evaluated, metrics, new_trainer, on_ranks, run_on_rank};
use gristmill::ranks::Ranks;
use gristmill::store::checkpoint_folder::{Best, CheckpointFolder};
use gristmill::train::run::Summary;
use pollster::block_on;
use serde_json::Value;

/// A high rate on a short text, which is soon known by heart: neither the first evaluation is the best nor the last.
const UP_AND_DOWN: [&str; 2] =
    ["--lr_schedule={type: ConstantWarmUpLR, learning_rate: 1.0e-2, warmup_steps: 5}", "--keep_best=True"];

fn judged(overrides: &[&str]) -> FolderRun {
    evaluated(Setup::new("judged", "").wide(), 3, overrides)
}

fn checkpoints(run: &FolderRun) -> CheckpointFolder {
    CheckpointFolder::of_run(run.folder())
}

/// The evaluation with the lowest loss in the metrics.
fn least(run: &FolderRun) -> Best {
    let lines = metrics(&run.folder());
    let evaluations =
        lines.iter().filter_map(|line| Some(Best { step: line.step, eval_loss: line.eval_loss? }));
    evaluations.min_by(|one, other| one.eval_loss.total_cmp(&other.eval_loss)).expect("evaluations")
}

fn train(run: &FolderRun, more: &[&str]) -> Summary {
    let config = run.setup.write(run.home.path());
    let arguments = [run.arguments(STEPS), more.iter().map(|one| one.to_string()).collect()].concat();
    block_on(run_on_rank(&config, &arguments, Ranks::alone())).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_best_checkpoint_is_kept_and_stands_for_the_run() {
    let run = judged(&UP_AND_DOWN);
    let summary = train(&run, &[]);
    let want = least(&run);
    assert!(want.step > 5 && want.step < STEPS - 5, "{want:?} is no hard case");
    assert_eq!(summary.best, Some(want));
    let (best, path) = checkpoints(&run).best().expect("a note").expect("a best one");
    assert_eq!(best, want);
    let steps: Vec<u64> =
        checkpoints(&run).list().expect("a folder").into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [want.step, 39, 40], "the best beside the newest two");
    assert_eq!(run.open().weights, path.canonicalize().expect("a folder"));
    // It is there with another that is the only one kept.
    std::fs::remove_dir_all(&path).expect("a folder");
    assert_eq!(checkpoints(&run).chosen().expect("a folder").map(|(step, _)| step), Some(STEPS));
}

#[test]
fn a_run_that_stops_and_resumes_keeps_the_best_and_the_bits() {
    let whole = judged(&UP_AND_DOWN);
    whole.train(STEPS);
    let parts = judged(&UP_AND_DOWN);
    let best = least(&whole).step;
    for stop in [5, best, best + 5, STEPS] {
        parts.train(stop);
        // As after a kill between a checkpoint and the note that it is the best.
        let _ = std::fs::remove_file(parts.folder().join("checkpoint/best.json"));
    }
    // A start without a step notes it again.
    train(&parts, &[]);
    assert_eq!(checkpoints(&parts).best().expect("a note").map(|(best, _)| best), Some(least(&whole)));
    parts.left().assert_equals("stopped three times", &whole.left());
}

/// By its loop it may come to more checkpoints than are kept.
#[test]
#[ignore = "long; runs keep the best, and loops of one's own go on"]
fn a_loop_of_ones_own_keeps_the_best_of_the_run_that_it_continues() {
    const BEGUN: u64 = 30;
    let run = judged(&UP_AND_DOWN);
    run.train(BEGUN);
    let before = checkpoints(&run).best().expect("a note").expect("a best one");
    let (plan, data, length) = run.setup.data();
    let gpu = run.setup.gpu();
    let mut trainer = new_trainer(&gpu, &plan, &length);
    let saved = block_on(async {
        assert_eq!(trainer.resume(&run.folder(), &data.train).await?, BEGUN);
        for step in BEGUN + 1..=BEGUN + 3 {
            let micro_batches = plan.settings.runner.gradient_accumulation_steps as u64;
            trainer.step(step, &data.train, (step - 1) * micro_batches).await?;
            trainer.wait().await?;
            trainer.finished_steps()?;
            trainer.save(&run.folder(), &data.train).await?;
        }
        gristmill::error::Result::Ok(())
    });
    saved.unwrap_or_else(|e| panic!("{e}"));
    let steps: Vec<u64> =
        checkpoints(&run).list().expect("a folder").into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [before.0.step, BEGUN + 2, BEGUN + 3], "the best beside the newest two");
    assert_eq!(checkpoints(&run).best().expect("a note"), Some(before.clone()));
    assert_eq!(run.open().weights, before.1.canonicalize().expect("a folder"));
    drop(trainer);
    // The run goes on from there, and knows its best.
    assert_eq!(train(&run, &[]).best, Some(least(&run)));
}

#[test]
fn a_run_without_a_better_evaluation_ends() {
    let patience = ["--early_stopping_patience=2", "--min_delta=100"];
    let run = judged(&patience);
    for _ in 0..2 {
        let summary = train(&run, &[]);
        assert_eq!((summary.steps, summary.is_stopped, summary.is_interrupted), (15, true, false));
        assert_eq!(run.newest(), Some(15));
    }
    // With more patience it goes on.
    let summary = train(&run, &["--early_stopping_patience=4"]);
    assert_eq!((summary.steps, summary.is_stopped), (25, true));
    let unstopped = judged(&["--early_stopping_patience=2"]);
    assert!(!train(&unstopped, &[]).is_stopped, "each evaluation of this run is better");
}

#[test]
fn ranks_judge_alike() {
    let shared = [
        "--use_parallel=True",
        "--parallel.parallel_mode=0",
        "--runner_config.gradient_accumulation_steps=1",
    ];
    let run = judged(&[&shared[..], &UP_AND_DOWN, &["--early_stopping_patience=2"]].concat());
    let config = run.setup.write(run.home.path());
    let arguments = run.arguments(STEPS);
    let ended = on_ranks(2, |ranks| block_on(run_on_rank(&config, &arguments, ranks)).expect("a run"));
    let best = least(&run);
    assert!(
        ended.iter().all(|one| one.best == Some(best) && one.steps == best.step + 10 && one.is_stopped),
        "{ended:?}"
    );
    assert_eq!(checkpoints(&run).best().expect("a note").map(|(best, _)| best), Some(best));
}

#[test]
fn an_evaluation_before_the_first_step_changes_nothing_else() {
    let plain = judged(&[]);
    let started = judged(&["--eval_on_start=True"]);
    for run in [&plain, &started] {
        run.train(6);
    }
    started.left().assert_equals("evaluated at the start", &plain.left());
    let first = || -> Value {
        let text = std::fs::read_to_string(started.folder().join("metrics.jsonl")).expect("metrics");
        serde_json::from_str(text.lines().next().expect("a line")).expect("JSON")
    };
    assert_eq!((&first()["step"], first().as_object().expect("an object").len()), (&0.into(), 2));
    // A uniform guess among 256 bytes, by random weights.
    let loss = first()["eval_loss"].as_f64().expect("a loss");
    assert!((loss - 256_f64.ln()).abs() < 0.5, "{loss}");
    started.train(8);
    assert_eq!(first()["eval_loss"].as_f64(), Some(loss), "resuming leaves it");
}

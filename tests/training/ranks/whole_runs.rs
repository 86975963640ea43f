//! Runs on several ranks from a configuration file to a run folder.
//!
//! Ranks that were started otherwise, and a fault of one, are one line on all; an interrupt of one ends all after
//! the same step.

use super::spread::{Spread, run_each};
use crate::runs::{FolderRun, Setup, metrics, on_ranks};
use gristmill::error::Result;
use gristmill::store::checkpoint_folder::CheckpointFolder;
use gristmill::train::TrainingRun;
use gristmill::train::run::Summary;
use pollster::block_on;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A run of two layers, with few steps, in which all ranks share the batch.
fn small(overrides: &[&str]) -> FolderRun {
    let shared = ["--use_parallel=True", "--parallel.parallel_mode=0"];
    FolderRun::new(Setup::new("ranked", "").with(&shared).with(overrides))
}

fn lines(results: Vec<Result<Summary>>) -> Vec<String> {
    results.into_iter().map(|result| result.expect_err("a refusal").to_string()).collect()
}

#[test]
fn one_rank_writes_for_all() {
    let run = small(&["--monitor_config.device_local_metrics=True"]);
    let config = run.setup.write(run.home.path());
    let results = run_each(&config, &vec![Spread::sharded(2).arguments(&run, 3); 2]);
    let summaries: Vec<Summary> = results.into_iter().map(|result| result.expect("a run")).collect();
    assert_eq!(summaries[0], summaries[1]);
    let lines = metrics(&run.folder());
    assert_eq!(lines.iter().map(|line| line.step).collect::<Vec<_>>(), [1, 2, 3]);
    for numbers in lines.iter().flat_map(|line| [&line.rank_step_ms, &line.rank_memory_mib]) {
        let numbers = numbers.as_ref().expect("numbers of every rank");
        assert!(numbers.len() == 2 && numbers.iter().all(|number| *number > 0.0), "{numbers:?}");
    }
}

/// Two steps may be done when the signal of one rank has reached the others.
#[test]
fn an_interrupt_of_one_rank_ends_all_after_the_same_step() {
    let run = small(&[]);
    let config = run.setup.write(run.home.path());
    let arguments = Spread::sharded(3).arguments(&run, 9);
    let results = on_ranks(3, |ranks| {
        let interrupt = Arc::new(AtomicBool::new(ranks.rank() == 1));
        block_on(TrainingRun { interrupt, ranks, ..TrainingRun::new(&config, &arguments) }.train())
    });
    for result in results {
        let summary = result.expect("an interrupt is no error");
        assert_eq!((summary.steps, summary.is_interrupted), (2, true));
    }
    assert_eq!(run.newest(), Some(2));
}

/// Every rank ends with the same line when one cannot write.
#[test]
fn a_checkpoint_that_cannot_be_written_ends_all() {
    let run = small(&["--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 5}]"]);
    let config = run.setup.write(run.home.path());
    let blocked = std::thread::scope(|scope| {
        let folder = run.folder();
        scope.spawn(move || {
            while !folder.join("metrics.jsonl").exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::fs::write(folder.join("checkpoint"), "in the way").expect("a file");
        });
        lines(run_each(&config, &vec![Spread::sharded(2).arguments(&run, 9); 2]))
    });
    assert!(blocked[0].contains("cannot create the folder") && blocked[0] == blocked[1], "{blocked:?}");
}

#[test]
fn a_run_that_diverges_ends_on_all_ranks() {
    let run = small(&[
        "--lr_schedule={type: ConstantWarmUpLR, learning_rate: 1.e+16, warmup_steps: 2}",
        "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 1, keep_checkpoint_max: 1}]",
    ]);
    let config = run.setup.write(run.home.path());
    let diverged = lines(run_each(&config, &vec![Spread::sharded(2).arguments(&run, 60); 2]));
    assert!(diverged[0].starts_with("training stopped because the loss was not finite in steps 3 to 22; "));
    assert_eq!((&diverged[1], run.newest()), (&diverged[0], Some(2)));
}

/// Three micro-batches cannot be shared evenly, and all are counted once. The allowed error is that of losses in data
/// parallel.
#[test]
fn an_evaluation_is_that_of_one_rank() {
    let evaluated = |size: usize| {
        let accumulation = format!("--gradient_accumulation_steps={}", 4 / size);
        let eval = [
            "--do_eval",
            "--train_dataset.eval_fraction=0.3",
            "--eval_batches=3",
            "--metric={type: Accuracy}",
        ];
        let run = small(&eval);
        let run = FolderRun::new(run.setup.with(&[&accumulation]));
        let config = run.setup.write(run.home.path());
        let results = run_each(&config, &vec![run.arguments(2); size]);
        let summary = results.into_iter().next().expect("a rank").expect("a run");
        let accuracy = metrics(&run.folder())[1].eval_accuracy.expect("an accuracy");
        assert!(accuracy > 0.0 && accuracy < 1.0, "{accuracy}");
        [summary.loss.expect("a step"), summary.eval_loss.expect("an evaluation"), accuracy].map(f64::from)
    };
    let one = evaluated(1);
    for size in [2, 4] {
        let several = evaluated(size);
        for (got, want) in several.into_iter().zip(one) {
            let apart = (got - want).abs() / want;
            println!("{size} ranks: {got} where one has {want}, {apart:.1e} apart");
            assert!(apart <= 1e-6, "{size} ranks: {got} where one has {want}");
        }
    }
}

/// Of a model that no rank holds whole: the text that one rank writes which goes on from the same checkpoint.
#[test]
fn a_sample_is_that_of_one_rank() {
    let sample = "--sample={prompt: the, tokens: 12, temperature: 0.8}";
    let run = || FolderRun::new(Setup::new("sampled", "compute_dtype: bfloat16").with(&[sample]));
    let parts = Spread { stages: 2, ..Spread::divided(2) };
    for spread in [Spread::stages(2), Spread::divided(2), parts] {
        let run = run();
        let written = spread.train(&run, 3).sample.expect("a sample");
        assert_eq!(spread.train(&run, 3).sample.as_ref(), Some(&written), "{spread:?}, once more");
        assert_eq!(Spread::ONE.train(&run, 3).sample.as_ref(), Some(&written), "{spread:?}");
        assert!(written.starts_with("the") && written.len() > 10, "{written}");
    }
    let unsaved = FolderRun::new(run().setup.with(&["--save_final=False"]));
    assert_eq!(Spread::stages(2).train(&unsaved, 3).sample, None);
}

#[test]
fn ranks_that_differ_end_with_one_line() {
    let run = small(&[]);
    let config = run.setup.write(run.home.path());
    let mut arguments = vec![Spread { data: 3, ..Spread::ONE }.arguments(&run, 3); 3];
    arguments[1].push("--lr_schedule.learning_rate=1.e-4".into());
    let refused = lines(run_each(&config, &arguments));
    assert_eq!(
        refused[0],
        "rank 1: its settings have `learning_rate: 0.0001` where those of rank 0 have `learning_rate: 0.003`; start all ranks \
         with the same program, files and flags"
    );
    assert_eq!(refused[2], refused[0]);
    arguments[1].push("--lr_schedule.learning_rat=1.e-4".into());
    let refused = lines(run_each(&config, &arguments));
    assert!(refused[0].starts_with("rank 1: ") && refused[0].contains("learning_rat"), "{refused:?}");
    assert!(!run.folder().exists(), "a run that is refused makes no folder");
}

/// Each rank may have the data elsewhere, but not others.
#[test]
fn ranks_need_the_same_data_and_not_the_same_paths() {
    let run = small(&[]);
    let config = run.setup.write(run.home.path());
    let text = std::fs::read("tests/data/mill.txt").expect("a text");
    let mut other = text.clone();
    other.reverse();
    let with_text = |name: &str, text: &[u8]| {
        let folder = run.home.path().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        std::fs::write(folder.join("mill.txt"), text).expect("a text");
        let mut arguments = run.arguments(2);
        let loader = format!("{{type: TextDataLoader, dataset_dir: {}, shuffle: True}}", folder.display());
        arguments.push(format!("--train_dataset.data_loader={loader}"));
        arguments
    };
    let [here, elsewhere, others] =
        [("here", &text), ("elsewhere", &text), ("others", &other)].map(|(name, text)| with_text(name, text));
    let refused = lines(run_each(&config, &[here.clone(), others]));
    let line = "rank 1: its data have the fingerprint ";
    assert!(refused[0].starts_with(line) && refused[0].contains(", and those of rank 0 "), "{refused:?}");
    assert!(refused[0].ends_with(&refused[1]), "{refused:?}");
    assert!(!run.folder().exists(), "a run that is refused makes no folder");
    let results = run_each(&config, &[here, elsewhere]);
    results.into_iter().for_each(|result| drop(result.expect("the same data")));
}

/// What `meta.json` says: epoch, step and name.
fn meta(run: &FolderRun) -> (u64, u64, String) {
    let text = std::fs::read(run.folder().join("checkpoint/meta.json")).expect("meta.json");
    let meta: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let number = |key: &str| meta[key].as_u64().expect("a number");
    (number("last_epoch"), number("last_step"), meta["last_ckpt_file"].as_str().expect("a name").to_owned())
}

/// The first rank's clock decides, and all save after the same step; a file that a kill left behind is mended.
#[test]
fn ranks_save_by_the_clock_of_the_first() {
    let run = small(&[
        "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 0, save_checkpoint_seconds: 1, \
         keep_checkpoint_max: 0, prefix: two}]",
        "--runner_config.epochs=1000",
    ]);
    let config = run.setup.write(run.home.path());
    let mut last = 40;
    // As many steps as take some seconds, whatever the machine.
    let steps = loop {
        let results = run_each(&config, &vec![Spread::sharded(2).arguments(&run, last); 2]);
        results.into_iter().for_each(|result| drop(result.expect("a run")));
        let folder = CheckpointFolder::of_run(run.folder());
        let steps: Vec<u64> = folder.list().expect("checkpoints").into_iter().map(|(step, _)| step).collect();
        if steps.iter().any(|step| step % 40 != 0) || last >= 4000 {
            break steps;
        }
        last += 40 * (last / 40);
    };
    assert!(steps.iter().any(|step| step % 40 != 0), "none by the clock: {steps:?}");
    assert_eq!(steps.last(), Some(&last), "and one at the end");
    assert_eq!(meta(&run).2, format!("two-step_{last:07}"));
    // Killed after the checkpoint was renamed and before the file was replaced.
    let path = run.folder().join("checkpoint/meta.json");
    std::fs::write(&path, r#"{"last_epoch":1,"last_step":1,"last_ckpt_file":"two-step_0000001"}"#)
        .expect("a file");
    let results = run_each(&config, &vec![Spread::sharded(2).arguments(&run, last); 2]);
    results.into_iter().for_each(|result| drop(result.expect("a run")));
    assert_eq!(meta(&run).2, format!("two-step_{last:07}"));
}

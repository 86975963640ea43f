//! A run that was killed or interrupted and then resumed equals, bit for bit, the run that was never stopped.
//!
//! `meta.json` names a checkpoint that is there, also after a kill; an interrupt before the first step leaves no
//! run folder.
#![cfg(unix)] // other systems treat signals, killed processes and renamed folders differently

use crate::launch::{end, run, start, train_gpt};
use crate::place::Place;
use crate::runs::{FolderRun, Left, STEPS, events, kinds, metrics, resumable, uninterrupted};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// What every run here leaves at its end.
static WANT: LazyLock<Left> = LazyLock::new(uninterrupted);

/// Starts a run, or resumes it from its newest checkpoint, in a process of its own.
fn start_run(run: &FolderRun) -> Child {
    let config = run.setup.write(run.home.path());
    let arguments = [config.display().to_string()].into_iter().chain(run.arguments(STEPS));
    start(&mut train_gpt(arguments))
}

/// The files of a checkpoint in the order in which they are written. A run is killed when the first of a pair exists
/// and the second does not, whatever the folder is called at that moment.
const KILLED_BETWEEN: [(&str, &str); 5] = [
    ("", "model.safetensors"),
    ("model.safetensors", "optimizer.safetensors"),
    ("optimizer.safetensors", "config.json"),
    ("config.json", "trainer_state.json"),
    ("trainer_state.json", "a file that is never written"), // while it is synchronised and renamed
];

#[test]
fn a_run_killed_while_writing_checkpoints_resumes_exactly() {
    let run = resumable(1, &[]);
    let mut hits = 0;
    for moment in KILLED_BETWEEN {
        let before = run.newest();
        // Not in the very first checkpoint, because then there is nothing to resume, and some steps later each time.
        let from = before.map_or(2, |step| step + 3);
        let mut child = start_run(&run);
        while child.try_wait().expect("the process").is_none() {
            if newest_folder(&run).is_some_and(|(step, folder)| step >= from && is_between(&folder, moment)) {
                child.kill().expect("the process");
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        let ended = end(child);
        assert!(ended.code.is_none_or(|code| code == 0), "{}", ended.stderr);
        let (step, folder) = newest_folder(&run).expect("a folder");
        let is_hit = !folder.join("trainer_state.json").exists();
        hits += u32::from(is_hit);
        println!(
            "killed after `{}`: step {step} is complete: {}, newest: {:?}",
            moment.0,
            !is_hit,
            run.newest()
        );
        assert!(run.newest() >= before, "a complete checkpoint is gone");
    }
    // A kill between two checkpoints is valid too, but some must come while one is being written.
    assert!(hits >= 2, "only {hits} kills came while a checkpoint was being written");
    assert!(run.newest() < Some(STEPS), "nothing is left to resume");
    end(start_run(&run)).succeeded();
    run.left().assert_equals("killed five times", &WANT);
    let events = events(&run.folder());
    assert_eq!(kinds(&events), ["start", "start", "start", "start", "start", "start", "complete"]);
}

/// The step and folder of the newest checkpoint, complete or not, under any name.
fn newest_folder(run: &FolderRun) -> Option<(u64, PathBuf)> {
    let entries = std::fs::read_dir(run.folder().join("checkpoint")).ok()?;
    let step = |path: &Path| path.file_name()?.to_str()?.get(5..12)?.parse().ok();
    entries.flatten().filter_map(|entry| Some((step(&entry.path())?, entry.path()))).max()
}

fn is_between(folder: &Path, (present, missing): (&str, &str)) -> bool {
    folder.join(present).exists() && !folder.join(missing).exists()
}

/// The number of the checkpoint that `meta.json` names.
fn named_step(run: &FolderRun) -> Option<u64> {
    let text = std::fs::read(run.folder().join("checkpoint/meta.json")).ok()?;
    let meta: serde_json::Value = serde_json::from_slice(&text).expect("complete at any moment");
    meta["last_ckpt_file"].as_str()?.strip_prefix("step_")?.parse().ok()
}

/// Kills come again until one leaves a checkpoint that `meta.json` does not name yet; a run that has nothing to train
/// mends it.
#[test]
fn a_checkpoint_that_a_kill_left_unnamed_is_named_at_the_next_start() {
    let is_unnamed =
        |run: &FolderRun| run.newest().is_some_and(|step| step > 1 && named_step(run) < Some(step));
    let mut run = resumable(1, &[]);
    for kill in 1..=30 {
        if run.newest() == Some(STEPS) {
            run = resumable(1, &[]); // no kill came between a checkpoint and its name
        }
        let mut child = start_run(&run);
        while child.try_wait().expect("the process").is_none() && !is_unnamed(&run) {
            std::thread::yield_now();
        }
        child.kill().expect("the process");
        end(child);
        if is_unnamed(&run) {
            println!("kill {kill} left checkpoint {:?} and the name of {:?}", run.newest(), named_step(&run));
            break;
        }
    }
    let newest = run.newest();
    assert!(is_unnamed(&run), "no kill came between a checkpoint and its name");
    run.train(newest.expect("a checkpoint"));
    assert_eq!((run.newest(), named_step(&run)), (newest, newest));
}

#[test]
fn interrupts_finish_the_step_and_save() {
    for signal in ["INT", "TERM"] {
        // No checkpoint is due before the end, so the one there is comes from the interrupt.
        let run = resumable(1000, &[]);
        let mut child = start_run(&run);
        while !has_lines(&run.folder().join("metrics.jsonl"))
            && child.try_wait().expect("the process").is_none()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let sent = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
        assert!(sent.expect("kill").success());
        let ended = end(child).succeeded();
        let step = run.newest().expect("a checkpoint");
        println!("SIG{signal} ended the run after step {step}");
        assert!(step < STEPS, "the signal came after the last step");
        // The line has the command that goes on, as a shell takes it.
        let before = format!("interrupted after step {step}: continue with ");
        let said = ended.stderr.lines().find_map(|line| line.strip_prefix(&before)).expect("the command");
        assert!(said.ends_with(" --resume_training=True"), "{said}");
        let page = || std::fs::read_to_string(run.folder().join("report.html")).expect("a page");
        assert!(page().contains("\"state\":{\"word\":\"interrupted\",\"detail\":\"interrupted after step"));
        let mut shell = Command::new("sh");
        end(start(shell.args(["-c", said]).current_dir(env!("CARGO_MANIFEST_DIR")))).succeeded();
        run.left().assert_equals(signal, &WANT);
        assert!(page().contains("\"state\":{\"word\":\"complete\""));
        let text = format!("{before}{said}");
        let events = events(&run.folder());
        assert_eq!(kinds(&events), ["start", "interrupted", "start", "complete"]);
        for (start, after) in [(&events[0], 0), (&events[2], step)] {
            assert_eq!((&start["step"], &start["total_steps"]), (&after.into(), &STEPS.into()));
        }
        assert_eq!(events[1]["text"], text);
    }
}

/// A run that is still reading its data, one that has made its folder and counts the tokens of a long evaluation set,
/// and one that evaluates before its first step.
#[test]
#[ignore = "long; `interrupts_finish_the_step_and_save` has later ones"]
fn an_interrupt_before_the_first_step_ends_the_run_at_once() {
    let place = Place::new();
    let line = "interrupted before the first step; nothing was trained\n";
    let interrupt = |signal: &str, flags: &[&str], is_there: &dyn Fn() -> bool| {
        let mut child = start(&mut place.command(flags));
        while !is_there() {
            assert!(child.try_wait().expect("the process").is_none(), "{}", end(child).stderr);
            std::thread::sleep(Duration::from_millis(1));
        }
        let sent = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
        assert!(sent.expect("kill").success());
        let since = Instant::now();
        let ended = end(child);
        assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
        assert_eq!((ended.code, ended.stderr.ends_with(line)), (Some(130), true), "{}", ended.stderr);
        assert_eq!(ended.stderr.matches("interrupted").count(), 1, "{}", ended.stderr);
    };

    // Each record takes a tenth of a second, and there are as many as take hours.
    let chat = place.path("chat.jsonl");
    let record = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    std::fs::write(&chat, format!("{record}\n").repeat(100_000)).expect("records");
    let template = place.path("slow.jinja");
    let slow = "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}{% generation %}b{% endgeneration %}";
    std::fs::write(&template, slow).expect("a template");
    let loader = format!(
        "--train_dataset.data_loader={{type: SFTDataLoader, dataset_files: {}, chat_template: {}}}",
        chat.display(),
        template.display()
    );
    let started = Instant::now();
    interrupt("TERM", &[&loader], &|| started.elapsed() > Duration::from_secs(2));
    assert!(!place.folder().exists());

    let tokens = place.path("tokens.bin");
    std::fs::File::create(&tokens).and_then(|file| file.set_len(400 << 20)).expect("zeros");
    let eval = format!(
        "--eval_dataset={{data_loader: {{type: TokenDataLoader, dataset_files: {}}}}}",
        tokens.display()
    );
    let config = place.folder().join("config.yaml");
    interrupt("INT", &["--do_eval=True", "--eval_batches=1000000000", &eval], &|| config.exists());
    assert!(!place.folder().exists(), "it refuses the next start");
    run(&mut place.command(&["--stop_step=1"])).succeeded();

    // A folder that was there stays, with what else is in it.
    let other = place.path("other");
    std::fs::create_dir(&other).expect("a folder");
    std::fs::write(other.join("mine.txt"), "mine").expect("a file");
    interrupt("INT", &["--run_name=other", "--do_eval=True", "--eval_batches=1000000000", &eval], &|| {
        other.join("config.yaml").exists()
    });
    let left: Vec<_> =
        std::fs::read_dir(&other).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["mine.txt"]);
    run(&mut place.command(&["--run_name=other", "--stop_step=1"])).succeeded();

    // Millions of tokens are read at once, and evaluated for minutes.
    std::fs::File::create(&tokens).and_then(|file| file.set_len(8 << 20)).expect("zeros");
    let (evaluating, events) = (place.path("evaluating"), place.path("evaluating/events.jsonl"));
    let first = [
        "--run_name=evaluating",
        "--do_eval=True",
        "--eval_on_start=True",
        "--eval_batches=1000000000",
        &eval,
    ];
    interrupt("INT", &first, &|| {
        let has_begun = has_lines(&events);
        if has_begun {
            std::thread::sleep(Duration::from_millis(500));
        }
        has_begun
    });
    assert!(!evaluating.exists(), "it refuses the next start");
}

/// A scheduler repeats one command after a kill, however early that came, and also after the end.
#[test]
fn auto_begins_where_there_is_no_checkpoint_and_continues_elsewhere() {
    let place = Place::new();
    std::fs::create_dir_all(place.folder().join("checkpoint/step_0000001.tmp")).expect("a folder");
    std::fs::write(place.folder().join("config.yaml"), "seed: 1\n").expect("a file");
    std::fs::write(place.folder().join("metrics.jsonl"), "{\"step\":1,\"loss\":9.0}\n").expect("a file");
    for (stop, steps) in [("--stop_step=2", 2), ("--stop_step=4", 4), ("--stop_step=4", 4)] {
        run(&mut place.command(&["--resume_training=auto", stop])).succeeded();
        assert_eq!(place.newest().0, steps);
        let written: Vec<u64> = metrics(&place.folder()).iter().map(|line| line.step).collect();
        assert_eq!(written, (1..=steps).collect::<Vec<_>>());
    }
}

/// A kill may come when an extension has written its configuration and has not yet begun.
#[test]
fn an_extension_that_was_killed_at_its_start_goes_on() {
    let place = Place::new();
    let train = |flags: &[&str]| run(&mut place.command(flags)).succeeded().stderr;
    train(&["--stop_step=2"]);
    let complete = train(&["--stop_step=2", "--resume_training=extend"]);
    assert!(complete.contains("this run is complete") && !complete.contains("adapter: "), "{complete}");
    let config = place.folder().join("config.yaml");
    let written = || std::fs::read_to_string(&config).expect("a configuration");
    let extended = written().replace("stop_step: 2", "stop_step: 4");
    std::fs::write(&config, &extended).expect("a configuration");
    train(&["--stop_step=4", "--resume_training=extend"]);
    assert_eq!(place.newest().0, 4);
    let settings = |text: &str| {
        text.lines()
            .filter(|line| !line.starts_with("resume_training"))
            .map(str::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(settings(&written()), settings(&extended), "what a kill would have left");
    let complete = train(&["--stop_step=4", "--resume_training"]);
    assert!(complete.contains("this run is complete") && !complete.contains("adapter: "), "{complete}");
}

/// What is asked of a run in its last step changes nothing: it is complete.
#[test]
fn an_interrupt_in_the_last_step_is_an_end() {
    let run = resumable(1000, &[]);
    let config = run.setup.write(run.home.path());
    let arguments: Vec<String> = [config.display().to_string()].into_iter().chain(run.arguments(1)).collect();
    let mut child = start(&mut train_gpt(arguments));
    while !has_lines(&run.folder().join("events.jsonl")) && child.try_wait().expect("the process").is_none() {
        std::thread::sleep(Duration::from_micros(200));
    }
    // While it trains its only step, or saves it, or has ended.
    let _ = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
    let ended = end(child);
    match ended.code {
        Some(0) => assert_eq!(kinds(&events(&run.folder())), ["start", "complete"], "{}", ended.stderr),
        _ => assert_eq!(ended.code, Some(130), "before the first step: {}", ended.stderr),
    }
}

fn has_lines(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.len() > 0)
}

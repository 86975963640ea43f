//! `gristmill report`, and the page that a run leaves.
//!
//! No text of a run can become markup, a run without its events is drawn too, and the report of a foreign folder
//! shows no file outside of it.

use crate::browser::{Browser, file};
use crate::launch::{Ended, assert_refused, gristmill, run};
use crate::place::Place;
use crate::runs::{events, kinds};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// A run of a mixture, with all that it left but its checkpoints.
fn mill() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/runs/mill")
}

pub fn report(arguments: &[&dyn AsRef<OsStr>]) -> Ended {
    run(gristmill(["report"]).args(arguments))
}

/// The files that a report is made of.
const FILES: [&str; 3] = ["config.yaml", "metrics.jsonl", "events.jsonl"];

/// A copy of that run, in which `change` replaces a text of its configuration.
pub fn copy(folder: &Path, change: (&str, &str)) {
    fs::create_dir_all(folder).expect("a folder");
    for name in FILES {
        let text = fs::read_to_string(mill().join(name)).expect("a file");
        fs::write(folder.join(name), text.replace(change.0, change.1)).expect("a file");
    }
}

#[test]
fn a_run_leaves_a_page_that_draws_itself() {
    let place = Place::new();
    run(&mut place.command(&[
        "--do_eval",
        "--train_dataset.eval_fraction=0.2",
        "--eval_step_interval=2",
        "--sample={prompt: fn, tokens: 5}",
    ]))
    .succeeded();
    let written = events(&place.folder());
    assert_eq!(kinds(&written), ["start", "sample", "complete"]);
    assert_eq!((&written[0]["step"], &written[0]["total_steps"]), (&0.into(), &4.into()));
    let announced = written[0]["announced"].as_array().expect("lines");
    for name in ["training data: ", "evaluation data: ", "adapter: ", "model: ", "memory: ", "kernels: "] {
        let is_it = |line: &&Value| line.as_str().is_some_and(|line| line.starts_with(name));
        assert_eq!(announced.iter().filter(is_it).count(), 1, "{announced:?}");
    }
    let sample = written[1]["text"].as_str().expect("a text");
    assert!(sample.starts_with("fn") && written[1]["tokens"] == 5, "{sample}");
    let page = place.folder().join("report.html");
    let text = fs::read_to_string(&page).expect("a page");
    assert!(text.contains("\"state\":{\"word\":\"complete\""), "the run is complete");
    if let Some(browser) = Browser::start() {
        let opened = browser.page();
        opened.open(&file(&page));
        opened.assert_drawn(6); // loss; rate, norm; throughput, step time, memory
        assert!(
            opened.text("charts").contains("1 value that did not change"),
            "the loss scale is folded away"
        );
        let shown = ["state", "summary", "details", "settings"].map(|id| opened.text(id)).join("\n");
        for text in ["Complete", "Evaluation loss", "adapter", "runner_config.stop_step"] {
            assert!(shown.contains(text), "{text} is not on the page");
        }
    }
}

/// A folder from elsewhere shows itself and no file of this machine.
#[cfg(unix)]
#[test]
fn a_foreign_folder_shows_no_file_outside_it() {
    let home = tempfile::tempdir().expect("a folder");
    let (folder, secret) = (home.path().join("mill"), home.path().join("secret"));
    fs::write(&secret, "root:x:0:0:a secret\n").expect("a file");
    copy(&folder, ("", ""));
    let config = folder.join("config.yaml");
    fs::write(&config, format!("base_config: {}\n", secret.display())).expect("a file");
    report(&[&folder]).succeeded();
    let page = fs::read_to_string(folder.join("report.html")).expect("a page");
    assert!(
        page.contains("base_config: the file of a run folder has every key itself")
            && !page.contains("a secret")
    );
    for name in FILES {
        let copied = home.path().join(format!("linked {name}"));
        copy(&copied, ("", ""));
        fs::remove_file(copied.join(name)).expect("a file");
        std::os::unix::fs::symlink(&secret, copied.join(name)).expect("a link");
        let ended = report(&[&copied]);
        let page = fs::read_to_string(copied.join("report.html")).unwrap_or_default();
        assert!(!page.contains("a secret") && !ended.stderr.contains("a secret"), "{name}");
        match name {
            "config.yaml" => assert!(page.contains("it is a link that leads out of the run's folder")),
            _ => assert_refused(name, &ended, &[name, "it is a link that leads out of the run's folder"]),
        }
    }
}

#[test]
fn runs_without_events() {
    let home = tempfile::tempdir().expect("a folder");
    let browser = Browser::start();
    // One without reports, and one without events, whose log the report does not read.
    for (name, is_without_events) in [("mill", false), ("bare", true)] {
        let folder = home.path().join(name);
        copy(&folder, ("", ""));
        if is_without_events {
            fs::rename(folder.join("events.jsonl"), folder.join("log.txt")).expect("a file");
            fs::create_dir_all(folder.join("checkpoint/step_0000012")).expect("a folder");
        }
        let ended = report(&[&folder]).succeeded();
        let page = folder.join("report.html");
        assert_eq!(ended.stdout, format!("{}: {} to step 12\n", page.display(), folder.display()));
        let Some(browser) = &browser else { continue };
        let opened = browser.page();
        opened.open(&file(&page));
        opened.assert_drawn(8); // and the balance of experts, evenness, the busiest, dropped choices
        assert!(
            opened.text("state").contains("Complete")
                && opened.text("settings").contains("moe_config.expert_num")
        );
        assert_eq!(opened.text("details").contains("A sample of 40 tokens"), !is_without_events);
        let (notes, sentence) = (opened.text("notes"), "hold, of which the newest is of step 12");
        assert_eq!(notes.contains(sentence), is_without_events, "{notes}");
    }
}

#[test]
fn runs_are_compared_from_what_differs() {
    let home = tempfile::tempdir().expect("a folder");
    let [one, other] = ["one", "other"].map(|name| home.path().join(name));
    copy(&one, ("", ""));
    copy(&other, ("learning_rate: 0.003", "learning_rate: 0.004"));
    let page = home.path().join("both.html");
    let ended = report(&[&one, &other, &"--output", &page]).succeeded();
    let line = format!("{}: {} to step 12, {} to step 12\n", page.display(), one.display(), other.display());
    assert_eq!(ended.stdout, line);
    if let Some(browser) = Browser::start() {
        let opened = browser.page();
        opened.open(&file(&page));
        opened.assert_drawn(8);
        let differences = opened.text("differences");
        assert!(
            differences.contains("lr_schedule.learning_rate") && differences.contains("0.004"),
            "{differences}"
        );
        assert!(!differences.contains("batch_size"), "{differences}");
    }
}

/// A checkpoint is of a run, and so is the adapter in one.
#[test]
fn a_checkpoint_stands_for_its_run() {
    let home = tempfile::tempdir().expect("a folder");
    let run = home.path().join("mill");
    copy(&run, ("", ""));
    let checkpoint = run.join("checkpoint/step_0000012");
    fs::create_dir_all(checkpoint.join("adapter")).expect("folders");
    let said = report(&[&run.canonicalize().expect("a folder")]).succeeded().stdout;
    for part in [checkpoint.join("adapter"), checkpoint] {
        fs::remove_file(run.join("report.html")).expect("a page");
        assert_eq!(report(&[&part]).succeeded().stdout, said);
        assert!(run.join("report.html").is_file(), "{}", part.display());
    }
    // A folder beside the checkpoints is none.
    fs::create_dir_all(run.join("notes/today")).expect("folders");
    let elsewhere = report(&[&run.join("notes/today")]);
    assert_refused("no checkpoint", &elsewhere, &["no step is in its metrics.jsonl"]);
}

#[test]
fn errors_are_one_line() {
    let home = tempfile::tempdir().expect("a folder");
    let nowhere = home.path().join("nowhere");
    assert_refused("no folder", &report(&[&nowhere]), &["nowhere: no such folder; name the folder of a run"]);
    let nothing = report(&[&home.path()]);
    assert_refused("no metrics", &nothing, &["no step is in its metrics.jsonl; name the folder of a run"]);
    fs::write(home.path().join("metrics.jsonl"), "{\"step\":1,\"lo").expect("a file");
    assert_refused("half a line", &report(&[&home.path()]), &["no step is in its metrics.jsonl"]);
    let below = home.path().join("metrics.jsonl/report.html");
    let unwritable = report(&[&mill(), &"--output", &below]);
    assert_refused("no place", &unwritable, &["is a file, not a folder: choose another --output"]);
    assert_refused("no run", &report(&[]), &["required arguments were not provided: <RUN>..."]);
}

//! A run that browsers watch until they are killed.
//!
//! Two pages show losses of `metrics.jsonl`, an open page shows the end, and killing a browser changes no loss.
#![cfg(unix)] // interrupts the run

use crate::browser::{Browser, Page};
use crate::launch::{end, run, start};
use crate::place::Place;
use crate::runs::metrics;
use std::process::Command;
use std::time::{Duration, Instant};

/// The arguments of a run of so many steps.
fn arguments(steps: usize) -> [String; 3] {
    [
        format!("--stop_step={steps}"),
        "--runner_config.epochs=100000".to_string(),
        // Few lines: nobody reads the output before the end, and a full pipe would hold the run up.
        "--callbacks=[{type: MFLossMonitor, per_print_times: 100000}]".to_string(),
    ]
}

/// Lets a page ask twenty times a second, and not every other one.
const IMPATIENT: &str =
    "const wait = window.setTimeout; window.setTimeout = (call, pause) => wait(call, Math.min(pause, 50));";

/// The step and the loss that a page shows among its numbers.
fn shown(page: &Page<'_>) -> (usize, f32) {
    let of = |name: &str| {
        let is_named = format!("tile.firstChild.textContent === {name:?}");
        format!(
            "[...document.querySelectorAll('.tile')].find((tile) => {is_named}).querySelector('.big').textContent"
        )
    };
    let texts = page.evaluate(&format!("[{}, {}]", of("Steps"), of("Loss")));
    let text = |index: usize| texts[index].as_str().expect("a text").replace(',', "");
    // Before the first step there are dashes.
    let steps = text(0).split(" of ").next().and_then(|steps| steps.parse().ok());
    (steps.unwrap_or(0), text(1).parse().unwrap_or(f32::NAN))
}

/// What a page shows once it shows more steps than now.
#[track_caller]
fn grown(page: &Page<'_>) -> (usize, f32) {
    let ((before, _), deadline) = (shown(page), Instant::now() + Duration::from_secs(60));
    loop {
        let now = shown(page);
        if now.0 > before {
            return now;
        }
        assert!(Instant::now() < deadline, "the page still shows step {before}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn browsers_see_a_run_grow_and_their_end_does_not_change_it() {
    let Some(browser) = Browser::start() else { return };
    let pages = [browser.page(), browser.page()];
    let watched = Place::new();
    // Longer than browsers take on any adapter: it is interrupted.
    let mut child = start(watched.command(&["--watch", "0"]).args(arguments(1_000_000)));
    let address = watched.watched_at();
    for page in &pages {
        page.prepend(IMPATIENT);
        page.open(&address);
    }
    // In turn, so that neither page lives on what was there when it was opened.
    let seen: Vec<(usize, f32)> = [0, 1, 0, 1].map(|index| grown(&pages[index])).into();
    for page in &pages {
        assert_eq!(page.evaluate("document.querySelector('#state .pill').textContent"), "Running");
        assert!(page.text("eyebrow").contains("live"));
    }
    for page in &pages {
        page.assert_drawn(6);
    }
    drop(browser);
    let steps =
        || std::fs::read_to_string(watched.folder().join("metrics.jsonl")).expect("metrics").lines().count();
    let so_far = steps();
    while steps() < so_far + 10 {
        assert!(child.try_wait().expect("a state").is_none(), "the run ended with its browser");
        std::thread::sleep(Duration::from_millis(20));
    }
    let sent = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill").success());
    let ended = end(child).succeeded();
    assert!(!ended.stderr.contains("warning") && !ended.stderr.contains("error"), "{}", ended.stderr);
    let told = metrics(&watched.folder());
    let alone = Place::new();
    run(&mut alone.command(&arguments(told.len()).each_ref().map(String::as_str))).succeeded();
    assert_eq!(told, metrics(&alone.folder()), "a run that was watched, and one that nobody watched");
    for (step, loss) in seen {
        let written = told[step - 1].loss;
        assert!((loss - written).abs() < 1e-3, "step {step}: {written} was drawn as {loss}");
    }
}

#[test]
#[ignore = "long; `a_run_is_served_until_its_page_has_seen_the_end` without a browser"]
fn an_open_page_shows_the_end() {
    let Some(browser) = Browser::start() else { return };
    let page = browser.page();
    page.prepend(IMPATIENT);
    let place = Place::new();
    let child = start(place.command(&["--watch", "0"]).args(arguments(100)));
    page.open(&place.watched_at());
    let deadline = Instant::now() + Duration::from_secs(60);
    while !page.text("eyebrow").contains("ended") {
        assert!(Instant::now() < deadline, "the page still says {:?}", page.text("eyebrow"));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(page.evaluate("document.querySelector('#state .pill').textContent"), "Complete");
    assert_eq!(shown(&page).0, 100);
    page.assert_drawn(6);
    end(child).succeeded();
}

//! The report as a reader meets it: narrow and wide, light and dark, with a mouse or with keys alone.
//!
//! It fits in 1280 and in 400 pixels, text has a contrast of at least 4.5, Tab reaches all that a mouse can use,
//! and keys do the same.

use crate::browser::{Browser, Page, View, file};
use crate::place::Place;
use crate::report::{copy, report};
use crate::runs::is_long;
use serde_json::{Map, Value, json};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// Without GRISTMILL_LONG every page is looked at in two of these: both widths, and both themes.
const VIEWS: [View; 4] = [
    View { width: 1280, is_dark: false },
    View { width: 1280, is_dark: true },
    View { width: 400, is_dark: false },
    View { width: 400, is_dark: true },
];

/// The least contrast of text: WCAG 2.2, success criterion 1.4.3.
const LEAST_CONTRAST: f64 = 4.5;

/// Pages and how many charts they have.
const PAGES: [(&str, usize); 4] = [("dense", 6), ("mixture", 8), ("deep", 8), ("compared", 8)];

/// Whether all charts are drawn for the width that they have.
const FITS: &str = "[...document.querySelectorAll('.plot')] \
    .every((plot) => plot.querySelector('svg').viewBox.baseVal.width === plot.clientWidth)";

/// Writes the pages into `home`, each as `NAME.html`.
fn write_pages(home: &Path) {
    let dense = Place::with_run();
    let [mixture, other] = ["mill", "other"].map(|name| home.join(name));
    copy(&mixture, ("", ""));
    copy(&other, ("learning_rate: 0.003", "learning_rate: 0.004"));
    write(home, "dense", &[&dense.folder()]);
    write(home, "mixture", &[&mixture]);
    write(home, "compared", &[&mixture, &other]);
    write_deep(home);
}

/// Writes the page of a mixture with many layers, which has a control of every kind.
fn write_deep(home: &Path) {
    let run = home.join("deep");
    copy(&run, ("", ""));
    deepen(&run);
    write(home, "deep", &[&run]);
}

fn write(home: &Path, name: &str, runs: &[&Path]) {
    let page = home.join(format!("{name}.html"));
    let mut arguments: Vec<&dyn AsRef<OsStr>> = vec![&"--output", &page];
    arguments.extend(runs.iter().map(|run| run as &dyn AsRef<OsStr>));
    report(&arguments).succeeded();
}

/// Gives a run 9 layers of experts, more than are drawn as lines, and a warning that is one long word.
fn deepen(folder: &Path) {
    let deeper = |line: &str| {
        let mut step: Map<String, Value> = serde_json::from_str(line).expect("a step");
        for layers in step.values_mut().filter_map(Value::as_array_mut) {
            *layers = layers.iter().cycle().take(9).cloned().collect();
        }
        Value::Object(step).to_string() + "\n"
    };
    let path = folder.join("metrics.jsonl");
    let text = fs::read_to_string(&path).expect("metrics");
    fs::write(&path, text.lines().map(deeper).collect::<String>()).expect("a file");
    let events = folder.join("events.jsonl");
    let text = "/a-long-path".repeat(20);
    let warning = json!({"time": "2026-11-22T18:56:00.000000Z", "kind": "warning", "text": text});
    fs::write(&events, fs::read_to_string(&events).expect("events") + &format!("{warning}\n"))
        .expect("a file");
}

/// Asserts that a reader sees everything that is on the page, and can read it.
#[track_caller]
fn assert_readable(page: &Page<'_>, name: &str) {
    let widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]");
    assert!(widths[0].as_u64() <= widths[1].as_u64(), "{name}: {widths}: the page scrolls to the side");
    for probe in ["outside()", "badLabels()", &format!("faintTexts({LEAST_CONTRAST})")] {
        assert_eq!(page.probe(probe), json!([]), "{name}: {probe}");
    }
}

#[test]
fn pages_fit_and_can_be_read_in_every_view() {
    let Some(browser) = Browser::start() else { return };
    let home = tempfile::tempdir().expect("a folder");
    write_pages(home.path());
    let page = browser.page();
    let mut colors: Vec<(bool, Value)> = Vec::new();
    for (number, (page_name, charts)) in PAGES.into_iter().enumerate() {
        for view in views(number) {
            let name = format!("{page_name}-{}-{}", view.width, if view.is_dark { "dark" } else { "light" });
            open(&page, home.path(), page_name, view);
            page.assert_drawn(charts);
            assert_readable(&page, &name);
            page.keep_screenshot(&name);
            page.probe("unfold()");
            assert_readable(&page, &format!("{name}, unfolded"));
            page.keep_screenshot(format!("{name}-unfolded"));
            let shown = page.probe("[behind(document.body), getComputedStyle(document.body).color]");
            colors.push((view.is_dark, shown));
            assert_eq!(page.console(), Vec::<String>::new(), "{name}");
        }
        // An open page follows the window and the theme.
        page.set_view(VIEWS[0]);
        page.wait_until(FITS, |all| *all == true);
        assert_readable(&page, &format!("{page_name}, widened"));
    }
    let [light, dark] =
        [false, true].map(|is_dark| colors.iter().find(|(of, _)| *of == is_dark).expect("a page"));
    assert!(colors.iter().all(|one| one == if one.0 { dark } else { light }), "{colors:?}");
    assert!(light.1[0] != dark.1[0] && light.1[1] != dark.1[1], "{colors:?}");
}

/// The views of page `number`: all, or two that have nothing in common.
fn views(number: usize) -> impl Iterator<Item = View> {
    let pair = if number.is_multiple_of(2) { [0, 3] } else { [1, 2] };
    VIEWS
        .into_iter()
        .enumerate()
        .filter(move |(view, _)| is_long() || pair.contains(view))
        .map(|(_, view)| view)
}

fn open(page: &Page<'_>, home: &Path, name: &str, view: View) {
    page.set_view(view);
    page.open(&file(&home.join(name).with_extension("html")));
}

/// What has the focus after each `key`, until it comes round.
fn walk(page: &Page<'_>, key: &str) -> Vec<Value> {
    let mut seen: Vec<Value> = Vec::new();
    loop {
        page.press(&[key]);
        let at = page.probe("focused()");
        if at.is_null() || seen.iter().any(|known| known["place"] == at["place"]) {
            return seen;
        }
        seen.push(at);
    }
}

#[test]
fn tab_reaches_all_that_a_mouse_can_use() {
    let Some(browser) = Browser::start() else { return };
    let home = tempfile::tempdir().expect("a folder");
    write_deep(home.path());
    let page = browser.page();
    for view in views(0) {
        open(&page, home.path(), "deep", view);
        page.evaluate("document.getElementById('zoom-in').click()"); // Enables those that show all steps.
        page.probe("unfold()");
        page.evaluate("document.querySelector('.keys').open = false"); // It covers charts until it is closed.
        let controls = page.probe("controls()");
        let controls = controls.as_array().expect("a list");
        assert!(controls.len() > 30, "{controls:?}");
        for key in ["Tab", "Shift+Tab"] {
            let seen = walk(&page, key);
            let hidden: Vec<_> =
                seen.iter().filter(|at| at["isMarked"] != true || at["isInView"] != true).collect();
            assert!(hidden.is_empty(), "{view:?}: {key}: a focus that is not seen: {hidden:#?}");
            let is_missed = |control: &&Value| !seen.iter().any(|at| at["place"] == control["place"]);
            let missed: Vec<_> = controls.iter().filter(is_missed).collect();
            assert!(missed.is_empty(), "{view:?}: {key} does not reach {missed:#?}");
        }
    }
}

#[test]
fn keys_move_the_crosshair_and_zoom() {
    let Some(browser) = Browser::start() else { return };
    let home = tempfile::tempdir().expect("a folder");
    write_deep(home.path());
    let page = browser.page();
    open(&page, home.path(), "deep", VIEWS[0]);
    page.evaluate("document.querySelector('.plot').focus()");
    for (key, step) in [
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("Shift+ArrowRight", 12),
        ("ArrowLeft", 11),
        ("Home", 1),
        ("End", 12),
        ("Shift+ArrowLeft", 2),
    ] {
        page.press(&[key]);
        assert_eq!(page.probe("crosshairs()"), json!(vec![format!("step {step}"); 8]), "{key}");
        let loss = page.evaluate("Number(document.querySelector('.legend .value').textContent)");
        let written = written_loss(&home.path().join("deep"), step);
        assert!((loss.as_f64().expect("a number") - written).abs() < 1e-3, "{key}: {loss}, not {written}");
    }
    // Said once the keys rest, and before where a key is late.
    let is_said = |text: &Value| text.as_str().is_some_and(|text| text.starts_with("step 2: training 5.55"));
    page.wait_until("document.getElementById('spoken').textContent", is_said);
    for (key, range) in [
        ("+", "2–7"),
        ("-", "1–12"),
        ("=", "2–7"),
        ("0", "1–12"),
        ("+", "2–7"),
        ("End", "7–12"),
        ("Escape", "1–12"),
    ] {
        page.press(&[key]);
        assert_eq!(page.text("range"), format!("Steps {range}"), "{key}");
    }
    assert_eq!(page.probe("crosshairs()"), json!(vec![Value::Null; 8]), "Escape leaves no crosshair");
    page.evaluate("document.querySelector('.plot canvas').parentElement.focus()");
    for (key, layer) in [("ArrowDown", 2), ("ArrowDown", 3), ("ArrowUp", 2), ("ArrowUp", 1), ("ArrowUp", 1)] {
        page.press(&[key]);
        let name =
            page.evaluate("document.activeElement.closest('figure').querySelector('.name').textContent");
        assert_eq!(name, format!("layer {layer}"), "{key}");
    }
    page.assert_drawn(8);
}

fn written_loss(folder: &Path, step: usize) -> f64 {
    let text = fs::read_to_string(folder.join("metrics.jsonl")).expect("metrics");
    let line: Value = serde_json::from_str(text.lines().nth(step - 1).expect("a line")).expect("a step");
    line["loss"].as_f64().expect("a loss")
}

#[test]
fn controls_work_by_keys() {
    let Some(browser) = Browser::start() else { return };
    let home = tempfile::tempdir().expect("a folder");
    write_deep(home.path());
    let page = browser.page();
    open(&page, home.path(), "deep", VIEWS[2]);
    // What has the focus, the keys, an expression and its value after them.
    let shown = "document.querySelectorAll('#settings tbody tr:not([hidden])').length";
    for (control, keys, expression, value) in [
        ("#zoom-in", &["Enter"][..], "document.getElementById('range').textContent", json!("Steps 4–9")),
        ("#zoom-out", &[" "], "document.getElementById('range').textContent", json!("Steps 1–12")),
        ("#smoothing", &["End"], "document.getElementById('smoothing-value').textContent", json!("0.99")),
        ("#smoothing", &["Home"], "document.getElementById('smoothing-value').textContent", json!("off")),
        (".tools button", &[" "], "document.activeElement.ariaPressed", json!("true")),
        (".numbers summary", &["Enter"], "document.querySelectorAll('.numbers td').length >= 4", json!(true)),
        (".keys summary", &[" "], "document.querySelector('.keys').open", json!(true)),
        ("[type=search]", &["z", "_", "l", "o", "s", "s"], shown, json!(1)),
    ] {
        page.evaluate(&format!("document.querySelector({control:?}).focus()"));
        page.press(keys);
        page.wait_until(expression, |now| *now == value);
    }
    page.assert_drawn(8);
}

//! What `monitor_config` prints.
//!
//! The lines have the numbers of `metrics.jsonl`; the names of what can be watched are printed without an adapter.

use crate::launch::{run, without_adapter};
use crate::place::Place;
use crate::runs::metrics;
use std::collections::BTreeMap;

/// The numbers of each line of a monitor in `text`, by step and tag. Lines of a log have their time and level before
/// them.
fn lines(text: &str) -> BTreeMap<(u64, String), Vec<String>> {
    let mut found: BTreeMap<_, Vec<String>> = BTreeMap::new();
    let start = "Epoch:[  1/  1], step:[";
    let starts = |before: &str| before.is_empty() || before.ends_with("Z  INFO ");
    let split = text.lines().filter_map(|line| line.split_once(start));
    for (_, line) in split.filter(|(before, _)| starts(before)) {
        let (place, rest) = line.split_once("] ").expect("a place");
        let (step, steps) = place.split_once('/').expect("a step of several");
        assert_eq!((step.len(), steps), (5, "    4"), "{line}");
        let (tag, numbers) = rest.split_once(": ").expect("a tag");
        let step: u64 = step.trim().parse().expect("a number");
        found.entry((step, tag.to_string())).or_default().push(numbers.to_string());
    }
    found
}

/// Lines of due steps in the log, with the numbers of `metrics.jsonl` to four decimals.
#[test]
fn lines_have_the_numbers_of_the_metrics() {
    let place = Place::new();
    let monitor = "--monitor_config={monitor_on: True, step_interval: 2, local_norm_format: log, local_loss_format: log, \
                   weight_state_format: tensorboard, optimizer_state_format: [log, tensorboard], \
                   max_attention_logit_format: log}";
    let ended = run(&mut place.command(&[monitor, "--tensorboard={}"])).succeeded();
    let log = std::fs::read_to_string(place.folder().join("log.txt")).expect("a log");
    assert!(lines(&ended.stderr).is_empty(), "{}", ended.stderr);
    let mut left = lines(&log);
    for step in metrics(&place.folder()) {
        assert_eq!(step.monitor.is_some(), step.step % 2 == 0);
        for (tag, number) in step.monitor.into_iter().flatten() {
            let got = left.remove(&(step.step, tag.clone()));
            // The losses of micro-batches have the lines instead of their mean.
            let is_logged = tag != "weight_norm" && tag != "local_lm_loss";
            assert_eq!(got, is_logged.then(|| vec![format!("{number:.4}")]), "step {} {tag}", step.step);
        }
        let micro = left.remove(&(step.step, "micro_local_lm_loss".to_string()));
        assert_eq!(micro.map(|lines| lines.len()), (step.step % 2 == 0).then_some(2));
    }
    let heads = |line: &String| line.starts_with('[') && line.ends_with(']') && line.contains(", ");
    assert!(left.keys().all(|(step, tag)| step % 2 == 0 && tag.starts_with("max_attention_logit/layers.")));
    assert!(left.len() == 4 && left.values().all(|lines| lines.len() == 1 && heads(&lines[0])), "{left:?}");
}

/// The names, and no more: neither an adapter nor a folder is needed.
#[test]
fn names_are_printed_without_an_adapter() {
    let place = Place::new();
    let frozen = "--model.model_config.freeze=['layers.0.attention']";
    let mut command = place.command(&["--monitor_config={monitor_on: True, print_struct: True}", frozen]);
    let ended = run(without_adapter(&mut command)).succeeded();
    for (name, is_there) in [
        ("layers.0.attention.wo", false),
        ("layers.1.attention.wo", true),
        ("layers.0.feed_forward.w_down", true),
        ("nothing was trained, as monitor_config.print_struct is on", true),
    ] {
        assert_eq!(ended.stderr.lines().any(|line| line == name), is_there, "{name} in:\n{}", ended.stderr);
    }
    assert!(!place.folder().exists());
}

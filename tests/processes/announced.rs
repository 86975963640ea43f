//! What a run says before its first step.

use crate::launch::run;
use crate::place::Place;
use crate::runs::{events, kinds};
use serde_json::Value;

#[test]
fn a_shape_that_no_published_architecture_computes() {
    let note = "Glm4MoeForCausalLM is the nearest architecture, but it has no sliding window";
    let partial = "--model.model_config.rotary_percent=0.5";
    for (window, is_noted) in [("--model.model_config.sliding_window=8", true), (partial, false)] {
        let place = Place::new();
        let ended = run(&mut place.command(&["--stop_step=1", partial, window])).succeeded();
        assert_eq!(ended.stderr.contains(note), is_noted, "{}", ended.stderr);
        let config = std::fs::read_to_string(place.newest().1.join("config.json")).expect("a file");
        assert_eq!(config.contains(note), is_noted, "{config}");
        let events = events(&place.folder());
        let is_told = |event: &Value| event["text"].as_str().is_some_and(|text| text.contains(note));
        assert_eq!(
            kinds(&events),
            if is_noted { &["warning", "start", "complete"][..] } else { &["start", "complete"] }
        );
        assert_eq!(is_told(&events[0]), is_noted, "{events:?}");
    }
}

#[test]
fn mfu_names_its_peak() {
    let ended = run(&mut Place::new().command(&["--stop_step=1"])).succeeded();
    let line = ended.stderr.lines().find(|line| line.contains("MFU is the share of ")).expect("a line");
    let is_named = |source: &str| line.contains(source);
    assert!(
        is_named("the measured rate of matrix products") || is_named("the published f32 peak of"),
        "{line}"
    );
}

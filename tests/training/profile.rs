//! Profiled steps: they compute what other steps do, and their file is read beside the model of a GPU.

use crate::runs::{FolderRun, Setup, open_gpu};
use gristmill::kernels::PublishedGpu;
use gristmill::perf::profile::Profile;
use gristmill::perf::roofline::Shaders;
use gristmill::train::recordings::Recordings;

const STEPS: u64 = 6;

/// A run of which steps 4 and 5 are profiled, and its profile.
fn profiled(tier: &str) -> (FolderRun, Profile) {
    let run = FolderRun::new(Setup::new("profiled", "").with(&[tier, "--profile=2"]));
    run.train(STEPS);
    let profile = Profile::read(&run.folder().join("profile.jsonl")).unwrap_or_else(|e| panic!("{e}"));
    (run, profile)
}

#[test]
fn profiled_steps_change_nothing() {
    for tier in ["--tier=software", "--tier=portable"] {
        let plain = FolderRun::new(Setup::new("profiled", "").with(&[tier]));
        plain.train(STEPS);
        assert!(!plain.folder().join("profile.jsonl").exists());
        let (run, profile) = profiled(tier);
        run.left().assert_equals(tier, &plain.left());
        assert_eq!((profile.adapter, profile.steps), (open_gpu().report().name.clone(), 2), "{tier}");
    }
}

#[test]
fn a_profile_is_read_beside_a_model() {
    let (run, profile) = profiled("--tier=portable");
    let recordings =
        |setup: &Setup| Recordings::new(&setup.plan(), profile.capabilities, 100).expect("recordings");
    let gpu = PublishedGpu::named("RTX 4090").expect("a published GPU");
    let tables = |setup: &Setup, gpu| profile.tables(&recordings(setup), &mut Shaders::default(), gpu, true);
    let with_model = tables(&run.setup, Some(&gpu)).unwrap_or_else(|e| panic!("{e}"));
    for expected in
        ["the model is of RTX 4090", "by the model", "model ms", "micro_step: ", "update: ", "attention"]
    {
        assert!(with_model.contains(expected), "{expected} is missing in\n{with_model}");
    }
    let without = tables(&run.setup, None).unwrap_or_else(|e| panic!("{e}"));
    assert!(without.contains("no model") && !without.contains("model ms"), "{without}");
    // The times of all launches are in the lines of the table.
    let launches = recordings(&run.setup).micro_step().dispatches.len();
    assert!(without.contains(&format!(" ms in {launches} launches")), "{without}");
    let other = tables(&Setup::new("other", "num_layers: 3"), None).map_err(|error| error.to_string());
    assert!(
        other.as_ref().is_err_and(|error| error.starts_with("the profile is of another micro_step")),
        "{other:?}"
    );
}

//! Shaders with and without faults.

use crate::{Bound, Launch, Report, barriers, without_barrier};
use naga::Module;
use naga::valid::{Capabilities, ValidationFlags, Validator};

const RACES: &str = include_str!("tests/races.wgsl");
const MATRICES: &str = include_str!("tests/matrices.wgsl");

/// Words that a test may write.
const WORDS: usize = 64;

/// Executes an entry point of `source`, as `amend` leaves it, by two workgroups. `counters` is in buffer `counted`.
/// Returns its words, too.
fn run(source: &str, entry: &str, counted: usize, amend: impl Fn(Module) -> Module) -> (Report, Vec<u32>) {
    let module = naga::front::wgsl::parse_str(source).expect("WGSL");
    let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module);
    let info = info.expect("a valid module");
    let module = amend(module);
    let values = (0..WORDS).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let mut buffers = [vec![0; 4 * WORDS], values, vec![0; 16]];
    let variables = module.global_variables.iter();
    let bindings: Vec<Bound> = variables
        .filter_map(|(variable, global)| {
            let binding = global.binding.as_ref()?.binding;
            let buffer = [0, counted, 1][binding as usize];
            Some(Bound { variable, buffer, range: 0..buffers[buffer].len() })
        })
        .collect();
    let grid = [if source == RACES { 2 } else { 1 }, 1, 1];
    let launch =
        Launch { module: &module, info: &info, source, entry, grid, subgroup: 4, bindings: &bindings };
    let report = launch.run(&mut buffers);
    let words = buffers[0].chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    (report, words.collect())
}

/// The faults of an entry point.
fn faults(source: &str, entry: &str, counted: usize) -> Vec<String> {
    run(source, entry, counted, |module| module).0.faults.into_iter().collect()
}

#[test]
fn clean_kernels_are_silent_and_compute() {
    let row = |i: u32| 16 * i + 6; // the sum of four neighbours
    let neighbours: Vec<u32> = (0..16).map(|i| row(i / 8 * 8 + (i + 1) % 8)).collect();
    let components: Vec<u32> = (0..16).map(|i| 4 + i % 4).collect();
    let sums: Vec<u32> = (0..16).map(|i| (2 + 2 + 6 + 6 + 12) + 100 + i % 8).collect();
    let uniform: Vec<u32> = (0..16).map(|i| i / 8).collect();
    for (entry, want) in
        [("neighbours", neighbours), ("components", components), ("sums", sums), ("uniform_load", uniform)]
    {
        let (report, words) = run(RACES, entry, 2, |module| module);
        assert!(report.faults.is_empty() && report.accesses > 0, "{entry}: {:?}", report.faults);
        assert_eq!(words[..16], want, "{entry}");
    }
    assert_eq!(faults(RACES, "counted", 2), [""; 0]);

    let (report, words) = run(MATRICES, "products", 2, |module| module);
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    let want: Vec<u32> = (0..64).map(|i| 2 + 4 * (i / 8 + i % 8) * (i % 8)).collect();
    assert_eq!(words, want);
}

#[test]
fn each_kind_of_fault_is_found() {
    for (source, entry, counted, wanted) in [
        (
            RACES,
            "same_word",
            2,
            "race of workgroups on `words`: written in `words[lane] = lane;` and written",
        ),
        (RACES, "other_workgroup", 2, "race of workgroups on `words`: written"),
        (RACES, "other_memory", 2, "race of invocations on `words`: written"),
        (
            RACES,
            "counted_and_written",
            0,
            "written in `words[0] = 1u;` and accessed atomically in `atomicAdd",
        ),
        (RACES, "same_value", 2, "race of invocations on `flag`: written in `flag = 1u;` and written"),
        (RACES, "divergent", 2, "not all invocations reach `workgroupBarrier();`"),
        (
            RACES,
            "past_the_end",
            2,
            "index 8 of 8 elements in `tile.rows[lane + 1u].x = values[lane + 9u].x;`",
        ),
        (RACES, "past_the_end", 2, "index 16 of 16 elements in"),
        (RACES, "unwritten", 2, "`flag` is read before it is written in"),
        (MATRICES, "one_place", 2, "race of invocations on `sums`: written in"),
        (MATRICES, "unaligned", 2, "a matrix is not at multiples of 16 bytes in `_ = coopLoad"),
    ] {
        let found = faults(source, entry, counted);
        assert!(found.iter().any(|fault| fault.contains(wanted)), "{entry}: {found:#?}");
    }
    assert_eq!(faults(RACES, "counted_and_written", 2), [""; 0], "two buffers");
}

/// Whichever barrier is removed, and whatever the lanes' order would make of it.
#[test]
fn a_missing_barrier_is_found() {
    for (source, entry) in
        [(RACES, "neighbours"), (RACES, "components"), (RACES, "sums"), (MATRICES, "products")]
    {
        let passed = run(source, entry, 2, |module| module).0.barriers;
        assert!(!passed.is_empty(), "{entry}");
        for site in passed {
            let (report, _) = run(source, entry, 2, |module| {
                assert!(barriers(&module).contains_key(&site));
                without_barrier(&module, site)
            });
            let is_race = |fault: &String| fault.starts_with("race of invocations on ");
            assert!(report.faults.iter().any(is_race), "{entry} without {site}: {:?}", report.faults);
        }
    }
}

//! Every file in `configs/` records without an adapter; the listings are golden: of each tier with the limits of the
//! adapters it runs on.
//!
//! `UPDATE_GOLDEN=1 cargo test --release --test without_adapter configs::` writes them again.

use gristmill::device::without_trial;
use gristmill::kernels::{Capabilities, Matrices, Tier, Units};
use gristmill::record::MemoryPlan;
use gristmill::settings::{Override, RunConfig};
use gristmill::train::recordings::{Recordings, assumed_capabilities};
use std::fs;
use std::path::Path;

#[test]
fn every_configuration_records() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for entry in fs::read_dir(root.join("configs")).expect("the folder of configurations") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|ending| ending != "yaml") {
            continue;
        }
        let config = RunConfig::load(&path, &[]).unwrap_or_else(|e| panic!("{e}"));
        let plan = config.plan;
        for tier in Tier::EVERYWHERE {
            let recordings =
                Recordings::new(&plan, assumed_capabilities(tier), 100).unwrap_or_else(|e| panic!("{e}"));
            let pool = MemoryPlan::new(&recordings.all());
            let mut listing = format!("{} bytes\n", recordings.persistents.bytes() + pool.bytes());
            for recording in recordings.all() {
                listing += &format!("\n{}\n{}", recording.name, folded(&recording.listing()));
            }
            assert_golden(
                &root.join(format!("tests/golden/{}_{}.txt", plan.settings.run.run_name, tier.name())),
                &listing,
            );
            count += 1;
        }
    }
    assert!(count > 0, "no configuration was found");
}

/// Before a run its kernels by matrices are compared with the portable ones: all of them.
#[test]
fn every_kernel_by_matrices_has_a_trial() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let compute = |element: &str| {
        let flag = format!("--model.model_config.compute_dtype={element}");
        Override::parse_all([flag.as_str()]).unwrap_or_else(|e| panic!("{e}"))
    };
    let mut count = 0;
    for entry in fs::read_dir(root).expect("the folder of configurations") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|ending| ending != "yaml") {
            continue;
        }
        for element in ["float16", "bfloat16", "float32"] {
            let config = RunConfig::load(&path, &compute(element)).unwrap_or_else(|e| panic!("{e}"));
            for matrices in [Matrices { side: 8, subgroup: 32 }, Matrices { side: 16, subgroup: 64 }] {
                for units in [16, 64, 128, Units::ASSUMED.count] {
                    let capabilities = Capabilities::matrix().with_matrices(matrices).with_split_f32(true);
                    let units = Units { count: units, ..capabilities.units };
                    let capabilities = capabilities.with_units(units);
                    let recordings = Recordings::new(&config.plan, capabilities, 100);
                    let recordings = recordings.unwrap_or_else(|e| panic!("{e}"));
                    assert_eq!(without_trial(&recordings.all(), capabilities), [], "{}", path.display());
                    let mut dispatches = recordings.all().into_iter().flat_map(|one| &one.dispatches);
                    count += usize::from(dispatches.any(|dispatch| dispatch.kernel.is_by_matrices()));
                }
            }
        }
    }
    assert!(count > 240, "{count} recordings have such kernels");
}

/// A listing in which each layer that equals the one before it is a single line.
fn folded(listing: &str) -> String {
    let mut text = String::new();
    let mut last: Option<(usize, String)> = None;
    for lines in layers_of(listing) {
        let layer = layer_of(lines[0]);
        let plain = |layer: usize| lines.join("\n").replace(&format!("layers.{layer}."), "layers._.");
        match (layer, &last) {
            (Some(layer), Some((before, done))) if plain(layer) == *done => {
                text += &format!("layers.{layer}: as layers.{before}\n");
            }
            _ => lines.iter().for_each(|line| text += &format!("{line}\n")),
        }
        last = layer.map(|layer| (layer, plain(layer)));
    }
    text
}

/// Runs of consecutive lines that belong to one layer, or to none.
fn layers_of(listing: &str) -> Vec<Vec<&str>> {
    let mut groups: Vec<Vec<&str>> = Vec::new();
    for line in listing.lines() {
        match groups.last_mut().filter(|group| layer_of(group[0]) == layer_of(line)) {
            Some(group) => group.push(line),
            None => groups.push(vec![line]),
        }
    }
    groups
}

fn layer_of(line: &str) -> Option<usize> {
    line.strip_prefix("layers.")?.split('.').next()?.parse().ok()
}

pub fn assert_golden(golden: &Path, listing: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(golden.parent().expect("a folder")).expect("a folder for goldens");
        fs::write(golden, listing).expect("a golden file");
    }
    let expected = fs::read_to_string(golden).unwrap_or_default();
    let first_difference = expected.lines().zip(listing.lines()).find(|(a, b)| a != b);
    assert!(
        expected == listing,
        "{} differs from the recording, first in {first_difference:?}; if that is meant, run UPDATE_GOLDEN=1 cargo test",
        golden.display()
    );
}

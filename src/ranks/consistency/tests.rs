//! Ranks that agree, and the messages about those that do not.

use super::{RankIdentity, differing_lines, units_of_first};
use crate::kernels::Units;
use crate::ranks::{Ranks, Transport, in_process};
use pollster::block_on;

#[test]
fn products_are_divided_for_the_first_rank() {
    let own = ["NVIDIA H100 80GB HBM3", "AMD Radeon RX 7900 XTX"].map(Units::of);
    assert_ne!(own[0], own[1]);
    let ranks = in_process::connect(2).into_iter().zip(own).map(|(transport, own)| {
        std::thread::spawn(move || {
            let ranks = Ranks::start(move || Ok(Box::new(transport) as Box<dyn Transport>)).expect("ranks");
            block_on(units_of_first(&ranks, own)).expect("what the first rank says")
        })
    });
    let agreed: Vec<_> =
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("a rank")).collect();
    assert_eq!(agreed, [own[0]; 2]);
}

#[test]
fn what_differs_is_named() {
    let own = |version: &str, settings: &str, data: &str| {
        let [version, settings, data] = [version, settings, data].map(str::to_string);
        RankIdentity { version, settings, data, hash: Some(7) }
    };
    let (first, remedy) =
        (own("1.0", "a: 1\n", "f00d"), "start all ranks with the same program, files and flags");
    assert_eq!(first.difference(&first), None);
    for (other, line) in [
        // Another version may write other settings for the same file.
        (own("1.1", "a: 2\n", "beef"), "this is gristmill 1.1, and rank 0 is 1.0"),
        (own("1.0", "a: 2\n", "beef"), "its settings have `a: 2` where those of rank 0 have `a: 1`"),
        (own("1.0", "a: 1\n", "beef"), "its data have the fingerprint beef, and those of rank 0 f00d"),
    ] {
        assert_eq!(other.difference(&first), Some(format!("{line}; {remedy}")));
    }
    // The data differ in a byte that the fingerprint does not see.
    let other = RankIdentity { hash: Some(8), ..first.clone() };
    assert!(other.difference(&first).unwrap().starts_with("its data have the hash 0000000000000008, and"));
    assert_eq!(RankIdentity { hash: None, ..other }.difference(&first), None);
}

#[test]
fn the_first_difference_is_shown() {
    assert_eq!(differing_lines("a: 1\nb: 2\n", "a: 1\nb: 2\n"), None);
    assert_eq!(differing_lines("a: 1\n  b: 2\n", "a: 1\n  b: 3\n"), Some(("b: 2", "b: 3")));
    assert_eq!(differing_lines("a: 1\n", "a: 1\nc: 3\n"), Some(("nothing more", "c: 3")));
}
